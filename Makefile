# `make help` lists the targets. Every target makes the environment it needs; nothing else is to be set up.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# What is installed takes its versions from -c, a build environment that pip makes from these variables.
PIP    := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(BIN)/python -m pip --disable-pip-version-check
# Python keeps its bytecode: tests start hundreds of processes, and each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
STAMP  := $(VENV)/.installed
LIGHT  := $(VENV)/.installed-light
SITE   := $(VENV)/.installed-docs

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow test-faults check docs notebooks bench format clean dist notes release-check

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

install: $(STAMP) ## Make .venv with everything: all extras, and what the tests need

demo: $(LIGHT) ## QAFeL against FedBuff and direct quantization on real data, in under a minute
	$(BIN)/qafel demo

test: $(STAMP) ## Run the tests, in about four minutes on two quiet cores
	@# Three workers on two cores: tests wait for processes and brokers for a quarter of the time.
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow and not faults"

test-slow: $(STAMP) ## Run the tests that take long: faults, large models, searches, browsers
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and not faults"

test-faults: $(STAMP) ## Run the long fault matrices of the deployment: before closing a change that touches them
	$(BIN)/python -m pytest -n 2 --dist worksteal -m faults

check: $(STAMP) ## Lint, format, types, import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: $(SITE) ## Build the documentation's site into build/site; any warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open build/site/index.html, or: $(BIN)/python -m http.server --directory build/site --bind 127.0.0.1"

notebooks: $(STAMP) ## Run the notebooks again and keep their outputs
	$(BIN)/python -m tests.notebooks

bench: $(STAMP) ## Run the benchmarks (alone: others' load shows in the figures)
	$(BIN)/qafel bench quantizers
	$(BIN)/qafel bench simulator
	$(BIN)/qafel bench training
	$(BIN)/qafel bench deployment --case made --case default --case mutants --updates 3000

format: $(STAMP) ## Format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

dist: ## Build wheel and source distribution into dist/, and check what they say of themselves
	rm -rf build dist
	$(PYTHON) -m venv --clear .venv-build
	.venv-build/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt build twine
	.venv-build/bin/python -m build --dependency-constraints-txt constraints.txt
	.venv-build/bin/python -m twine check --strict dist/*

release-check: dist ## Install the built wheel into a new environment, from the registry, and run the demo there
	$(PYTHON) -m venv --clear .venv-wheel
	.venv-wheel/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt "$$(echo dist/*.whl)[simulate]"
	cd dist && ../.venv-wheel/bin/qafel --version && ../.venv-wheel/bin/qafel demo --out "$$(mktemp -d)/demo"

notes: ## Print the release notes of this version, from CHANGELOG.md
	@$(PYTHON) scripts/release_notes.py

clean: ## Remove the environment and all that is built
	rm -rf $(VENV) .venv-build .venv-wheel build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The demo needs no torch, no ray, no broker.
$(LIGHT): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install -q -c constraints.txt -e '.[simulate]'
	@touch $@

# The site shows the docstrings and commands of the core.
$(SITE): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install -q -c constraints.txt -e '.[docs]'
	@touch $@

# torch comes in the same resolution as what depends on it, so that nothing pulls another build.
$(STAMP): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install -q -c constraints.txt -e '.[simulate,torch,transformers,ray,nats,tensorboard,mlflow,wandb,tune,pandas,watch,docs,dev]'
	@touch $@ $(LIGHT) $(SITE)
