# Robustness against attacks on the queries (LITE, Table 4).
#
#   make robustness DATA=FOLDER OUT=FOLDER     BM25, the untrained model, both fused by min-max
#
# SYSTEMS are rows: `bm25`, and NAME for the dense index FROM/NAME-index. HYBRIDS are rows bm25+NAME, fused by min-max.
# After `make roc`: make robustness SYSTEMS='bm25 dense' HYBRIDS='bm25+dense' FROM=$(OUT)/roc/seed-1.
# The values of every query are written to MEASURED/robustness.parquet; studies/verdicts.py compares the changes.
#
# Synonyms come from WordNet, else from hybrid's own table; SYNONYMS names another one. Back-translation is skipped with a
# notice without TRANSLATION='THERE BACK', two folders of models; TRANSLATION_PREFIX is the prefix that the first model needs.
# ATTACKED_QUERIES='ATTACK=FILE ...' are queries attacked by another tool.

SYSTEMS ?= bm25 before
HYBRIDS ?= bm25+before
FROM ?= $(OUT)
ATTACKS ?= char-swap word-deletion synonym-replacement word-order-swap synonym-insertion back-translation
ROBUSTNESS_MEASURES ?= R@100,MRR@10
TRANSLATION ?=
TRANSLATION_PREFIX ?=
ATTACKED_QUERIES ?=

robust := $(OUT)/robustness
robust_rows := $(SYSTEMS) $(HYBRIDS)
robust_table = $(HYBRID) evaluate $(DATA) --split test --study robustness --measure $(ROBUSTNESS_MEASURES) \
    --output $(MEASURED)/robustness.parquet --overwrite

# 1. Attack the queries: robustness/queries/ATTACK.parquet. `hybrid perturb` exits with 3 if a resource is missing.

robust_options = $(if $(filter back-translation,$*)$(filter $*=%,$(ATTACKED_QUERIES)),,--seed $(SEED)) \
    $(addprefix --attacked-queries ,$(filter $*=%,$(ATTACKED_QUERIES))) \
    $(if $(filter synonym-%,$*),$(addprefix --synonyms ,$(SYNONYMS))) \
    $(if $(TRANSLATION),$(if $(filter back-translation,$*),--translation $(TRANSLATION) --translation-prefix '$(TRANSLATION_PREFIX)'))

$(robust)/queries/%.parquet: $(corpus) | $(SETUP)
	$(HYBRID) perturb $(DATA) --split test --attack $* $(robust_options) --output $@ --overwrite || test $$? -eq 3

# 2. Search with the original queries: robustness/ROW.parquet. % is the row.

$(robust)/%.parquet: $(FROM)/%-index/manifest.json
	$(HYBRID) search $(DATA) --split test --index $(<D) --output $@ --overwrite

$(robust)/bm25.parquet: $(bm25)
	$(HYBRID) search $(DATA) --split test --index $(<D) --output $@ --overwrite

$(robust)/bm25+%.parquet: $(robust)/bm25.parquet $(robust)/%.parquet
	$(HYBRID) fuse $^ --method minmax --output $@ --overwrite

# 3. Search with the queries of one ATTACK: robustness/ROW@ATTACK.parquet. % is the row.

ATTACK ?=

$(robust)/%@$(ATTACK).parquet: $(FROM)/%-index/manifest.json $(robust)/queries/$(ATTACK).parquet
	$(HYBRID) search --queries $(lastword $^) --index $(<D) --output $@ --overwrite

$(robust)/bm25@$(ATTACK).parquet: $(bm25) $(robust)/queries/$(ATTACK).parquet
	$(HYBRID) search --queries $(lastword $^) --index $(<D) --output $@ --overwrite

$(robust)/bm25+%@$(ATTACK).parquet: $(robust)/bm25@$(ATTACK).parquet $(robust)/%@$(ATTACK).parquet
	$(HYBRID) fuse $^ --method minmax --output $@ --overwrite

# 4. The table, over the attacks that exist after step 1

robust_attacks = $(or $(filter $(ATTACKS),$(patsubst %.parquet,%,$(notdir $(shell ls $(robust)/queries/*.parquet 2>/dev/null)))),$(ATTACKS))

robustness: $(SETUP) $(ATTACKS:%=$(robust)/queries/%.parquet) $(robust_rows:%=$(robust)/%.parquet)  ## robustness of SYSTEMS and HYBRIDS on DATA against ATTACKS on the queries
	@for attack in $(robust_attacks); do \
	    $(MAKE) --no-print-directory robustness-attack ATTACK=$$attack || exit 1; \
	done
	@$(robust_table) $(foreach row,$(robust_rows),$(robust)/$(row).parquet $(robust_attacks:%=$(robust)/$(row)@%.parquet))

robustness-attack: $(robust_rows:%=$(robust)/%@$(ATTACK).parquet)
