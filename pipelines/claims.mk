# Experiments that decide the claims of the papers, on one collection. Steps are fixed; every arm uses the weights of its last
# step, so that validation selects nothing. The values of every query are written to MEASURED/NAME.parquet.
#
#   make claims-clear DATA=FOLDER OUT=FOLDER     CLEAR: losses and negatives
#   make claims-roc DATA=FOLDER OUT=FOLDER       RoC: orthogonality of embeddings and of inputs, with a control
#   make claims-lite DATA=FOLDER OUT=FOLDER      LITE: weights of the distillation; DrBoost
#   make claims-bpr DATA=FOLDER OUT=FOLDER       BPR: binary codes with and without its training
#   make claims-lambda DATA=FOLDER OUT=FOLDER    SPAR: a transformer Lambda, and its number of positives
#
# SEEDS of each arm; every target resumes after an interruption. python docs/methods/verdicts.py MEASURED prints the verdicts.

CLAIM_LAYERS ?= 2
CLAIM_STEPS ?= 2000
CLAIM_RATE ?= 1e-4
CLAIM_MEASURES ?= MRR@10,nDCG@10,R@100,Success@10
MEASURED ?= $(OUT)/measured
# Mean margin of the residual margin over the training examples, for the arm `constant-mean`; this value is for python-docs.
RESIDUAL_MEAN ?= 0.744

claims := $(OUT)/claims/seed-$(SEED)
claim_train = $(HYBRID) train-dense $< --model $(MODEL) --layers $(CLAIM_LAYERS) --query-max-len 32 --doc-max-len 64 \
    --batch-size 28 --lr $(CLAIM_RATE) --max-steps $(CLAIM_STEPS) --seed $(SEED) --output $(@D) --overwrite

# CLEAR. Rows: `start` (the untrained model), `residual` (CLEAR), `residual-dynamic` (one more negative, which the model in training ranks first), `constant` and
# `constant-mean` (constant margin of 1, and of the mean of the residual's), `random` (residual margin, random negatives),
# `nll-one` (likelihood, the negatives of the query only), `nll` (likelihood, with the documents of the batch),
# `residual-batch` and `residual-nll` (the sum is trained, with the documents of the batch), `residual-nll-anneal` (the
# weight of BM25 rises from 0).

claims_clear_arms := start residual residual-dynamic constant constant-mean random nll-one nll residual-batch residual-nll residual-nll-anneal
claims_clear_rows := $(foreach arm,$(claims_clear_arms),$(arm) bm25+$(arm))
claims_clear_runs := bm25=$(OUT)/bm25.test.parquet \
    $(foreach seed,$(SEEDS),$(foreach row,$(claims_clear_rows),$(row)-$(seed)=$(OUT)/claims/seed-$(seed)/$(row).test.parquet))

claims-clear: $(SETUP) $(OUT)/bm25.test.parquet  ## CLEAR's claims on DATA: losses and negatives, SEEDS of each (hours)
	$(each_seed)
	$(evaluate) $(claims_clear_runs) --measures $(CLAIM_MEASURES) --output $(MEASURED)/clear.parquet --overwrite --over-seeds \
	    --roc-against bm25 --baseline bm25+nll

claims-clear-seed: $(claims_clear_rows:%=$(claims)/%.test.parquet)

$(claims)/errors.parquet: $(bm25)
	$(HYBRID) mine-negatives $(DATA) --split train --index $(<D) --depth 50 --seed $(SEED) --output $@ --overwrite

$(claims)/random.parquet: $(bm25)
	$(HYBRID) mine-negatives $(DATA) --split train --index $(<D) --prob 0 --seed $(SEED) --output $@ --overwrite

claim_clear = $(claim_train) --no-normalize --temperature 1

$(claims)/start/manifest.json: CLAIM_STEPS := 1
$(claims)/start/manifest.json: CLAIM_RATE := 0
$(claims)/start/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss nll

$(claims)/residual/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss residual-margin

$(claims)/residual-dynamic/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss residual-margin --dynamic-negatives 1 --index $(OUT)/bm25

$(claims)/constant/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss margin

$(claims)/constant-mean/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss margin --xi $(RESIDUAL_MEAN)

$(claims)/random/manifest.json: $(claims)/random.parquet
	$(claim_clear) --loss residual-margin

$(claims)/nll-one/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss nll --no-in-batch

$(claims)/nll/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss nll

$(claims)/residual-batch/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss residual-margin --in-batch --index $(OUT)/bm25

$(claims)/residual-nll/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss residual-nll --index $(OUT)/bm25

