# The papers' collections at published settings: import, all rows, and a table next to the published figures (studies/published.yaml).
#
#   make msmarco [MSMARCO=FOLDER]                DualRM, RoC, SPAR on MS MARCO passage
#   make dl19 [MSMARCO=FOLDER]                   the same models on the queries of TREC DL 2019
#   make nq NQ=FOLDER                            DPR, RoC, SPAR, LITE on Natural Questions
#   make odqa NQ=FOLDER [MSMARCO=FOLDER]         SPAR on NQ, SQuAD, TriviaQA, WebQuestions and CuratedTREC
#   make beir [BEIR=FOLDER]                      LITE and SPAR on BEIR, without training
#   make entityquestions NQ=... ENTITYQUESTIONS=FOLDER
#   make robust04 [ROBUST04=FOLDER]              RoC on Robust04, in five folds
#   make trec-covid [TREC_COVID=FOLDER]          DualRM on TREC-COVID
#   make check-COLLECTION                        exit with 1 if figures differ from the published ones
#
# Without a folder, ir_datasets downloads the collection. SCALE=small generates a sample of the same form, and trains for a few steps.
# Outputs are below out/papers/COLLECTION; after an interruption, repeat the command. Settings are those of hybrid_cli/presets (--config).

papers := out/papers$(SCALE:%=-%)
small := $(filter small,$(SCALE))
$(if $(filter-out small,$(SCALE)),$(error SCALE=$(SCALE): the only scale is small; omit it for the published settings))

# In samples, a small model with weights of its own stands for each start model and released encoder.
stand_in := $(papers)/models
BERT ?= $(if $(small),$(stand_in)/bert,google-bert/bert-base-uncased)
BERT_LARGE ?= $(if $(small),$(stand_in)/bert-large,google-bert/bert-large-uncased)
COCONDENSER_WIKI ?= $(if $(small),$(stand_in)/cocondenser-wiki,Luyu/co-condenser-wiki)
COCONDENSER ?= $(if $(small),$(stand_in)/cocondenser,Luyu/co-condenser-marco)
PAPER_SEED ?= 1
# Added to the published settings, so that the rows of a sample differ: a constant rate, last weights, no sum without the dense side.
FAST := --max-steps 24 --warmup 0 --lr 1e-4
GRID := $(if $(small),--grid clear)
ONCE := $(if $(small),--eval-steps 24 --keep last)
STEPS ?= $(if $(small),$(FAST) --batch-size 8)
SHORT ?= $(if $(small),--query-max-len 16 --doc-max-len 48)

released_ance ?= $(if $(small),$(stand_in)/ance,castorini/ance-msmarco-passage --preset ance)
released_contriever ?= $(if $(small),$(stand_in)/contriever,facebook/contriever-msmarco --preset contriever)
released_gtr ?= $(if $(small),$(stand_in)/gtr,sentence-transformers/gtr-t5-large --preset gtr)
# RocketQA: converted to transformers. Wiki Lambda, DPR: both towers joined by `hybrid convert-checkpoint`
ROCKETQA ?= $(if $(small),$(stand_in)/rocketqa)
WIKI_LAMBDA ?= $(if $(small),$(stand_in)/wiki-lambda)
DPR ?= $(if $(small),$(stand_in)/dpr)
released_rocketqa ?= $(ROCKETQA) $(if $(small),,--preset rocketqa)
released_wiki-lambda ?= $(WIKI_LAMBDA) $(if $(small),,--preset spar)
released_dpr ?= $(DPR) $(if $(small),,--preset dpr)


paper_make = $(MAKE) --no-print-directory SEED=$(PAPER_SEED) MODEL=$(BERT) LENGTHS='$(SHORT)' $(if $(small),SPARSE_TRAIN='$(STEPS)')
paper_tables = $(TABLES_PAGE) $($(@:paper-%=%)_table)
seed := seed-$(PAPER_SEED)

stand_ins := bert bert-large cocondenser cocondenser-wiki ance contriever gtr rocketqa wiki-lambda dpr scibert
sample_models := $(if $(small),$(stand_ins:%=$(stand_in)/%/config.json))
$(sample_models): | $(SETUP)
	$(SAMPLE) model $(@D)

# Each target runs its rules; on a sample, one process runs the plan of the target.

how := $(if $(small),$(if $(IN_ONE_PROCESS),paper,sample),paper)

msmarco: $(how)-msmarco  ## DualRM, RoC and SPAR on MS MARCO passage at published settings, next to the published figures (SCALE=small: on a sample)

dl19: $(how)-dl19  ## the models of `make msmarco` on the queries of TREC DL 2019

nq: $(how)-nq  ## DPR, RoC, SPAR and LITE on Natural Questions (NQ=FOLDER) at published settings

