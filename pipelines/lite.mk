# LITE's tables: boosted learners of few dimensions, their students, and each of them fused with BM25 (methods 5 and 6).
#
#   make lite DATA=FOLDER OUT=FOLDER              SEEDS of each row, tables over the seeds
#   make drboost DATA=FOLDER OUT=FOLDER ROUNDS=6  an ensemble that grows learner by learner, alone and with BM25
#
# Rows: dpr (all dimensions), bpr (a bit for each), dpr32, drboost-2 (dpr32 and a learner trained on its errors), lite (a student of that),
# r-drboost-2 (lite in the place of dpr32), l-drboost-2 (lite and a learner trained on its errors); spar (after `make spar`
# in the same OUT). bm25+ROW is the sum after min-max; sum+ROW and product+ROW, of LITE_RULED, are those of raw scores.

ROUNDS ?= 2
LITE_DIM ?= 32
LITE_MEASURES ?= MRR@10,R@20,R@100,Success@20,Success@100
LITE_RULED ?= lite drboost-2
LITE_TRAIN ?= --max-steps 120 --lr 2e-4 --dev-queries 60 --eval-steps 120
lite := $(OUT)/lite

lite_names := dpr bpr dpr32 drboost-2 lite r-drboost-2 l-drboost-2
lite_spar := $(foreach seed,$(SEEDS),$(if $(wildcard $(OUT)/spar/concat-$(seed).test.parquet),spar-$(seed)))
lite_variants := $(foreach seed,$(SEEDS),$(foreach name,$(lite_names),$(name)-$(seed))) $(lite_spar)
lite_ruled := $(foreach seed,$(SEEDS),$(foreach rule,sum product,$(foreach name,$(LITE_RULED),$(rule)+$(name)-$(seed))))
lite_rows := $(foreach v,$(lite_variants),$(v) bm25+$(v)) $(lite_ruled)
rounds := $(shell seq 2 $(ROUNDS))
boosted := $(foreach seed,$(SEEDS),dpr32-$(seed) $(rounds:%=drboost-%-$(seed)))
boosted_runs := $(foreach v,$(boosted),$(v)=$(lite)/$(v).test.parquet bm25+$(v)=$(lite)/bm25+$(v).test.parquet)

lite: $(SETUP) $(OUT)/runs/bm25.test.parquet $(lite_rows:%=$(lite)/%.test.parquet)  ## LITE, DrBoost and their hybrids on DATA: SEEDS of each
	$(HYBRID) evaluate $(DATA) --split test bm25=$(OUT)/runs/bm25.test.parquet \
	    $(foreach row,$(lite_rows),$(row)=$(lite)/$(row).test.parquet) --measures $(LITE_MEASURES) \
	    --output $(lite)/measurements.parquet --overwrite > $(lite)/table.txt
	$(VENV)/bin/python benchmarks/over_seeds.py $(lite)/measurements.parquet --baseline dpr32,bm25+dpr32,bm25+dpr

drboost: $(SETUP) $(OUT)/runs/bm25.test.parquet $(foreach v,$(boosted),$(lite)/bm25+$(v).test.parquet)  ## an ensemble of ROUNDS learners on DATA, alone and with BM25
	$(HYBRID) evaluate $(DATA) --split test bm25=$(OUT)/runs/bm25.test.parquet $(boosted_runs) \
	    --measures $(LITE_MEASURES) --output $(lite)/drboost.parquet --overwrite > $(lite)/drboost.txt
	$(VENV)/bin/python benchmarks/over_seeds.py $(lite)/drboost.parquet --baseline dpr32

$(lite)/mined-%.parquet: $(bm25)
	$(HYBRID) mine-negatives $(DATA) --split train --index $(<D) --seed $* --output $@ --overwrite

$(lite)/%.train.parquet: $(lite)/%-index/manifest.json
	$(HYBRID) search $(DATA) --split train --index $(<D) --hits 100 --output $@ --overwrite

$(lite)/%.test.parquet: $(lite)/%-index/manifest.json
	$(HYBRID) search $(DATA) --split test --index $(<D) --output $@ --overwrite

$(lite)/bm25+%.test.parquet: $(OUT)/runs/bm25.test.parquet $(lite)/%.test.parquet
	$(HYBRID) fuse $^ --method minmax --output $@ --overwrite

