PYTHON ?= python
.DEFAULT_GOAL := help
.PHONY: help install lint format types imports test fast coverage ci lowest requirements data quickstart faults fuzz sbom licenses audit docs site site-check release clean

help:        ## list the targets
	@grep -E '^[a-z-]+: +.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 14
install:     ## install the package in place with the development tools
	sed -nE 's/^([^ ]+==[^ ;]+).*/\1/p' .ci/requirements.txt | $(PYTHON) -m pip install -c /dev/stdin -e '.[dev]'
lint:        ## report lint errors and unformatted lines
	$(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check .
format:      ## fix what can be fixed automatically
	$(PYTHON) -m ruff check --fix . ; $(PYTHON) -m ruff format .
types:       ## check types: strict in core, annotated everywhere
	$(PYTHON) -m mypy
imports:     ## check that imports run one way
	PYTHONPATH=src lint-imports --no-logo
test:        ## run every test
	$(PYTHON) -m pytest
fast:        ## run the unit tests that take seconds
	$(PYTHON) -m pytest tests/unit -m 'not slow and not long' -q
coverage:    ## run every test and report which lines no test runs; a third slower
	$(PYTHON) -m pytest -n 2 --cov --cov-report=term -q
ci:          ## everything, in a new environment, against the built wheel
	.ci/run
lowest:      ## the unit tests against the lowest versions that pyproject.toml declares
	.ci/run lowest
requirements: ## write .ci/requirements.txt, exact versions with hashes; needs a CPU build of torch, whose files differ
	uv pip compile --quiet --upgrade --python-version 3.11 --extra dev --generate-hashes --no-annotate --no-header \
	  --no-emit-package torch --no-emit-package headstart pyproject.toml -o .ci/requirements.txt
data:        ## fetch the public data sets that the recipes read into data/
	$(PYTHON) recipes/data.py
quickstart:  ## pre-train and fine-tune on the text that the package ships
	headstart pretrain recipes/quickstart/pretrain.yaml && headstart finetune recipes/quickstart/finetune.yaml
faults:      ## inject every fault in full numbers, about two hours; writes docs/results/reliability.md
	$(PYTHON) tests/faults/run.py
fuzz:        ## fuzz every parser for MINUTES (20); defects become tests in tests/attacks/fuzz/found
	$(PYTHON) tests/attacks/fuzz/run.py --minutes $(or $(MINUTES),20)
sbom:        ## write sbom.json, a CycloneDX list of everything that is installed
	uvx --from cyclonedx-bom cyclonedx-py environment $(PYTHON) --pyproject pyproject.toml --output-file sbom.json
licenses:    ## write docs/licenses.md, the license of every dependency; needs the extras installed
	$(PYTHON) docs/make_licenses.py
audit:       ## look up known vulnerabilities of the locked versions; needs access to an advisory database
	uvx pip-audit --requirement .ci/requirements.txt --disable-pip --require-hashes
docs:        ## write the generated pages: docs/help.md, docs/support.md, docs/reference and docs/tree.md
	$(PYTHON) docs/make_help.py && $(PYTHON) docs/make_support.py && $(PYTHON) docs/make_reference.py && $(PYTHON) docs/make_tree.py
site:        ## build the documentation into site/; a warning is an error; needs the extra `site`
	$(PYTHON) -m sphinx --builder html --fail-on-warning --keep-going --nitpicky --fresh-env --jobs auto --quiet docs site
site-check:  ## check the built site: HTML, links, accessibility in a browser; needs node, lychee and a Chromium
	.ci/site/check
release:     ## build, check and hash what is published, into dist/; two builds must be equal
	.ci/release
clean:       ## remove builds and caches; runs/ stays
	rm -rf dist build site htmlcov .coverage .venv-ci .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .fuzz sbom.json
