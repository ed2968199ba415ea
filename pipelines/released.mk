# Released encoders on DATA: alone, with BM25, with UniCOIL, and with a Lambda in one index (SPAR, table 3).
#
# NAME is one of RELEASED_NAMES; released_NAME are its model and further options of `encode`, as
# `castorini/ance-msmarco-passage --preset ance`. LAMBDA is the path of a Lambda, without the -index of its index; LAMBDA_MODEL is its
# encoder, if it has another path. TUNED is a folder of combinations tuned on another collection.
#
# File names below RELEASED:
#
#   NAME.test.parquet          alone; bm25+NAME: see common.mk
#   unicoil+NAME.test.parquet  exact sum with sparse/unicoil, its weight tuned on dev
#   NAME+L.test.parquet        weighted concatenation with LAMBDA, whose file name is L

RELEASED ?= $(OUT)/released
RELEASED_NAMES ?= ance rocketqa contriever gtr dpr wiki-lambda
LAMBDA ?= $(spar)/lambda
LAMBDA_MODEL ?= $(LAMBDA)
TUNED ?=
lambda_name := $(notdir $(LAMBDA))
with_lambda := $(RELEASED)/%+$(lambda_name)

$(RELEASED_NAMES:%=$(RELEASED)/%-index/manifest.json): $(RELEASED)/%-index/manifest.json: $(corpus) | $(SETUP)
	$(HYBRID) encode $(DATA) --model $(released_$*) --output $(@D) --overwrite

$(RELEASED)/unicoil+%.weights.json: $(sparse)/unicoil.dev.parquet $(RELEASED)/%.dev.parquet
	$(weighted_sum) $^ --index $(sparse)/unicoil-index,$(RELEASED)/$*-index --qrels $(DATA) --split dev \
	    --tune $(TUNE) --measure $(TUNE_MEASURE) --output $@

$(RELEASED)/unicoil+%.$(TEST).parquet: $(sparse)/unicoil.$(TEST).parquet $(RELEASED)/%.$(TEST).parquet $(RELEASED)/unicoil+%.weights.json
	$(weighted_sum) $(filter %.parquet,$^) --index $(sparse)/unicoil-index,$(RELEASED)/$*-index --weights @$(lastword $^) --output $@

$(RELEASED_NAMES:%=$(RELEASED)/%+$(lambda_name)-index/manifest.json): $(with_lambda)-index/manifest.json: $(RELEASED)/%-index/manifest.json $(LAMBDA)-index/manifest.json
	$(spar_index) --combine concat

$(RELEASED_NAMES:%=$(RELEASED)/%+$(lambda_name)-tuned/manifest.json): $(with_lambda)-tuned/manifest.json: $(with_lambda)-index/manifest.json
	$(spar_tune) --combine concat $(firstword $(released_$*)) $(LAMBDA_MODEL)

tuned_here := $(if $(TUNED),,$(with_lambda)-tuned/manifest.json)

$(RELEASED_NAMES:%=$(RELEASED)/%+$(lambda_name).$(TEST).parquet): $(with_lambda).$(TEST).parquet: $(with_lambda)-index/manifest.json $(tuned_here)
	$(HYBRID) search $(DATA) --split $(TEST) --index $(<D) --model $(or $(TUNED),$(RELEASED))/$*+$(lambda_name)-tuned --output $@ --overwrite

ifneq ($(TEST),dev)
$(RELEASED_NAMES:%=$(RELEASED)/%+$(lambda_name).dev.parquet): $(with_lambda).dev.parquet: $(with_lambda)-index/manifest.json $(tuned_here)
	$(HYBRID) search $(DATA) --split dev --index $(<D) --model $(or $(TUNED),$(RELEASED))/$*+$(lambda_name)-tuned --output $@ --overwrite
endif
