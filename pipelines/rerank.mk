# Rerankers: a cross-encoder on the top hits of BM25 and of CLEAR.
#
#   make rerank DATA=... OUT=...          TOP_K hits rescored (CLEAR, DualRM), and RoC's masks (RoC, Table 6)
#   make rerank-depths DATA=... OUT=...   quality and time by the number of rescored hits (DualRM, Figure 2 and Table 4)
#
# Rows: `pointwise` (DualRM, table 4, and the interactive BERT of RoC), `listwise` and `masked` (pointwise, with RoC's masks)
# rerank the first TOP_K hits of BM25; `clear+pointwise` and `clear+listwise` the first CLEAR_TOP_K of CLEAR. MODEL_LARGE is a
# second model: `large` and `clear+large` (pointwise). DualRM has TOP_K=1000 CLEAR_TOP_K=20, and CLEAR_TOP_K_LARGE=100.

TOP_K ?= 100
CLEAR_TOP_K ?= $(TOP_K)
MODEL_LARGE ?=
CLEAR_TOP_K_LARGE ?= $(CLEAR_TOP_K)
# The run of CLEAR, without its split
CLEAR_RUN ?= $(OUT)/bm25+after
DEPTHS ?= 10,20,50,100,200,500,1000
RERANKER ?= --max-length 160 --lr 5e-5
reranked := $(OUT)/rerank
rerank_by_depth = $(HYBRID) rerank $< --model $(reranked)/listwise --depth $(DEPTHS) --output $(@D) --overwrite
train_reranker = $(HYBRID) train-reranker $< $(RERANKER) --dev $(OUT)/dev.parquet \
    --dev-queries $(DEV_QUERIES) --seed $(SEED) --output $(@D) --overwrite
rerank_rows := \
    bm25=$(OUT)/bm25.$(TEST).parquet \
    listwise=$(reranked)/bm25.listwise.$(TEST).parquet \
    pointwise=$(reranked)/bm25.pointwise.$(TEST).parquet \
    masked=$(reranked)/bm25.masked.$(TEST).parquet \
    clear=$(CLEAR_RUN).$(TEST).parquet \
    clear+pointwise=$(reranked)/clear.pointwise.$(TEST).parquet \
    clear+listwise=$(reranked)/clear.listwise.$(TEST).parquet \
    $(if $(MODEL_LARGE),large=$(reranked)/bm25.large.$(TEST).parquet clear+large=$(reranked)/clear.large.$(TEST).parquet)

rerank: $(SETUP) $(filter %.parquet,$(subst =, ,$(rerank_rows)))  ## rerankers on DATA: on BM25 and on CLEAR, with and without RoC's masks
	@$(evaluate) $(rerank_rows) --measure $(MEASURES) --baseline bm25,clear

rerank-depths: $(SETUP) $(reranked)/report.html  ## quality and time by the number of rescored hits, on BM25 and on CLEAR

$(reranked)/listwise/manifest.json: $(OUT)/train-$(SEED).parquet $(OUT)/dev.parquet
	$(train_reranker) --model $(MODEL)

$(reranked)/pointwise/manifest.json: $(OUT)/train-$(SEED).parquet $(OUT)/dev.parquet
	$(train_reranker) --model $(MODEL) --loss pointwise

$(reranked)/masked/manifest.json: $(OUT)/train-$(SEED).parquet $(OUT)/dev.parquet
	$(train_reranker) --model $(MODEL) --loss pointwise --mask-matches 0.15

$(reranked)/large/manifest.json: $(OUT)/train-$(SEED).parquet $(OUT)/dev.parquet
	$(train_reranker) --model $(MODEL_LARGE) --loss pointwise

$(reranked)/bm25.%.$(TEST).parquet: $(OUT)/bm25.$(TEST).parquet $(reranked)/%/manifest.json
	$(HYBRID) rerank $< --model $(reranked)/$* --depth $(TOP_K) --output $@ --overwrite

$(reranked)/clear.large.$(TEST).parquet: $(CLEAR_RUN).$(TEST).parquet $(reranked)/large/manifest.json
	$(HYBRID) rerank $< --model $(reranked)/large --depth $(CLEAR_TOP_K_LARGE) --output $@ --overwrite

$(reranked)/clear.%.$(TEST).parquet: $(CLEAR_RUN).$(TEST).parquet $(reranked)/%/manifest.json
	$(HYBRID) rerank $< --model $(reranked)/$* --depth $(CLEAR_TOP_K) --output $@ --overwrite

$(reranked)/bm25-by-depth/manifest.json: $(OUT)/bm25.$(TEST).parquet $(reranked)/listwise/manifest.json
	$(rerank_by_depth)

$(reranked)/clear-by-depth/manifest.json: $(CLEAR_RUN).$(TEST).parquet $(reranked)/listwise/manifest.json
	$(rerank_by_depth)

$(reranked)/report.html: $(reranked)/bm25-by-depth/manifest.json $(reranked)/clear-by-depth/manifest.json
	$(HYBRID) report $(DATA) --split $(TEST) bm25=$(OUT)/bm25.$(TEST).parquet clear=$(CLEAR_RUN).$(TEST).parquet \
	    --reranked bm25=$(reranked)/bm25-by-depth --reranked clear=$(reranked)/clear-by-depth \
	    --measure $(MEASURES) --output $@ --overwrite
