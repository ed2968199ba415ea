# Experiments that decide the claims of the papers, on one collection. Steps are fixed; every arm uses the weights of its last
# step, so that validation selects nothing. The values of every query are written to MEASURED/NAME.parquet, the first and last
# steps of the learning curves to MEASURED/NAME-curves.csv.
#
#   make claims-clear DATA=FOLDER OUT=FOLDER     CLEAR: losses and negatives
#   make claims-roc DATA=FOLDER OUT=FOLDER       RoC: orthogonality of embeddings and of inputs, with a control
#   make claims-lite DATA=FOLDER OUT=FOLDER      LITE: weights of the distillation; DrBoost
#   make claims-bpr DATA=FOLDER OUT=FOLDER       BPR: binary codes with and without its training
#   make claims-lambda DATA=FOLDER OUT=FOLDER    SPAR: a transformer Lambda, and its number of positives
#
# SEEDS of each arm; every target resumes after an interruption. python studies/verdicts.py MEASURED prints the verdicts.
#
# studies has tables of these steps and of fewer: CLAIM_STEPS=600 CLAIM_RATE=3e-4 CLAIM_LITE_STEPS=600
# POSITIVES_STEPS=600 LAMBDA_STEPS=600; `lambda-cls` was run with 600 steps only.

CLAIM_LAYERS ?= 2
CLAIM_STEPS ?= 2000
CLAIM_RATE ?= 1e-4
CLAIM_DEPTH ?= 50
CLAIM_MEASURES ?= MRR@10,nDCG@10,MAP,R@100,R@1000,Success@10,Success@20,Success@100
MEASURED ?= $(OUT)/measured
# Margin of the arm `constant-mean`; by default the mean margin in the training of `residual`, from its learning curve.
RESIDUAL_MEAN ?=
planning = $(findstring n,$(firstword -$(MAKEFLAGS)))  # make -n, before the curve exists

claims := $(OUT)/claims/seed-$(SEED)
claim_train = $(HYBRID) train-dense $< --model $(MODEL) --layers $(CLAIM_LAYERS) --query-max-len 32 --doc-max-len 64 \
    --batch-size 28 --lr $(CLAIM_RATE) --max-steps $(CLAIM_STEPS) --seed $(SEED) --output $(@D) --overwrite

# CLEAR. Rows: `start` (the untrained model), `residual` (CLEAR), `constant` and `constant-mean` (constant margin of 1, and of the
# mean of the residual's), `random` (residual margin, random negatives), `nll-one` (likelihood, the negatives of the query
# only), `nll` (likelihood, with the documents of the batch), `nll-two` (the same, with two negatives), `residual-batch` and
# `residual-nll` (the sum is trained, with the documents of the batch), `residual-nll-anneal` (the weight of BM25 rises from 0).
# With one more negative, which the model in training ranks first: `residual-dynamic-model`, `nll-dynamic` (from `nll-one`),
# `batch-dynamic` (from `nll`). With one more, which the sum of model and BM25 ranks first: `residual-dynamic`,
# `nll-dynamic-sum`, `batch-dynamic-sum`, `residual-nll-dynamic`.

claims_clear_arms := start residual residual-dynamic residual-dynamic-model nll-dynamic nll-dynamic-sum batch-dynamic \
    batch-dynamic-sum residual-nll-dynamic constant constant-mean random nll-one nll nll-two residual-batch residual-nll \
    residual-nll-anneal
claims_clear_rows := $(foreach arm,$(claims_clear_arms),$(arm) bm25+$(arm))
claims_clear_curves := $(foreach seed,$(SEEDS),$(foreach arm,$(claims_clear_arms),$(arm)-$(seed)=$(OUT)/claims/seed-$(seed)/$(arm)))
claims_clear_runs := bm25=$(OUT)/bm25.test.parquet \
    $(foreach seed,$(SEEDS),$(foreach row,$(claims_clear_rows),$(row)-$(seed)=$(OUT)/claims/seed-$(seed)/$(row).test.parquet))

