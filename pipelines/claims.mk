# Experiments that decide the claims of the papers, on one collection. Steps are fixed; every arm uses the weights of its last
# step, so that validation selects nothing. The values of every query are written to MEASURED/NAME.parquet.
#
#   make claims-clear DATA=FOLDER OUT=FOLDER     SEEDS of each arm; resumes after an interruption

CLAIM_LAYERS ?= 2
CLAIM_STEPS ?= 2000
CLAIM_MEASURES ?= MRR@10,nDCG@10,R@100,Success@10
MEASURED ?= $(OUT)/measured
# Mean margin of the residual margin over the training examples, for the arm `constant-mean`.
RESIDUAL_MEAN ?= 0.744

claims := $(OUT)/claims/seed-$(SEED)
claim_train = $(HYBRID) train-dense $< --model $(MODEL) --layers $(CLAIM_LAYERS) --query-max-len 32 --doc-max-len 64 \
    --batch-size 28 --max-steps $(CLAIM_STEPS) --seed $(SEED) --output $(@D) --overwrite

# CLEAR. Rows: `residual` (CLEAR), `constant` and `constant-mean` (constant margin of 1, and of the mean of the
# residual's), `random` (residual margin, random negatives), `nll-one` (likelihood, the negatives of the query only),
# `nll` (likelihood, with the documents of the batch), `residual-batch` and `residual-nll` (the sum is trained, with the
# documents of the batch), `residual-nll-anneal` (the weight of BM25 rises from 0).

claims_clear_arms := residual constant constant-mean random nll-one nll residual-batch residual-nll residual-nll-anneal
claims_clear_rows := $(foreach arm,$(claims_clear_arms),$(arm) bm25+$(arm))
claims_clear_runs := bm25=$(OUT)/bm25.test.parquet before=$(OUT)/before.test.parquet bm25+before=$(OUT)/bm25+before.test.parquet \
    $(foreach seed,$(SEEDS),$(foreach row,$(claims_clear_rows),$(row)-$(seed)=$(OUT)/claims/seed-$(seed)/$(row).test.parquet))

claims-clear: $(SETUP) $(OUT)/bm25+before.test.parquet  ## CLEAR's claims on DATA: losses and negatives, SEEDS of each (hours)
	$(each_seed)
	$(evaluate) $(claims_clear_runs) --measures $(CLAIM_MEASURES) --output $(MEASURED)/clear.parquet --overwrite --over-seeds \
	    --roc-against bm25 --baseline bm25+nll

claims-clear-seed: $(claims_clear_rows:%=$(claims)/%.test.parquet)

$(claims)/errors.parquet: $(bm25)
	$(HYBRID) mine-negatives $(DATA) --split train --index $(<D) --depth 50 --seed $(SEED) --output $@ --overwrite

$(claims)/random.parquet: $(bm25)
	$(HYBRID) mine-negatives $(DATA) --split train --index $(<D) --prob 0 --seed $(SEED) --output $@ --overwrite

claim_clear = $(claim_train) --no-normalize --temperature 1 --lr 1e-4

$(claims)/residual/manifest.json: $(claims)/errors.parquet
	$(claim_clear) --loss residual-margin

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
