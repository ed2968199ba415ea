# Robustness to attacks on the queries (LITE, table 4).
#
#   make robustness DATA=FOLDER OUT=FOLDER     BM25, the dense model as it is, both fused by min-max
#
# SYSTEMS are rows: `bm25`, and NAME for the dense index FROM/NAME-index. HYBRIDS are rows fused of them by min-max. After
# `make roc`: make robustness SYSTEMS='bm25 dense-1' HYBRIDS='bm25+dense-1' FROM=$(OUT)/roc.
# Attacks whose resources are missing are skipped with a notice. TRANSLATION='THERE BACK' are two folders of models for
# back-translation, PREFIX the text that the first one needs; READY='ATTACK=FILE ...' are queries attacked elsewhere.

SYSTEMS ?= bm25 before
HYBRIDS ?= bm25+before
FROM ?= $(OUT)
ATTACKS ?= char-swap word-deletion synonym-replacement word-order-swap synonym-insertion back-translation
ROBUSTNESS_MEASURES ?= R@100,MRR@10
TRANSLATION ?=
PREFIX ?=
READY ?=
robust := $(OUT)/robustness
attacked := $(robust)/queries

robust_made = $(or $(filter $(ATTACKS),$(patsubst %.parquet,%,$(notdir $(shell ls $(attacked)/*.parquet 2>/dev/null)))),$(ATTACKS))
robust_runs := $(foreach row,$(SYSTEMS) $(HYBRIDS),$(robust)/$(row).parquet $(ATTACKS:%=$(robust)/$(row)@%.parquet))

# Which attacks can be made is known once they were tried, so the table is a make of its own.
robustness: $(SETUP) $(ATTACKS:%=$(attacked)/%.parquet)  ## what attacks on the queries cost SYSTEMS and HYBRIDS on DATA
	@$(MAKE) --no-print-directory robustness-table ATTACKS='$(robust_made)'

robustness-table: $(robust_runs)
	@$(HYBRID) evaluate $(DATA) --split test --robustness $^ --measures $(ROBUSTNESS_MEASURES) \
	    --output $(robust)/measurements.parquet --overwrite

# Exit status 3: a resource is missing, with a notice. Any other status is an error.
$(attacked)/%.parquet: $(corpus) | $(SETUP)
	$(HYBRID) perturb $(DATA) --split test --attack $* --seed $(SEED) $(addprefix --attacked-queries ,$(filter $*=%,$(READY))) \
	    $(if $(TRANSLATION),$(if $(filter back-translation,$*),--translation $(TRANSLATION) --translation-prefix '$(PREFIX)')) \
	    --output $@ --overwrite || test $$? -eq 3

# $(call robust_system,ROW,INDEX) and $(call robust_hybrid,ROW): % is the attack
define robust_system
$(robust)/$(1).parquet: $(2)/manifest.json
	$(HYBRID) search $(DATA) --split test --index $$(<D) --output $$@ --overwrite

$(robust)/$(1)@%.parquet: $(2)/manifest.json $(attacked)/%.parquet
	$(HYBRID) search --queries $$(lastword $$^) --index $$(<D) --output $$@ --overwrite

endef
define robust_hybrid
$(robust)/$(1).parquet: $(patsubst %,$(robust)/%.parquet,$(subst +, ,$(1)))
	$(HYBRID) fuse $$^ --method minmax --output $$@ --overwrite

$(robust)/$(1)@%.parquet: $(foreach part,$(subst +, ,$(1)),$(robust)/$(part)@%.parquet)
	$(HYBRID) fuse $$^ --method minmax --output $$@ --overwrite

endef
$(foreach row,$(SYSTEMS),$(eval $(call robust_system,$(row),$(if $(filter bm25,$(row)),$(OUT)/bm25,$(FROM)/$(row)-index))))
$(foreach row,$(HYBRIDS),$(eval $(call robust_hybrid,$(row))))