claims-clear: $(SETUP) $(OUT)/bm25.test.parquet  ## CLEAR's claims on DATA: losses and negatives, SEEDS of each (hours)
	$(each_seed)
	$(evaluate) $(claims_clear_runs) --measure $(CLAIM_MEASURES) --output $(MEASURED)/clear.parquet --overwrite --study over-seeds \
	    --roc-against bm25 --baseline bm25+nll
	@$(CURVES) $(claims_clear_curves) --output $(MEASURED)/clear-curves.csv

claims-clear-seed: $(claims_clear_rows:%=$(claims)/%.test.parquet)

$(claims)/errors.parquet: $(bm25)
	$(HYBRID) mine-negatives $(DATA) --split train --index $(<D) --depth $(CLAIM_DEPTH) --seed $(SEED) --output $@ --overwrite

$(claims)/random.parquet: $(bm25)
	$(HYBRID) mine-negatives $(DATA) --split train --index $(<D) --prob 0 --seed $(SEED) --output $@ --overwrite

claim_clear = $(claim_train) --no-normalize --temperature 1

$(claims)/start/manifest.json: override CLAIM_STEPS := 1
$(claims)/start/manifest.json: override CLAIM_RATE := 0
$(claims)/start/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss nll

$(claims)/residual/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss residual-margin

$(claims)/residual-dynamic/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss residual-margin --dynamic-negatives 1 --index $(OUT)/bm25

$(claims)/nll-dynamic/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss nll --no-in-batch --dynamic-negatives 1

$(claims)/residual-dynamic-model/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss residual-margin --dynamic-negatives 1 --dynamic-ranking model --index $(OUT)/bm25

$(claims)/nll-dynamic-sum/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss nll --no-in-batch --dynamic-negatives 1 --dynamic-ranking sum --index $(OUT)/bm25

$(claims)/batch-dynamic/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss nll --dynamic-negatives 1

$(claims)/batch-dynamic-sum/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss nll --dynamic-negatives 1 --dynamic-ranking sum --index $(OUT)/bm25

$(claims)/residual-nll-dynamic/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss residual-nll --dynamic-negatives 1 --index $(OUT)/bm25

$(claims)/constant/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss margin

$(claims)/constant-mean/manifest.json: $(claims)/errors.parquet $(claims)/residual/manifest.json
	$(claim_clear) --loss margin --xi $(or $(RESIDUAL_MEAN),$(if $(planning),MEAN_MARGIN,$(shell $(CURVES) $(claims)/residual --mean mean_margin)))

$(claims)/random/manifest.json: $(claims)/random.parquet
	$(claim_clear) --loss residual-margin

$(claims)/nll-one/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss nll --no-in-batch

$(claims)/nll/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss nll

$(claims)/nll-two/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss nll --negatives 2

$(claims)/residual-batch/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss residual-margin --in-batch --index $(OUT)/bm25

$(claims)/residual-nll/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss residual-nll --index $(OUT)/bm25

$(claims)/residual-nll-anneal/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss residual-nll --scorer-schedule anneal --index $(OUT)/bm25

# RoC: the six-layer model. `E0` to `E100` have the weight of the orthogonality of embeddings in their name; `control` has
# weight 100 and the BM25 vectors of other texts. `I0` to `I50` mask 0 to 50% of the matches, with negatives from BM25's
# first 20 hits. `X@adversary`: the queries of the synonym adversary (common.mk). verdicts.py compares them with `bm25@adversary`.

ROC_STEPS ?= 300
claims_roc_arms := E0 E1 E100 control I0 I15 I50
claims_roc_attacked := I0 I15 I50
claims_roc_rows := $(foreach arm,$(claims_roc_arms),$(arm) bm25+$(arm))
claims_roc_runs := bm25=$(OUT)/bm25.test.parquet \
    $(foreach seed,$(SEEDS),$(foreach row,$(claims_roc_rows),$(row)-$(seed)=$(OUT)/claims/seed-$(seed)/$(row).test.parquet))