odqa: $(how)-odqa  ## SPAR on the five sets of DPR, with the Lambdas of `make nq` and `make msmarco`; weights tuned on dev of each set

entityquestions: $(how)-entityquestions  ## SPAR and LITE on EntityQuestions, with the models of `make nq`: micro and macro means over 24 relations

beir: $(how)-beir  ## SPAR and LITE on BEIR, trained on MS MARCO: each set and the average

robust04: $(how)-robust04  ## RoC on Robust04 at published settings, in five folds

trec-covid: $(how)-trec-covid  ## zero-shot recipe of DualRM on TREC-COVID, round 2: adapt to it, train on MS MARCO

$(PAPERS:%=sample-%): sample-%: | $(SETUP)
	@$(ONE_PROCESS) $* SCALE=small

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
    --queries dl19=$(MSMARCO)/msmarco-test2019-queries.tsv --qrels dl19=$(MSMARCO)/2019qrels-pass.txt \
    $(if $(msmarco_triples),--queries triples=$(MSMARCO)/queries.train.tsv --training triples=$(msmarco_triples))
# The triples that DualRM trains with, if they are there, as a row of their own; with ir_datasets, negatives are mined from the same depth.
msmarco_triples := $(if $(small),$(msmarco)/source/qidpidtriples.train.full.2.tsv,$(if $(MSMARCO),$(wildcard $(MSMARCO)/qidpidtriples.train.full.2.tsv)))
msmarco_needs = $(if $(small)$(wildcard $(MSMARCO)/collection.tsv),,$(info $(@:paper-%=%): from ir_datasets, or pass MSMARCO=FOLDER with $(msmarco_files)))
msmarco_irds := irds train=msmarco-passage/train dev=msmarco-passage/train test=msmarco-passage/dev/small \
    dl19=msmarco-passage/trec-dl-2019/judged

$(msmarco)/data/manifest.json: $(if $(small),$(msmarco)/source/collection.tsv) | $(SETUP) $(sample_models)
	$(HYBRID) prepare $(if $(MSMARCO),$(msmarco_named),$(msmarco_irds)) --sample-queries dev=500 --output $(@D) --overwrite

$(papers)/msmarco/source/collection.tsv: | $(SETUP)
	$(SAMPLE) msmarco $(@D)

clear_make = $(paper_make) DATA=$(msmarco)/data OUT=$(msmarco)/clear CLEAR_RUN=$(msmarco)/clear/ablations/$(seed)/bm25+residual \
    INDEX_BM25='--config dualrm-marco' MINE='--config dualrm-marco' TRAIN='--config dualrm-marco $(STEPS)' TUNE='--config dualrm-marco' \
    TOP_K=1000 CLEAR_TOP_K=20 CLEAR_TOP_K_LARGE=100 MODEL_LARGE=$(BERT_LARGE) GIVEN_TRIPLES=$(msmarco_triples) RERANKER='$(RERANK_TRAIN) $(ONCE)'
RERANK_TRAIN ?= $(if $(small),--max-length 64 --query-max-len 16 $(FAST),--max-length 512)
clear_rows := bm25 bm25+rm3 $(if $(DEEPCT)$(small),sparse/deepct sparse/deepct-rm3) \
    $(addprefix ablations/$(seed)/,constant bm25+residual bm25+random bm25+constant $(if $(msmarco_triples),bm25+triples)) \
    $(addprefix rerank/,bm25.pointwise bm25.large clear.pointwise clear.large)

spar_make = $(paper_make) DATA=$(msmarco)/data OUT=$(msmarco)/spar INDEX_BM25='--config spar-marco' LABEL='--config spar-marco' \
    LAMBDA_TRAIN='--config spar-marco $(STEPS) $(ONCE)' SPAR_TUNE='--config spar-marco' UNICOIL='$(UNICOIL)' TUNE='$(GRID)'
UNICOIL ?= $(if $(small),,castorini/unicoil-msmarco-passage --preset unicoil)
spar_bases := ance $(if $(ROCKETQA),rocketqa)
spar_alone := bm25 sparse/unicoil spar/$(seed)/lambda sparse/unicoil-lambda \
    $(foreach base,$(spar_bases),$(addprefix released/,$(base) bm25+$(base) unicoil+$(base) $(base)+lambda)) $(if $(WIKI_LAMBDA),released/wiki-lambda)

roc_marco := ROC_TRAIN='$(ONCE)' $(foreach name,INDEX_BM25 MINE,$(name)='--config roc-marco') TUNE='--config roc-marco $(GRID)' TRAIN='--config roc-marco $(STEPS)'
roc_nq := $(subst roc-marco,roc-nq,$(roc_marco))
roc_marco_rows := dense bm25+dense bm25+clear bm25+EI
roc_dualrm = DUALRM_TRAIN='--config dualrm-marco $(STEPS)' DUALRM_MINE='--config dualrm-marco'
roc_epochs = ROC_TRAIN='$(if $(small),--batch-size 26 $(ONCE))'  # of a sample: three epochs in 24 steps

