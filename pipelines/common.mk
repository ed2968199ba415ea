# Settings and rules shared by all pipelines. In a rule, % is the part of the name that varies and $* its value.
#
# A pipeline with several seeds describes one: its files are in OUT/NAME/seed-SEED, and its target runs make for each of SEEDS.
#
# File names below OUT. X is the path of an encoder, such as out/roc/seed-1/dense:
#
#   bm25/                        BM25 index of DATA
#   train-S.parquet              training examples with negatives from BM25, seed S
#   dev.parquet                  examples of the dev split, for validation
#   X/                           trained encoder
#   X-index/                     dense index of DATA
#   X.dev.parquet X.test.parquet runs on the dev and test splits
#   X.weights.json               weights of the sum of BM25 and X, tuned on dev
#   bm25+X.test.parquet          sum of BM25 and X with these weights
#   X-retriever/                 BM25 and X-index, composed; X-tuned-retriever: with the tuned weights
#   X-hybrid.test.parquet        run of X-retriever
#   bm25+rm3.test.parquet        BM25 with RM3
#   bm25+X.minmax.test.parquet   BM25 and X fused without tuning; also rrf, sum, product
#   adversary.parquet            test queries with synonyms of the words that occur in relevant documents (RoC, section 4.2.2)
#   X.adversary.parquet          run of these queries; bm25+X.adversary.parquet: with the weights of bm25+X

SEED ?= 42
SEEDS ?= 1 2 3
MODEL ?= minilm
MEASURES ?= MRR@10,nDCG@10,R@100,R@1000
LENGTHS ?= --query-max-len 64 --doc-max-len 96
TRAIN ?= --batch-size 28 --lr 5e-5
DEV_QUERIES ?= 200
# The measured split, and options of single commands, such as --config EXPERIMENT
TEST ?= test
PYDOCS ?=
INDEX_BM25 ?=
MINE ?=
TUNE ?=
PRODUCT ?=
TUNE_MEASURE = MRR@10
# RM3 is tuned on the test queries by cross-validation in two folds, as in DualRM, section 4.
RM3 ?= --rm3 --tune --measure $(TUNE_MEASURE)

corpus := $(DATA)/manifest.json
bm25 := $(OUT)/bm25/manifest.json
evaluate := $(HYBRID) evaluate $(DATA) --split $(TEST)
each_seed = +@for seed in $(SEEDS); do $(MAKE) --no-print-directory $@-seed SEED=$$seed || exit 1; done
train_dense := $(HYBRID) train-dense --overwrite
weighted_sum := $(HYBRID) fuse --method weighted-sum --missing exact --overwrite

# Collection, BM25 index, training examples

%/pydocs/manifest.json: | $(SETUP)
	$(HYBRID) prepare python-docs $(PYDOCS) --output $(@D) --overwrite

$(bm25): $(corpus) | $(SETUP)
	$(HYBRID) index-bm25 $(DATA) $(INDEX_BM25) --output $(@D) --overwrite

$(OUT)/train-%.parquet: $(bm25)
	$(HYBRID) mine-negatives $(DATA) --split train --index $(<D) $(MINE) --seed $* --output $@ --overwrite

$(OUT)/dev.parquet: $(bm25)
	$(HYBRID) mine-negatives $(DATA) --split dev --index $(<D) --negatives 4 --output $@ --overwrite

# Dense indexes: of the untrained model, of a trained encoder

$(OUT)/before-index/manifest.json: $(corpus) | $(SETUP)
	$(HYBRID) encode $(DATA) --model $(MODEL) $(LENGTHS) --output $(@D) --overwrite

%-index/manifest.json: %/manifest.json
	$(HYBRID) encode $(DATA) --model $(<D) --output $(@D) --overwrite

# Runs of BM25 and of a dense index

$(OUT)/bm25.%.parquet: $(bm25)
	$(HYBRID) search $(DATA) --split $* --index $(<D) --output $@ --overwrite