claims_roc_attacked_runs := bm25@adversary=$(OUT)/bm25.adversary.parquet $(foreach seed,$(SEEDS), \
    $(foreach arm,$(claims_roc_attacked),$(arm)@adversary-$(seed)=$(OUT)/claims/seed-$(seed)/$(arm).adversary.parquet))
claims_roc_curves := $(foreach seed,$(SEEDS),$(foreach arm,$(claims_roc_arms),$(arm)-$(seed)=$(OUT)/claims/seed-$(seed)/$(arm)))

claims-roc: $(SETUP) $(OUT)/bm25.test.parquet $(OUT)/bm25.adversary.parquet  ## RoC's claims on DATA: orthogonality against a control, SEEDS of each (hours)
	$(each_seed)
	$(evaluate) $(claims_roc_runs) $(claims_roc_attacked_runs) --measure $(CLAIM_MEASURES) \
	    --output $(MEASURED)/roc.parquet --overwrite --study over-seeds --roc-against bm25 --baseline bm25+E0
	@$(CURVES) $(claims_roc_curves) --output $(MEASURED)/roc-curves.csv

claims-roc-seed: $(claims_roc_rows:%=$(claims)/%.test.parquet) $(claims_roc_attacked:%=$(claims)/%.adversary.parquet)

$(claims)/top20.parquet: $(bm25)
	$(HYBRID) mine-negatives $(DATA) --split train --index $(<D) --depth 20 --seed $(SEED) --output $@ --overwrite

claim_roc = $(HYBRID) train-dense $< --model $(MODEL) --query-max-len 64 --doc-max-len 96 --batch-size 28 --lr 5e-5 \
    --max-steps $(ROC_STEPS) --loss roc --seed $(SEED) --output $(@D) --overwrite

$(claims)/E0/manifest.json: $(claims)/errors.parquet
	$(claim_roc) --ortho-weight 0 --mask-matches 0

$(claims)/E1/manifest.json: $(claims)/errors.parquet
	$(claim_roc) --index $(OUT)/bm25 --ortho-weight 1 --mask-matches 0

$(claims)/E100/manifest.json: $(claims)/errors.parquet
	$(claim_roc) --index $(OUT)/bm25 --ortho-weight 100 --mask-matches 0

$(claims)/control/manifest.json: $(claims)/errors.parquet
	$(claim_roc) --index $(OUT)/bm25 --ortho-weight 100 --mask-matches 0 --ortho-control

$(claims)/I0/manifest.json: $(claims)/top20.parquet
	$(claim_roc) --ortho-weight 0 --mask-matches 0

$(claims)/I15/manifest.json: $(claims)/top20.parquet
	$(claim_roc) --ortho-weight 0 --mask-matches 0.15

$(claims)/I50/manifest.json: $(claims)/top20.parquet
	$(claim_roc) --ortho-weight 0 --mask-matches 0.5

# LITE. Rows: `dpr` and `dpr32`, `drboost` (two learners of 32 dimensions), students `lite-0.3` to `lite-3` with the weight of the
# distillation in their name (`dpr32` is weight 0), `r-drboost` (the student in place of the first learner), `l-drboost` (the
# student and a learner trained on its errors). More rows, which double the cost, with
#
#   make claims-lite CLAIM_LITE_MORE='drboost-4 r-drboost-4 l-drboost-4 lite4-1 lite-0-untied lite-1-untied'
#
# `drboost-4`, `r-drboost-4` and `l-drboost-4` have three learners after the first, `lite4-1` is a student of `drboost-4`, and
# `lite-0-untied` and `lite-1-untied` have two towers.

CLAIM_LITE_STEPS ?= 1500
CLAIM_LITE_MORE ?=
claims_lite_arms := dpr dpr32 drboost lite-0.3 lite-1 lite-3 r-drboost l-drboost $(CLAIM_LITE_MORE)
claims_lite_runs := bm25=$(OUT)/bm25.test.parquet $(foreach seed,$(SEEDS), \
    $(foreach row,$(claims_lite_arms),$(row)-$(seed)=$(OUT)/claims/seed-$(seed)/$(row).test.parquet \
        bm25+$(row)-$(seed)=$(OUT)/claims/seed-$(seed)/bm25+$(row).minmax.test.parquet))
