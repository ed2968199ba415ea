# Models on a collection that they were not trained on, each alone and fused with BM25 by min-max (LITE's Table 3).
#
#   make zero-shot DATA=FOLDER OUT=FOLDER FROM=FOLDER MODELS='NAME ...'
#
# NAME is an encoder's folder below FROM. After `make lite`: FROM=out/pydocs-study/lite MODELS='dpr-1 dpr32-1 lite-1'.

MODELS ?=
ZERO_MEASURES ?= nDCG@10,R@100
zero := $(OUT)/zero-shot
zero_rows := $(MODELS) $(MODELS:%=bm25+%)

zero-shot: $(SETUP) $(OUT)/runs/bm25.test.parquet $(zero_rows:%=$(zero)/%.test.parquet)  ## MODELS below FROM on DATA, which they never saw
	@$(HYBRID) evaluate $(DATA) --split test bm25=$(OUT)/runs/bm25.test.parquet \
	    $(foreach row,$(zero_rows),$(row)=$(zero)/$(row).test.parquet) --measures $(ZERO_MEASURES) \
	    --output $(zero)/measurements.parquet --overwrite

$(MODELS:%=$(zero)/%-index/manifest.json): $(zero)/%-index/manifest.json: $(FROM)/%/manifest.json $(corpus)
	$(HYBRID) encode $(DATA) --model $(<D) --output $(@D) --overwrite

$(zero)/%.test.parquet: $(zero)/%-index/manifest.json
	$(HYBRID) search $(DATA) --split test --index $(<D) --output $@ --overwrite

$(zero)/bm25+%.test.parquet: $(OUT)/runs/bm25.test.parquet $(zero)/%.test.parquet
	$(HYBRID) fuse $^ --method minmax --output $@ --overwrite
