# CLEAR end to end: BM25, its errors as negatives, a dense model trained on its residual, both fused.
#   make clear DATA=path/to/collection OUT=out/mine          any collection of `hybrid prepare`, with train, dev and test
#   make demo                                                the embedded default, python-docs

DEV_QUERIES ?= 100
MAX_STEPS ?=
TRAIN ?= --batch-size 28 $(if $(MAX_STEPS),--max-steps $(MAX_STEPS))
LENGTHS ?= --query-max-len 64 --doc-max-len 128
MEASURES ?= MRR@10,nDCG@10,R@100,R@1000

CORPUS := $(DATA)/manifest.json
bm25 := $(OUT)/bm25/manifest.json
methods := bm25 before after before-minmax before-sum after-rrf after-minmax clear

demo: $(SETUP)  ## CLEAR on the documentation of your own Python libraries, in minutes
	@$(MAKE) --no-print-directory clear DATA=out/demo/pydocs OUT=out/demo MAX_STEPS=$(or $(MAX_STEPS),80)

clear: $(SETUP) $(foreach method,$(methods),$(OUT)/runs/$(method).test.parquet)  ## CLEAR on DATA: train, search, fuse, evaluate
	@$(HYBRID) evaluate $(DATA) --split test $(foreach method,$(methods),$(OUT)/runs/$(method).test.parquet) \
	    --measures $(MEASURES) --baseline bm25.test,best

%/pydocs/manifest.json: | $(SETUP)
	$(HYBRID) prepare python-docs --output $(@D) --overwrite

$(OUT)/bm25/manifest.json: $(CORPUS) | $(SETUP)
	$(HYBRID) index-bm25 $(DATA) --output $(@D) --overwrite

$(OUT)/train.parquet: $(bm25)
	$(HYBRID) mine-negatives $(DATA) --split train --index $(<D) --seed $(SEED) --output $@ --overwrite

$(OUT)/dev.parquet: $(bm25)
	$(HYBRID) mine-negatives $(DATA) --split dev --index $(<D) --depth 100 --num-negatives 4 --seed $(SEED) --output $@ --overwrite

$(OUT)/after/manifest.json: $(OUT)/train.parquet $(OUT)/dev.parquet
	$(HYBRID) train-dense $< --dev $(OUT)/dev.parquet --dev-queries $(DEV_QUERIES) --loss residual-margin \
	    --model $(MODEL) $(TRAIN) $(LENGTHS) --seed $(SEED) --output $(@D) --overwrite

$(OUT)/before-index/manifest.json: $(CORPUS) | $(SETUP)
	$(HYBRID) encode $(DATA) --model $(MODEL) $(LENGTHS) --output $(@D) --overwrite

$(OUT)/after-index/manifest.json: $(OUT)/after/manifest.json $(CORPUS)
	$(HYBRID) encode $(DATA) --model $(<D) --output $(@D) --overwrite

$(OUT)/runs/bm25.%.parquet: $(bm25)
	$(HYBRID) search $(DATA) --split $* --index $(<D) --output $@ --overwrite

$(OUT)/runs/before.%.parquet: $(OUT)/before-index/manifest.json
	$(HYBRID) search $(DATA) --split $* --index $(<D) --output $@ --overwrite

$(OUT)/runs/after.%.parquet: $(OUT)/after-index/manifest.json
	$(HYBRID) search $(DATA) --split $* --index $(<D) --output $@ --overwrite