paper-msmarco: | $(SETUP)
	$(msmarco_needs)
	+@$(clear_make) $(clear_rows:%=$(msmarco)/clear/%.test.parquet)
	+@$(spar_make) $(spar_alone:%=$(msmarco)/spar/%.test.parquet)
	+@$(spar_make) LAMBDA=$(msmarco)/spar/sparse/unicoil-lambda $(spar_bases:%=$(msmarco)/spar/released/%+unicoil-lambda.test.parquet)
	+@$(if $(WIKI_LAMBDA),$(spar_make) LAMBDA=$(msmarco)/spar/released/wiki-lambda LAMBDA_MODEL=$(firstword $(released_wiki-lambda)) \
	    $(spar_bases:%=$(msmarco)/spar/released/%+wiki-lambda.test.parquet))
	+@$(paper_make) $(roc_marco) $(roc_epochs) $(roc_dualrm) DATA=$(msmarco)/data OUT=$(msmarco)/roc $(patsubst %,$(msmarco)/roc/roc/$(seed)/%.test.parquet,$(roc_marco_rows) bm25+dualrm) \
	    $(msmarco)/roc/sparse/sparterm.test.parquet $(foreach kind,test adversary,$(msmarco)/roc/bm25.$(kind).parquet $(roc_by_epoch:%=$(msmarco)/roc/roc/$(seed)/bm25+%.$(kind).parquet))
	+@$(paper_make) $(roc_marco) DATA=$(msmarco)/data OUT=$(msmarco)/roc ROC_NAME=roc-cocondenser MODEL=$(COCONDENSER) \
	    $(roc_marco_rows:%=$(msmarco)/roc/roc-cocondenser/$(seed)/%.test.parquet)
	@$(paper_tables)

paper-dl19: | $(SETUP)
	$(msmarco_needs)
	+@$(clear_make) TEST=dl19 RM3='--rm3 --tune --measure nDCG@10' $(clear_rows:%=$(msmarco)/clear/%.dl19.parquet)
	@$(paper_tables)

# Natural Questions. DPR's files: the dev questions of the training form have judgments, the test questions have answers. RoC's rows are
# on a sample of 250,000 passages, with a folder of their own.

nq := $(papers)/nq
nq_table := $(nq)/data $(nq) --collection nq
NQ ?= $(if $(small),$(nq)/source,data/nq)
nq_needs = $(if $(wildcard $(NQ)/psgs_w100.tsv)$(small),,$(info $(@:paper-%=%): pass NQ=FOLDER with psgs_w100.tsv biencoder-nq-train.json \
    biencoder-nq-dev.json nq-test.qa.csv, as DPR distributes them))
nq_prepare = $(HYBRID) prepare dpr $(NQ)/psgs_w100.tsv --training train=$(NQ)/biencoder-nq-train.json --training dev=$(NQ)/biencoder-nq-dev.json \
    --questions test=$(NQ)/nq-test.qa.csv --output $(@D) --overwrite

$(papers)/nq/source/psgs_w100.tsv: | $(SETUP)
	$(SAMPLE) nq $(@D)

$(nq)/data/manifest.json: $(if $(small),$(nq)/source/psgs_w100.tsv) | $(SETUP) $(sample_models)
	$(nq_prepare)

$(nq)/roc/data/manifest.json: $(if $(small),$(nq)/source/psgs_w100.tsv) | $(SETUP) $(sample_models)
	$(nq_prepare) --sample $(if $(small),230,250000) --sample-from contexts

nq_make = $(paper_make) DATA=$(nq)/data OUT=$(nq) INDEX_BM25='--config spar-nq' MINE='--config dpr-nq' LABEL='--config spar-nq' \
    LAMBDA_TRAIN='--config spar-nq $(STEPS) $(ONCE)' SPAR_TUNE='--config spar-nq' SPAR_TRAIN='$(ONCE)' TUNE='$(GRID)' TUNE_MEASURE=R@100
nq_spar = $(nq_make) TRAIN='--config dpr-nq $(STEPS)'
nq_lite = $(nq_make) LITE_CONFIG='--config lite-nq' DPR_CONFIG='--config dpr-nq' BPR_CONFIG='--config bpr-nq' TRAIN='$(STEPS)' LITE_TRAIN='$(ONCE)' LITE_DIM=32 \
    L_DRBOOST=--no-projection-norm $(if $(small),PRODUCT='--normalize minmax')
