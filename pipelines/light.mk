# The light Lambda: static encoders of several lengths that imitate BM25, and one small index in the hybrid's place.
#
#   make light DATA=FOLDER OUT=FOLDER     the curve over DIMS, then dense + Lambda in one index, whole and compressed
#
# `light-D` is a static encoder of D dimensions; `both` the dense model beside light-LIGHT_DIM, its weight tuned on dev;
# `both-sq8` and `both-pq` the same vectors in 8 bits a value, and in PQ_BYTES bytes a passage.

DIMS ?= 32 64 128
LIGHT_DIM ?= 64
PQ_BYTES ?= 112
LIGHT_MEASURES ?= MRR@10,R@20,R@100
light := $(OUT)/light

light_curve := $(DIMS:%=light-%)
light_small := both both-sq8 both-pq
light_rows := dense $(light_curve) $(light_small) bm25+dense

light: $(SETUP) $(OUT)/runs/bm25.test.parquet $(light_rows:%=$(light)/%.test.parquet)  ## static Lambdas of DIMS on DATA; one small index for the hybrid
	@$(HYBRID) evaluate $(DATA) --split test bm25=$(OUT)/runs/bm25.test.parquet \
	    $(foreach row,$(light_rows),$(row)=$(light)/$(row).test.parquet) \
	    --measures $(LIGHT_MEASURES) --overlap-with bm25 --baseline bm25+dense
	$(HYBRID) report $(DATA) --split test bm25=$(OUT)/runs/bm25.test.parquet \
	    $(foreach row,dense $(light_small) bm25+dense,$(row)=$(light)/$(row).test.parquet) --complement both bm25 \
	    --measures $(LIGHT_MEASURES) --output $(light)/report.html --overwrite

$(eval $(call study,$(light),MRR@10))

$(light)/labels/manifest.json: $(bm25)
	$(HYBRID) label $(DATA) --index $(<D) --seed $(SEED) --output $(@D) --overwrite

$(DIMS:%=$(light)/light-%/manifest.json): $(light)/light-%/manifest.json: $(light)/labels/manifest.json
	$(HYBRID) train-lambda $(DATA) --encoder static --labels $(<D) --index $(OUT)/bm25 --dev dev --dim $* --seed $(SEED) \
	    --output $(@D) --overwrite

$(light)/dense/manifest.json: $(light)/mined-$(SEED).parquet $(OUT)/dev.parquet
	$(trained) $< --dev $(OUT)/dev.parquet --loss nll --seed $(SEED) --output $(@D)

light_halves := $(light)/dense-index $(light)/light-$(LIGHT_DIM)-index

$(light)/both-index/manifest.json: $(light_halves:%=%/manifest.json)
	$(HYBRID) encode $(firstword $(light_halves)) --beside $(lastword $(light_halves)) --output $(@D) --overwrite

$(light)/both/manifest.json: $(light)/both-index/manifest.json
	$(HYBRID) combine $(light)/dense $(light)/light-$(LIGHT_DIM) --tune $(DATA) --split dev --index $(<D) \
	    --measure MRR@10 --output $(@D) --overwrite

$(light)/both-sq8-index/manifest.json: $(light)/both-index/manifest.json
	$(HYBRID) encode $(<D) --index-type sq8 --output $(@D) --overwrite

$(light)/both-pq-index/manifest.json: $(light)/both-index/manifest.json
	$(HYBRID) encode $(<D) --index-type pq --pq-bytes $(PQ_BYTES) --output $(@D) --overwrite

$(light_small:%=$(light)/%.test.parquet): $(light)/%.test.parquet: $(light)/%-index/manifest.json $(light)/both/manifest.json
	$(HYBRID) search $(DATA) --split test --index $(<D) --model $(light)/both --output $@ --overwrite
