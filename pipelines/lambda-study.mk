# Training queries of Lambda and number of positives (SPAR, section 4.1 and Figure 2).
#
#   make lambda-study DATA=FOLDER OUT=FOLDER     a table over SEEDS
#
# Rows: Lambda trained with the questions of the train split (`questions`), a sample of sentences
# (`sampled`), all sentences (`all`), sentences cropped to the length of questions (`cropped`); and with 1, 2 or 5 positives
# per sampled sentence (`sampled` uses 10).

lambda := $(OUT)/lambda-study/seed-$(SEED)
lambda_rows := questions sampled all cropped positives1 positives2 positives5
lambda_runs := bm25=$(OUT)/bm25.test.parquet \
    $(foreach seed,$(SEEDS),$(foreach row,$(lambda_rows),$(row)-$(seed)=$(OUT)/lambda-study/seed-$(seed)/$(row).test.parquet))
lambda_table = $(evaluate) $(lambda_runs) --measure $(SPAR_MEASURES) --overlap-with bm25 \
    --output $(OUT)/lambda-study/measurements.parquet

lambda-study: $(SETUP) $(OUT)/bm25.test.parquet  ## training queries and positives of Lambda on DATA, SEEDS of each row
	$(each_seed)
	$(lambda_table) --overwrite > $(OUT)/lambda-study/table.txt
	@$(lambda_table) --study over-seeds --baseline sampled --correction bonferroni --format markdown

lambda-study-seed: $(lambda_rows:%=$(lambda)/%.test.parquet)

# Labels, shared by all seeds. Those of sampled sentences come from spar.mk.

$(OUT)/labels-questions/manifest.json: $(bm25)
	$(HYBRID) label $(DATA) --index $(<D) --split train --output $(@D) --overwrite

$(OUT)/labels-all/manifest.json: $(bm25)
	$(HYBRID) label $(DATA) --index $(<D) --queries-from all --output $(@D) --overwrite

$(OUT)/labels-cropped/manifest.json: $(bm25)
	$(HYBRID) label $(DATA) --index $(<D) --queries-from cropped --seed $(LABEL_SEED) --output $(@D) --overwrite

# Encoders of one seed

lambda_train = $(HYBRID) train-lambda $(DATA) --labels $(<D) --index $(OUT)/bm25 --dev dev --model $(MODEL) $(LENGTHS) \
    $(LAMBDA_TRAIN) --seed $(SEED) --output $(@D) --overwrite

$(lambda)/questions/manifest.json: $(OUT)/labels-questions/manifest.json
	$(lambda_train)

$(lambda)/sampled/manifest.json: $(OUT)/labels-sampled/manifest.json
	$(lambda_train)

$(lambda)/all/manifest.json: $(OUT)/labels-all/manifest.json
	$(lambda_train)

$(lambda)/cropped/manifest.json: $(OUT)/labels-cropped/manifest.json
	$(lambda_train)

$(lambda)/positives1/manifest.json: $(OUT)/labels-sampled/manifest.json
	$(lambda_train) --positives 1

$(lambda)/positives2/manifest.json: $(OUT)/labels-sampled/manifest.json
	$(lambda_train) --positives 2

$(lambda)/positives5/manifest.json: $(OUT)/labels-sampled/manifest.json
	$(lambda_train) --positives 5