claims_lite_curves := $(foreach seed,$(SEEDS),$(foreach arm,$(claims_lite_arms),$(arm)-$(seed)=$(OUT)/claims/seed-$(seed)/$(arm)))

claims-lite: $(SETUP) $(OUT)/bm25.test.parquet  ## LITE's claims on DATA: distillation and boosting, SEEDS of each (hours)
	$(each_seed)
	$(evaluate) $(claims_lite_runs) --measure $(CLAIM_MEASURES) --output $(MEASURED)/lite.parquet --overwrite --study over-seeds \
	    --baseline dpr32
	@$(CURVES) $(claims_lite_curves) --output $(MEASURED)/lite-curves.csv

claims-lite-seed: $(claims_lite_arms:%=$(claims)/%.test.parquet) $(claims_lite_arms:%=$(claims)/bm25+%.minmax.test.parquet)

claim_lite_options = $< --model $(MODEL) --layers $(CLAIM_LAYERS) --query-max-len 32 --doc-max-len 64 --batch-size 28 \
    --lr 3e-4 --max-steps $(CLAIM_LITE_STEPS) --output $(@D) --overwrite
claim_lite = $(HYBRID) train-dense $(claim_lite_options) --loss nll
claim_boost = $(claim_lite) --boost $(word 2,$(^D))
claim_distill = $(HYBRID) distill-lite $(claim_lite_options) --teacher $(word 2,$(^D)) --dim 32 --seed $(SEED)

# The errors of an ensemble come from the same ranks as those of BM25.
$(claims)/%.errors.parquet: DEPTH = $(CLAIM_DEPTH)

$(claims)/dpr/manifest.json: $(claims)/errors.parquet
	$(claim_lite) --seed $(SEED)

$(claims)/dpr32/manifest.json: $(claims)/errors.parquet
	$(claim_lite) --dim 32 --seed $(SEED)

$(claims)/drboost/manifest.json: $(claims)/dpr32.errors.parquet $(claims)/dpr32/manifest.json
	$(claim_boost) --seed 2$(SEED)

$(claims)/drboost-index/manifest.json: $(claims)/dpr32-index/manifest.json $(claims)/drboost-learner-index/manifest.json
	$(lite_append)

$(foreach weight,0.3 1 3,$(claims)/lite-$(weight)/manifest.json): $(claims)/lite-%/manifest.json: $(claims)/errors.parquet \
    $(claims)/drboost/manifest.json
	$(claim_distill) --kd-weight $*

$(foreach weight,0 1,$(claims)/lite-$(weight)-untied/manifest.json): $(claims)/lite-%-untied/manifest.json: $(claims)/errors.parquet \
    $(claims)/drboost/manifest.json
	$(claim_distill) --kd-weight $* --untied

$(claims)/lite4-1/manifest.json: $(claims)/errors.parquet $(claims)/drboost-4/manifest.json
	$(claim_distill) --kd-weight 1

$(claims)/l-drboost/manifest.json: $(claims)/lite-1.errors.parquet $(claims)/lite-1/manifest.json
	$(claim_boost) --seed 2$(SEED)

$(claims)/l-drboost-index/manifest.json: $(claims)/lite-1-index/manifest.json $(claims)/l-drboost-learner-index/manifest.json
	$(lite_append)

$(claims)/r-drboost-index/manifest.json: $(claims)/lite-1-index/manifest.json $(claims)/drboost-learner-index/manifest.json
	$(lite_append)

# Three learners after the first

$(claims)/drboost-3/manifest.json: $(claims)/drboost.errors.parquet $(claims)/drboost/manifest.json
	$(claim_boost) --seed 3$(SEED)

$(claims)/drboost-3-index/manifest.json: $(claims)/drboost-index/manifest.json $(claims)/drboost-3-learner-index/manifest.json
	$(lite_append)