roc_nq_make = $(paper_make) $(roc_nq) DATA=$(nq)/roc/data OUT=$(nq)/roc RERANKER='$(RERANK_TRAIN) $(ONCE)'
dense_rows := lambda dense two init joint sum concat bm25+dense bm25+concat
lite_systems := dpr dpr32 lite drboost-2
lite_all := dpr bpr spar dpr32 drboost-2 lite r-drboost-2 l-drboost-2 $(addprefix drboost-,3 4 5 6) $(addsuffix .minmax,$(addprefix bm25+, \
    dpr dpr32 lite l-drboost-2 $(addprefix drboost-,2 3 4 5 6))) $(foreach rule,sum product,bm25+drboost-2.$(rule) bm25+drboost-6.$(rule))
roc_all := dense clear E I EI $(addprefix bm25+,dense clear E I EI)
nq_bases := $(if $(DPR),dpr) $(spar_bases)

paper-nq: | $(SETUP)
	$(nq_needs)
	+@$(nq_spar) $(nq)/bm25.test.parquet $(patsubst %,$(nq)/spar/$(seed)/%.test.parquet,$(dense_rows) $(LAMBDA_DIMS:%=lambda-%)) \
	    $(nq_bases:%=$(nq)/released/%.test.parquet) $(nq_bases:%=$(nq)/released/%+lambda.test.parquet) \
	    $(if $(DPR),$(nq)/released/bm25+dpr.test.parquet $(nq)/released/bm25+dpr+lambda.test.parquet)
	+@$(nq_spar) TEST=dev $(patsubst %,$(nq)/lambda-study/$(seed)/positives%.dev.parquet,1 2 5) $(nq)/spar/bm25.shuffled.parquet $(foreach row,dense lambda,$(addprefix $(nq)/spar/$(seed)/$(row).,shuffled.parquet dev.parquet))
	+@$(nq_lite) $(lite_all:%=$(nq)/lite/$(seed)/%.test.parquet)
	+@$(nq_lite) robustness MEASURED=$(nq)/measured FROM=$(nq)/lite/$(seed) ROBUSTNESS_MEASURES=acc@100 $(if $(small),ATTACKS='char-swap word-deletion word-order-swap') SYSTEMS='bm25 $(lite_systems)' \
	    HYBRIDS='$(lite_systems:%=bm25+%)'
	+@$(roc_nq_make) $(roc_dualrm) DUALRM_MINE='--config dualrm-marco --answer-filter' $(patsubst %,$(nq)/roc/roc/$(seed)/%.test.parquet,$(roc_all) bm25+dualrm) $(nq)/roc/sparse/sparterm.test.parquet \
	    $(nq)/roc/sparse/sparterm-i.test.parquet $(nq)/roc/rerank/bm25.pointwise.test.parquet $(nq)/roc/rerank/bm25.masked.test.parquet
	+@$(roc_nq_make) ROC_NAME=roc-cocondenser MODEL=$(COCONDENSER_WIKI) $(roc_all:%=$(nq)/roc/roc-cocondenser/$(seed)/%.test.parquet)
	@$(paper_tables)

# EntityQuestions: the indexes and weights of `make nq`, and the questions of each relation as a split

relations := P106 P112 P127 P131 P136 P159 P17 P170 P175 P176 P19 P20 P26 P264 P276 P36 P40 P407 P413 P495 P50 P69 P740 P800
eq := $(papers)/entityquestions
entityquestions_table := $(eq)/data $(eq) --collection entityquestions
ENTITYQUESTIONS ?= $(if $(small),$(eq)/source,data/entityquestions)
eq_needs = $(if $(wildcard $(ENTITYQUESTIONS)/test)$(small),,$(info $(@:paper-%=%): pass ENTITYQUESTIONS=FOLDER with test/P17.test.json and the other \
    relations))

$(papers)/entityquestions/source/test/P17.test.json: | $(SETUP)
	$(SAMPLE) entityquestions $(papers)/entityquestions/source

$(eq)/data/manifest.json: $(if $(small),$(eq)/source/test/P17.test.json $(nq)/source/psgs_w100.tsv) | $(SETUP)
	$(HYBRID) prepare dpr $(NQ)/psgs_w100.tsv $(foreach name,$(relations),--questions $(name)=$(ENTITYQUESTIONS)/test/$(name).test.json) \
	    --output $(@D) --overwrite

