# Needs only make and Python >= 3.11: each target sets up what it uses in $(VENV), and again only
# when pyproject.toml or constraints.txt have changed.

PYTHON ?= python3
VENV ?= .venv
# Arguments for pytest, the demo or the benchmarks: make test ARGS="tests/locks -x"
ARGS ?=
# Test processes, each with a server of its own: two for each core and one more, or a number; 0 runs all in one.
JOBS ?= auto
# How long the nemesis of a soak or a campaign rages.
SECONDS ?= 600

# What depends on the interpreter and the server: every kind and binding on one server, scripts, forks, loops inside
# a try, views, tasks, pages.
CORE := $(addprefix tests/,unit scripts web faults/test_forks.py faults/test_jumps_back.py \
  $(patsubst %,locks/test_%.py,behaviour expirable fenced groups latch multi readwrite semaphore sharing_names spin \
    tasks_as_owners wake_ups) \
  $(patsubst %,tasks/test_%.py,checks dead_children exclusion in_process options) \
  admin/test_checks.py $(patsubst %,console/test_%.py,force_release pages))

BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --dist worksteal
SOURCES = $(wildcard django_rlock example_project benchmarks models tests .ci/gate.py)

# Another PYTHON than that of $(VENV) makes it anew; one that does not run changes nothing.
ifneq ($(origin PYTHON),file)
WHICH := 'import sys; print(sys.base_prefix, *sys.version_info)'
$(shell ! test -f $(VENV)/pyvenv.cfg || ! asked=$$($(PYTHON) -c $(WHICH) 2>&1) || \
  test "$$($(BIN)/python -c $(WHICH) 2>&1)" = "$$asked" || rm -r $(VENV))
endif

.DEFAULT_GOAL := help
.PHONY: help demo test core check test-all smoke release-check soak campaign storm lint types pyright layers docs bench

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo 'Variables: ARGS="..." JOBS=$(JOBS) SECONDS=$(SECONDS) PYTHON=$(PYTHON) VENV=$(VENV)'

demo: $(VENV)/.demo ## Run the example shop with a server of its own (ARGS=--once: run and exit)
	$(BIN)/python -m example_project.demo $(ARGS)

test: $(VENV)/.test ## Run the tests (ARGS="tests/locks -x", JOBS=0 for one process)
	$(PYTEST) $(ARGS)

core: $(VENV)/.test ## Run the tests that say what depends on the interpreter and the server
	$(PYTEST) $(CORE) $(ARGS)

check: lint types layers core ## Check style, types and layers, and run the core of the tests: for every commit

test-all: ## Run all tests, in their long form, with each Python of this machine, and against redis-server
	.ci/run --all

smoke: $(VENV)/.test ## Install the wheel into fresh projects, on the lowest and the newest versions (ARGS="lowest")
	$(BIN)/python -m tests.smoke $(ARGS)

release-check: $(VENV)/.test ## Build twice and compare, check metadata and changelog, install in fresh projects
	$(BIN)/python -m tests.release
	$(BIN)/python -m tests.smoke $(ARGS)

soak: $(VENV)/.test ## All kinds of locks under a nemesis, for SECONDS (ARGS="--seed 7")
	$(BIN)/python -m tests.soak --seconds $(SECONDS) $(ARGS)

campaign: $(VENV)/.test ## Celery workers under a nemesis, for SECONDS (ARGS="--seed 7")
	$(BIN)/python -m tests.campaign --seconds $(SECONDS) $(ARGS)

storm: $(VENV)/.test ## Interrupt 200 processes 600 times each, for a quarter of an hour (ARGS="--kind fair --number 20")
	$(BIN)/python -m tests.faults.storms $(ARGS)

# actionlint is no Python package, so it checks the workflows where it is installed, as in CI.
lint: $(VENV)/.lint ## Check style, formatting, English and workflows
	$(BIN)/ruff check $(ARGS)
	$(BIN)/ruff format --check --diff
	$(BIN)/python .ci/prose.py
	$(BIN)/zizmor --offline --quiet .github
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/feature.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.readthedocs .readthedocs.yaml
	! command -v actionlint >/dev/null || actionlint

types: $(VENV)/.types ## Check types
	$(BIN)/mypy $(or $(ARGS),$(SOURCES))

pyright: $(VENV)/.pyright ## Check what users' type checkers see by pyright, too
	$(BIN)/basedpyright --level error --pythonpath $(BIN)/python

layers: $(VENV)/.lint ## Check which module imports which
	$(BIN)/lint-imports $(ARGS)

docs: $(VENV)/.docs ## Build the documentation as a site, in build/docs
	$(BIN)/sphinx-build --quiet --nitpicky --fail-on-warning --fresh-env docs build/docs $(ARGS)
	@echo 'The site is in build/docs/index.html.'

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