$(claims)/residual-nll-anneal/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss residual-nll --scorer-schedule anneal --index $(OUT)/bm25

# RoC: the six-layer model. `E0` to `E100` have the weight of the orthogonality of embeddings in their name; `control` has
# weight 100 and the BM25 vectors of other texts. `I0` to `I50` mask 0 to 50% of the matches, with negatives from BM25's
# first 20 hits.

claims_roc_arms := E0 E1 E100 control I0 I15 I50
claims_roc_rows := $(foreach arm,$(claims_roc_arms),$(arm) bm25+$(arm))
claims_roc_runs := bm25=$(OUT)/bm25.test.parquet \
    $(foreach seed,$(SEEDS),$(foreach row,$(claims_roc_rows),$(row)-$(seed)=$(OUT)/claims/seed-$(seed)/$(row).test.parquet))

claims-roc: $(SETUP) $(OUT)/bm25.test.parquet  ## RoC's claims on DATA: orthogonality against a control, SEEDS of each (hours)
	$(each_seed)
	$(evaluate) $(claims_roc_runs) --measures $(CLAIM_MEASURES) --output $(MEASURED)/roc.parquet --overwrite --over-seeds \
	    --roc-against bm25 --baseline bm25+E0

claims-roc-seed: $(claims_roc_rows:%=$(claims)/%.test.parquet)

$(claims)/top20.parquet: $(bm25)
	$(HYBRID) mine-negatives $(DATA) --split train --index $(<D) --depth 20 --seed $(SEED) --output $@ --overwrite

claim_roc = $(HYBRID) train-dense $< --model $(MODEL) --query-max-len 64 --doc-max-len 96 --batch-size 28 --lr 5e-5 \
    --max-steps 300 --loss roc --seed $(SEED) --output $(@D) --overwrite

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

# LITE. Rows: `dpr` and `dpr32`, `drboost` (two learners of 32 dimensions), students `lite-0` to `lite-3` with the weight of the
# distillation in their name, `r-drboost` (the student in place of the first learner), `l-drboost` (the student and a learner
# trained on its errors).

claims_lite_arms := dpr dpr32 drboost lite-0 lite-0.3 lite-1 lite-3 r-drboost l-drboost
claims_lite_rows := $(claims_lite_arms) $(claims_lite_arms:%=bm25+%)
claims_lite_runs := bm25=$(OUT)/bm25.test.parquet $(foreach seed,$(SEEDS), \
    $(foreach row,$(claims_lite_arms),$(row)-$(seed)=$(OUT)/claims/seed-$(seed)/$(row).test.parquet \
        bm25+$(row)-$(seed)=$(OUT)/claims/seed-$(seed)/bm25+$(row).minmax.test.parquet))

claims-lite: $(SETUP) $(OUT)/bm25.test.parquet  ## LITE's claims on DATA: distillation and boosting, SEEDS of each (hours)
	$(each_seed)
	$(evaluate) $(claims_lite_runs) --measures $(CLAIM_MEASURES) --output $(MEASURED)/lite.parquet --overwrite --over-seeds \
	    --baseline dpr32

claims-lite-seed: $(claims_lite_arms:%=$(claims)/%.test.parquet) $(claims_lite_arms:%=$(claims)/bm25+%.minmax.test.parquet)

claim_lite_options = $< --model $(MODEL) --layers $(CLAIM_LAYERS) --query-max-len 32 --doc-max-len 64 --batch-size 28 \
    --lr 3e-4 --max-steps 1500 --output $(@D) --overwrite
claim_lite = $(HYBRID) train-dense $(claim_lite_options) --loss nll
claim_distill = $(HYBRID) distill-lite $(claim_lite_options) --teacher $(claims)/drboost --dim 32 --seed $(SEED)

$(claims)/dpr/manifest.json: $(claims)/errors.parquet
	$(claim_lite) --seed $(SEED)

$(claims)/dpr32/manifest.json: $(claims)/errors.parquet
	$(claim_lite) --dim 32 --seed $(SEED)

$(claims)/drboost/manifest.json: $(claims)/dpr32.errors.parquet $(claims)/dpr32/manifest.json
	$(claim_lite) --boost $(claims)/dpr32 --seed 2$(SEED)

$(claims)/drboost-index/manifest.json: $(claims)/dpr32-index/manifest.json $(claims)/drboost-learner-index/manifest.json
	$(lite_append)