eq_dpr := $(nq)/released/dpr-index
eq_lambda := $(nq)/spar/$(seed)/lambda-index
eq_dpr+lambda := $(nq)/released/dpr+lambda-index --model $(nq)/released/dpr+lambda-tuned
eq_dpr32 := $(nq)/lite/$(seed)/dpr32-index
eq_lite := $(nq)/lite/$(seed)/lite-index
eq_drboost-2 := $(nq)/lite/$(seed)/drboost-2-index
eq_drboost-5 := $(nq)/lite/$(seed)/drboost-5-index
eq_alone := lambda $(if $(DPR),dpr dpr+lambda) dpr32 drboost-2 drboost-5 lite
eq_rows = bm25=$(OUT)/bm25.$(TEST).parquet $(foreach row,$(eq_alone),$(row)=$(OUT)/$(row).$(TEST).parquet) \
    $(if $(DPR),bm25+dpr=$(OUT)/bm25+dpr.$(TEST).parquet) $(foreach row,dpr32 drboost-2 lite,bm25+$(row)=$(OUT)/bm25+$(row).minmax.$(TEST).parquet)

$(eq_alone:%=$(eq)/%.$(TEST).parquet): $(eq)/%.$(TEST).parquet: $(eq)/data/manifest.json
	$(HYBRID) search $(DATA) --split $(TEST) --index $(eq_$*) --output $@ --overwrite

$(eq)/bm25+dpr.$(TEST).parquet: $(eq)/bm25.$(TEST).parquet $(eq)/dpr.$(TEST).parquet
	$(weighted_sum) $^ --index $(OUT)/bm25,$(eq_dpr) --weights @$(nq)/released/dpr.weights.json --output $@

$(eq)/$(TEST)/measurements.parquet: $(filter %.parquet,$(subst =, ,$(eq_rows)))
	$(evaluate) $(eq_rows) --measure acc@20,acc@100 --output $@ --overwrite

paper-entityquestions: | $(SETUP)
	$(nq_needs)$(eq_needs)
	+@$(nq_spar) $(nq)/spar/$(seed)/lambda.test.parquet $(if $(DPR),$(nq)/released/bm25+dpr.test.parquet $(nq)/released/dpr+lambda.test.parquet)
	+@$(nq_lite) $(foreach row,dpr32 drboost-2 drboost-5 lite,$(nq)/lite/$(seed)/$(row).test.parquet)
	+@for relation in $(relations); do \
	    $(paper_make) DATA=$(eq)/data OUT=$(eq) TEST=$$relation $(eq)/$$relation/measurements.parquet || exit 1; \
	done
	@$(paper_tables)

# Five sets of questions on DPR's passages: the splits SET and SET-dev. Weights are tuned on SET-dev. TEST is the set.

odqa := $(papers)/odqa
odqa_table := $(odqa)/data $(odqa) --collection odqa
odqa_sets := nq squad1 trivia webquestions curatedtrec
odqa_needs = $(if $(wildcard $(NQ)/squad1-test.qa.csv)$(small),,$(info $(@:paper-%=%): pass NQ=FOLDER with psgs_w100.tsv biencoder-nq-train.json and, for SET of $(odqa_sets), biencoder-SET-dev.json \
    SET-test.qa.csv))
odqa_source := $(if $(small),$(odqa)/source,$(NQ))

$(papers)/odqa/source/squad1-test.qa.csv: | $(SETUP)
	$(SAMPLE) odqa $(@D)

$(odqa)/data/manifest.json: $(if $(small),$(odqa)/source/squad1-test.qa.csv $(nq)/source/psgs_w100.tsv) | $(SETUP)
	$(HYBRID) prepare dpr $(NQ)/psgs_w100.tsv $(foreach set,$(odqa_sets),--questions $(set)=$(odqa_source)/$(set)-test.qa.csv \
	    --training $(set)-dev=$(odqa_source)/biencoder-$(set)-dev.json) --output $(@D) --overwrite

odqa_bm25 := $(nq)/bm25
odqa_lambda := $(nq)/spar/$(seed)/lambda-index
odqa_dpr := $(nq)/released/dpr-index
odqa_dpr+lambda := $(nq)/released/dpr+lambda-index
odqa_dpr+marco := $(odqa)/dpr+marco-index
second_dpr+lambda := $(nq)/spar/$(seed)/lambda
second_dpr+marco := $(msmarco)/spar/spar/$(seed)/lambda
odqa_alone := bm25 lambda $(if $(DPR),dpr)
odqa_spar := $(if $(DPR),dpr+lambda dpr+marco)
odqa_rows := $(foreach row,$(odqa_alone) $(if $(DPR),bm25+dpr) $(odqa_spar),$(row)=$(odqa)/$(row).$(TEST).parquet)
odqa_dev_rows := $(foreach row,$(odqa_alone),$(row)=$(odqa)/$(row).$(TEST)-dev.parquet)

$(odqa)/marco-index/manifest.json: $(nq)/data/manifest.json
	$(HYBRID) encode $(nq)/data --model $(second_dpr+marco) --output $(@D) --overwrite

$(odqa)/dpr+marco-index/manifest.json: $(odqa_dpr)/manifest.json $(odqa)/marco-index/manifest.json
	$(spar_index) --combine concat

