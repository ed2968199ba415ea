# The papers' tables next to the figures of one collection: quality with intervals and tests, RoC, memory, latency, robustness.
#
#   make tables DATA=FOLDER OUT=FOLDER       all studies (hours), then the page
#   make tables-page DATA=FOLDER OUT=FOLDER  the page from the runs that exist in OUT; rows without a run are listed
#
# OUT/tables/cells.csv names the runs of each cell. After an interruption, repeat the command: finished stages are kept.

tables-page: $(SETUP) $(OUT)/bm25.test.parquet $(OUT)/bm25+rm3.test.parquet  ## the papers' tables next to the figures of the runs in OUT
	@$(VENV)/bin/python docs/tables.py $(DATA) $(OUT)