$(foreach weight,0 0.3 1 3,$(claims)/lite-$(weight)/manifest.json): $(claims)/lite-%/manifest.json: $(claims)/errors.parquet \
    $(claims)/drboost/manifest.json
	$(claim_distill) --kd-weight $*

$(claims)/l-drboost/manifest.json: $(claims)/lite-1.errors.parquet $(claims)/lite-1/manifest.json
	$(claim_lite) --boost $(claims)/lite-1 --seed 2$(SEED)

$(claims)/l-drboost-index/manifest.json: $(claims)/lite-1-index/manifest.json $(claims)/l-drboost-learner-index/manifest.json
	$(lite_append)

$(claims)/r-drboost-index/manifest.json: $(claims)/lite-1-index/manifest.json $(claims)/drboost-learner-index/manifest.json
	$(lite_append)

# BPR. Rows: `dpr` (float vectors), `signs` (its signs, without training for them), `bpr`.

claims_bpr_rows := dpr signs bpr
claims_bpr_runs := $(foreach seed,$(SEEDS), \
    $(foreach row,$(claims_bpr_rows),$(row)-$(seed)=$(OUT)/claims/seed-$(seed)/$(row).test.parquet))

claims-bpr: $(SETUP)  ## BPR's claim on DATA: training for binary codes, SEEDS of each (hours)
	$(each_seed)
	$(evaluate) $(claims_bpr_runs) --measures $(CLAIM_MEASURES) --output $(MEASURED)/bpr.parquet --overwrite --over-seeds \
	    --baseline signs

claims-bpr-seed: $(claims_bpr_rows:%=$(claims)/%.test.parquet)

$(claims)/bpr/manifest.json: $(claims)/errors.parquet
	$(HYBRID) train-dense $(claim_lite_options) --loss bpr --seed $(SEED)

$(claims)/signs-index/manifest.json: $(claims)/dpr-index/manifest.json
	$(HYBRID) encode $(<D) --index-type binary --output $(@D) --overwrite

# Transformer Lambda. Rows: `lambda` (LAMBDA_STEPS steps of 128 queries), `positives-1`, `positives-2` and `positives-10`
# (1,500 steps of 28 queries); `static` (static Lambda of CLAIM_STATIC dimensions) and `on-static` (a transformer added to it,
# LAMBDA_STEPS steps).

LAMBDA_STEPS ?= 4000
CLAIM_STATIC ?= 128
claims_lambda_rows := lambda static on-static positives-1 positives-2 positives-10
claims_lambda_runs := bm25=$(OUT)/bm25.test.parquet \
    $(foreach seed,$(SEEDS),$(foreach row,$(claims_lambda_rows),$(row)-$(seed)=$(OUT)/claims/seed-$(seed)/$(row).test.parquet))

claims-lambda: $(SETUP) $(OUT)/bm25.test.parquet  ## SPAR's claims on DATA: a transformer Lambda, SEEDS of each (many hours)
	$(each_seed)
	$(evaluate) $(claims_lambda_runs) --measures $(CLAIM_MEASURES) --output $(MEASURED)/lambda.parquet --overwrite --over-seeds \
	    --overlap-with bm25

claims-lambda-seed: $(claims_lambda_rows:%=$(claims)/%.test.parquet)

claim_lambda = $(HYBRID) train-lambda $(DATA) --labels $(<D) --index $(OUT)/bm25 --dev dev --model $(MODEL) \
    --layers $(CLAIM_LAYERS) --query-max-len 32 --doc-max-len 64 --lr 3e-4 --keep last --seed $(SEED) --output $(@D) --overwrite

$(claims)/lambda/manifest.json: $(OUT)/labels-sampled/manifest.json
	$(claim_lambda) --batch-size 128 --max-steps $(LAMBDA_STEPS) --eval-steps 400

$(claims)/static/manifest.json: $(OUT)/labels-sampled/manifest.json
	$(HYBRID) train-lambda $(DATA) --encoder static --labels $(<D) --index $(OUT)/bm25 --dim $(CLAIM_STATIC) --seed $(SEED) \
	    --output $(@D) --overwrite

$(claims)/on-static/manifest.json: $(OUT)/labels-sampled/manifest.json $(claims)/static/manifest.json
	$(claim_lambda) --base $(claims)/static --batch-size 128 --max-steps $(LAMBDA_STEPS) --eval-steps 400

$(foreach positives,1 2 10,$(claims)/positives-$(positives)/manifest.json): $(claims)/positives-%/manifest.json: \
    $(OUT)/labels-sampled/manifest.json
	$(claim_lambda) --batch-size 28 --max-steps 1500 --eval-steps 500 --positives $*
