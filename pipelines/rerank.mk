# Rerankers: a cross-encoder on the top hits of BM25 and of CLEAR.
#
#   make rerank DATA=... OUT=...          TOP_K hits rescored (CLEAR, DualRM), and RoC's masks (RoC, Table 6)
#   make rerank-depths DATA=... OUT=...   quality and time by the number of rescored hits (DualRM, Figure 2 and Table 4)
#
# Rows: `listwise`, `pointwise` (interactive BERT) and `masked` (pointwise, with RoC's masks) rerank BM25;
# `clear+listwise` reranks CLEAR.

TOP_K ?= 100
DEPTHS ?= 10,20,50,100,200,500,1000
RERANKER ?= --max-length 160 --lr 5e-5
reranked := $(OUT)/rerank
train_reranker = $(HYBRID) train-reranker $< --model $(MODEL) $(RERANKER) --dev $(OUT)/dev.parquet \
    --dev-queries $(DEV_QUERIES) --seed $(SEED) --output $(@D) --overwrite
rerank_rows := \
    bm25=$(OUT)/bm25.test.parquet \
    listwise=$(reranked)/bm25.listwise.parquet \
    pointwise=$(reranked)/bm25.pointwise.parquet \
    masked=$(reranked)/bm25.masked.parquet \
    clear=$(OUT)/bm25+after.test.parquet \
    clear+listwise=$(reranked)/bm25+after.listwise.parquet

rerank: $(SETUP) $(filter %.parquet,$(subst =, ,$(rerank_rows)))  ## rerankers on DATA: on BM25 and on CLEAR, with and without RoC's masks
	@$(evaluate) $(rerank_rows) --measures $(MEASURES) --baseline bm25,clear

rerank-depths: $(SETUP) $(reranked)/report.html  ## quality and time by the number of rescored hits, on BM25 and on CLEAR

$(reranked)/listwise/manifest.json: $(OUT)/train-$(SEED).parquet $(OUT)/dev.parquet
	$(train_reranker)

$(reranked)/pointwise/manifest.json: $(OUT)/train-$(SEED).parquet $(OUT)/dev.parquet
	$(train_reranker) --loss pointwise

$(reranked)/masked/manifest.json: $(OUT)/train-$(SEED).parquet $(OUT)/dev.parquet
	$(train_reranker) --loss pointwise --mask-matches 0.15

$(reranked)/bm25.%.parquet: $(OUT)/bm25.test.parquet $(reranked)/%/manifest.json
	$(HYBRID) rerank $< --model $(reranked)/$* --top-k $(TOP_K) --output $@ --overwrite

$(reranked)/bm25+after.%.parquet: $(OUT)/bm25+after.test.parquet $(reranked)/%/manifest.json
	$(HYBRID) rerank $< --model $(reranked)/$* --top-k $(TOP_K) --output $@ --overwrite

$(reranked)/%-by-depth/manifest.json: $(OUT)/%.test.parquet $(reranked)/listwise/manifest.json
	$(HYBRID) rerank $< --model $(reranked)/listwise --depths $(DEPTHS) --output $(@D) --overwrite

$(reranked)/report.html: $(reranked)/bm25-by-depth/manifest.json $(reranked)/bm25+after-by-depth/manifest.json
	$(HYBRID) report $(DATA) --split test bm25=$(OUT)/bm25.test.parquet clear=$(OUT)/bm25+after.test.parquet \
	    --reranked bm25=$(reranked)/bm25-by-depth --reranked clear=$(reranked)/bm25+after-by-depth \
	    --measures $(MEASURES) --output $@ --overwrite
