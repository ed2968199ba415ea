# Static Lambda: a bag-of-words encoder trained to imitate BM25, and one small index in place of a hybrid.
#
#   make static-lambda DATA=FOLDER OUT=FOLDER     quality by dimension; dense and static Lambda in one index, compressed
#
# Rows:
#   dense              dense encoder
#   static-D           static Lambda of D dimensions, D of DIMS
#   both               dense encoder and static Lambda of STATIC_DIM dimensions (one of DIMS) in one index, weight tuned on dev
#   both-sq8, both-pq  the index of `both` with 8 bits per value, and with PQ_BYTES bytes per passage
#   bm25+dense         weighted sum of the scores of BM25 and the dense encoder
#   model2vec          STATIC_MODEL, a folder or hub name of static embeddings; without it, the row is left out

DIMS ?= 32 64 128
STATIC_DIM ?= 64
PQ_BYTES ?= 112
STATIC_MODEL ?=
STATIC_MEASURES ?= MRR@10,R@20,R@100

static := $(OUT)/static-lambda
static_rows := dense $(DIMS:%=static-%) both both-sq8 both-pq bm25+dense $(if $(STATIC_MODEL),model2vec)
static_runs := bm25=$(OUT)/bm25.test.parquet $(foreach row,$(static_rows),$(row)=$(static)/$(row).test.parquet)

static-lambda: $(SETUP) $(filter %.parquet,$(subst =, ,$(static_runs))) $(static)/report.html  ## static Lambda of DIMS dimensions on DATA; one small index in place of a hybrid
	@$(evaluate) $(static_runs) --measure $(STATIC_MEASURES) --overlap-with bm25 --baseline bm25+dense

# Encoders. The labels come from spar.mk.

$(DIMS:%=$(static)/static-%/manifest.json): $(static)/static-%/manifest.json: $(OUT)/labels-sampled/manifest.json
	$(HYBRID) train-lambda $(DATA) --encoder static --labels $(<D) --index $(OUT)/bm25 --dev dev --dim $* --seed $(SEED) \
	    --output $(@D) --overwrite

$(static)/dense/manifest.json: $(OUT)/train-$(SEED).parquet $(OUT)/dev.parquet
	$(train_dense) $< --model $(MODEL) $(TRAIN) $(LENGTHS) --loss nll --dev $(OUT)/dev.parquet --seed $(SEED) --output $(@D)

$(static)/model2vec-index/manifest.json: $(corpus) | $(SETUP)
	$(HYBRID) encode $(DATA) --model $(STATIC_MODEL) --output $(@D) --overwrite

# Both in one index: whole, then compressed. The tuned weight applies to the query, so all three indexes share it.

$(static)/both-index/manifest.json: $(static)/dense-index/manifest.json $(static)/static-$(STATIC_DIM)-index/manifest.json
	$(HYBRID) encode $(<D) --concat-with $(static)/static-$(STATIC_DIM)-index --output $(@D) --overwrite

$(static)/both-tuned/manifest.json: $(static)/both-index/manifest.json
	$(HYBRID) combine $(static)/dense $(static)/static-$(STATIC_DIM) --tune $(DATA) --split dev --index $(<D) \
	    --measure MRR@10 --output $(@D) --overwrite

$(static)/both-sq8-index/manifest.json: $(static)/both-index/manifest.json
	$(HYBRID) encode $(<D) --index-type sq8 --output $(@D) --overwrite

$(static)/both-pq-index/manifest.json: $(static)/both-index/manifest.json
	$(HYBRID) encode $(<D) --index-type PQ$(PQ_BYTES) --output $(@D) --overwrite

$(static)/both.test.parquet $(static)/both-sq8.test.parquet $(static)/both-pq.test.parquet: %.test.parquet: %-index/manifest.json $(static)/both-tuned/manifest.json
	$(HYBRID) search $(DATA) --split test --index $*-index --model $(static)/both-tuned --output $@ --overwrite

# Report

static_report_runs := bm25=$(OUT)/bm25.test.parquet dense=$(static)/dense.test.parquet both=$(static)/both.test.parquet \
    both-sq8=$(static)/both-sq8.test.parquet both-pq=$(static)/both-pq.test.parquet bm25+dense=$(static)/bm25+dense.test.parquet

$(static)/report.html: $(filter %.parquet,$(subst =, ,$(static_report_runs)))
	$(HYBRID) report $(DATA) --split test $(static_report_runs) --complement both bm25 --measure $(STATIC_MEASURES) \
	    --output $@ --overwrite
