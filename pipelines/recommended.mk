# The recommended recipe: objectives for the dense half of a hybrid, each alone and in the sum with BM25, on one collection.
#
#   make recommended DATA=FOLDER OUT=FOLDER      tables over SEEDS, on dev and on test; the values of every query in
#                                                MEASURED/recommended-NAME-dev.parquet and MEASURED/recommended-NAME.parquet
#
# Rows, X alone and bm25+X with the weight tuned on dev:
#   before          the start model, not trained (untrained sum)
#   nll             likelihood (naive sum)
#   nll-two         likelihood, two negatives of BM25 per query: the control of the next row
#   nll-dynamic     likelihood, one more negative: the first of the sum of BM25 and the model in training
#   clear           residual margin (CLEAR)
#   residual-nll    likelihood of the sum of dense and BM25 scores
#   roc             likelihood with both parts of RoC
#   nll-refresh     likelihood, one more negative: drawn from the first ranks of the sum in the whole collection, searched in each pass
#   nll-taught      likelihood and the divergence from the scores of TEACHER
#   nll-all         both
#   nll-scored      likelihood and the divergence from the scores of a cross-encoder, trained on the same examples
#   short           likelihood, SHORT_DIM dimensions; short-scored: with the scores of the cross-encoder, the teacher in place of LITE's
#   nll+static      `nll` and a static Lambda of RECIPE_DIM dimensions in one index, in place of BM25
#
# Every row uses the examples in the same order and the weights of the last step, so that validation selects nothing.

# RECIPE_ARMS selects the trained rows. Two passes are two times the examples by 28 steps. TEACHER is a dense index of DATA.

RECIPE_STEPS ?= 300
TEACHER ?=
TAUGHT_ARMS := $(if $(TEACHER),nll-taught nll-all)
RECIPE_ARMS ?= nll nll-two nll-dynamic nll-refresh $(TAUGHT_ARMS) clear residual-nll roc
RECIPE_STATIC ?= nll+static
RECIPE_DIM ?= 64
RECIPE_RERANKER ?= --max-steps $(RECIPE_STEPS)
SHORT_DIM ?= 32
RECIPE_NAME ?= $(notdir $(DATA))
RECIPE_MEASURES ?= MRR@10,nDCG@10,MAP,R@100,Success@10

recipe := $(OUT)/recommended/seed-$(SEED)
recipe_arms := $(RECIPE_ARMS)
recipe_rows := $(recipe_arms) $(recipe_arms:%=bm25+%) $(RECIPE_STATIC)
recipe_runs := bm25=$(OUT)/bm25.test.parquet before=$(OUT)/before.test.parquet bm25+before=$(OUT)/bm25+before.test.parquet \
    $(foreach seed,$(SEEDS),$(foreach row,$(recipe_rows),$(row)-$(seed)=$(OUT)/recommended/seed-$(seed)/$(row).test.parquet))
# Choose a row on dev. Sums are a little too good there, all in the same way: their weight was tuned on the same queries.
recipe_dev_rows := $(recipe_arms) $(recipe_arms:%=bm25+%)
recipe_dev_runs := bm25=$(OUT)/bm25.dev.parquet before=$(OUT)/before.dev.parquet bm25+before=$(OUT)/bm25+before.dev.parquet \
    $(foreach seed,$(SEEDS),$(foreach row,$(recipe_dev_rows),$(row)-$(seed)=$(OUT)/recommended/seed-$(seed)/$(row).dev.parquet))

recommended: $(SETUP) $(OUT)/bm25+before.test.parquet $(OUT)/bm25+before.dev.parquet  ## objectives for the dense half of a hybrid on DATA, SEEDS of each
	$(each_seed)
	@$(HYBRID) evaluate $(DATA) --split dev $(recipe_dev_runs) --measure $(RECIPE_MEASURES) \
	    --output $(MEASURED)/recommended-$(RECIPE_NAME)-dev.parquet --overwrite --study over-seeds --baseline bm25+nll
	@$(evaluate) $(recipe_runs) --measure $(RECIPE_MEASURES) --output $(MEASURED)/recommended-$(RECIPE_NAME).parquet --overwrite \
	    --study over-seeds --baseline bm25+nll

