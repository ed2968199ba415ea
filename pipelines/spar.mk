# SPAR: an encoder Lambda that imitates BM25, combined with a dense encoder in one index (SPAR, section 3).
#
#   make spar DATA=FOLDER OUT=FOLDER     a table over SEEDS, and the first seed with shuffled queries
#
# Rows:
#   dense          dense encoder
#   two            two dense encoders in one index (control)
#   init           dense encoder initialized from Lambda
#   joint          dense encoder trained with a frozen Lambda, and Lambda
#   sum, concat    dense encoder and Lambda: weighted sum, weighted concatenation
#   lambda         Lambda (transformer) alone
#   static         static Lambda (bag of words) alone
#   static+dense   dense encoder and static Lambda: weighted concatenation
#   bm25+X         weighted sum of the scores of BM25 and X

SPAR_MEASURES ?= MRR@10,R@20,R@100,Success@20,Success@100
SPAR_TRAIN ?= --max-steps 60 --dev-queries 60 --eval-steps 60
LAMBDA_TRAIN ?= --max-steps 150 --batch-size 28 --lr 1e-4 --eval-steps 30
STATIC_TRAIN ?= --dim 64
LABEL ?= --queries-from sampled --seed $(LABEL_SEED)
LABEL_SEED ?= 42
SPAR_TUNE ?= --measure MRR@10

spar := $(OUT)/spar/seed-$(SEED)
SPAR_ROWS ?= dense two init joint sum concat lambda static static+dense bm25+dense bm25+concat bm25+static+dense
spar_runs := bm25=$(OUT)/bm25.$(TEST).parquet \
    $(foreach seed,$(SEEDS),$(foreach row,$(SPAR_ROWS),$(row)-$(seed)=$(OUT)/spar/seed-$(seed)/$(row).$(TEST).parquet))
spar_table = $(evaluate) $(spar_runs) --measure $(SPAR_MEASURES) --overlap-with bm25 --output $(OUT)/spar/measurements.parquet

spar: $(SETUP) $(OUT)/bm25.$(TEST).parquet  ## SPAR on DATA, SEEDS of each row: dense and Lambda in one index
	$(each_seed)
	@$(MAKE) --no-print-directory $(OUT)/spar/shuffled.txt SEED=$(firstword $(SEEDS))
	$(spar_table) --overwrite > $(OUT)/spar/table.txt
	@$(spar_table) --study over-seeds --baseline dense,bm25+dense --correction bonferroni --format markdown
	@cat $(OUT)/spar/shuffled.txt

spar-seed: $(SPAR_ROWS:%=$(spar)/%.$(TEST).parquet)

# Lambda learns from the BM25 ranking of sentences of the corpus. All seeds share the labels.

$(OUT)/labels-sampled/manifest.json: $(bm25)
	$(HYBRID) label $(DATA) --index $(<D) $(LABEL) --output $(@D) --overwrite

spar_lambda = $(HYBRID) train-lambda $(DATA) --labels $(<D) --index $(OUT)/bm25 --dev dev --seed $(SEED) --output $(@D) --overwrite

$(spar)/lambda/manifest.json: $(OUT)/labels-sampled/manifest.json
	$(spar_lambda) --model $(MODEL) $(LENGTHS) $(LAMBDA_TRAIN)

# Lambda with few dimensions (LITE, section 8): lambda-32 and others

LAMBDA_DIMS := 32 64 96 128 160 192

$(LAMBDA_DIMS:%=$(spar)/lambda-%/manifest.json): $(spar)/lambda-%/manifest.json: $(OUT)/labels-sampled/manifest.json
	$(spar_lambda) --model $(MODEL) $(LENGTHS) $(LAMBDA_TRAIN) --dim $*

$(spar)/static/manifest.json: $(OUT)/labels-sampled/manifest.json
	$(spar_lambda) --encoder static $(STATIC_TRAIN)

# Dense encoders

spar_dense = $(train_dense) $< $(TRAIN) $(LENGTHS) $(SPAR_TRAIN) --dev $(OUT)/dev.parquet --keep last --output $(@D)

$(spar)/dense/manifest.json: $(OUT)/train-$(SEED).parquet $(OUT)/dev.parquet
	$(spar_dense) --loss nll --model $(MODEL) --seed $(SEED)

$(spar)/second/manifest.json: $(OUT)/train-$(SEED).parquet $(OUT)/dev.parquet
	$(spar_dense) --loss nll --model $(MODEL) --seed 1$(SEED)

