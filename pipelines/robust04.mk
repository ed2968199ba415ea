# Robust04's protocol (methods 10.8): cross-validation over the judged queries, one evaluation of all test rankings.
#
#   make robust04 DATA=FOLDER OUT=FOLDER                     PARTS folds, seeded
#   make robust04 DATA=FOLDER OUT=FOLDER FOLDS=folds.json    those of a file, PARTS in number
#
# For each fold a model is trained on train-i, its weight in the sum with BM25 tuned on dev-i, and test-i ranked.

PARTS ?= 5
FOLDS ?=
LOSS ?= roc
FOLD_LENGTHS ?= --query-max-len 64 --doc-max-len 512
FOLD_MEASURES ?= MAP,nDCG@20,P@30

numbers := $(shell seq $(PARTS))
folds := $(OUT)/folds/manifest.json
fold_rows := bm25 bm25+rm3 dense bm25+dense
fold_joined := bm25 dense bm25+dense
fold_trained := $(HYBRID) train-dense --model $(MODEL) $(TRAIN) $(FOLD_LENGTHS) --overwrite

robust04: $(SETUP) $(fold_rows:%=$(OUT)/runs/%.parquet)  ## cross-validation on DATA into OUT: train, tune, test, evaluate once
	@$(HYBRID) evaluate $(OUT)/folds --split all $(foreach row,$(fold_rows),$(row)=$(OUT)/runs/$(row).parquet) \
	    --measures $(FOLD_MEASURES) --baseline bm25

$(folds): $(corpus) $(FOLDS) | $(SETUP)
	$(HYBRID) split $(DATA) --folds $(PARTS) $(FOLDS:%=--folds-file %) --output $(@D) --overwrite

$(OUT)/runs/bm25+rm3.parquet: $(bm25) $(folds)
	$(HYBRID) search $(OUT)/folds --split all --index $(<D) --rm3 --output $@ --overwrite

$(fold_joined:%=$(OUT)/runs/%.parquet): $(OUT)/runs/%.parquet: \
    $(foreach number,$(numbers),$(OUT)/fold-$(number)/%.test.parquet)
	$(HYBRID) concat-runs $^ --output $@ --overwrite

# $(call fold,NUMBER): % is dev or test
define fold
$(OUT)/fold-$(1)/train.parquet: $(bm25) $(folds)
	$(HYBRID) mine-negatives $(OUT)/folds --split train-$(1) --index $$(<D) --seed $(SEED) --output $$@ --overwrite

$(OUT)/fold-$(1)/dense/manifest.json: $(OUT)/fold-$(1)/train.parquet
	$(fold_trained) $$< --loss $(LOSS) --index $(OUT)/bm25 --seed $(SEED) --output $$(@D)

$(OUT)/fold-$(1)/bm25.%.parquet: $(bm25) $(folds)
	$(HYBRID) search $(OUT)/folds --split $$*-$(1) --index $$(<D) --output $$@ --overwrite

$(OUT)/fold-$(1)/dense.%.parquet: $(OUT)/fold-$(1)/dense-index/manifest.json $(folds)
	$(HYBRID) search $(OUT)/folds --split $$*-$(1) --index $$(<D) --output $$@ --overwrite

$(OUT)/fold-$(1)/weights.json: $(OUT)/fold-$(1)/bm25.dev.parquet $(OUT)/fold-$(1)/dense.dev.parquet
	$(HYBRID) fuse $$^ $(tuned) --index $(OUT)/bm25,$(OUT)/fold-$(1)/dense-index --qrels $(OUT)/folds --split dev-$(1) \
	    --tune --grid log --measure MAP --output $$@

$(OUT)/fold-$(1)/bm25+dense.test.parquet: $(OUT)/fold-$(1)/weights.json $(OUT)/fold-$(1)/bm25.test.parquet \
    $(OUT)/fold-$(1)/dense.test.parquet
	$(HYBRID) fuse $$(wordlist 2,3,$$^) $(tuned) --index $(OUT)/bm25,$(OUT)/fold-$(1)/dense-index --weights @$$< --output $$@

endef
$(foreach number,$(numbers),$(eval $(call fold,$(number))))