$(lite)/sum+%.test.parquet: $(OUT)/runs/bm25.test.parquet $(lite)/%.test.parquet
	$(HYBRID) fuse $^ --method sum --output $@ --overwrite

$(lite)/product+%.test.parquet: $(OUT)/runs/bm25.test.parquet $(lite)/%.test.parquet
	$(HYBRID) fuse $^ --method product --output $@ --overwrite

$(lite)/spar-%.test.parquet: $(OUT)/spar/concat-%.test.parquet
	cp $< $@

lite_settings = $< --model $(MODEL) $(TRAIN) $(LENGTHS) $(LITE_TRAIN) --dev $(OUT)/dev.parquet --keep last --overwrite

$(SEEDS:%=$(lite)/dpr-%/manifest.json): $(lite)/dpr-%/manifest.json: $(lite)/mined-%.parquet $(OUT)/dev.parquet
	$(HYBRID) train-dense $(lite_settings) --loss nll --seed $* --output $(@D)

$(SEEDS:%=$(lite)/bpr-%/manifest.json): $(lite)/bpr-%/manifest.json: $(lite)/mined-%.parquet $(OUT)/dev.parquet
	$(HYBRID) train-dense $(lite_settings) --loss bpr --seed $* --output $(@D)

$(SEEDS:%=$(lite)/dpr32-%/manifest.json): $(lite)/dpr32-%/manifest.json: $(lite)/mined-%.parquet $(OUT)/dev.parquet
	$(HYBRID) train-dense $(lite_settings) --loss nll --dim $(LITE_DIM) --seed $* --output $(@D)

$(SEEDS:%=$(lite)/lite-%/manifest.json): $(lite)/lite-%/manifest.json: $(lite)/mined-%.parquet \
    $(lite)/drboost-2-%/manifest.json $(OUT)/dev.parquet
	$(HYBRID) distill-lite $(lite_settings) --teacher $(lite)/drboost-2-$* --dim $(LITE_DIM) --seed $* --output $(@D)

# A learner joins the ensemble FIRST; its examples are FIRST's errors, and the index of both is FIRST's beside its own.
# $(call joined,ENSEMBLE,FIRST,ROUND)
define joined
$(SEEDS:%=$(lite)/mined-$(1)-%.parquet): $(lite)/mined-$(1)-%.parquet: $(lite)/$(2)-%.train.parquet $(bm25)
	$(HYBRID) mine-negatives $(DATA) --split train --sources run:$$< --index $(OUT)/bm25 --depth 100 --seed $$* \
	    --output $$@ --overwrite

$(SEEDS:%=$(lite)/$(1)-%/manifest.json): $(lite)/$(1)-%/manifest.json: $(lite)/mined-$(1)-%.parquet \
    $(lite)/$(2)-%/manifest.json $(OUT)/dev.parquet
	$(HYBRID) train-dense $$(lite_settings) --loss nll --boost $(lite)/$(2)-$$* --seed $(3)$$* --output $$(@D)

$(SEEDS:%=$(lite)/$(1)-%-learner/manifest.json): $(lite)/$(1)-%-learner/manifest.json: $(lite)/$(1)-%/manifest.json
	$(HYBRID) encode $(DATA) --model $$(<D)/part-2 --output $$(@D) --overwrite

$(SEEDS:%=$(lite)/$(1)-%-index/manifest.json): $(lite)/$(1)-%-index/manifest.json: \
    $(lite)/$(2)-%-index/manifest.json $(lite)/$(1)-%-learner/manifest.json
	$(HYBRID) encode $$(<D) --beside $(lite)/$(1)-$$*-learner --output $$(@D) --overwrite

endef
before = $(if $(filter 2,$(1)),dpr32,drboost-$(shell expr $(1) - 1))
$(foreach round,$(sort 2 $(rounds)),$(eval $(call joined,drboost-$(round),$(call before,$(round)),$(round))))
$(eval $(call joined,l-drboost-2,lite,2))

$(SEEDS:%=$(lite)/r-drboost-2-%-index/manifest.json): $(lite)/r-drboost-2-%-index/manifest.json: \
    $(lite)/lite-%-index/manifest.json $(lite)/drboost-2-%-learner/manifest.json
	$(HYBRID) encode $(<D) --beside $(lite)/drboost-2-$*-learner --output $(@D) --overwrite