$(foreach split,$(TEST) $(TEST)-dev,$(odqa_alone:%=$(odqa)/%.$(split).parquet)): $(odqa)/%.parquet: $(odqa)/data/manifest.json
	$(HYBRID) search $(DATA) --split $(patsubst .%,%,$(suffix $*)) --index $(odqa_$(basename $*)) --output $@ --overwrite

$(odqa)/bm25+dpr.$(TEST).json: $(odqa)/bm25.$(TEST)-dev.parquet $(odqa)/dpr.$(TEST)-dev.parquet
	$(weighted_sum) $^ --index $(odqa_bm25),$(odqa_dpr) --qrels $(DATA) --split $(TEST)-dev --tune $(TUNE) --measure $(TUNE_MEASURE) --output $@

$(odqa)/bm25+dpr.$(TEST).parquet: $(odqa)/bm25.$(TEST).parquet $(odqa)/dpr.$(TEST).parquet $(odqa)/bm25+dpr.$(TEST).json
	$(weighted_sum) $(filter %.parquet,$^) --index $(odqa_bm25),$(odqa_dpr) --weights @$(lastword $^) --output $@

$(odqa_spar:%=$(odqa)/%.$(TEST)-tuned/manifest.json): $(odqa)/%.$(TEST)-tuned/manifest.json: $(odqa)/data/manifest.json
	$(HYBRID) combine --tune $(DATA) --split $(TEST)-dev $(SPAR_TUNE) --combine concat --index $(odqa_$*) $(firstword $(released_dpr)) $(second_$*) \
	    --output $(@D) --overwrite

$(odqa_spar:%=$(odqa)/%.$(TEST).parquet): $(odqa)/%.$(TEST).parquet: $(odqa)/%.$(TEST)-tuned/manifest.json
	$(HYBRID) search $(DATA) --split $(TEST) --index $(odqa_$*) --model $(<D) --output $@ --overwrite

$(odqa)/$(TEST)/measurements.parquet: $(filter %.parquet,$(subst =, ,$(odqa_rows)))
	$(evaluate) $(odqa_rows) --measure acc@20,acc@100 --output $@ --overwrite

$(odqa)/$(TEST)-dev/measurements.parquet: $(filter %.parquet,$(subst =, ,$(odqa_dev_rows)))
	$(HYBRID) evaluate $(DATA) --split $(TEST)-dev $(odqa_dev_rows) --measure MRR@10 --overlap-with $< --output $@ --overwrite

paper-odqa: | $(SETUP)
	$(msmarco_needs)$(odqa_needs)
	+@$(nq_spar) $(foreach row,$(odqa_alone) $(if $(DPR),dpr+lambda),$(odqa_$(row))/manifest.json)
	+@$(if $(DPR),$(spar_make) $(second_dpr+marco)/manifest.json)
	+@$(if $(DPR),$(nq_spar) $(odqa_dpr+marco)/manifest.json)
	+@for set in $(odqa_sets); do \
	    $(nq_spar) DATA=$(odqa)/data TEST=$$set $(odqa)/$$set/measurements.parquet $(odqa)/$$set-dev/measurements.parquet || exit 1; \
	done
	@$(paper_tables)

# BEIR: the Lambdas and weights of `make msmarco`, and LITE trained on MS MARCO. Each set is a collection below beir/SET.

beir := $(papers)/beir
beir_table := $(beir)/msmarco/data $(beir) --collection beir
forums := android english gaming gis mathematica physics programmers stats tex unix webmasters wordpress
BEIR_SETS ?= $(if $(small),msmarco scifact cqadupstack/gis cqadupstack/english,msmarco trec-covid nfcorpus nq hotpotqa fiqa arguana webis-touche2020 \
    quora dbpedia-entity scidocs fever climate-fever scifact $(forums:%=cqadupstack/%))
BEIR ?= $(if $(small),$(beir)/source)
BEIR_SET ?=
beir_needs = $(if $(small)$(wildcard $(BEIR)/msmarco/corpus.jsonl),,$(info $(@:paper-%=%): from ir_datasets, or pass BEIR=FOLDER with a folder of BEIR for each of $(BEIR_SETS)))
beir_bases := ance contriever gtr
beir_lambdas := lambda unicoil-lambda
released_lambda := $(msmarco)/spar/spar/$(seed)/lambda
released_unicoil-lambda := $(msmarco)/spar/sparse/unicoil-lambda
released_lite := $(msmarco)/lite/lite/$(seed)/lite
released_drboost-2 := $(msmarco)/lite/lite/$(seed)/drboost-2
beir_alone = $(foreach row,bm25 lite drboost-2 $(beir_bases),$(row)=$(OUT)/$(row).$(TEST).parquet) \
    $(foreach row,lite drboost-2,bm25+$(row)=$(OUT)/bm25+$(row).minmax.$(TEST).parquet)