recommended-seed: $(recipe_rows:%=$(recipe)/%.test.parquet) $(recipe_dev_rows:%=$(recipe)/%.dev.parquet)

recipe_train = $(train_dense) $< --model $(MODEL) $(TRAIN) $(LENGTHS) --max-steps $(RECIPE_STEPS) --seed $(SEED) --output $(@D)

$(recipe)/nll/manifest.json: $(OUT)/train-$(SEED).parquet
	$(recipe_train) --loss nll

$(recipe)/nll-two/manifest.json: $(OUT)/train-$(SEED).parquet
	$(recipe_train) --loss nll --negatives 2

$(recipe)/nll-dynamic/manifest.json: $(OUT)/train-$(SEED).parquet
	$(recipe_train) --loss nll --dynamic-negatives 1 --dynamic-ranking sum --index $(OUT)/bm25

recipe_refresh = --dynamic-negatives 1 --dynamic-ranking sum --index $(OUT)/bm25 --refresh-negatives $(shell expr $(RECIPE_STEPS) / 2)
recipe_taught = --distill kl --teacher $(TEACHER) --teacher-temperature 0.05

$(recipe)/nll-refresh/manifest.json: $(OUT)/train-$(SEED).parquet
	$(recipe_train) --loss nll $(recipe_refresh)

$(recipe)/nll-taught/manifest.json: $(OUT)/train-$(SEED).parquet
	$(recipe_train) --loss nll $(recipe_taught)

$(recipe)/nll-all/manifest.json: $(OUT)/train-$(SEED).parquet
	$(recipe_train) --loss nll $(recipe_refresh) $(recipe_taught)

$(OUT)/reranker-%/manifest.json: $(OUT)/train-%.parquet
	$(HYBRID) train-reranker $< --model $(MODEL) $(RECIPE_RERANKER) --seed $* --output $(@D) --overwrite

$(OUT)/scored-%.parquet: $(OUT)/train-%.parquet $(OUT)/reranker-%/manifest.json
	$(HYBRID) rerank $< --model $(OUT)/reranker-$* --collection $(DATA) --split train --output $@ --overwrite

$(recipe)/nll-scored/manifest.json: $(OUT)/scored-$(SEED).parquet
	$(recipe_train) --loss nll --distill kl

$(recipe)/short/manifest.json: $(OUT)/train-$(SEED).parquet
	$(recipe_train) --loss nll --dim $(SHORT_DIM)

$(recipe)/short-scored/manifest.json: $(OUT)/scored-$(SEED).parquet
	$(recipe_train) --loss nll --distill kl --dim $(SHORT_DIM)

$(recipe)/clear/manifest.json: $(OUT)/train-$(SEED).parquet
	$(recipe_train) --loss residual-margin

$(recipe)/residual-nll/manifest.json: $(OUT)/train-$(SEED).parquet
	$(recipe_train) --loss residual-nll --index $(OUT)/bm25

$(recipe)/roc/manifest.json: $(OUT)/train-$(SEED).parquet
	$(recipe_train) --loss roc --index $(OUT)/bm25

# Static Lambda, in one index with the dense half; the weight applies to the query. The labels come from spar.mk.

$(recipe)/static/manifest.json: $(OUT)/labels-sampled/manifest.json
	$(HYBRID) train-lambda $(DATA) --encoder static --labels $(<D) --index $(OUT)/bm25 --dim $(RECIPE_DIM) --seed $(SEED) \
	    --output $(@D) --overwrite

$(recipe)/nll+static-index/manifest.json: $(recipe)/nll-index/manifest.json $(recipe)/static-index/manifest.json
	$(HYBRID) encode $(<D) --concat-with $(recipe)/static-index --output $(@D) --overwrite

$(recipe)/nll+static/manifest.json: $(recipe)/nll+static-index/manifest.json
	$(HYBRID) combine $(recipe)/nll $(recipe)/static --tune $(DATA) --split dev --index $(<D) --measure $(TUNE_MEASURE) \
	    --output $(@D) --overwrite

$(recipe)/nll+static.test.parquet: $(recipe)/nll+static-index/manifest.json $(recipe)/nll+static/manifest.json
	$(HYBRID) search $(DATA) --split test --index $(<D) --model $(recipe)/nll+static --output $@ --overwrite
