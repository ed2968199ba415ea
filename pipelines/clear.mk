# CLEAR end to end: BM25, its errors as negatives, a dense model trained on BM25's residual, both fused.
#
#   make demo                           on python-docs, the collection that is made on the spot
#   make clear DATA=FOLDER OUT=FOLDER   on any collection of `hybrid prepare` with train, dev and test
#   make ablations DATA=... OUT=...     CLEAR, constant margin, random negatives: SEEDS of each (methods 2.6)

rows := bm25 before after bm25+before-minmax bm25+before-tuned bm25+after-rrf bm25+after-minmax clear
runs := $(foreach row,$(rows),$(OUT)/runs/$(row).test.parquet)

clear: $(SETUP) $(runs)  ## CLEAR on DATA into OUT: train, search, fuse, evaluate
	@$(HYBRID) evaluate $(DATA) --split test $(foreach row,$(rows),$(row)=$(OUT)/runs/$(row).test.parquet) \
	    --measures $(MEASURES) --baseline bm25,before,after

$(OUT)/after/manifest.json: $(OUT)/train.parquet $(OUT)/dev.parquet
	$(trained) $< --loss residual-margin --dev $(OUT)/dev.parquet --dev-queries $(DEV_QUERIES) --eval-steps 25 \
	    --seed $(SEED) --output $(@D)

$(OUT)/runs/after.%.parquet: $(OUT)/after-index/manifest.json
	$(HYBRID) search $(DATA) --split $* --index $(<D) --output $@ --overwrite

$(OUT)/runs/bm25+%-minmax.test.parquet: $(OUT)/runs/bm25.test.parquet $(OUT)/runs/%.test.parquet
	$(HYBRID) fuse $^ --method minmax --output $@ --overwrite

$(OUT)/runs/bm25+%-rrf.test.parquet: $(OUT)/runs/bm25.test.parquet $(OUT)/runs/%.test.parquet
	$(HYBRID) fuse $^ --method rrf --output $@ --overwrite

$(OUT)/weights/%.json: $(OUT)/runs/bm25.dev.parquet $(OUT)/runs/%.dev.parquet
	$(HYBRID) fuse $^ $(tuned) --index $(OUT)/bm25,$(OUT)/$*-index --qrels $(DATA) --split dev --tune --grid log --output $@

$(OUT)/runs/bm25+%-tuned.test.parquet: $(OUT)/weights/%.json $(OUT)/runs/bm25.test.parquet $(OUT)/runs/%.test.parquet
	$(HYBRID) fuse $(wordlist 2,3,$^) $(tuned) --index $(OUT)/bm25,$(OUT)/$*-index --weights @$< --output $@

$(OUT)/runs/clear.test.parquet: $(OUT)/weights/after.json $(OUT)/runs/bm25.test.parquet $(OUT)/runs/after.test.parquet
	$(HYBRID) fuse $(wordlist 2,3,$^) $(tuned) --index $(OUT)/bm25,$(OUT)/after-index --weights @$< --output $@

# ----------------------------------------------------------------------------------------------------------- ablations
# All variants are taken at their last step, so that no choice of weights stands between them.

variants := $(foreach seed,$(SEEDS),$(foreach variant,residual constant random,$(variant)-$(seed)))
ablation := $(OUT)/ablations

ablated := $(foreach v,$(variants),$(ablation)/$(v).test.parquet $(ablation)/bm25+$(v).test.parquet)
compared := $(foreach row,bm25 before bm25+before-tuned,$(OUT)/runs/$(row).test.parquet)

ablations: $(SETUP) $(ablated) $(compared)  ## CLEAR, constant margin, random negatives on DATA: SEEDS of each
	$(HYBRID) evaluate $(DATA) --split test bm25=$(OUT)/runs/bm25.test.parquet before=$(OUT)/runs/before.test.parquet \
	    bm25+before=$(OUT)/runs/bm25+before-tuned.test.parquet \
	    $(foreach v,$(variants),$(v)=$(ablation)/$(v).test.parquet bm25+$(v)=$(ablation)/bm25+$(v).test.parquet) \
	    --measures $(MEASURES) --output $(ablation)/measurements.parquet --overwrite > $(ablation)/table.txt
	$(VENV)/bin/python benchmarks/over_seeds.py $(ablation)/measurements.parquet

$(eval $(call study,$(ablation),MRR@10))

$(ablation)/random-mined-%.parquet: $(bm25)
	$(HYBRID) mine-negatives $(DATA) --split train --index $(<D) --prob 0 --seed $* --output $@ --overwrite

$(SEEDS:%=$(ablation)/residual-%/manifest.json): $(ablation)/residual-%/manifest.json: $(ablation)/mined-%.parquet
	$(trained) $< --loss residual-margin --seed $* --output $(@D)

$(SEEDS:%=$(ablation)/constant-%/manifest.json): $(ablation)/constant-%/manifest.json: $(ablation)/mined-%.parquet
	$(trained) $< --loss margin --seed $* --output $(@D)

$(SEEDS:%=$(ablation)/random-%/manifest.json): $(ablation)/random-%/manifest.json: $(ablation)/random-mined-%.parquet
	$(trained) $< --loss residual-margin --seed $* --output $(@D)
