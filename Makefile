PYTHON ?= python
.DEFAULT_GOAL := help
.PHONY: help install lint format types imports test fast coverage ci quickstart faults docs clean

help:        ## list these habits
	@grep -E '^[a-z]+: +.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 14
install:     ## install the package in place with the developers' tools
	$(PYTHON) -m pip install -e '.[dev]'
lint:        ## find faults and unformatted lines
	$(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check .
format:      ## mend what can be mended by itself
	$(PYTHON) -m ruff check --fix . ; $(PYTHON) -m ruff format .
types:       ## check types: strict in core, annotated everywhere
	$(PYTHON) -m mypy
imports:     ## check that imports run one way
	PYTHONPATH=src lint-imports --no-logo
test:        ## run every test
	$(PYTHON) -m pytest
fast:        ## run the unit tests that take no time
	$(PYTHON) -m pytest tests/unit -m 'not slow and not long' -q
coverage:    ## run every test and say which lines none has run; a third slower
	$(PYTHON) -m pytest -n 2 --cov --cov-report=term -q
ci:          ## everything, in a new environment, against the built wheel
	.ci/run
quickstart:  ## pre-train and fine-tune on the text that the package ships
	headstart pretrain recipes/quickstart/pretrain.yaml && headstart finetune recipes/quickstart/finetune.yaml
faults:      ## every fault in its whole number, about two hours; writes docs/results/reliability.md
	$(PYTHON) tests/faults/run.py
docs:        ## write docs/help.md from the command line, docs/support.md from the registry
	$(PYTHON) docs/make_help.py && $(PYTHON) docs/make_support.py
clean:       ## remove builds and caches; runs/ stays
	rm -rf dist build site htmlcov .coverage .venv-ci .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
