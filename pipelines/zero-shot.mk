# Encoders on a collection that they were not trained on, each alone and fused with BM25 by min-max (LITE, Table 3).
#
#   make zero-shot DATA=FOLDER OUT=FOLDER FROM=FOLDER MODELS='NAME ...'
#
# NAME is the folder of an encoder in FROM. After `make lite OUT=out/study`: FROM=out/study/lite/seed-1 MODELS='dpr dpr32 lite'.

MODELS ?=
ZERO_MEASURES ?= nDCG@10,R@100
zero := $(OUT)/zero-shot
zero_runs := bm25=$(OUT)/bm25.$(TEST).parquet $(foreach model,$(MODELS), \
    $(model)=$(zero)/$(model).$(TEST).parquet bm25+$(model)=$(zero)/bm25+$(model).minmax.$(TEST).parquet)

zero-shot: $(SETUP) $(filter %.parquet,$(subst =, ,$(zero_runs)))  ## encoders MODELS in FROM on DATA, without training
	@$(evaluate) $(zero_runs) --measure $(ZERO_MEASURES) --output $(zero)/measurements.parquet --overwrite

$(zero)/%-index/manifest.json: $(FROM)/%/manifest.json $(corpus) | $(SETUP)
	$(HYBRID) encode $(DATA) --model $(<D) --output $(@D) --overwrite
