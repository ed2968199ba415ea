# LITE and DrBoost: small dense encoders, ensembles of them, and their hybrids with BM25 (LITE, Table 2).
#
#   make lite DATA=FOLDER OUT=FOLDER              a table over SEEDS
#   make drboost DATA=FOLDER OUT=FOLDER ROUNDS=6  an ensemble that grows by one learner per round, alone and with BM25
#
# Rows:
#   dpr            dense encoder with all dimensions
#   bpr            the same with one bit per dimension
#   dpr32          dense encoder with LITE_DIM dimensions
#   drboost-N      dpr32 and N-1 more learners, each trained on the errors of the learners before it
#   lite           student of drboost-2 with LITE_DIM dimensions
#   r-drboost-2    lite in place of dpr32 in drboost-2
#   l-drboost-2    lite and a learner trained on its errors
#   spar           after `make spar` with the same OUT and SEEDS: dense encoder and Lambda
#   bm25+X         sum of the min-max-normalized scores of BM25 and X
#   sum+X product+X  sum and product of the raw scores, for X of LITE_RULED

LITE_DIM ?= 32
LITE_MEASURES ?= MRR@10,R@20,R@100,Success@20,Success@100
LITE_RULED ?= lite drboost-2
DPR_CONFIG ?=
BPR_CONFIG ?=
LITE_CONFIG ?=
# Options of the learner that is added to the student: the projection of both must be alike
L_DRBOOST ?=
LITE_TRAIN ?= --max-steps 120 --lr 2e-4 --dev-queries 60 --eval-steps 120

lite := $(OUT)/lite/seed-$(SEED)
lite_spar := $(wildcard $(SEEDS:%=$(OUT)/spar/seed-%/concat.$(TEST).parquet))
LITE_ROWS ?= dpr bpr dpr32 drboost-2 lite r-drboost-2 l-drboost-2 $(if $(filter $(words $(SEEDS)),$(words $(lite_spar))),spar)
lite_runs := bm25=$(OUT)/bm25.$(TEST).parquet \
    $(foreach seed,$(SEEDS),$(foreach row,$(LITE_ROWS), \
        $(row)-$(seed)=$(OUT)/lite/seed-$(seed)/$(row).$(TEST).parquet \
        bm25+$(row)-$(seed)=$(OUT)/lite/seed-$(seed)/bm25+$(row).minmax.$(TEST).parquet) \
    $(foreach row,$(LITE_RULED), \
        sum+$(row)-$(seed)=$(OUT)/lite/seed-$(seed)/bm25+$(row).sum.$(TEST).parquet \
        product+$(row)-$(seed)=$(OUT)/lite/seed-$(seed)/bm25+$(row).product.$(TEST).parquet))
lite_table = $(evaluate) $(lite_runs) --measure $(LITE_MEASURES) --output $(OUT)/lite/measurements.parquet

lite: $(SETUP) $(OUT)/bm25.$(TEST).parquet  ## LITE, DrBoost and hybrids on DATA, SEEDS of each row
	$(each_seed)
	$(lite_table) --overwrite > $(OUT)/lite/table.txt
	@$(lite_table) --study over-seeds --baseline dpr32,bm25+dpr32,bm25+dpr --correction bonferroni --format markdown

lite-seed: $(LITE_ROWS:%=$(lite)/%.$(TEST).parquet) $(LITE_ROWS:%=$(lite)/bm25+%.minmax.$(TEST).parquet) \
    $(LITE_RULED:%=$(lite)/bm25+%.sum.$(TEST).parquet) $(LITE_RULED:%=$(lite)/bm25+%.product.$(TEST).parquet)

# Encoders of one seed

lite_config = $(LITE_CONFIG)
$(lite)/dpr/manifest.json: lite_config = $(DPR_CONFIG)
$(lite)/bpr/manifest.json: lite_config = $(BPR_CONFIG)

lite_options = $< --model $(MODEL) $(lite_config) $(TRAIN) $(LENGTHS) $(LITE_TRAIN) --dev $(OUT)/dev.parquet --keep last --output $(@D)

$(lite)/dpr/manifest.json: $(OUT)/train-$(SEED).parquet $(OUT)/dev.parquet
	$(train_dense) $(lite_options) --loss nll --seed $(SEED)

$(lite)/bpr/manifest.json: $(OUT)/train-$(SEED).parquet $(OUT)/dev.parquet
	$(train_dense) $(lite_options) --loss bpr --seed $(SEED)

$(lite)/dpr32/manifest.json: $(OUT)/train-$(SEED).parquet $(OUT)/dev.parquet
	$(train_dense) $(lite_options) --loss nll --dim $(LITE_DIM) --seed $(SEED)

$(lite)/lite/manifest.json: $(OUT)/train-$(SEED).parquet $(lite)/drboost-2/manifest.json $(OUT)/dev.parquet
	$(HYBRID) distill-lite $(lite_options) --teacher $(lite)/drboost-2 --dim $(LITE_DIM) --seed $(SEED) --overwrite

$(lite)/spar.$(TEST).parquet: $(OUT)/spar/seed-$(SEED)/concat-index/manifest.json $(OUT)/spar/seed-$(SEED)/concat-tuned/manifest.json
	$(HYBRID) search $(DATA) --split $(TEST) --index $(<D) --model $(lastword $(^D)) --output $@ --overwrite

