# RoC's ablation: the same dense model trained seven ways, each alone and summed with BM25 (methods 4.10).
#
#   make roc DATA=FOLDER OUT=FOLDER     BM25; dense; naive sum; CLEAR; RoC with E, with I, with both: SEEDS of each
#
# E is the orthogonality of vectors, I that of the input. All variants see the same examples in the same order, are taken
# at their last step, and have the weight of their sum tuned on dev in the same way.

ROC_MEASURES ?= MRR@10,MAP,R@20,R@100,Success@10
ROC_TRAIN ?= --max-steps 60 --dev-queries 60 --eval-steps 20
roc := $(OUT)/roc

roc_names := dense clear E I EI
roc_variants := $(foreach seed,$(SEEDS),$(foreach name,$(roc_names),$(name)-$(seed)))
roc_runs := $(foreach v,$(roc_variants),$(v)=$(roc)/$(v).test.parquet bm25+$(v)=$(roc)/bm25+$(v).test.parquet)
roc_first := $(firstword $(SEEDS))
roc_first_runs := dense=$(roc)/dense-$(roc_first).test.parquet \
    $(foreach name,$(roc_names),bm25+$(name)=$(roc)/bm25+$(name)-$(roc_first).test.parquet)

roc: $(SETUP) $(OUT)/runs/bm25.test.parquet $(foreach v,$(roc_variants),$(roc)/bm25+$(v).test.parquet)  ## RoC's seven runs on DATA: SEEDS of each, a table, a report
	$(HYBRID) evaluate $(DATA) --split test bm25=$(OUT)/runs/bm25.test.parquet $(roc_runs) --measures $(ROC_MEASURES) \
	    --output $(roc)/measurements.parquet --overwrite > $(roc)/table.txt
	$(VENV)/bin/python benchmarks/over_seeds.py $(roc)/measurements.parquet --sparse bm25 --baseline bm25+dense,bm25+clear
	$(HYBRID) report $(DATA) --split test bm25=$(OUT)/runs/bm25.test.parquet $(roc_first_runs) --complement dense bm25 \
	    --measures MRR@10,MAP,R@20,R@100 $(foreach v,$(roc_names),--model $(roc)/$(v)-$(roc_first)) \
	    --output $(roc)/report.html --overwrite

$(eval $(call study,$(roc),MAP))

roc_trained = $(trained) $< --index $(OUT)/bm25 --dev $(OUT)/dev.parquet $(ROC_TRAIN) --keep last --seed $* --output $(@D)

$(SEEDS:%=$(roc)/dense-%/manifest.json): $(roc)/dense-%/manifest.json: $(roc)/mined-%.parquet $(OUT)/dev.parquet
	$(roc_trained) --loss nll

$(SEEDS:%=$(roc)/clear-%/manifest.json): $(roc)/clear-%/manifest.json: $(roc)/mined-%.parquet $(OUT)/dev.parquet
	$(roc_trained) --loss residual-margin

$(SEEDS:%=$(roc)/E-%/manifest.json): $(roc)/E-%/manifest.json: $(roc)/mined-%.parquet $(OUT)/dev.parquet
	$(roc_trained) --loss roc --mask-matches 0

$(SEEDS:%=$(roc)/I-%/manifest.json): $(roc)/I-%/manifest.json: $(roc)/mined-%.parquet $(OUT)/dev.parquet
	$(roc_trained) --loss roc --ortho-weight 0

$(SEEDS:%=$(roc)/EI-%/manifest.json): $(roc)/EI-%/manifest.json: $(roc)/mined-%.parquet $(OUT)/dev.parquet
	$(roc_trained) --loss roc
