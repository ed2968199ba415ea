# What quality costs in memory and time: LITE's Table 2 (methods 10.10).
#
#   make memory-table DATA=FOLDER OUT=FOLDER     BM25, the dense model as it is in KINDS of index, each fused with BM25
#
# DENSE is another dense index to make the kinds of. MORE are further rows, whose runs are there already: after `make lite`,
# MORE='lite=OUT/lite/lite-1.test.parquet bm25+lite=OUT/lite/bm25+lite-1.test.parquet'.

KINDS ?= flat fp16 sq8 pq binary
DENSE ?= $(OUT)/before-index
MORE ?=
memory := $(OUT)/memory
memory_rows := $(KINDS) $(KINDS:%=bm25+%)

memory-table: $(SETUP) $(OUT)/runs/bm25.test.parquet $(memory_rows:%=$(memory)/%.test.parquet)  ## memory, quality and latency of KINDS of dense index, and of each with BM25
	@$(VENV)/bin/python benchmarks/memory_table.py $(DATA) bm25=$(OUT)/runs/bm25.test.parquet \
	    $(foreach row,$(memory_rows),$(row)=$(memory)/$(row).test.parquet) $(MORE) --output $(memory)/table.parquet

$(KINDS:%=$(memory)/%-index/manifest.json): $(memory)/%-index/manifest.json: $(DENSE)/manifest.json
	$(HYBRID) encode $(<D) --index-type $* --output $(@D) --overwrite

$(KINDS:%=$(memory)/%.test.parquet): $(memory)/%.test.parquet: $(memory)/%-index/manifest.json
	$(HYBRID) search $(DATA) --split test --index $(<D) --output $@ --overwrite

$(KINDS:%=$(memory)/bm25+%.test.parquet): $(memory)/bm25+%.test.parquet: $(OUT)/runs/bm25.test.parquet $(memory)/%.test.parquet
	$(HYBRID) fuse $^ --method minmax --output $@ --overwrite