beir_with_lambda = $(foreach lambda,$(beir_lambdas),$(foreach base,$(beir_bases),$(base)+$(lambda)=$(OUT)/$(base)+$(lambda).$(TEST).parquet))
beir_irds = $(if $(filter quora fiqa nfcorpus hotpotqa scifact dbpedia-entity fever,$(BEIR_SET)),beir/$(BEIR_SET)/test,$(if $(filter \
    msmarco,$(BEIR_SET)),beir/msmarco/dev,test=beir/$(subst webis-touche2020,webis-touche2020/v2,$(BEIR_SET))))

$(papers)/beir/source/msmarco/corpus.jsonl: | $(SETUP)
	$(SAMPLE) beir $(papers)/beir/source

$(beir)/$(BEIR_SET)/data/manifest.json: $(if $(small),$(beir)/source/msmarco/corpus.jsonl) | $(SETUP)
	$(HYBRID) prepare $(if $(BEIR),beir $(BEIR)/$(BEIR_SET),irds $(beir_irds)) --output $(@D) --overwrite

# The runs with a Lambda exist: each Lambda has a call of its own.
beir-set: $(filter %.parquet,$(subst =, ,$(beir_alone)))
	$(evaluate) $(beir_alone) $(beir_with_lambda) --measure nDCG@10 --output $(OUT)/measurements.parquet --overwrite

beir_make = $(paper_make) DATA=$(beir)/$$set/data OUT=$(beir)/$$set RELEASED=$(beir)/$$set BEIR_SET=$$set \
    RELEASED_NAMES='$(beir_bases) $(beir_lambdas) lite drboost-2' TUNED=$(msmarco)/spar/released TEST=$$split
marco_lite = $(paper_make) DATA=$(msmarco)/data OUT=$(msmarco)/lite LITE_CONFIG='--config lite-nq' TRAIN='$(STEPS)' LITE_TRAIN='$(ONCE)' LITE_DIM=32

paper-beir: | $(SETUP)
	$(msmarco_needs)$(beir_needs)
	+@$(marco_lite) $(released_lite)/manifest.json $(released_drboost-2)/manifest.json
	+@$(spar_make) RELEASED_NAMES='$(beir_bases)' $(beir_bases:%=$(msmarco)/spar/released/%+lambda-tuned/manifest.json)
	+@$(spar_make) RELEASED_NAMES='$(beir_bases)' LAMBDA=$(released_unicoil-lambda) $(beir_bases:%=$(msmarco)/spar/released/%+unicoil-lambda-tuned/manifest.json)
	+@for set in $(BEIR_SETS); do \
	    split=test; if test $$set = msmarco; then split=dev; fi; \
	    for lambda in $(beir_lambdas); do \
	        $(beir_make) LAMBDA=$(beir)/$$set/$$lambda $(foreach base,$(beir_bases),$(beir)/$$set/$(base)+$$lambda.$$split.parquet) || exit 1; \
	    done; \
	    $(beir_make) beir-set || exit 1; \
	done
	@$(paper_tables)

# Robust04: five folds of 200 training and 50 test queries. The folds are FOLDS, such as those of McDonald et al.

robust04 := $(papers)/robust04
robust04_table := $(robust04)/folds $(robust04) --collection robust04 --split all
ROBUST04 ?= $(if $(small),$(robust04)/source)
ROBUST04_FOLDS ?= $(if $(FOLDS),$(FOLDS),$(if $(small),$(robust04)/source/folds.json))
robust_needs = $(if $(small)$(wildcard $(ROBUST04)/topics.robust04.txt),,$(info $(@:paper-%=%): from ir_datasets (disks 4 and 5 need a license), or pass ROBUST04=FOLDER with disk45/ \
    topics.robust04.txt qrels.robust04.txt; FOLDS=FILE sets the folds))
robust_files = trec $(ROBUST04)/disk45 --encoding latin-1 --topics all=$(ROBUST04)/topics.robust04.txt --qrels all=$(ROBUST04)/qrels.robust04.txt

$(papers)/robust04/source/folds.json: | $(SETUP)
	$(SAMPLE) robust04 $(@D)

$(robust04)/data/manifest.json: $(if $(small),$(robust04)/source/folds.json) | $(SETUP) $(sample_models)
	$(HYBRID) prepare $(if $(ROBUST04),$(robust_files),irds all=disks45/nocr/trec-robust-2004) --output $(@D) --overwrite

