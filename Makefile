# Needs only make and Python >= 3.11: each target sets up what it uses in $(VENV), and again only
# when pyproject.toml or constraints.txt have changed.

PYTHON ?= python3
VENV ?= .venv
# Arguments for pytest, the demo or the benchmarks: make test ARGS="tests/locks -x"
ARGS ?=
# Test processes, each with a server of its own; 0 runs all in one (for debuggers).
JOBS ?= auto

BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)
SOURCES = $(wildcard django_rlock example_project benchmarks tests)

.DEFAULT_GOAL := help
.PHONY: help demo test lint types layers bench

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo 'Variables: ARGS="..." JOBS=$(JOBS) PYTHON=$(PYTHON) VENV=$(VENV)'

demo: $(VENV)/.demo ## Run the example shop with a server of its own (ARGS=--once: run and exit)
	$(BIN)/python -m example_project.demo $(ARGS)

test: $(VENV)/.test ## Run the tests (ARGS="tests/locks -x", JOBS=0 for one process)
	$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 $(ARGS)

lint: $(VENV)/.lint ## Check style and formatting
	$(BIN)/ruff check $(ARGS)
	$(BIN)/ruff format --check --diff

types: $(VENV)/.types ## Check types
	$(BIN)/mypy $(or $(ARGS),$(SOURCES))

layers: $(VENV)/.lint ## Check which module imports which
	$(BIN)/lint-imports $(ARGS)

bench: $(VENV)/.bench ## Compare with other lock libraries
	$(BIN)/python -m benchmarks $(ARGS)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'Python 3.11 or newer is needed and "$(PYTHON)" is not; name one: make $(MAKECMDGOALS) PYTHON=python3.12' >&2; \
	  exit 1; }
ifdef UV
	uv venv --quiet --seed --allow-existing --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" $(VENV)
else
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
endif

# $(VENV)/.test is made by installing the dependency group "test", and so on.
$(VENV)/.%: pyproject.toml constraints.txt | $(VENV)/bin/python
ifdef UV
	uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable . --group $*
else
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group $*
endif
	@touch $@
