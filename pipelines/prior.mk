# The prior of `fuse --tune`, and the measurements of docs/few-labels.md, from judged collections.
#
#   make prior PRIOR=FOLDER COLLECTIONS='scifact cacm pydocs insuranceqa openwiki'
#   make few-labels PRIOR=FOLDER COLLECTIONS='scifact cacm pydocs insuranceqa openwiki'
#
# PRIOR/NAME is a prepared collection: `hybrid prepare beir scifact --output PRIOR/scifact`. Indexes and runs are written
# into PRIOR. `prior` uses the first split of train, dev and test that a collection has; `few-labels` uses test, and the
# stored prior of the other collections.

PRIOR ?= out/prior
COLLECTIONS ?= scifact cacm pydocs insuranceqa openwiki
PRIOR_LENGTHS := --query-max-len 64 --doc-max-len 128
prior_split = $(firstword $(foreach split,train dev test,$(if $(wildcard $(PRIOR)/$(1)/qrels.$(split).parquet),$(split))) train)
prior_runs = $(PRIOR)/$(1).bm25.$(2).parquet $(PRIOR)/$(1).minilm.$(2).parquet

prior: $(SETUP) $(foreach name,$(COLLECTIONS),$(call prior_runs,$(name),$(call prior_split,$(name))))  ## rebuild the prior of fuse --tune
	$(VENV)/bin/python benchmarks/prior.py $(PRIOR) $(COLLECTIONS) --output hybrid_cli/fusion/prior.json

few-labels: $(SETUP) $(foreach name,$(COLLECTIONS),$(call prior_runs,$(name),test))  ## measure tuning with few judged queries
	$(VENV)/bin/python benchmarks/prior.py $(PRIOR) $(COLLECTIONS) --few-labels docs/measured/few-labels.csv

$(COLLECTIONS:%=$(PRIOR)/%.bm25/manifest.json): %.bm25/manifest.json: %/manifest.json | $(SETUP)
	$(HYBRID) index-bm25 $(<D) --output $(@D) --overwrite

$(COLLECTIONS:%=$(PRIOR)/%.minilm/manifest.json): %.minilm/manifest.json: %/manifest.json | $(SETUP)
	$(HYBRID) encode $(<D) --model minilm $(PRIOR_LENGTHS) --output $(@D) --overwrite

define prior_search
$(PRIOR)/$(1).$(2).$(3).parquet: $(PRIOR)/$(1).$(2)/manifest.json
	$$(HYBRID) search $(PRIOR)/$(1) --split $(3) --index $(PRIOR)/$(1).$(2) --output $$@ --overwrite
endef
$(foreach name,$(COLLECTIONS),$(foreach system,bm25 minilm,$(foreach split,train dev test,$(eval \
    $(call prior_search,$(name),$(system),$(split))))))