robust_make = $(paper_make) RERANKER='$(RERANK_TRAIN)' TOP_K=1000 DATA=$(if $(filter command,$(firstword $(origin DATA))),$(DATA),$(robust04)/data) OUT=$(robust04) NO_DEV=1 $(if $(small),PARTS=2) FOLDS='$(ROBUST04_FOLDS)' \
    FOLD_LENGTHS='$(SHORT)' $(foreach name,INDEX_BM25 MINE,$(name)='--config roc-robust04') TUNE='--config roc-robust04 $(GRID)' TRAIN='--config roc-robust04 $(STEPS)' \
    FOLD_ROW=$$row $$(case $$row in cocondenser-*) echo MODEL=$(COCONDENSER);; esac)
without := --ortho-weight 0 --mask-matches 0

paper-robust04: | $(SETUP)
	$(robust_needs)
	+@for row in dense cocondenser-dense; do $(robust_make) FOLD_LOSS=nll FOLD_OPTIONS='$(without)' cross-validation || exit 1; done
	+@for row in clear cocondenser-clear; do $(robust_make) FOLD_LOSS=residual-margin FOLD_OPTIONS='--in-batch $(without)' FOLD_INDEX='--index $(robust04)/bm25' cross-validation || exit 1; done
	+@for row in dualrm; do $(robust_make) FOLD_EXAMPLES=errors FOLD_LOSS=residual-margin MINE='--config dualrm-marco' TRAIN='--config dualrm-marco $(STEPS)' \
	    FOLD_LENGTHS='$(SHORT)' cross-validation || exit 1; done
	+@for row in E; do $(robust_make) FOLD_OPTIONS='--mask-matches 0' cross-validation || exit 1; done
	+@for row in I; do $(robust_make) FOLD_OPTIONS='--ortho-weight 0' FOLD_INDEX= cross-validation || exit 1; done
	+@for row in EI cocondenser-EI; do $(robust_make) cross-validation || exit 1; done
	+@for row in sparterm sparterm-i; do $(robust_make) SPARSE_LENGTHS='$(if $(small),,--doc-max-len 512)' \
	    FOLD_SPARSE="--architecture sparterm $$(case $$row in *-i) echo --mask-matches 0.15;; esac)" cross-validation || exit 1; done
	+@for row in pointwise masked; do $(robust_make) FOLD_RERANKER="--loss pointwise $$(case $$row in masked) echo --mask-matches 0.15;; esac)" cross-validation || exit 1; done
	@$(paper_tables)

# TREC-COVID, round 2: the recipe of trec-covid.mk, trained on MS MARCO

covid_out := $(papers)/trec-covid
TREC_COVID ?= $(if $(small),$(covid_out)/source)
SCIBERT ?= $(if $(small),$(stand_in)/scibert,allenai/scibert_scivocab_uncased)
earlier := $(or $(RESIDUAL),$(TREC_COVID:%=%/qrels-rnd1.txt))
trec-covid_table := $(covid_out)/data $(covid_out) --collection trec-covid $(earlier:%=--residual-qrels %)
covid_needs = $(if $(small)$(wildcard $(TREC_COVID)/docs.jsonl),,$(info $(@:paper-%=%): from ir_datasets, or pass TREC_COVID=FOLDER with docs.jsonl topics-rnd2.xml qrels-rnd2.txt \
    qrels-rnd1.txt; RESIDUAL=FILE are the judgments of round 1; TRAIN_DATA=FOLDER replaces MS MARCO))
covid_files = trec $(TREC_COVID)/docs.jsonl --topics test=$(TREC_COVID)/topics-rnd2.xml --qrels test=$(TREC_COVID)/qrels-rnd2.txt

$(papers)/trec-covid/source/docs.jsonl: | $(SETUP)
	$(SAMPLE) trec-covid $(@D)

$(covid_out)/data/manifest.json: $(if $(small),$(covid_out)/source/docs.jsonl) | $(SETUP) $(sample_models)
	$(HYBRID) prepare $(if $(TREC_COVID),$(covid_files),irds test=cord19/trec-covid/round2) --output $(@D) --overwrite

paper-trec-covid: | $(SETUP)
	$(msmarco_needs)$(covid_needs)
	+@$(MAKE) --no-print-directory SEED=$(PAPER_SEED) MODEL=$(SCIBERT) INDEX_BM25='--config dualrm-marco' MINE='--config dualrm-marco' \
	    COVID_TRAIN='--config dualrm-marco $(or $(STEPS),--max-steps 5714)' ADAPT='$(or $(STEPS),--epochs 10)' \
	    DATA=$(if $(filter command,$(firstword $(origin DATA))),$(DATA),$(covid_out)/data) OUT=$(covid_out) RESIDUAL='$(earlier)' \
	    TRAIN_DATA=$(if $(filter command,$(firstword $(origin TRAIN_DATA))),$(TRAIN_DATA),$(msmarco)/data) transfer
	@$(paper_tables)

$(PAPERS:%=check-%): check-%: | $(SETUP)
	@$(TABLES_PAGE) $($*_table) $(if $(small),--check-sample,--check)
