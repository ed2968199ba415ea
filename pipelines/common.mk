# What the pipelines share: the index, the examples, a model's index, its runs; and studies that compare variants.

SEED ?= 42
SEEDS ?= 1 2 3
MEASURES ?= MRR@10,nDCG@10,R@100,R@1000
LENGTHS ?= --query-max-len 64 --doc-max-len 96
TRAIN ?= --batch-size 28 --lr 5e-5
DEV_QUERIES ?= 200

corpus := $(DATA)/manifest.json
bm25 := $(OUT)/bm25/manifest.json
trained := $(HYBRID) train-dense --model $(MODEL) $(TRAIN) $(LENGTHS) --overwrite
tuned := --method weighted-sum --missing exact --overwrite

%/pydocs/manifest.json: | $(SETUP)
	$(HYBRID) prepare python-docs --output $(@D) --overwrite

$(bm25): $(corpus) | $(SETUP)
	$(HYBRID) index-bm25 $(DATA) --output $(@D) --overwrite

$(OUT)/train.parquet: $(bm25)
	$(HYBRID) mine-negatives $(DATA) --split train --index $(<D) --seed $(SEED) --output $@ --overwrite

$(OUT)/dev.parquet: $(bm25)
	$(HYBRID) mine-negatives $(DATA) --split dev --index $(<D) --depth 100 --num-negatives 4 --output $@ --overwrite

%-index/manifest.json: %/manifest.json
	$(HYBRID) encode $(DATA) --model $(<D) --output $(@D) --overwrite

$(OUT)/before-index/manifest.json: $(corpus) | $(SETUP)
	$(HYBRID) encode $(DATA) --model $(MODEL) $(LENGTHS) --output $(@D) --overwrite

$(OUT)/runs/bm25.%.parquet: $(bm25)
	$(HYBRID) search $(DATA) --split $* --index $(<D) --output $@ --overwrite

$(OUT)/runs/before.%.parquet: $(OUT)/before-index/manifest.json
	$(HYBRID) search $(DATA) --split $* --index $(<D) --output $@ --overwrite

# A study compares variants. A variant VARIANT-SEED is an encoder below the study's folder; its index, its dev and test
# runs and its sum with BM25, the weight tuned on dev, lie beside it. $(call study,FOLDER,MEASURE that tuning raises)
define study
$(1)/mined-%.parquet: $(bm25)
	$(HYBRID) mine-negatives $(DATA) --split train --index $$(<D) --seed $$* --output $$@ --overwrite

$(1)/%.dev.parquet: $(1)/%-index/manifest.json
	$(HYBRID) search $(DATA) --split dev --index $$(<D) --output $$@ --overwrite

$(1)/%.test.parquet: $(1)/%-index/manifest.json
	$(HYBRID) search $(DATA) --split test --index $$(<D) --output $$@ --overwrite

$(1)/%.json: $(OUT)/runs/bm25.dev.parquet $(1)/%.dev.parquet
	$(HYBRID) fuse $$^ $(tuned) --index $(OUT)/bm25,$(1)/$$*-index --qrels $(DATA) --split dev --tune --grid log \
	    --measure $(2) --output $$@

$(1)/bm25+%.test.parquet: $(1)/%.json $(OUT)/runs/bm25.test.parquet $(1)/%.test.parquet
	$(HYBRID) fuse $$(wordlist 2,3,$$^) $(tuned) --index $(OUT)/bm25,$(1)/$$*-index --weights @$$< --output $$@
endef
