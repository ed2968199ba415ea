# Learned sparse retrieval: DeepCT, SparTerm, UniCOIL and SPLADE next to BM25, as teachers, and in hybrids.
#
#   make sparse DATA=FOLDER OUT=FOLDER
#
# Rows:
#   bm25, bm25+rm3       BM25, and with RM3
#   deepct, deepct-rm3   BM25 on DeepCT's counts, and with RM3 (DualRM, table 2)
#   sparterm, sparterm-i SparTerm, without and with RoC's masks (RoC, table 6)
#   unicoil, splade      learned impacts
#   unicoil-lambda       Lambda taught by UniCOIL, otherwise trained like the Lambda of spar.mk (SPAR, table 3)
#   splade+dense         min-max of SPLADE and a dense encoder

SPARSE_TRAIN ?= --batch-size 28 --lr 5e-5
SPARSE_LENGTHS ?= --doc-max-len 96
# Released encoders in place of trained ones: the model and further options of `encode`
DEEPCT ?=
UNICOIL ?=
SPARSE_MEASURES ?= MRR@10,nDCG@10,R@100

sparse := $(OUT)/sparse
sparse_rows := deepct deepct-rm3 sparterm sparterm-i unicoil splade unicoil-lambda splade+dense
sparse_runs := bm25=$(OUT)/bm25.$(TEST).parquet bm25+rm3=$(OUT)/bm25+rm3.$(TEST).parquet \
    $(foreach row,$(sparse_rows),$(row)=$(sparse)/$(row).$(TEST).parquet)
train_sparse = $(HYBRID) train-sparse $< --model $(MODEL) $(SPARSE_TRAIN) $(SPARSE_LENGTHS) --seed $(SEED) --output $(@D) --overwrite

sparse: $(SETUP) $(filter %.parquet,$(subst =, ,$(sparse_runs)))  ## learned sparse retrieval on DATA: DeepCT, SparTerm, UniCOIL, SPLADE
	@$(evaluate) $(sparse_runs) --measure $(SPARSE_MEASURES) --baseline bm25

$(sparse)/deepct/manifest.json $(sparse)/unicoil/manifest.json $(sparse)/splade/manifest.json $(sparse)/sparterm/manifest.json: $(sparse)/%/manifest.json: $(OUT)/train-$(SEED).parquet
	$(train_sparse) --architecture $*

$(sparse)/sparterm-i/manifest.json: $(OUT)/train-$(SEED).parquet
	$(train_sparse) --architecture sparterm --mask-matches 0.15

$(sparse)/deepct-rm3.$(TEST).parquet: $(sparse)/deepct-index/manifest.json
	$(HYBRID) search $(DATA) --split $(TEST) --index $(<D) $(RM3) --output $@ --overwrite

$(sparse)/unicoil-labels/manifest.json: $(sparse)/unicoil-index/manifest.json
	$(HYBRID) label $(DATA) --index $(<D) $(LABEL) --output $(@D) --overwrite

$(sparse)/unicoil-lambda/manifest.json: $(sparse)/unicoil-labels/manifest.json
	$(HYBRID) train-lambda $(DATA) --labels $(<D) --index $(sparse)/unicoil-index --dev dev --model $(MODEL) $(LENGTHS) $(LAMBDA_TRAIN) \
	    --seed $(SEED) --output $(@D) --overwrite

$(sparse)/dense/manifest.json: $(OUT)/train-$(SEED).parquet
	$(train_dense) $< --model $(MODEL) $(TRAIN) $(LENGTHS) --loss nll --seed $(SEED) --output $(@D)

$(sparse)/splade+dense.$(TEST).parquet: $(sparse)/splade.$(TEST).parquet $(sparse)/dense.$(TEST).parquet
	$(HYBRID) fuse $^ --method minmax --output $@ --overwrite

ifneq ($(DEEPCT),)
$(sparse)/deepct-index/manifest.json: $(corpus) | $(SETUP)
	$(HYBRID) encode $(DATA) --model $(DEEPCT) --output $(@D) --overwrite
endif

ifneq ($(UNICOIL),)
$(sparse)/unicoil-index/manifest.json: $(corpus) | $(SETUP)
	$(HYBRID) encode $(DATA) --model $(UNICOIL) --output $(@D) --overwrite
endif
