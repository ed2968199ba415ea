# CLEAR: BM25, its errors as negatives, a dense model trained on the residual of BM25, the weighted sum of both.
#
#   make clear DATA=FOLDER OUT=FOLDER   CLEAR on any collection with the splits train, dev and test
#   make ablations DATA=... OUT=...     residual margin, constant margin, random negatives, SEEDS of each
#
# LOSS of the dense model: CLEAR's, or any other of `train-dense`. Rows: `before` is the untrained model, `after` the trained
# one; the last is their sum, CLEAR with the default LOSS.

LOSS ?= residual-margin

clear_runs := \
    bm25=$(OUT)/bm25.$(TEST).parquet \
    before=$(OUT)/before.$(TEST).parquet \
    after=$(OUT)/after.$(TEST).parquet \
    bm25+before-minmax=$(OUT)/bm25+before.minmax.$(TEST).parquet \
    bm25+before-tuned=$(OUT)/bm25+before.$(TEST).parquet \
    bm25+after-rrf=$(OUT)/bm25+after.rrf.$(TEST).parquet \
    bm25+after-minmax=$(OUT)/bm25+after.minmax.$(TEST).parquet \
    bm25+after-tuned=$(OUT)/bm25+after.$(TEST).parquet

# The paths in NAME=PATH
clear_files := $(filter %.parquet,$(subst =, ,$(clear_runs)))

clear: $(SETUP) $(clear_files)  ## CLEAR on DATA: train, search, fuse, evaluate
	@$(evaluate) $(clear_runs) --measure $(MEASURES) --baseline bm25,before,after

$(OUT)/after/manifest.json: $(OUT)/train-$(SEED).parquet $(OUT)/dev.parquet
	$(train_dense) $< --model $(MODEL) $(TRAIN) $(LENGTHS) --loss $(LOSS) \
	    --dev $(OUT)/dev.parquet --dev-queries $(DEV_QUERIES) --seed $(SEED) --output $(@D)

$(OUT)/report.html: $(clear_files)
	$(HYBRID) report $(DATA) --split $(TEST) $(clear_runs) --complement after bm25 --model $(OUT)/after \
	    --measure $(MEASURES) --output $@ --overwrite

# Ablations, one seed. Every variant uses the weights of its last step, so that validation selects nothing.

ablation_rows := residual bm25+residual constant bm25+constant random bm25+random
ablation := $(OUT)/ablations/seed-$(SEED)
ablation_runs := bm25=$(OUT)/bm25.$(TEST).parquet before=$(OUT)/before.$(TEST).parquet bm25+before=$(OUT)/bm25+before.$(TEST).parquet \
    $(foreach seed,$(SEEDS),$(foreach row,$(ablation_rows),$(row)-$(seed)=$(OUT)/ablations/seed-$(seed)/$(row).$(TEST).parquet))
ablation_table = $(evaluate) $(ablation_runs) --measure $(MEASURES) --output $(OUT)/ablations/measurements.parquet

ablations: $(SETUP) $(OUT)/bm25.$(TEST).parquet $(OUT)/before.$(TEST).parquet $(OUT)/bm25+before.$(TEST).parquet  ## CLEAR's ablations on DATA: loss and negatives, SEEDS of each
	$(each_seed)
	$(ablation_table) --overwrite > $(OUT)/ablations/table.txt
	@$(ablation_table) --study over-seeds --format markdown

ablations-seed: $(ablation_rows:%=$(ablation)/%.$(TEST).parquet)

$(ablation)/residual/manifest.json: $(OUT)/train-$(SEED).parquet
	$(train_dense) $< --model $(MODEL) $(TRAIN) $(LENGTHS) --loss residual-margin --seed $(SEED) --output $(@D)

$(ablation)/constant/manifest.json: $(OUT)/train-$(SEED).parquet
	$(train_dense) $< --model $(MODEL) $(TRAIN) $(LENGTHS) --loss residual-margin --scorer-weight 0 --seed $(SEED) --output $(@D)

$(ablation)/random/manifest.json: $(ablation)/random-negatives.parquet
	$(train_dense) $< --model $(MODEL) $(TRAIN) $(LENGTHS) --loss residual-margin --seed $(SEED) --output $(@D)

# Triples of other tools, such as MS MARCO's, in place of mined negatives: GIVEN_TRIPLES is their file, `triples` their split.

GIVEN_TRIPLES ?=

$(ablation)/triples/manifest.json: $(ablation)/given-negatives.parquet
	$(train_dense) $< --model $(MODEL) $(TRAIN) $(LENGTHS) --loss residual-margin --seed $(SEED) --output $(@D)

$(ablation)/given-negatives.parquet: $(bm25)
	$(HYBRID) mine-negatives $(DATA) --split triples --index $(<D) --sources given:$(GIVEN_TRIPLES) --seed $(SEED) --output $@ --overwrite

$(ablation)/random-negatives.parquet: $(bm25)
	$(HYBRID) mine-negatives $(DATA) --split train --index $(<D) $(MINE) --prob 0 --seed $(SEED) --output $@ --overwrite
