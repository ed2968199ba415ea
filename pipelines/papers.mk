# The papers' collections at published settings: import, all rows, and a table next to the published figures (studies/published.yaml).
#
#   make msmarco [MSMARCO=FOLDER]                DualRM, RoC, SPAR on MS MARCO passage
#   make dl19 [MSMARCO=FOLDER]                   the same models on the queries of TREC DL 2019
#   make nq NQ=FOLDER                            DPR, RoC, SPAR, LITE on Natural Questions
#   make beir [BEIR=FOLDER]                      LITE and SPAR on BEIR, without training
#   make entityquestions NQ=... ENTITYQUESTIONS=FOLDER
#   make robust04 [ROBUST04=FOLDER]              RoC on Robust04, in five folds
#   make trec-covid [TREC_COVID=FOLDER]          DualRM on TREC-COVID
#   make check-COLLECTION                        exit with 1 if figures differ from the published ones
#
# Without a folder, ir_datasets downloads the collection. SCALE=small generates a sample of the same form, and trains for a few steps.
# Outputs are below out/papers/COLLECTION; after an interruption, repeat the command. Settings are those of `hybrid presets` (--config).

papers := out/papers$(SCALE:%=-%)
small := $(filter small,$(SCALE))
$(if $(filter-out small,$(SCALE)),$(error SCALE=$(SCALE): the only scale is small; omit it for the published settings))

# In samples, one small model stands for all start models and released encoders.
BERT ?= $(if $(small),$(papers)/model,google-bert/bert-base-uncased)
BERT_LARGE ?= $(if $(small),$(papers)/model,google-bert/bert-large-uncased)
COCONDENSER ?= $(if $(small),$(papers)/model,Luyu/co-condenser-marco)
PAPER_SEED ?= 1
# Added to the published settings
STEPS ?= $(if $(small),--max-steps 4 --batch-size 8)
SHORT ?= $(if $(small),--query-max-len 16 --doc-max-len 48)

released_ance ?= $(if $(small),$(papers)/model,castorini/ance-msmarco-passage --preset ance)
released_contriever ?= $(if $(small),$(papers)/model,facebook/contriever-msmarco --preset contriever)
released_gtr ?= $(if $(small),$(papers)/model,sentence-transformers/gtr-t5-large --preset gtr)
# RocketQA: converted to transformers. Wiki Lambda, DPR: both towers joined by `hybrid convert-checkpoint`
ROCKETQA ?= $(if $(small),$(papers)/model)
WIKI_LAMBDA ?= $(if $(small),$(papers)/msmarco/spar/spar/seed-$(PAPER_SEED)/lambda)
DPR ?= $(if $(small),$(papers)/model)
released_rocketqa ?= $(ROCKETQA) $(if $(small),,--preset rocketqa)
released_wiki-lambda ?= $(WIKI_LAMBDA) $(if $(small),,--preset spar)
released_dpr ?= $(DPR) $(if $(small),,--preset dpr)

# Import. A line names the files that are missing.

paper_make = $(MAKE) --no-print-directory SEED=$(PAPER_SEED) MODEL=$(BERT) LENGTHS='$(SHORT)' $(if $(small),SPARSE_TRAIN='$(STEPS)')
paper_tables = $(TABLES_PAGE) $($@_table)
seed := seed-$(PAPER_SEED)

sample_model := $(if $(small),$(papers)/model/config.json)
$(sample_model): | $(SETUP)
	$(SAMPLE) model $(@D)

# MS MARCO passage. The dev split is 500 training queries (DualRM, section 4), `test` is dev.small.

msmarco := $(papers)/msmarco
msmarco_table := $(msmarco)/data $(msmarco) --collection msmarco
dl19_table := $(msmarco)/data $(msmarco) --collection dl19 --split dl19
MSMARCO ?= $(if $(small),$(msmarco)/source)
msmarco_files := collection.tsv queries.train.tsv qrels.train.tsv queries.dev.small.tsv qrels.dev.small.tsv \
    msmarco-test2019-queries.tsv 2019qrels-pass.txt
msmarco_named = msmarco $(MSMARCO)/collection.tsv \
    --queries train=$(MSMARCO)/queries.train.tsv --qrels train=$(MSMARCO)/qrels.train.tsv \
    --queries dev=$(MSMARCO)/queries.train.tsv --qrels dev=$(MSMARCO)/qrels.train.tsv \
    --queries test=$(MSMARCO)/queries.dev.small.tsv --qrels test=$(MSMARCO)/qrels.dev.small.tsv \
    --queries dl19=$(MSMARCO)/msmarco-test2019-queries.tsv --qrels dl19=$(MSMARCO)/2019qrels-pass.txt
msmarco_needs = $(if $(MSMARCO),,$(info $@: from ir_datasets, or pass MSMARCO=FOLDER with $(msmarco_files)))
msmarco_irds := irds train=msmarco-passage/train dev=msmarco-passage/train test=msmarco-passage/dev/small \
    dl19=msmarco-passage/trec-dl-2019/judged

