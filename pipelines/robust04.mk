# Cross-validation over the judged queries, as usual on Robust04: one evaluation over the test rankings of all folds.
#
#   make cross-validation DATA=FOLDER OUT=FOLDER                     PARTS seeded folds
#   make cross-validation DATA=FOLDER OUT=FOLDER FOLDS=folds.json    existing folds, PARTS in number
#   make cross-validation DATA=FOLDER OUT=FOLDER NO_DEV=1            no dev folds: RoC's 200 training and 50 test queries
#
# In a rule, % is the number of the fold. In each fold, a model FOLD_ROW is trained on train-%, the weight of its sum with BM25 is
# tuned on dev-%, and test-% is ranked. papers.mk trains several rows.

PARTS ?= 5
FOLDS ?=
FOLD_ROW ?= dense
FOLD_LOSS ?= roc
FOLD_OPTIONS ?=
FOLD_INDEX ?= $(if $(filter roc,$(FOLD_LOSS)),--index $(OUT)/bm25)
# Options of a sparse encoder in place of a dense one, such as --architecture sparterm
FOLD_SPARSE ?=
FOLD_LENGTHS ?= --query-max-len 64 --doc-max-len 512
# Options of a reranker of the first TOP_K hits of BM25, which is not fused with BM25
FOLD_RERANKER ?=
# Name of the examples; rows with other MINE have examples of their own
FOLD_EXAMPLES ?= train
FOLD_MEASURES ?= MAP,nDCG@20,P@30
# NO_DEV=1 trains on all queries outside of the test fold (RoC, table 2: 200 of 250) and tunes the weight on the same queries.
NO_DEV ?=
fold_tuned := $(if $(NO_DEV),train,dev)

fold := $(OUT)/fold-%
fold_numbers := $(shell seq $(PARTS))
folds := $(OUT)/folds/manifest.json
fold_runs := \
    bm25=$(OUT)/bm25.all.parquet \
    bm25+rm3=$(OUT)/bm25+rm3.all.parquet \
    $(foreach row,$(FOLD_ROW) $(if $(FOLD_RERANKER),,bm25+$(FOLD_ROW)),$(row)=$(OUT)/$(row).all.parquet)

cross-validation: $(SETUP) $(filter %.parquet,$(subst =, ,$(fold_runs)))  ## cross-validation on DATA: train, tune and test each fold, evaluate once
	@$(HYBRID) evaluate $(OUT)/folds --split all $(fold_runs) --measure $(FOLD_MEASURES) --baseline bm25

$(folds): $(corpus) $(FOLDS) | $(SETUP)
	$(HYBRID) split $(DATA) --folds $(PARTS) $(FOLDS:%=--folds-file %) $(if $(NO_DEV),--no-dev) --output $(@D) --overwrite

# Each fold: examples, encoder (its index: common.mk), runs, weights, fused run

$(fold)/$(FOLD_EXAMPLES).parquet: $(bm25) $(folds)
	$(HYBRID) mine-negatives $(OUT)/folds --split train-$* --index $(<D) $(MINE) --seed $(SEED) --output $@ --overwrite

$(fold)/$(FOLD_ROW)/manifest.json: $(fold)/$(FOLD_EXAMPLES).parquet
	$(if $(FOLD_RERANKER),$(HYBRID) train-reranker $< --model $(MODEL) $(RERANKER) $(FOLD_RERANKER) --seed $(SEED) --output $(@D) --overwrite,$(if \
	    $(FOLD_SPARSE),$(train_sparse) $(FOLD_SPARSE),$(train_dense) $< --model $(MODEL) $(TRAIN) $(FOLD_LENGTHS) \
	    --loss $(FOLD_LOSS) $(FOLD_OPTIONS) $(FOLD_INDEX) --seed $(SEED) --output $(@D)))

$(fold)/bm25.$(fold_tuned).parquet: $(bm25) $(folds)
	$(HYBRID) search $(OUT)/folds --split $(fold_tuned)-$* --index $(<D) --output $@ --overwrite

$(fold)/bm25.test.parquet: $(bm25) $(folds)
	$(HYBRID) search $(OUT)/folds --split test-$* --index $(<D) --output $@ --overwrite

$(fold)/$(FOLD_ROW).$(fold_tuned).parquet: $(fold)/$(FOLD_ROW)-index/manifest.json $(folds)
	$(HYBRID) search $(OUT)/folds --split $(fold_tuned)-$* --index $(<D) --output $@ --overwrite

ifeq ($(FOLD_RERANKER),)
$(fold)/$(FOLD_ROW).test.parquet: $(fold)/$(FOLD_ROW)-index/manifest.json $(folds)
	$(HYBRID) search $(OUT)/folds --split test-$* --index $(<D) --output $@ --overwrite
else
$(fold)/$(FOLD_ROW).test.parquet: $(fold)/bm25.test.parquet $(fold)/$(FOLD_ROW)/manifest.json
	$(HYBRID) rerank $< --model $(@D)/$(FOLD_ROW) --depth $(TOP_K) --output $@ --overwrite
endif

$(fold)/$(FOLD_ROW).weights.json: $(fold)/bm25.$(fold_tuned).parquet $(fold)/$(FOLD_ROW).$(fold_tuned).parquet
	$(weighted_sum) $^ --index $(OUT)/bm25,$(@D)/$(FOLD_ROW)-index --qrels $(OUT)/folds --split $(fold_tuned)-$* \
	    --tune $(TUNE) --measure MAP --output $@

$(fold)/bm25+$(FOLD_ROW).test.parquet: $(fold)/bm25.test.parquet $(fold)/$(FOLD_ROW).test.parquet $(fold)/$(FOLD_ROW).weights.json
	$(weighted_sum) $(filter %.parquet,$^) --index $(OUT)/bm25,$(@D)/$(FOLD_ROW)-index --weights @$(@D)/$(FOLD_ROW).weights.json --output $@

# All folds: the test rankings in one run

$(OUT)/bm25.all.parquet: $(fold_numbers:%=$(OUT)/fold-%/bm25.test.parquet)
	$(HYBRID) concat-runs $^ --output $@ --overwrite

$(OUT)/$(FOLD_ROW).all.parquet: $(fold_numbers:%=$(OUT)/fold-%/$(FOLD_ROW).test.parquet)
	$(HYBRID) concat-runs $^ --output $@ --overwrite

$(OUT)/bm25+$(FOLD_ROW).all.parquet: $(fold_numbers:%=$(OUT)/fold-%/bm25+$(FOLD_ROW).test.parquet)
	$(HYBRID) concat-runs $^ --output $@ --overwrite

$(OUT)/bm25+rm3.all.parquet: $(bm25) $(folds)
	$(HYBRID) search $(OUT)/folds --split all --index $(<D) --rm3 --tune --folds $(PARTS) --output $@ --overwrite