$(spar)/init/manifest.json: $(OUT)/train-$(SEED).parquet $(spar)/lambda/manifest.json $(OUT)/dev.parquet
	$(spar_dense) --loss nll --model $(spar)/lambda --seed $(SEED)

$(spar)/frozen/manifest.json: $(OUT)/train-$(SEED).parquet $(spar)/lambda/manifest.json $(OUT)/dev.parquet
	$(spar_dense) --loss residual-nll --scorer $(spar)/lambda --scorer-schedule learned --model $(MODEL) --seed $(SEED)

# Combinations: one index over the vectors of both encoders (X-index), then the weight tuned on dev (X-tuned).

spar_index = $(HYBRID) encode $(<D) --concat-with $(lastword $(^D)) --output $(@D) --overwrite
spar_tune = $(HYBRID) combine --tune $(DATA) --split dev $(SPAR_TUNE) --index $(<D) --output $(@D) --overwrite

$(spar)/two-index/manifest.json: $(spar)/dense-index/manifest.json $(spar)/second-index/manifest.json
	$(spar_index) --combine concat

$(spar)/two-tuned/manifest.json: $(spar)/two-index/manifest.json
	$(spar_tune) --combine concat $(spar)/dense $(spar)/second

$(spar)/joint-index/manifest.json: $(spar)/frozen-index/manifest.json $(spar)/lambda-index/manifest.json
	$(spar_index) --combine concat

$(spar)/joint-tuned/manifest.json: $(spar)/joint-index/manifest.json
	$(spar_tune) --combine concat $(spar)/frozen $(spar)/lambda

$(spar)/sum-index/manifest.json: $(spar)/dense-index/manifest.json $(spar)/lambda-index/manifest.json
	$(spar_index) --combine sum

$(spar)/sum-tuned/manifest.json: $(spar)/sum-index/manifest.json
	$(spar_tune) --combine sum $(spar)/dense $(spar)/lambda

$(spar)/concat-index/manifest.json: $(spar)/dense-index/manifest.json $(spar)/lambda-index/manifest.json
	$(spar_index) --combine concat

$(spar)/concat-tuned/manifest.json: $(spar)/concat-index/manifest.json
	$(spar_tune) --combine concat $(spar)/dense $(spar)/lambda

$(spar)/static+dense-index/manifest.json: $(spar)/dense-index/manifest.json $(spar)/static-index/manifest.json
	$(spar_index) --combine concat

$(spar)/static+dense-tuned/manifest.json: $(spar)/static+dense-index/manifest.json
	$(spar_tune) --combine concat $(spar)/dense $(spar)/static

spar_tuned := two joint sum concat static+dense

ifneq ($(TEST),dev)
$(spar_tuned:%=$(spar)/%.dev.parquet): %.dev.parquet: %-index/manifest.json %-tuned/manifest.json
	$(HYBRID) search $(DATA) --split dev --index $*-index --model $*-tuned --output $@ --overwrite
endif

$(spar_tuned:%=$(spar)/%.$(TEST).parquet): %.$(TEST).parquet: %-index/manifest.json %-tuned/manifest.json
	$(HYBRID) search $(DATA) --split $(TEST) --index $*-index --model $*-tuned --output $@ --overwrite

# Word order: one seed with the words of each query shuffled (SPAR, Table 7)

spar_shuffled_runs := \
    bm25=$(OUT)/bm25.$(TEST).parquet bm25.shuffled=$(OUT)/spar/bm25.shuffled.parquet \
    dense=$(spar)/dense.$(TEST).parquet dense.shuffled=$(spar)/dense.shuffled.parquet \
    lambda=$(spar)/lambda.$(TEST).parquet lambda.shuffled=$(spar)/lambda.shuffled.parquet \
    static=$(spar)/static.$(TEST).parquet static.shuffled=$(spar)/static.shuffled.parquet

$(OUT)/spar/shuffled.txt: $(filter %.parquet,$(subst =, ,$(spar_shuffled_runs)))
	$(evaluate) $(spar_shuffled_runs) --measure $(SPAR_MEASURES) > $@

$(OUT)/spar/queries.shuffle.parquet: $(corpus) | $(SETUP)
	$(HYBRID) perturb $(DATA) --split $(TEST) --attack shuffle --output $@ --overwrite

%.shuffled.parquet: %-index/manifest.json $(OUT)/spar/queries.shuffle.parquet
	$(HYBRID) search --queries $(lastword $^) --index $(<D) --output $@ --overwrite

$(OUT)/spar/bm25.shuffled.parquet: $(bm25) $(OUT)/spar/queries.shuffle.parquet
	$(HYBRID) search --queries $(lastword $^) --index $(<D) --output $@ --overwrite