# Errors of an encoder X: its first 100 hits on the training queries as hard negatives, of these the first DEPTH if given

DEPTH ?=

%.train.parquet: %-index/manifest.json
	$(HYBRID) search $(DATA) --split train --index $(<D) --hits 100 --output $@ --overwrite

%.errors.parquet: %.train.parquet $(bm25)
	$(HYBRID) mine-negatives $(DATA) --split train --sources run:$< --index $(OUT)/bm25 $(addprefix --depth ,$(DEPTH)) \
	    --seed $(SEED) --output $@ --overwrite

# Ensembles: a learner trained on the errors of the ensemble so far; the index appends the vectors of the learner.

lite_boost = $(train_dense) $(lite_options) --loss nll --boost $(word 2,$(^D))
lite_append = $(HYBRID) encode $(<D) --concat-with $(lastword $(^D)) --output $(@D) --overwrite

%-learner-index/manifest.json: %/manifest.json
	$(HYBRID) encode $(DATA) --model $(<D)/part-2 --output $(@D) --overwrite

$(lite)/drboost-2/manifest.json: $(lite)/dpr32.errors.parquet $(lite)/dpr32/manifest.json $(OUT)/dev.parquet
	$(lite_boost) --seed 2$(SEED)

$(lite)/drboost-2-index/manifest.json: $(lite)/dpr32-index/manifest.json $(lite)/drboost-2-learner-index/manifest.json
	$(lite_append)

$(lite)/l-drboost-2/manifest.json: $(lite)/lite.errors.parquet $(lite)/lite/manifest.json $(OUT)/dev.parquet
	$(lite_boost) $(L_DRBOOST) --seed 2$(SEED)

$(lite)/l-drboost-2-index/manifest.json: $(lite)/lite-index/manifest.json $(lite)/l-drboost-2-learner-index/manifest.json
	$(lite_append)

$(lite)/r-drboost-2-index/manifest.json: $(lite)/lite-index/manifest.json $(lite)/drboost-2-learner-index/manifest.json
	$(lite_append)

# DrBoost by round

ROUNDS ?= 2
$(if $(filter-out 2 3 4 5 6,$(ROUNDS)),$(error ROUNDS=$(ROUNDS): must be between 2 and 6))
drboost_names := $(wordlist 2,$(ROUNDS),drboost-1 drboost-2 drboost-3 drboost-4 drboost-5 drboost-6)
drboost_runs := bm25=$(OUT)/bm25.$(TEST).parquet \
    $(foreach seed,$(SEEDS),$(foreach row,dpr32 $(drboost_names), \
        $(row)-$(seed)=$(OUT)/lite/seed-$(seed)/$(row).$(TEST).parquet \
        bm25+$(row)-$(seed)=$(OUT)/lite/seed-$(seed)/bm25+$(row).minmax.$(TEST).parquet))
drboost_table = $(evaluate) $(drboost_runs) --measure $(LITE_MEASURES) --output $(OUT)/lite/drboost.parquet

drboost: $(SETUP) $(OUT)/bm25.$(TEST).parquet  ## an ensemble of ROUNDS learners (2 to 6) on DATA, alone and with BM25
	$(each_seed)
	$(drboost_table) --overwrite > $(OUT)/lite/drboost.txt
	@$(drboost_table) --study over-seeds --baseline dpr32 --correction bonferroni --format markdown

drboost-seed: $(foreach row,dpr32 $(drboost_names),$(lite)/$(row).$(TEST).parquet $(lite)/bm25+$(row).minmax.$(TEST).parquet)

$(lite)/drboost-3/manifest.json: $(lite)/drboost-2.errors.parquet $(lite)/drboost-2/manifest.json $(OUT)/dev.parquet
	$(lite_boost) --seed 3$(SEED)

$(lite)/drboost-3-index/manifest.json: $(lite)/drboost-2-index/manifest.json $(lite)/drboost-3-learner-index/manifest.json
	$(lite_append)

$(lite)/drboost-4/manifest.json: $(lite)/drboost-3.errors.parquet $(lite)/drboost-3/manifest.json $(OUT)/dev.parquet
	$(lite_boost) --seed 4$(SEED)

$(lite)/drboost-4-index/manifest.json: $(lite)/drboost-3-index/manifest.json $(lite)/drboost-4-learner-index/manifest.json
	$(lite_append)

$(lite)/drboost-5/manifest.json: $(lite)/drboost-4.errors.parquet $(lite)/drboost-4/manifest.json $(OUT)/dev.parquet
	$(lite_boost) --seed 5$(SEED)

$(lite)/drboost-5-index/manifest.json: $(lite)/drboost-4-index/manifest.json $(lite)/drboost-5-learner-index/manifest.json
	$(lite_append)

$(lite)/drboost-6/manifest.json: $(lite)/drboost-5.errors.parquet $(lite)/drboost-5/manifest.json $(OUT)/dev.parquet
	$(lite_boost) --seed 6$(SEED)

$(lite)/drboost-6-index/manifest.json: $(lite)/drboost-5-index/manifest.json $(lite)/drboost-6-learner-index/manifest.json
	$(lite_append)
