# The prior of `fuse --tune`, and the measurements of docs/few-labels.md, docs/fusion.md and docs/no-labels.md, from judged
# collections.
#
#   make prior PRIOR=FOLDER COLLECTIONS='scifact cacm pydocs insuranceqa openwiki'
#   make few-labels PRIOR=FOLDER            tuning with few judged queries
#   make fusers PRIOR=FOLDER                one weight per query, with labels and without
#   make pseudo-weights PRIOR=FOLDER        weights and fusers from pseudo-queries
#
# PRIOR/NAME is a prepared collection: `hybrid prepare beir scifact --output PRIOR/scifact`. Indexes and runs are written
# into PRIOR. `prior` uses the first split of train, dev and test that a collection has; the others measure on test, with
# the stored prior of the other collections.
#
# PSEUDO_SETS has names of a collection and a kind of pseudo-queries. NAME.KIND is prepared from the corpus of NAME, or from
# a sample of it (PSEUDO_SAMPLE_NAME.KIND).

PRIOR ?= out/prior
COLLECTIONS ?= scifact cacm pydocs insuranceqa openwiki
PSEUDO_SETS ?= cacm.first-sentence insuranceqa.first-sentence insuranceqa.sentence openwiki.title openwiki.sentence pydocs.sentence
PSEUDO_SAMPLE_insuranceqa.first-sentence ?= --sample 5000
PSEUDO_SAMPLE_insuranceqa.sentence ?= --sample 2000
PSEUDO_SAMPLE_openwiki.sentence ?= --sample 2000
PSEUDO_SAMPLE_pydocs.sentence ?= --sample 2000

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
fuser_runs := $(foreach system,$(prior_systems),$(foreach split,train dev test, \
    $(patsubst %,%.$(system).$(split),$(filter $(judged_$(split)),$(COLLECTIONS)))))
pseudo_names := $(sort $(basename $(PSEUDO_SETS)))
pseudo_runs := $(foreach system,$(prior_systems),$(PSEUDO_SETS:%=%.$(system).dev) $(foreach split,dev test, \
    $(patsubst %,%.$(system).$(split),$(filter $(judged_$(split)),$(pseudo_names)))))

prior: $(SETUP) $(prior_runs:%=$(PRIOR)/%.parquet)  ## rebuild the prior of fuse --tune
	$(VENV)/bin/python benchmarks/prior.py $(PRIOR) $(COLLECTIONS) --output hybrid_cli/fusion/prior.json

few-labels: $(SETUP) $(few_label_runs:%=$(PRIOR)/%.parquet)  ## measure tuning with few judged queries
	$(VENV)/bin/python benchmarks/prior.py $(PRIOR) $(COLLECTIONS) --few-labels docs/measured/few-labels.csv

fusers: $(SETUP) $(fuser_runs:%=$(PRIOR)/%.parquet)  ## measure fusions with one weight per query
	$(VENV)/bin/python benchmarks/fusers.py $(PRIOR) $(COLLECTIONS) --output docs/measured/fusers.csv \
	    --without-labels docs/measured/fusers-without-labels.csv

pseudo-weights: $(SETUP) $(pseudo_runs:%=$(PRIOR)/%.parquet)  ## measure weights and fusers from pseudo-queries
	$(VENV)/bin/python benchmarks/fusers.py $(PRIOR) $(pseudo_names) --pseudo docs/measured/pseudo-weights.csv

# Pseudo-queries, indexes, and runs. In a rule, % is the collection.

$(PSEUDO_SETS:%=$(PRIOR)/%/manifest.json): $(PRIOR)/%/manifest.json: | $(SETUP)
	$(HYBRID) prepare files $(PRIOR)/$(basename $*)/corpus.parquet $(PSEUDO_SAMPLE_$*) --pseudo-train 2000 \
	    --pseudo-queries $(subst .,,$(suffix $*)) --output $(@D) --overwrite

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