$(msmarco)/data/manifest.json: $(if $(small),$(msmarco)/source/collection.tsv) | $(SETUP) $(sample_model)
	$(HYBRID) prepare $(if $(MSMARCO),$(msmarco_named),$(msmarco_irds)) --sample-queries dev=500 --output $(@D) --overwrite

$(papers)/msmarco/source/collection.tsv: | $(SETUP)
	$(SAMPLE) msmarco $(@D)

clear_make = $(paper_make) DATA=$(msmarco)/data OUT=$(msmarco)/clear CLEAR_RUN=$(msmarco)/clear/ablations/$(seed)/bm25+residual \
    INDEX_BM25='--config dualrm-marco' MINE='--config dualrm-marco' TRAIN='--config dualrm-marco $(STEPS)' TUNE='--config dualrm-marco' \
    TOP_K=1000 CLEAR_TOP_K=20 CLEAR_TOP_K_LARGE=100 MODEL_LARGE=$(BERT_LARGE) RERANKER='$(RERANK_TRAIN)'
RERANK_TRAIN ?= $(if $(small),--max-length 64 --query-max-len 16 --max-steps 4,--max-length 512)
clear_rows := bm25 bm25+rm3 $(if $(DEEPCT)$(small),sparse/deepct sparse/deepct-rm3) \
    $(addprefix ablations/$(seed)/,constant bm25+residual bm25+random bm25+constant) \
    $(addprefix rerank/,bm25.pointwise bm25.large clear.pointwise clear.large)

spar_make = $(paper_make) DATA=$(msmarco)/data OUT=$(msmarco)/spar INDEX_BM25='--config spar-marco' LABEL='--config spar-marco' \
    LAMBDA_TRAIN='--config spar-marco $(STEPS)' SPAR_TUNE='--config spar-marco' UNICOIL='$(UNICOIL)'
UNICOIL ?= $(if $(small),,castorini/unicoil-msmarco-passage --preset unicoil)
spar_bases := ance $(if $(ROCKETQA),rocketqa)
spar_alone := bm25 sparse/unicoil spar/$(seed)/lambda sparse/unicoil-lambda \
    $(foreach base,$(spar_bases),$(addprefix released/,$(base) bm25+$(base) unicoil+$(base) $(base)+lambda)) $(if $(WIKI_LAMBDA),released/wiki-lambda)

roc_marco := ROC_TRAIN= $(foreach name,INDEX_BM25 MINE TUNE,$(name)='--config roc-marco') TRAIN='--config roc-marco $(STEPS)'
roc_nq := $(subst roc-marco,roc-nq,$(roc_marco))
roc_marco_rows := dense bm25+dense bm25+clear bm25+EI

.PHONY: msmarco dl19 nq beir entityquestions robust04 trec-covid $(PAPERS:%=check-%)

msmarco: | $(SETUP)  ## DualRM, RoC and SPAR on MS MARCO passage at published settings, next to the published figures (SCALE=small: on a sample)
	$(msmarco_needs)
	+@$(clear_make) $(clear_rows:%=$(msmarco)/clear/%.test.parquet)
	+@$(spar_make) $(spar_alone:%=$(msmarco)/spar/%.test.parquet)
	+@$(spar_make) LAMBDA=$(msmarco)/spar/sparse/unicoil-lambda $(spar_bases:%=$(msmarco)/spar/released/%+unicoil-lambda.test.parquet)
	+@$(if $(WIKI_LAMBDA),$(spar_make) LAMBDA=$(msmarco)/spar/released/wiki-lambda LAMBDA_MODEL=$(firstword $(released_wiki-lambda)) \
	    $(spar_bases:%=$(msmarco)/spar/released/%+wiki-lambda.test.parquet))
	+@$(paper_make) $(roc_marco) DATA=$(msmarco)/data OUT=$(msmarco)/roc $(roc_marco_rows:%=$(msmarco)/roc/roc/$(seed)/%.test.parquet)
	+@$(paper_make) $(roc_marco) DATA=$(msmarco)/data OUT=$(msmarco)/roc ROC_NAME=roc-cocondenser MODEL=$(COCONDENSER) \
	    $(roc_marco_rows:%=$(msmarco)/roc/roc-cocondenser/$(seed)/%.test.parquet)
	@$(paper_tables)

dl19: | $(SETUP)  ## the models of `make msmarco` on the queries of TREC DL 2019
	$(msmarco_needs)
	+@$(clear_make) TEST=dl19 RM3='--rm3 --tune --measure nDCG@10' $(clear_rows:%=$(msmarco)/clear/%.dl19.parquet)
	@$(paper_tables)

$(PAPERS:%=check-%): check-%: | $(SETUP)
	@$(TABLES_PAGE) $($*_table) --check
