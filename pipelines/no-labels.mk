# Encoders trained on pseudo-queries, measured on real queries. `make pseudo-weights` (benchmarks/prior.mk) measures weights and fusers.
#
#   make no-labels DATA=FOLDER OUT=FOLDER PSEUDO='title sentence'     SEEDS of each; values in MEASURED/no-labels-NAME.parquet
#
# Rows, for each KIND of PSEUDO:
#   bm25, before              BM25 and the untrained model
#   start                     the untrained model with the layers of NO_LABELS_TRAIN
#   KIND-residual, KIND-nll   encoders trained on pseudo-queries: CLEAR, and likelihood
#   KIND-static               static Lambda trained on pseudo-queries
#   bm25+X, before+X          min-max fusion without tuning

PSEUDO ?= sentence
PSEUDO_TRAIN ?= 2000
NO_LABELS_TRAIN ?= --layers 2 --query-max-len 32 --doc-max-len 64 --batch-size 28 --lr 1e-4
NO_LABELS_STEPS ?= 400
no_labels := $(OUT)/no-labels
no_labels_seed := $(no_labels)/seed-$(SEED)
no_labels_arms := $(foreach kind,$(PSEUDO),$(kind)-residual $(kind)-nll $(kind)-static)
no_labels_with_bm25 := $(filter-out %-static,$(no_labels_arms))
no_labels_single := bm25=$(OUT)/bm25.test.parquet before=$(OUT)/before.test.parquet \
    bm25+before=$(OUT)/bm25+before.minmax.test.parquet \
    start=$(no_labels)/start.test.parquet bm25+start=$(no_labels)/bm25+start.minmax.test.parquet
no_labels_runs := $(no_labels_single) $(foreach seed,$(SEEDS), \
    $(foreach row,$(no_labels_arms),$(row)-$(seed)=$(no_labels)/seed-$(seed)/$(row).test.parquet) \
    $(foreach row,$(no_labels_with_bm25),bm25+$(row)-$(seed)=$(no_labels)/seed-$(seed)/bm25+$(row).minmax.test.parquet) \
    $(foreach kind,$(PSEUDO),before+$(kind)-static-$(seed)=$(no_labels)/seed-$(seed)/before+$(kind)-static.minmax.test.parquet))
no_labels_dense = $(train_dense) $< --model $(MODEL) $(NO_LABELS_TRAIN) --max-steps $(NO_LABELS_STEPS) --seed $(SEED) --output $(@D)

no-labels: $(SETUP) $(filter %.parquet,$(subst =, ,$(no_labels_single)))  ## encoders trained on pseudo-queries of DATA, SEEDS of each
	$(each_seed)
	$(evaluate) $(no_labels_runs) --measure $(MEASURES) --baseline start,bm25+start,bm25+before --study over-seeds \
	    --output $(MEASURED)/no-labels-$(notdir $(DATA)).parquet --overwrite

no-labels-seed: $(no_labels_arms:%=$(no_labels_seed)/%.test.parquet) \
    $(no_labels_with_bm25:%=$(no_labels_seed)/bm25+%.minmax.test.parquet) \
    $(PSEUDO:%=$(no_labels_seed)/before+%-static.minmax.test.parquet)

# Pseudo-queries of the corpus, which is a table that `prepare files` reads

$(PSEUDO:%=$(no_labels)/%/collection/manifest.json): $(no_labels)/%/collection/manifest.json: $(corpus) | $(SETUP)
	$(HYBRID) prepare files $(DATA)/corpus.parquet --pseudo-queries $* --pseudo-sizes train=$(PSEUDO_TRAIN) --output $(@D) --overwrite

$(PSEUDO:%=$(no_labels)/%/bm25/manifest.json): $(no_labels)/%/bm25/manifest.json: $(no_labels)/%/collection/manifest.json
	$(HYBRID) index-bm25 $(<D) --output $(@D) --overwrite

$(PSEUDO:%=$(no_labels)/%/train.parquet): $(no_labels)/%/train.parquet: $(no_labels)/%/bm25/manifest.json
	$(HYBRID) mine-negatives $(@D)/collection --split train --index $(<D) --output $@ --overwrite

$(PSEUDO:%=$(no_labels)/%/labels/manifest.json): $(no_labels)/%/labels/manifest.json: $(no_labels)/%/bm25/manifest.json
	$(HYBRID) label $(no_labels)/$*/collection --split train --index $(<D) --output $(@D) --overwrite

# The encoders have the weights of the last step. A learning rate of 0 keeps the first layers of the untrained model.

$(no_labels)/start/manifest.json: $(no_labels)/$(firstword $(PSEUDO))/train.parquet
	$(train_dense) $< --model $(MODEL) $(NO_LABELS_TRAIN) --lr 0 --max-steps 1 --loss nll --output $(@D)

$(PSEUDO:%=$(no_labels_seed)/%-residual/manifest.json): $(no_labels_seed)/%-residual/manifest.json: $(no_labels)/%/train.parquet
	$(no_labels_dense) --loss residual-margin --no-normalize --temperature 1

$(PSEUDO:%=$(no_labels_seed)/%-nll/manifest.json): $(no_labels_seed)/%-nll/manifest.json: $(no_labels)/%/train.parquet
	$(no_labels_dense) --loss nll

$(PSEUDO:%=$(no_labels_seed)/%-static/manifest.json): $(no_labels_seed)/%-static/manifest.json: $(no_labels)/%/labels/manifest.json
	$(HYBRID) train-lambda $(no_labels)/$*/collection --encoder static --labels $(<D) --index $(no_labels)/$*/bm25 --dim 64 \
	    --seed $(SEED) --output $(@D) --overwrite

before+%.minmax.test.parquet: $(OUT)/before.test.parquet %.test.parquet
	$(HYBRID) fuse $^ --method minmax --output $@ --overwrite