%.dev.parquet: %-index/manifest.json
	$(HYBRID) search $(DATA) --split dev --index $(<D) --output $@ --overwrite

%.$(TEST).parquet: %-index/manifest.json
	$(HYBRID) search $(DATA) --split $(TEST) --index $(<D) --output $@ --overwrite

$(OUT)/bm25+rm3.$(TEST).parquet: $(bm25)
	$(HYBRID) search $(DATA) --split $(TEST) --index $(<D) $(RM3) --output $@ --overwrite

# Retrievers of BM25 and a dense index: the default fusion, or the weights tuned on dev

%-retriever/manifest.json: $(bm25) %-index/manifest.json
	$(HYBRID) compose $(OUT)/bm25 $*-index --output $(@D) --overwrite

%-tuned-retriever/manifest.json: %.weights.json %-index/manifest.json
	$(HYBRID) compose $(OUT)/bm25 $*-index --weights @$< --output $(@D) --overwrite

%-hybrid.$(TEST).parquet: %-retriever/manifest.json
	$(HYBRID) search $(DATA) --split $(TEST) --index $(<D) --output $@ --overwrite

# Fusion with BM25: exact weighted sum, its weight tuned on dev; methods without weights

%.weights.json: $(OUT)/bm25.dev.parquet %.dev.parquet
	$(weighted_sum) $^ --index $(OUT)/bm25,$*-index --qrels $(DATA) --split dev \
	    --tune $(TUNE) --measure $(TUNE_MEASURE) --output $@

bm25+%.$(TEST).parquet: $(OUT)/bm25.$(TEST).parquet %.$(TEST).parquet %.weights.json
	$(weighted_sum) $(filter %.parquet,$^) --index $(OUT)/bm25,$*-index --weights @$*.weights.json --output $@

bm25+%.dev.parquet: $(OUT)/bm25.dev.parquet %.dev.parquet %.weights.json
	$(weighted_sum) $(filter %.parquet,$^) --index $(OUT)/bm25,$*-index --weights @$*.weights.json --output $@

# The synonym adversary: synonyms of WordNet, else of hybrid's own table; SYNONYMS names another one.

SYNONYMS ?=
adversary := $(OUT)/adversary.parquet

$(adversary): $(corpus) | $(SETUP)
	$(HYBRID) perturb $(DATA) --split test --attack synonym-adversary $(addprefix --synonyms ,$(SYNONYMS)) --output $@ --overwrite

$(OUT)/bm25.adversary.parquet: $(bm25) $(adversary)
	$(HYBRID) search --queries $(adversary) --index $(<D) --output $@ --overwrite

%.adversary.parquet: %-index/manifest.json $(adversary)
	$(HYBRID) search --queries $(adversary) --index $(<D) --output $@ --overwrite

bm25+%.adversary.parquet: $(OUT)/bm25.adversary.parquet %.adversary.parquet %.weights.json
	$(weighted_sum) $(filter %.parquet,$^) --index $(OUT)/bm25,$*-index --weights @$*.weights.json --output $@

bm25+%.minmax.$(TEST).parquet: $(OUT)/bm25.$(TEST).parquet %.$(TEST).parquet
	$(HYBRID) fuse $^ --method minmax --output $@ --overwrite

bm25+%.rrf.$(TEST).parquet: $(OUT)/bm25.$(TEST).parquet %.$(TEST).parquet
	$(HYBRID) fuse $^ --method rrf --output $@ --overwrite

bm25+%.sum.$(TEST).parquet: $(OUT)/bm25.$(TEST).parquet %.$(TEST).parquet
	$(HYBRID) fuse $^ --method sum --output $@ --overwrite

bm25+%.product.$(TEST).parquet: $(OUT)/bm25.$(TEST).parquet %.$(TEST).parquet
	$(HYBRID) fuse $^ --method product $(PRODUCT) --output $@ --overwrite
