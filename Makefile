# Pipelines as file dependencies: what is up to date is not made again. `make help` lists the targets.
PYTHON ?= python3
EXTRA ?= cpu
VENV := .venv
HYBRID ?= $(VENV)/bin/hybrid
SETUP := $(VENV)/.installed

# A pipeline reads the collection DATA (made by `hybrid prepare`) and writes below OUT.
DATA ?= out/pydocs
OUT ?= out/clear
MODEL ?= minilm
DEMO_STEPS ?= 50

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: help setup demo test lint bench docs clear ablations roc spar lambda-study light lite drboost memory-table robustness robustness-table zero-shot robust04 clean

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(SETUP)  ## make .venv and install hybrid with all that it needs

$(SETUP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRA),dev]'
	touch $@

test: $(SETUP)  ## run the tests
	$(VENV)/bin/python -m pytest

demo: $(SETUP)  ## CLEAR on the docstrings of your own Python libraries
	@$(MAKE) --no-print-directory clear DATA=out/demo/pydocs OUT=out/demo TRAIN='$(TRAIN) --max-steps $(DEMO_STEPS)'

lint: $(SETUP)  ## ruff and mypy
	$(VENV)/bin/ruff format --check hybrid_cli tests benchmarks docs
	$(VENV)/bin/ruff check hybrid_cli tests benchmarks docs
	$(VENV)/bin/mypy hybrid_cli

bench: $(SETUP)  ## measure beside the peers (installs them; takes a while)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRA),bench]'
	for each in bm25 encode train fuse evaluate; do $(VENV)/bin/python benchmarks/$$each.py || exit 1; done

docs: $(SETUP)  ## write docs/commands.md again from the help
	$(VENV)/bin/python docs/write_commands.py

clean:  ## remove what the pipelines made (not .venv)
	rm -rf out

include pipelines/common.mk
include pipelines/clear.mk
include pipelines/roc.mk
include pipelines/spar.mk
include pipelines/light.mk
include pipelines/lite.mk
include pipelines/zero-shot.mk
include pipelines/memory.mk
include pipelines/robustness.mk
include pipelines/robust04.mk
