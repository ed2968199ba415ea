# The zero-shot recipe of DualRM for TREC-COVID, round 2 (section 5): adapt the model to the target corpus, train CLEAR on another
# collection, and search the target without any update.
#
#   make transfer DATA=TARGET TRAIN_DATA=FOLDER OUT=FOLDER [FULL=title,text,body] [PASSAGES=FOLDER] [RESIDUAL=FILE] \
#       MODEL=allenai/scibert_scivocab_uncased
#
# DATA: collection to search, with title and abstract, and the split `test`. TRAIN_DATA: collection with the split `train`, such as MS MARCO.
# FULL: fields of an index of the full texts, if the documents of DATA have further fields (`prepare files --document-columns`).
# PASSAGES: the same documents made with `prepare --split-passages`; the lexical side then also has their best passages. A passage keeps all
# other fields: PASSAGE_FIELDS=title,abstract,text indexes it with title and abstract, as the organizers do.
# RESIDUAL: judgments of earlier rounds. The paper has the organizers' run as its lexical side; LEXICAL=sum is our default, since its
# weight of .5 does not fit the scores of rrf.

TRAIN_DATA ?= out/papers/msmarco/data
FULL ?=
PASSAGES ?=
PASSAGE_FIELDS ?= title,text
RESIDUAL ?=
ADAPT ?= --epochs 10
TRIPLES ?= 160000
COVID_TRAIN ?= --batch-size 28 --max-steps $(shell expr $(TRIPLES) / 28)
LEXICAL ?= sum
covid := $(OUT)/trec-covid
covid_fields := $(covid)/title+text.test.parquet $(covid)/text.test.parquet $(if $(FULL),$(covid)/full.test.parquet) \
    $(if $(PASSAGES),$(covid)/passages.test.parquet)
covid_runs := lexical=$(covid)/lexical.parquet dense=$(covid)/clear.test.parquet hybrid=$(covid)/hybrid.parquet

transfer: $(SETUP) $(filter %.parquet,$(subst =, ,$(covid_runs)))  ## zero-shot recipe of DualRM: adapt to DATA, train on TRAIN_DATA, search DATA
	@$(evaluate) $(covid_runs) --measure P@5,nDCG@10,R@1000 --baseline lexical $(if $(RESIDUAL),--residual-qrels $(RESIDUAL))

$(covid)/adapted/manifest.json: $(corpus) | $(SETUP)
	$(HYBRID) pretrain $(DATA) --model $(MODEL) $(ADAPT) --seed $(SEED) --output $(@D) --overwrite

$(covid)/source-bm25/manifest.json: $(TRAIN_DATA)/manifest.json | $(SETUP)
	$(HYBRID) index-bm25 $(TRAIN_DATA) $(INDEX_BM25) --output $(@D) --overwrite

$(covid)/train.parquet: $(covid)/source-bm25/manifest.json
	$(HYBRID) mine-negatives $(TRAIN_DATA) --split train --index $(<D) $(MINE) --seed $(SEED) --output $@ --overwrite

$(covid)/clear/manifest.json: $(covid)/train.parquet $(covid)/adapted/manifest.json
	$(train_dense) $< --model $(covid)/adapted $(COVID_TRAIN) --loss residual-margin \
	    --seed $(SEED) --output $(@D)

# One index per set of fields; the search of passages returns the best passage of each document.

$(covid)/title+text-bm25/manifest.json: $(corpus) | $(SETUP)
	$(HYBRID) index-bm25 $(DATA) --fields title,text --output $(@D) --overwrite

$(covid)/text-bm25/manifest.json: $(corpus) | $(SETUP)
	$(HYBRID) index-bm25 $(DATA) --fields text --output $(@D) --overwrite

$(covid)/full-bm25/manifest.json: $(corpus) | $(SETUP)
	$(HYBRID) index-bm25 $(DATA) --fields $(FULL) --output $(@D) --overwrite

$(covid)/%.test.parquet: $(covid)/%-bm25/manifest.json
	$(HYBRID) search $(DATA) --split test --index $(<D) --hits 10000 --output $@ --overwrite

$(covid)/passages-bm25/manifest.json: $(PASSAGES)/manifest.json | $(SETUP)
	$(HYBRID) index-bm25 $(PASSAGES) --fields $(PASSAGE_FIELDS) --output $(@D) --overwrite

$(covid)/passages.test.parquet: $(covid)/passages-bm25/manifest.json
	$(HYBRID) search $(DATA) --split test --index $(<D) --hits 10000 --output $(covid)/all-passages.parquet --overwrite
	$(HYBRID) concat-runs $(covid)/all-passages.parquet --group max --output $@ --overwrite

$(covid)/lexical.parquet: $(covid_fields)
	$(HYBRID) fuse $^ --method $(LEXICAL) --missing zero --output $@ --overwrite

$(covid)/hybrid.parquet: $(covid)/lexical.parquet $(covid)/clear.test.parquet
	$(HYBRID) fuse $^ --method weighted-sum --weights 0.5,1 --missing min --output $@ --overwrite
