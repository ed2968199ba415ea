# Memory, quality and latency by index type (LITE, Table 2): one dense index as each of KINDS, alone and fused with BM25.
#
#   make memory-table DATA=FOLDER OUT=FOLDER
#
# DENSE is the dense index to convert, by default that of the untrained model. MORE adds rows for existing runs. After
# `make lite`: MORE='lite=OUT/lite/seed-1/lite.test.parquet bm25+lite=OUT/lite/seed-1/bm25+lite.minmax.test.parquet'.

KINDS ?= flat fp16 sq8 pq binary
DENSE ?= $(OUT)/before-index
MORE ?=
memory := $(OUT)/memory
memory_runs := bm25=$(OUT)/bm25.test.parquet \
    $(foreach kind,$(KINDS),$(kind)=$(memory)/$(kind).test.parquet) \
    $(foreach kind,$(KINDS),bm25+$(kind)=$(memory)/bm25+$(kind).minmax.test.parquet)

memory-table: $(SETUP) $(filter %.parquet,$(subst =, ,$(memory_runs)))  ## memory, quality and latency of KINDS of dense index, alone and with BM25
	@$(HYBRID) inspect --memory-table $(DATA) --split test $(memory_runs) $(MORE) --output $(memory)/table.parquet --overwrite

$(memory)/%-index/manifest.json: $(DENSE)/manifest.json
	$(HYBRID) encode $(<D) --index-type $* --output $(@D) --overwrite
