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
PRIOR_LENGTHS := --query-max-len 64 --doc-max-len 128
prior_split = $(firstword $(foreach split,train dev test,$(if $(wildcard $(PRIOR)/$(1)/qrels.$(split).parquet),$(split))) train)
prior_runs = $(PRIOR)/$(1).bm25.$(2).parquet $(PRIOR)/$(1).minilm.$(2).parquet
prior_has = $(if $(wildcard $(PRIOR)/$(1)/qrels.$(2).parquet),$(call prior_runs,$(1),$(2)))
pseudo_names := $(sort $(basename $(PSEUDO_SETS)))

prior: $(SETUP) $(foreach name,$(COLLECTIONS),$(call prior_runs,$(name),$(call prior_split,$(name))))  ## rebuild the prior of fuse --tune
	$(VENV)/bin/python benchmarks/prior.py $(PRIOR) $(COLLECTIONS) --output hybrid_cli/fusion/prior.json

few-labels: $(SETUP) $(foreach name,$(COLLECTIONS),$(call prior_runs,$(name),test))  ## measure tuning with few judged queries
	$(VENV)/bin/python benchmarks/prior.py $(PRIOR) $(COLLECTIONS) --few-labels docs/measured/few-labels.csv

fusers: $(SETUP) $(foreach name,$(COLLECTIONS),$(foreach split,train dev test,$(call prior_has,$(name),$(split))))  ## measure fusions with one weight per query
	$(VENV)/bin/python benchmarks/fusers.py $(PRIOR) $(COLLECTIONS) --output docs/measured/fusers.csv \
	    --without-labels docs/measured/fusers-without-labels.csv

pseudo-weights: $(SETUP) $(foreach name,$(PSEUDO_SETS),$(call prior_runs,$(name),dev)) \
    $(foreach name,$(pseudo_names),$(foreach split,dev test,$(call prior_has,$(name),$(split))))  ## measure weights and fusers from pseudo-queries
	$(VENV)/bin/python benchmarks/fusers.py $(PRIOR) $(pseudo_names) --pseudo docs/measured/pseudo-weights.csv

$(PSEUDO_SETS:%=$(PRIOR)/%/manifest.json): $(PRIOR)/%/manifest.json: | $(SETUP)
	$(HYBRID) prepare files $(PRIOR)/$(basename $*)/corpus.parquet $(PSEUDO_SAMPLE_$*) --pseudo-train 2000 \
	    --pseudo-queries $(subst .,,$(suffix $*)) --output $(@D) --overwrite

define prior_index
$(PRIOR)/$(1).bm25/manifest.json: $(PRIOR)/$(1)/manifest.json | $(SETUP)
	$$(HYBRID) index-bm25 $$(<D) --output $$(@D) --overwrite

$(PRIOR)/$(1).minilm/manifest.json: $(PRIOR)/$(1)/manifest.json | $(SETUP)
	$$(HYBRID) encode $$(<D) --model minilm $(PRIOR_LENGTHS) --output $$(@D) --overwrite
endef
$(foreach name,$(COLLECTIONS) $(PSEUDO_SETS),$(eval $(call prior_index,$(name))))

define prior_search
$(PRIOR)/$(1).$(2).$(3).parquet: $(PRIOR)/$(1).$(2)/manifest.json
	$$(HYBRID) search $(PRIOR)/$(1) --split $(3) --index $(PRIOR)/$(1).$(2) --output $$@ --overwrite
endef
$(foreach name,$(COLLECTIONS) $(PSEUDO_SETS),$(foreach system,bm25 minilm,$(foreach split,train dev test,$(eval \
    $(call prior_search,$(name),$(system),$(split))))))
