# The prior of tuning, and the measurements of studies/few-labels.md, from judged collections.
#
#   make prior PRIOR=FOLDER                 measure, and write hybrid_cli/fusion/prior.json
#   make few-labels                         print the tables of tuning with few judged queries
#
# PRIOR/NAME is a prepared collection: `hybrid prepare beir scifact --output PRIOR/scifact`. Indexes are written into PRIOR;
# MiniLM has its own lengths. The prior has the first split of train, dev and test, the tables have the last one.

PRIOR ?= out/prior
COLLECTIONS ?= cacm scifact cosqa covidqa pydocs insuranceqa openwiki
FEW_LABELS := studies/measured/few-labels.parquet

prior: $(SETUP) $(COLLECTIONS:%=$(PRIOR)/%.bm25/manifest.json) $(COLLECTIONS:%=$(PRIOR)/%.minilm/manifest.json)  ## rebuild the prior of tuning
	$(VENV)/bin/python benchmarks/prior.py measure $(PRIOR) $(COLLECTIONS) --values $(FEW_LABELS)
	$(VENV)/bin/python benchmarks/prior.py prior $(PRIOR)/$(firstword $(COLLECTIONS)).minilm --values $(FEW_LABELS)

few-labels: $(SETUP)  ## simulate tuning with few judged queries
	$(VENV)/bin/python benchmarks/prior.py few-labels --values $(FEW_LABELS) --dense minilm mpnet nll

# In a rule, % is the collection.

$(COLLECTIONS:%=$(PRIOR)/%/manifest.json):
	@echo 'needs the collection $(@D), made by: hybrid prepare beir FOLDER --output $(@D)' >&2; exit 1

$(PRIOR)/%.bm25/manifest.json: $(PRIOR)/%/manifest.json | $(SETUP)
	$(HYBRID) index-bm25 $(<D) --no-lucene --output $(@D) --overwrite

$(PRIOR)/%.minilm/manifest.json: $(PRIOR)/%/manifest.json | $(SETUP)
	$(HYBRID) encode $(<D) --model minilm --output $(@D) --overwrite