$(claims)/drboost-4/manifest.json: $(claims)/drboost-3.errors.parquet $(claims)/drboost-3/manifest.json
	$(claim_boost) --seed 4$(SEED)

$(claims)/drboost-4-index/manifest.json: $(claims)/drboost-3-index/manifest.json $(claims)/drboost-4-learner-index/manifest.json
	$(lite_append)

$(claims)/l-drboost-3/manifest.json: $(claims)/l-drboost.errors.parquet $(claims)/l-drboost/manifest.json
	$(claim_boost) --seed 3$(SEED)

$(claims)/l-drboost-3-index/manifest.json: $(claims)/l-drboost-index/manifest.json $(claims)/l-drboost-3-learner-index/manifest.json
	$(lite_append)

$(claims)/l-drboost-4/manifest.json: $(claims)/l-drboost-3.errors.parquet $(claims)/l-drboost-3/manifest.json
	$(claim_boost) --seed 4$(SEED)

$(claims)/l-drboost-4-index/manifest.json: $(claims)/l-drboost-3-index/manifest.json $(claims)/l-drboost-4-learner-index/manifest.json
	$(lite_append)

$(claims)/r-drboost-3-index/manifest.json: $(claims)/r-drboost-index/manifest.json $(claims)/drboost-3-learner-index/manifest.json
	$(lite_append)

$(claims)/r-drboost-4-index/manifest.json: $(claims)/r-drboost-3-index/manifest.json $(claims)/drboost-4-learner-index/manifest.json
	$(lite_append)

# BPR. Rows: `dpr` (float vectors), `signs` (its signs, without training for them), `bpr`. The loss as it was before its repair,
# for vectors that do not have length 1, is no longer in the code and cannot be a row; studies/lite.md says how it was run.

claims_bpr_rows := dpr signs bpr
claims_bpr_runs := $(foreach seed,$(SEEDS), \
    $(foreach row,$(claims_bpr_rows),$(row)-$(seed)=$(OUT)/claims/seed-$(seed)/$(row).test.parquet))
claims_bpr_curves := $(foreach seed,$(SEEDS),$(foreach row,$(claims_bpr_rows),$(row)-$(seed)=$(OUT)/claims/seed-$(seed)/$(row)))

claims-bpr: $(SETUP)  ## BPR's claim on DATA: training for binary codes, SEEDS of each (hours)
	$(each_seed)
	$(evaluate) $(claims_bpr_runs) --measure $(CLAIM_MEASURES) --output $(MEASURED)/bpr.parquet --overwrite --study over-seeds \
	    --baseline signs
	@$(CURVES) $(claims_bpr_curves) --output $(MEASURED)/bpr-curves.csv

claims-bpr-seed: $(claims_bpr_rows:%=$(claims)/%.test.parquet)

$(claims)/bpr/manifest.json: $(claims)/errors.parquet
	$(HYBRID) train-dense $(claim_lite_options) --loss bpr --seed $(SEED)

$(claims)/signs-index/manifest.json: $(claims)/dpr-index/manifest.json
	$(HYBRID) encode $(<D) --index-type binary --output $(@D) --overwrite

# Transformer Lambda. Rows: `static` (static Lambda of CLAIM_STATIC dimensions); CLAIM_LAMBDAS, trained for LAMBDA_STEPS steps of
# 128 queries: `lambda`, `on-static` (a transformer added to `static`) and, where the RBO of `lambda` stays under .35,
# `lambda-cls` (not normalized, [CLS], two towers); `dpr` of LITE, the sum `bm25+dpr`, and `dpr+X` (`dpr` and X in one index, the
# weight tuned on dev). `positives-1`, `positives-2` and `positives-10` (1,500 steps of 28 queries) are compared in the surrogate
# MRR of their learning curves, as in the paper.
#
#   make claims-lambda CLAIM_LAMBDAS='lambda lambda-cls on-static'

