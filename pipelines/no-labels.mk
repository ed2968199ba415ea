# Weights and encoders from pseudo-queries, measured on real queries.
#
#   make no-labels DATA=FOLDER OUT=FOLDER SOURCE='beir FOLDER'
#
# SOURCE is the source of DATA, as in `hybrid prepare SOURCE`. Rows: BM25 and the untrained model alone; their min-max
# fusion without tuning (`minmax`), with weights tuned on the real dev split (`real`) or on pseudo-queries (KIND); encoders
# trained on pseudo-queries (KIND-residual, KIND-nll), alone and fused by min-max without tuning.

SOURCE ?= python-docs
PSEUDO ?= first-sentence sentence
no_labels := $(OUT)/no-labels
no_labels_encoders := $(PSEUDO:%=%-residual) $(PSEUDO:%=%-nll)
no_labels_runs := bm25=$(OUT)/bm25.test.parquet before=$(OUT)/before.test.parquet \
    minmax=$(OUT)/bm25+before.minmax.test.parquet \
    $(foreach row,real $(PSEUDO),$(row)=$(no_labels)/$(row).test.parquet) \
    $(foreach row,$(no_labels_encoders),$(row)=$(no_labels)/$(row).test.parquet \
        bm25+$(row)=$(no_labels)/bm25+$(row).minmax.test.parquet)
tune_minmax := $(HYBRID) fuse --method minmax --tune --overwrite --measure $(TUNE_MEASURE)

no-labels: $(SETUP) $(filter %.parquet,$(subst =, ,$(no_labels_runs)))  ## weights and encoders from pseudo-queries on DATA
	@$(evaluate) $(no_labels_runs) --measures $(MEASURES) --baseline minmax,real \
	    --output $(no_labels)/measurements.parquet --overwrite

# Weights from the real dev split, and from the pseudo-queries of each kind

$(no_labels)/real/weights.json: $(OUT)/bm25.dev.parquet $(OUT)/before.dev.parquet
	$(tune_minmax) bm25=$(OUT)/bm25.dev.parquet before=$(OUT)/before.dev.parquet --qrels $(DATA) --split dev --output $@

$(PSEUDO:%=$(no_labels)/%/weights.json): $(no_labels)/%/weights.json: $(no_labels)/%/bm25.parquet $(no_labels)/%/dense.parquet
	$(tune_minmax) bm25=$(@D)/bm25.parquet before=$(@D)/dense.parquet --qrels $(@D)/collection --split dev --output $@

$(patsubst %,$(no_labels)/%.test.parquet,real $(PSEUDO)): $(no_labels)/%.test.parquet: \
    $(no_labels)/%/weights.json $(OUT)/bm25.test.parquet $(OUT)/before.test.parquet
	$(HYBRID) fuse bm25=$(OUT)/bm25.test.parquet before=$(OUT)/before.test.parquet --method minmax --weights @$< \
	    --output $@ --overwrite

# The pseudo-queries of one kind, and the indexes of the documents without them

$(PSEUDO:%=$(no_labels)/%/collection/manifest.json): $(no_labels)/%/collection/manifest.json: | $(SETUP)
	$(HYBRID) prepare $(SOURCE) --pseudo-queries $* --output $(@D) --overwrite

$(PSEUDO:%=$(no_labels)/%/bm25/manifest.json): $(no_labels)/%/bm25/manifest.json: $(no_labels)/%/collection/manifest.json
	$(HYBRID) index-bm25 $(<D) --output $(@D) --overwrite

$(PSEUDO:%=$(no_labels)/%/dense/manifest.json): $(no_labels)/%/dense/manifest.json: $(no_labels)/%/collection/manifest.json
	$(HYBRID) encode $(<D) --model $(MODEL) $(LENGTHS) --output $(@D) --overwrite

$(PSEUDO:%=$(no_labels)/%/bm25.parquet) $(PSEUDO:%=$(no_labels)/%/dense.parquet): %.parquet: %/manifest.json
	$(HYBRID) search $(@D)/collection --split dev --index $(<D) --output $@ --overwrite

# Encoders trained on the pseudo-queries of one kind; their weights are those of the last step

$(PSEUDO:%=$(no_labels)/%/train.parquet): $(no_labels)/%/train.parquet: $(no_labels)/%/bm25/manifest.json
	$(HYBRID) mine-negatives $(@D)/collection --split train --index $(<D) --seed $(SEED) --output $@ --overwrite

$(PSEUDO:%=$(no_labels)/%-residual/manifest.json): $(no_labels)/%-residual/manifest.json: $(no_labels)/%/train.parquet
	$(train_dense) $< --model $(MODEL) $(TRAIN) $(LENGTHS) --loss residual-margin --seed $(SEED) --output $(@D)

$(PSEUDO:%=$(no_labels)/%-nll/manifest.json): $(no_labels)/%-nll/manifest.json: $(no_labels)/%/train.parquet
	$(train_dense) $< --model $(MODEL) $(TRAIN) $(LENGTHS) --loss nll --seed $(SEED) --output $(@D)
