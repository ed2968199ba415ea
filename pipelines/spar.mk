# SPAR's tables: a Lambda that imitates BM25, put beside dense models in one index (methods 7).
#
#   make spar DATA=FOLDER OUT=FOLDER     SEEDS of each row, tables over the seeds
#
# Rows: BM25; dense; two dense models (the control); dense + BM25; dense begun from Lambda; dense trained beside a frozen
# Lambda; weighted sum; weighted concatenation; that + BM25; Lambda alone; and all of it with the light, static Lambda.

SPAR_MEASURES ?= MRR@10,R@20,R@100,Success@20,Success@100
SPAR_TRAIN ?= --max-steps 60 --dev-queries 60 --eval-steps 60
LAMBDA_TRAIN ?= --max-steps 150 --batch-size 28 --lr 1e-4 --eval-steps 30
LIGHT_TRAIN ?= --dim 64
SPAR_TUNE ?= --measure MRR@10
spar := $(OUT)/spar

spar_names := dense two init joint sum concat lambda light light+dense
spar_rows := bm25+dense bm25+concat bm25+light+dense
spar_variants := $(foreach seed,$(SEEDS),$(foreach name,$(spar_names) $(spar_rows),$(name)-$(seed)))
spar_runs := $(foreach v,$(spar_variants),$(v)=$(spar)/$(v).test.parquet)
spar_shuffled := $(foreach name,dense lambda light,$(name)-$(firstword $(SEEDS)))

spar_made := $(OUT)/runs/bm25.test.parquet $(foreach v,$(spar_variants),$(spar)/$(v).test.parquet) $(spar)/shuffled.txt

spar: $(SETUP) $(spar_made)  ## SPAR's rows on DATA: SEEDS of each, one index for dense and Lambda
	$(HYBRID) evaluate $(DATA) --split test bm25=$(OUT)/runs/bm25.test.parquet $(spar_runs) --measures $(SPAR_MEASURES) \
	    --overlap-with bm25 --output $(spar)/measurements.parquet --overwrite > $(spar)/table.txt
	$(VENV)/bin/python benchmarks/over_seeds.py $(spar)/measurements.parquet --baseline dense,bm25+dense
	@cat $(spar)/shuffled.txt

$(eval $(call study,$(spar),MRR@10))

$(spar)/labels/manifest.json: $(bm25)
	$(HYBRID) label $(DATA) --index $(<D) --seed $(SEED) --output $(@D) --overwrite

spar_imitates = $(HYBRID) train-lambda $(DATA) --labels $(<D) --index $(OUT)/bm25 --dev dev --seed $* --output $(@D) --overwrite
spar_trained = $(HYBRID) train-dense $(TRAIN) $(LENGTHS) --overwrite $< --dev $(OUT)/dev.parquet $(SPAR_TRAIN) --loss nll \
    --keep last --seed $* --output $(@D)

$(SEEDS:%=$(spar)/lambda-%/manifest.json): $(spar)/lambda-%/manifest.json: $(spar)/labels/manifest.json
	$(spar_imitates) --model $(MODEL) $(LENGTHS) $(LAMBDA_TRAIN)

$(SEEDS:%=$(spar)/light-%/manifest.json): $(spar)/light-%/manifest.json: $(spar)/labels/manifest.json
	$(spar_imitates) --encoder static $(LIGHT_TRAIN)

$(SEEDS:%=$(spar)/dense-%/manifest.json) $(SEEDS:%=$(spar)/second-%/manifest.json): $(OUT)/dev.parquet

$(SEEDS:%=$(spar)/dense-%/manifest.json): $(spar)/dense-%/manifest.json: $(spar)/mined-%.parquet
	$(spar_trained) --model $(MODEL)

$(SEEDS:%=$(spar)/second-%/manifest.json): $(spar)/second-%/manifest.json: $(spar)/mined-%.parquet
	$(subst --seed $*,--seed 1$*,$(spar_trained)) --model $(MODEL)

$(SEEDS:%=$(spar)/init-%/manifest.json): $(spar)/init-%/manifest.json: $(spar)/mined-%.parquet $(spar)/lambda-%/manifest.json
	$(spar_trained) --model $(spar)/lambda-$*

$(SEEDS:%=$(spar)/trained-beside-%/manifest.json): $(spar)/trained-beside-%/manifest.json: $(spar)/mined-%.parquet \
    $(spar)/lambda-%/manifest.json
	$(spar_trained) --model $(MODEL) --with-frozen $(spar)/lambda-$*

# A pair is encoded once at any weight; the weight is then found on dev. $(call pair,ROW,FIRST,SECOND,HOW)
define pair
$(SEEDS:%=$(spar)/$(1)-%-index/manifest.json): $(spar)/$(1)-%-index/manifest.json: \
    $(spar)/$(2)-%-index/manifest.json $(spar)/$(3)-%-index/manifest.json
	$(HYBRID) encode $$(<D) --beside $(spar)/$(3)-$$*-index --combine $(4) --output $$(@D) --overwrite

