# The demo: BM25, the untrained model and their hybrid; then the same with a model that was trained on BM25's errors.
#
#   make demo                           on python-docs, a collection built from installed libraries
#   make first DATA=FOLDER OUT=FOLDER   the first table, on any collection with the split test
#   make trained DATA=... OUT=...       the second table and the report; needs the split train too
#
# Made for minutes on two cores: DEMO_STEPS of training, the weights of the last step, one tuning. Studies use the other pipelines.

DEMO_STEPS ?= 30

first_runs := bm25=$(OUT)/bm25.test.parquet minilm=$(OUT)/before.test.parquet hybrid=$(OUT)/before-hybrid.test.parquet
trained_runs := $(first_runs) trained=$(OUT)/trained.test.parquet trained-hybrid=$(OUT)/trained-tuned-hybrid.test.parquet

# The paths in NAME=PATH
first_files := $(filter %.parquet,$(subst =, ,$(first_runs)))
trained_files := $(filter %.parquet,$(subst =, ,$(trained_runs)))

first: $(SETUP) $(first_files)  ## BM25, the untrained model and their default fusion on DATA, with the verdict
	@$(evaluate) $(first_runs) --measure $(MEASURES)

trained: $(SETUP) $(trained_files) $(OUT)/trained-report.html  ## the same with a model of DEMO_STEPS training steps, and a report
	@$(evaluate) $(trained_runs) --measure $(MEASURES)

$(OUT)/trained/manifest.json: $(OUT)/train-$(SEED).parquet
	$(train_dense) $< --model $(MODEL) $(TRAIN) $(LENGTHS) --max-steps $(DEMO_STEPS) --seed $(SEED) --output $(@D)

$(OUT)/trained-report.html: $(trained_files)
	$(HYBRID) report $(DATA) --split test $(trained_runs) --complement trained bm25 --measure $(MEASURES) --output $@ --overwrite
