# Everything runs in .venv; `make demo` and `make test` need Python >= 3.11, make and git, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_ARGS ?=
SEEDS ?= 200
FIRST ?= 1
PYTEST := $(BIN)/pytest

.PHONY: demo test prove lint types imports unit simulator process format clean help

help:
	@echo "make demo    run a stream of real text through the daemon, on local endpoints (DEMO_ARGS=...)"
	@echo "make test    everything that a change can break: lint, types, import rules, every tier"
	@echo "make prove   the long proofs: thousands of simulator seeds, crash suites"

$(VENV)/local.stamp: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[local]'
	touch $@

$(VENV)/dev.stamp: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@ $(VENV)/local.stamp

demo: $(VENV)/local.stamp
	$(BIN)/kcl-daemon demo $(DEMO_ARGS)

test: lint types imports
	$(PYTEST) -m 'not prove' $(PYTEST_ARGS)

prove: $(VENV)/dev.stamp
	$(PYTEST) -m prove --timeout 3600 $(PYTEST_ARGS)
	$(BIN)/python -m tests.simulator --scenario all --seeds $(SEEDS) --first $(FIRST) --jobs 2

lint: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/interrogate --quiet daemon protocol clients/python

types: $(VENV)/dev.stamp
	$(BIN)/mypy
	$(BIN)/basedpyright --warnings

imports: $(VENV)/dev.stamp
	$(BIN)/lint-imports

unit simulator process: $(VENV)/dev.stamp
	$(PYTEST) -m 'not prove' tests/$@

format: $(VENV)/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