$(SEEDS:%=$(spar)/$(1)-%/manifest.json): $(spar)/$(1)-%/manifest.json: $(spar)/$(1)-%-index/manifest.json
	$(HYBRID) combine $(spar)/$(2)-$$* $(spar)/$(3)-$$* --how $(4) --tune $(DATA) --split dev --index $$(<D) \
	    $(SPAR_TUNE) --output $$(@D) --overwrite

$(SEEDS:%=$(spar)/$(1)-%.dev.parquet): $(spar)/$(1)-%.dev.parquet: $(spar)/$(1)-%/manifest.json
	$(HYBRID) search $(DATA) --split dev --index $(spar)/$(1)-$$*-index --model $$(<D) --output $$@ --overwrite

$(SEEDS:%=$(spar)/$(1)-%.test.parquet): $(spar)/$(1)-%.test.parquet: $(spar)/$(1)-%/manifest.json
	$(HYBRID) search $(DATA) --split test --index $(spar)/$(1)-$$*-index --model $$(<D) --output $$@ --overwrite
endef

$(eval $(call pair,two,dense,second,concat))
$(eval $(call pair,joint,trained-beside,lambda,concat))
$(eval $(call pair,sum,dense,lambda,sum))
$(eval $(call pair,concat,dense,lambda,concat))
$(eval $(call pair,light+dense,dense,light,concat))

$(spar)/shuffled.test.queries.parquet: $(corpus) | $(SETUP)
	$(HYBRID) perturb $(DATA) --split test --attack shuffle --output $@ --overwrite

$(spar)/%.shuffled.parquet: $(spar)/%-index/manifest.json $(spar)/shuffled.test.queries.parquet
	$(HYBRID) search --queries $(spar)/shuffled.test.queries.parquet --index $(<D) --output $@ --overwrite

$(spar)/bm25.shuffled.parquet: $(bm25) $(spar)/shuffled.test.queries.parquet
	$(HYBRID) search --queries $(spar)/shuffled.test.queries.parquet --index $(<D) --output $@ --overwrite

$(spar)/shuffled.txt: $(OUT)/runs/bm25.test.parquet $(spar)/bm25.shuffled.parquet \
    $(foreach v,$(spar_shuffled),$(spar)/$(v).test.parquet $(spar)/$(v).shuffled.parquet)
	$(HYBRID) evaluate $(DATA) --split test $(foreach run,$^,$(notdir $(run:.parquet=))=$(run)) \
	    --measures $(SPAR_MEASURES) > $@

# Which queries should a Lambda learn from, and how many positives of each (SPAR's validation table and Figure 2)?
#
#   make lambda-study DATA=FOLDER OUT=FOLDER     given questions; sentences: sampled, all, cropped; 1, 2, 5, 10 positives

POSITIVES ?= 1 2 5
lambda := $(OUT)/lambda-study
lambda_from := questions sampled all cropped
lambda_rows := $(foreach seed,$(SEEDS),$(lambda_from:%=%-$(seed)) $(POSITIVES:%=positives%-$(seed)))

lambda-study: $(SETUP) $(OUT)/runs/bm25.test.parquet $(lambda_rows:%=$(lambda)/%.test.parquet)  ## what a Lambda should learn from, on DATA
	$(HYBRID) evaluate $(DATA) --split test bm25=$(OUT)/runs/bm25.test.parquet \
	    $(foreach row,$(lambda_rows),$(row)=$(lambda)/$(row).test.parquet) --measures $(SPAR_MEASURES) \
	    --overlap-with bm25 --output $(lambda)/measurements.parquet --overwrite > $(lambda)/table.txt
	$(VENV)/bin/python benchmarks/over_seeds.py $(lambda)/measurements.parquet --baseline sampled

$(eval $(call study,$(lambda),MRR@10))

$(lambda)/labels-questions/manifest.json: $(bm25)
	$(HYBRID) label $(DATA) --index $(<D) --split train --output $(@D) --overwrite

$(lambda)/labels-%/manifest.json: $(bm25)
	$(HYBRID) label $(DATA) --index $(<D) --queries-from $* --seed $(SEED) --output $(@D) --overwrite

lambda_trained = $(HYBRID) train-lambda $(DATA) --labels $(<D) --index $(OUT)/bm25 --dev dev --model $(MODEL) $(LENGTHS) \
    $(LAMBDA_TRAIN) --output $(@D) --overwrite

# $(call from,SOURCE) and $(call positives,NUMBER): % is the seed
define from
$(SEEDS:%=$(lambda)/$(1)-%/manifest.json): $(lambda)/$(1)-%/manifest.json: $(lambda)/labels-$(1)/manifest.json
	$$(lambda_trained) --seed $$*

endef
define positives
$(SEEDS:%=$(lambda)/positives$(1)-%/manifest.json): $(lambda)/positives$(1)-%/manifest.json: \
    $(lambda)/labels-sampled/manifest.json
	$$(lambda_trained) --positives $(1) --seed $$*

endef
$(foreach source,$(lambda_from),$(eval $(call from,$(source))))
$(foreach number,$(POSITIVES),$(eval $(call positives,$(number))))
