# RoC's ablation (RoC, Table 4): one dense model trained in five ways, each alone and in a weighted sum with BM25.
#
#   make roc DATA=FOLDER OUT=FOLDER     a table over SEEDS, and a report on the first seed
#
# Rows: `dense` (negative log-likelihood), `clear` (residual margin), `E` (orthogonality of embeddings), `I` (orthogonality of
# inputs), `EI` (both). All rows use the same examples in the same order, the weights of the last
# step, and a weight of the sum tuned on dev. `dualrm` is CLEAR with examples, batches and settings of its own: DUALRM_MINE and
# DUALRM_TRAIN; papers.mk has it.

ROC_MEASURES ?= MRR@10,MAP,R@20,R@100,Success@10
ROC_TRAIN ?= --max-steps 60 --dev-queries 60

DUALRM_MINE ?= $(MINE)
DUALRM_TRAIN ?= $(TRAIN)

# Several start models below one OUT have names of their own.
ROC_NAME ?= roc
ROC_ROWS ?= dense bm25+dense clear bm25+clear E bm25+E I bm25+I EI bm25+EI

roc_out := $(OUT)/$(ROC_NAME)
roc := $(roc_out)/seed-$(SEED)
roc_runs := bm25=$(OUT)/bm25.$(TEST).parquet \
    $(foreach seed,$(SEEDS),$(foreach row,$(ROC_ROWS),$(row)-$(seed)=$(roc_out)/seed-$(seed)/$(row).$(TEST).parquet))
roc_table = $(evaluate) $(roc_runs) --measure $(ROC_MEASURES) --output $(roc_out)/measurements.parquet

roc: $(SETUP) $(OUT)/bm25.$(TEST).parquet  ## RoC's ablation on DATA, SEEDS of each row, and a report
	$(each_seed)
	$(roc_table) --overwrite > $(roc_out)/table.txt
	@$(roc_table) --study over-seeds --roc-against bm25 --baseline bm25+dense,bm25+clear --correction bonferroni --format markdown
	@$(MAKE) --no-print-directory $(roc_out)/report.html SEED=$(firstword $(SEEDS))

roc-seed: $(ROC_ROWS:%=$(roc)/%.$(TEST).parquet)

# Encoders of one seed

roc_train = $(train_dense) $< --model $(MODEL) $(TRAIN) $(LENGTHS) $(ROC_TRAIN) --dev $(OUT)/dev.parquet \
    --index $(OUT)/bm25 --keep last --seed $(SEED) --output $(@D)

$(roc)/dense/manifest.json: $(OUT)/train-$(SEED).parquet $(OUT)/dev.parquet
	$(roc_train) --loss nll --ortho-weight 0 --mask-matches 0

$(roc)/clear/manifest.json: $(OUT)/train-$(SEED).parquet $(OUT)/dev.parquet
	$(roc_train) --loss residual-margin --ortho-weight 0 --mask-matches 0

$(roc)/E/manifest.json: $(OUT)/train-$(SEED).parquet $(OUT)/dev.parquet
	$(roc_train) --loss roc --mask-matches 0

$(roc)/I/manifest.json: $(OUT)/train-$(SEED).parquet $(OUT)/dev.parquet
	$(roc_train) --loss roc --ortho-weight 0

$(roc)/EI/manifest.json: $(OUT)/train-$(SEED).parquet $(OUT)/dev.parquet
	$(roc_train) --loss roc

$(roc)/errors.parquet: $(bm25)
	$(HYBRID) mine-negatives $(DATA) --split train --index $(<D) $(DUALRM_MINE) --seed $(SEED) --output $@ --overwrite

$(roc)/dualrm/manifest.json: $(roc)/errors.parquet
	$(train_dense) $< --model $(MODEL) $(DUALRM_TRAIN) $(LENGTHS) --loss residual-margin --seed $(SEED) --output $(@D)

# The model after each epoch, if training keeps it: dense-1, ... (RoC, Figure 5)

ROC_EPOCHS ?= 1 2 3
roc_by_epoch := $(foreach row,dense clear EI,$(ROC_EPOCHS:%=$(row)-%))

$(roc_by_epoch:%=$(roc)/%-index/manifest.json): $(roc)/%-index/manifest.json: $(foreach row,dense clear EI,$(roc)/$(row)/manifest.json)
	$(HYBRID) encode $(DATA) --model $(roc)/$(subst -,/epochs/,$*) --output $(@D) --overwrite

# The weight of each sum is tuned for MAP.

$(roc_out)/%.weights.json: TUNE_MEASURE = MAP

# Report on one seed

roc_report_rows := dense bm25+dense bm25+clear bm25+E bm25+I bm25+EI

$(roc_out)/report.html: $(OUT)/bm25.$(TEST).parquet $(roc_report_rows:%=$(roc)/%.$(TEST).parquet)
	$(HYBRID) report $(DATA) --split $(TEST) $(foreach run,$^,$(notdir $(run:.$(TEST).parquet=))=$(run)) \
	    --complement dense bm25 --measure MRR@10,MAP,R@20,R@100 --model $(roc)/dense --model $(roc)/clear \
	    --model $(roc)/E --model $(roc)/I --model $(roc)/EI --output $@ --overwrite
