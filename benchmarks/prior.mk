# The prior of `fuse --tune`, and the measurements of studies/few-labels.md and docs/fusion.md, from judged
# collections.
#
#   make prior PRIOR=FOLDER COLLECTIONS='scifact cacm pydocs insuranceqa openwiki'
#   make few-labels PRIOR=FOLDER            tuning with few judged queries
#
# PRIOR/NAME is a prepared collection: `hybrid prepare beir scifact --output PRIOR/scifact`. Indexes and runs are written
# into PRIOR. `prior` uses the first split of train, dev and test that a collection has; the others measure on test, with
# the stored prior of the other collections.

PRIOR ?= out/prior
COLLECTIONS ?= scifact cacm pydocs insuranceqa openwiki

# Collections that have a split

judged_train := $(patsubst $(PRIOR)/%/qrels.train.parquet,%,$(wildcard $(PRIOR)/*/qrels.train.parquet))
judged_dev := $(patsubst $(PRIOR)/%/qrels.dev.parquet,%,$(wildcard $(PRIOR)/*/qrels.dev.parquet))
judged_test := $(patsubst $(PRIOR)/%/qrels.test.parquet,%,$(wildcard $(PRIOR)/*/qrels.test.parquet))

# Runs of each target, as COLLECTION.SYSTEM.SPLIT

prior_systems := bm25 minilm
first_train := $(filter $(judged_train),$(COLLECTIONS))
first_dev := $(filter $(judged_dev),$(filter-out $(first_train),$(COLLECTIONS)))
first_test := $(filter-out $(first_train) $(first_dev),$(COLLECTIONS))
prior_runs := $(foreach system,$(prior_systems), \
    $(first_train:%=%.$(system).train) $(first_dev:%=%.$(system).dev) $(first_test:%=%.$(system).test))
few_label_runs := $(foreach system,$(prior_systems),$(COLLECTIONS:%=%.$(system).test))

prior: $(SETUP) $(prior_runs:%=$(PRIOR)/%.parquet)  ## rebuild the prior of fuse --tune
	$(VENV)/bin/python benchmarks/prior.py $(PRIOR) $(COLLECTIONS) --output hybrid_cli/fusion/prior.json

few-labels: $(SETUP) $(few_label_runs:%=$(PRIOR)/%.parquet)  ## measure tuning with few judged queries
	$(VENV)/bin/python benchmarks/prior.py $(PRIOR) $(COLLECTIONS) --few-labels $(PRIOR)/few-labels.csv

# Indexes and runs. In a rule, % is the collection.

$(COLLECTIONS:%=$(PRIOR)/%/manifest.json):
	@echo 'needs the collection $(@D), made by: hybrid prepare beir FOLDER --output $(@D)' >&2; exit 1

$(PRIOR)/%.bm25/manifest.json: $(PRIOR)/%/manifest.json | $(SETUP)
	$(HYBRID) index-bm25 $(<D) --output $(@D) --overwrite

$(PRIOR)/%.minilm/manifest.json: $(PRIOR)/%/manifest.json | $(SETUP)
	$(HYBRID) encode $(<D) --model minilm --query-max-len 64 --doc-max-len 128 --output $(@D) --overwrite

$(PRIOR)/%.bm25.train.parquet: $(PRIOR)/%.bm25/manifest.json
	$(HYBRID) search $(PRIOR)/$* --split train --index $(<D) --output $@ --overwrite

$(PRIOR)/%.bm25.dev.parquet: $(PRIOR)/%.bm25/manifest.json
	$(HYBRID) search $(PRIOR)/$* --split dev --index $(<D) --output $@ --overwrite

$(PRIOR)/%.bm25.test.parquet: $(PRIOR)/%.bm25/manifest.json
	$(HYBRID) search $(PRIOR)/$* --split test --index $(<D) --output $@ --overwrite

$(PRIOR)/%.minilm.train.parquet: $(PRIOR)/%.minilm/manifest.json
	$(HYBRID) search $(PRIOR)/$* --split train --index $(<D) --output $@ --overwrite

$(PRIOR)/%.minilm.dev.parquet: $(PRIOR)/%.minilm/manifest.json
	$(HYBRID) search $(PRIOR)/$* --split dev --index $(<D) --output $@ --overwrite

$(PRIOR)/%.minilm.test.parquet: $(PRIOR)/%.minilm/manifest.json
	$(HYBRID) search $(PRIOR)/$* --split test --index $(<D) --output $@ --overwrite