LAMBDA_STEPS ?= 4000
POSITIVES_STEPS ?= 1500
CLAIM_STATIC ?= 128
CLAIM_LAMBDAS ?= lambda on-static
claims_lambdas := static $(CLAIM_LAMBDAS)
claims_lambda_arms := $(claims_lambdas) positives-1 positives-2 positives-10 dpr
claims_lambda_rows := $(claims_lambda_arms) bm25+dpr $(claims_lambdas:%=dpr+%)
claims_lambda_runs := bm25=$(OUT)/bm25.test.parquet \
    $(foreach seed,$(SEEDS),$(foreach row,$(claims_lambda_rows),$(row)-$(seed)=$(OUT)/claims/seed-$(seed)/$(row).test.parquet))
claims_lambda_curves := $(foreach seed,$(SEEDS),$(foreach arm,$(claims_lambda_arms),$(arm)-$(seed)=$(OUT)/claims/seed-$(seed)/$(arm)))

claims-lambda: $(SETUP) $(OUT)/bm25.test.parquet  ## SPAR's claims on DATA: a transformer Lambda, SEEDS of each (many hours)
	$(each_seed)
	$(evaluate) $(claims_lambda_runs) --measure $(CLAIM_MEASURES) --output $(MEASURED)/lambda.parquet --overwrite --study over-seeds \
	    --overlap-with bm25
	@$(CURVES) $(claims_lambda_curves) --output $(MEASURED)/lambda-curves.csv

claims-lambda-seed: $(claims_lambda_rows:%=$(claims)/%.test.parquet)

claim_lambda = $(HYBRID) train-lambda $(DATA) --labels $(<D) --index $(OUT)/bm25 --dev dev --model $(MODEL) \
    --layers $(CLAIM_LAYERS) --query-max-len 32 --doc-max-len 64 --lr 3e-4 --keep last --seed $(SEED) --output $(@D) --overwrite

$(claims)/lambda/manifest.json: $(OUT)/labels-sampled/manifest.json
	$(claim_lambda) --batch-size 128 --max-steps $(LAMBDA_STEPS) --eval-steps 400

$(claims)/lambda-cls/manifest.json: $(OUT)/labels-sampled/manifest.json
	$(claim_lambda) --no-normalize --pooling cls --untied --batch-size 128 --max-steps $(LAMBDA_STEPS) --eval-steps 400

$(claims)/static/manifest.json: $(OUT)/labels-sampled/manifest.json
	$(HYBRID) train-lambda $(DATA) --encoder static --labels $(<D) --index $(OUT)/bm25 --dim $(CLAIM_STATIC) --seed $(SEED) \
	    --output $(@D) --overwrite

$(claims)/on-static/manifest.json: $(OUT)/labels-sampled/manifest.json $(claims)/static/manifest.json
	$(claim_lambda) --base $(claims)/static --batch-size 128 --max-steps $(LAMBDA_STEPS) --eval-steps 400

$(foreach positives,1 2 10,$(claims)/positives-$(positives)/manifest.json): $(claims)/positives-%/manifest.json: \
    $(OUT)/labels-sampled/manifest.json
	$(claim_lambda) --batch-size 28 --max-steps $(POSITIVES_STEPS) --eval-steps 500 --positives $*

$(claims_lambdas:%=$(claims)/dpr+%-index/manifest.json): $(claims)/dpr+%-index/manifest.json: $(claims)/dpr-index/manifest.json \
    $(claims)/%-index/manifest.json
	$(HYBRID) encode $(<D) --concat-with $(lastword $(^D)) --output $(@D) --overwrite

$(claims_lambdas:%=$(claims)/dpr+%/manifest.json): $(claims)/dpr+%/manifest.json: $(claims)/dpr+%-index/manifest.json
	$(HYBRID) combine $(claims)/dpr $(claims)/$* --tune $(DATA) --split dev --index $(<D) --measure $(TUNE_MEASURE) \
	    --output $(@D) --overwrite

$(claims_lambdas:%=$(claims)/dpr+%.test.parquet): %.test.parquet: %-index/manifest.json %/manifest.json
	$(HYBRID) search $(DATA) --split test --index $(<D) --model $(lastword $(^D)) --output $@ --overwrite
