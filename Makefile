PYTHON ?= python3
ARGS ?=
SERVERS ?=
CORES := $(shell getconf _NPROCESSORS_ONLN)
# Three for each core, since most of the time tests wait for services and clocks. Quick tests wait for nothing.
WORKERS ?= $(shell expr $(CORES) \* 3)

# Tests start thousands of programs: with this set, as many images of containers have it, each compiles the package anew.
unexport PYTHONDONTWRITEBYTECODE

# An environment for each version of Python: .venv, and .venv/3.12 for `make test PYTHON=python3.12` if .venv has another.
VENV := .venv
ifneq ($(origin PYTHON),file)
FOUND := $(shell scripts/pythons '$(PYTHON)')
ifeq ($(FOUND),)
$(error $(PYTHON) does not start)
endif
override PYTHON := $(lastword $(FOUND))
ifneq ($(firstword $(FOUND)),$(firstword $(shell scripts/pythons '$(or $(wildcard .venv/bin/python),python3)')))
VENV := .venv/$(firstword $(FOUND))
endif
endif
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --no-compile
BENCH := .venv/bench
ENGINES := .venv/engines
LOWEST := .venv/lowest
RELEASE := .venv/release
LOWEST_TESTS := tests/http/test_fastapi.py tests/http/test_litestar.py tests/http/test_starlette.py tests/http/test_flask.py tests/http/test_aiohttp.py tests/http/client tests/console
# The lowest google-api-core tells how long Google supports this Python.
OLD_PYTHON := -W 'ignore:You are using a Python version:FutureWarning'
LOWEST_SUITES := tests/stores/test_conformance.py tests/messaging/test_consumers.py tests/messaging/test_publisher_suite.py tests/loads/test_lakes.py
SERVICES := scripts/services
TYPED := src demo $(wildcard tests/laboratory tests/typing)

.DEFAULT_GOAL := help
.PHONY: help venv demo shop quick test pythons lowest coverage check style types pyright layers prove soak breaks mutate bench engines chromium fuzz kills pipeline ratchet services docs dist clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo 'ARGS="..." is handed on by demo, quick, test, coverage, prove, soak, breaks, mutate, bench, fuzz, kills, shop and pipeline.'

# The pip that comes with an older Python takes three times as long to find out which versions fit.
$(VENV)/pyvenv.cfg:
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip

# The demo comes after retrysafe, or pip looks on the index for the retrysafe it needs. Its needs only, so that it begins
# soon; without rich it prints plain text.
$(VENV)/.demo-stamp: pyproject.toml demo/pyproject.toml | $(VENV)/pyvenv.cfg
	$(PIP) --editable '.[demo]' --editable ./demo || $(PIP) --editable . --editable ./demo
	@touch $@

# All that the tests import.
$(VENV)/.suite-stamp: pyproject.toml demo/pyproject.toml | $(VENV)/pyvenv.cfg
	$(PIP) --editable '.[suite]' --editable ./demo
	@touch $@ $(VENV)/.demo-stamp

# Everything a developer needs.
$(VENV)/.dev-stamp: pyproject.toml demo/pyproject.toml | $(VENV)/pyvenv.cfg
	$(PIP) --editable '.[dev]' --editable ./demo
	@touch $@ $(VENV)/.suite-stamp $(VENV)/.demo-stamp

# That, and what only `make prove` runs.
$(VENV)/.prove-stamp: pyproject.toml demo/pyproject.toml | $(VENV)/pyvenv.cfg
	$(PIP) --editable '.[dev,browser,docs,load]' --editable ./demo
	@touch $@ $(VENV)/.dev-stamp $(VENV)/.suite-stamp $(VENV)/.demo-stamp

venv: $(VENV)/.dev-stamp ## Make .venv with all that development needs

demo: $(VENV)/.demo-stamp ## Run the demonstration
	$(BIN)/retrysafe demo $(ARGS)

shop: $(VENV)/.dev-stamp ## Run the example shop (ARGS: --faults, --broker URL)
	$(BIN)/python -m examples.shop $(ARGS)

# A service that cannot be installed (exit code 3) only skips its tests, unless RETRYSAFE_REQUIRE_SERVICES is set.
START_SERVICES = $(SERVICES) start || { code=$$?; [ $$code -eq 3 ] && [ -z "$$RETRYSAFE_REQUIRE_SERVICES" ]; } \
	|| exit $$code

# They are installed and started while make brings about what is named.
WITH_SERVICES = trap '$(SERVICES) stop' EXIT; ($(START_SERVICES)) & starting=$$!; \
	$(MAKE) --no-print-directory $(1) || { code=$$?; wait; exit $$code; }; \
	wait $$starting || exit; eval "$$($(SERVICES) env $(SERVERS))";

quick: $(VENV)/.suite-stamp ## Run the tests that need no service and take no time
	$(BIN)/python -m pytest -n $(CORES) --dist worksteal -m "not slow" $(ARGS)

test: ## Run the tests against real services (SERVERS="postgresql-18 mysql-9": in these versions)
	@$(call WITH_SERVICES,$(VENV)/.suite-stamp) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations=20 $(ARGS)

pythons: ## Run the quick tests on every other version of Python that pyproject.toml names, if it is here or in Debian
	@found=$$(scripts/pythons others) || [ $$? -eq 3 ] || exit; failed=; \
	for program in $$(echo "$$found" | cut -d ' ' -f 2); do \
		echo "quick on $$program"; \
		$(MAKE) --no-print-directory quick PYTHON="$$program" || failed="$$failed $$program"; \
	done; \
	[ -z "$$failed" ] || { echo "failed on:$$failed"; exit 1; }

coverage: ## Run the tests, and show which lines no test runs (twice as long)
	@$(call WITH_SERVICES,$(VENV)/.dev-stamp) \
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --cov --cov-report=term-missing $(ARGS)

prove: ## Prove the promises at full length, with engines and a browser, and write the figures of the guarantees page; goes on where it was stopped
	@$(call WITH_SERVICES,$(VENV)/.prove-stamp engines chromium) \
	RETRYSAFE_EFFORT=full RETRYSAFE_PROOFS=tests/proving/proofs.json RETRYSAFE_JOURNAL=.prove/journal.jsonl \
	$(BIN)/python -m pytest -n auto --dist worksteal -o faulthandler_timeout=1800 $(ARGS) && $(BIN)/python scripts/generate-docs \
	&& $(MAKE) --no-print-directory lowest ARGS=

# The suite beside the lowest versions that the extras of most services allow: those that tests/lowest.txt names.
$(LOWEST)/.stamp: pyproject.toml demo/pyproject.toml tests/lowest.txt
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --upgrade pip
	$(LOWEST)/bin/python -m pip install --quiet --editable '.[suite]' --editable ./demo
	$(LOWEST)/bin/python -m pip install --quiet --requirement tests/lowest.txt
	@touch $@

lowest: ## Run the quick tests of HTTP and the suites of stores, brokers and lakes on the lowest versions (a part of prove)
	@$(call WITH_SERVICES,$(LOWEST)/.stamp) \
	$(LOWEST)/bin/python -m pytest -n $(CORES) --dist worksteal -m "not slow" $(or $(ARGS),$(LOWEST_TESTS)) \
	&& $(if $(ARGS),true,$(LOWEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal $(OLD_PYTHON) $(LOWEST_SUITES))

soak: $(VENV)/.dev-stamp ## Simulate schedules on all cores until one breaks a promise: ARGS="--seeds 1000000 --from 0"
	$(BIN)/python -m tests.laboratory.simulation $(ARGS)

breaks: ## Take each defence out of a copy of the source, and see that its tests fail (ARGS: which)
	@$(call WITH_SERVICES,$(VENV)/.dev-stamp) \
	$(BIN)/python -m tests.proving.breaks $(ARGS)

$(VENV)/.mutate-stamp: $(VENV)/.dev-stamp
	$(PIP) --editable '.[mutate]'
	@touch $@

mutate: $(VENV)/.mutate-stamp ## Mutate the core, and write the score (about 20 minutes; needs no services)
	rm -rf mutants
	env -u PYTHONPATH RETRYSAFE_SEED=1 $(BIN)/python -m mutmut run $(ARGS)
	$(BIN)/python -m tests.proving.mutation && $(BIN)/python scripts/generate-docs

check: style types pyright layers ratchet ## Check format, style, types, the layers of imports and the ratchet ("make -j check": at once)

style: $(VENV)/.dev-stamp
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: $(VENV)/.dev-stamp
	$(BIN)/mypy $(TYPED)
	$(BIN)/mypy scripts/services
	$(BIN)/mypy scripts/pythons
	$(BIN)/mypy --follow-imports=silent scripts/generate-docs
	$(BIN)/mypy --follow-imports=silent scripts/measure-house scripts/houseparts/counted.py

pyright: $(VENV)/.dev-stamp
	$(BIN)/basedpyright $(TYPED)

layers: $(VENV)/.dev-stamp
	$(BIN)/lint-imports

# CI also counts the tests, which takes a while.
ratchet: $(VENV)/.dev-stamp ## Measure the house, and fail if a figure rose (also a part of check)
	$(BIN)/python scripts/measure-house --check $(if $(CI),--items)

# An environment of its own: what rivals ask for changes nothing that development uses.
$(BENCH)/.stamp: pyproject.toml
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --editable '.[bench]'
	$(BENCH)/bin/python -m benchmarks.rivals.installing
	@touch $@

bench: ## Run the benchmarks against real services, in less than 15 minutes (ARGS: see --help; "--record": for the docs)
	@$(call WITH_SERVICES,$(VENV)/.dev-stamp $(BENCH)/.stamp) \
	$(BENCH)/bin/python -m benchmarks $(ARGS); code=$$?; \
	$(BIN)/python scripts/generate-docs && exit $$code

# Engines pin what they need, and some need hundreds of megabytes.
$(ENGINES)/.stamp: pyproject.toml
	$(PYTHON) -m venv $(ENGINES)/most
	$(ENGINES)/most/bin/python -m pip install --quiet 'pyspark>=4,<5' 'apache-beam>=2.60' 'quixstreams>=3.20' 'psycopg[binary]' confluent-kafka deltalake
	$(PYTHON) -m venv $(ENGINES)/flink
	$(ENGINES)/flink/bin/python -m pip install --quiet 'apache-flink>=2,<3' 'psycopg[binary]'
	@touch $@

engines: $(ENGINES)/.stamp ## Install Spark, Flink, Beam and Quix in environments of their own, for `make prove` (needs Java)

chromium: ## Install the browser, for `make prove`
	$(SERVICES) install chromium

fuzz: $(VENV)/.dev-stamp ## Fuzz a guarded API for minutes (make test does so for seconds)
	RETRYSAFE_FUZZ_SECONDS=$(or $(FUZZ_SECONDS),120) $(BIN)/python -m pytest -s tests/http/test_fuzz.py $(ARGS)

kills: ## Send 10,000 requests while a worker is killed every second, on every store
	@$(call WITH_SERVICES,$(VENV)/.dev-stamp) \
	$(BIN)/python -m tests.http.killing $(ARGS)

pipeline: ## Send 100,000 orders through brokers, while relays and inboxes are killed (ARGS: mqtt pubsub … --orders N --kill-broker)
	@$(call WITH_SERVICES,$(VENV)/.dev-stamp) \
	$(BIN)/python -m tests.pipeline $(ARGS)

services: ## Start the services, and print the variables that lead the tests to them
	@$(SERVICES) start; code=$$?; $(SERVICES) env; exit $$code

# What builds the site and the distributions, away from what development uses.
$(RELEASE)/.stamp: pyproject.toml
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet '.[docs]' build twine
	@touch $@

docs: $(RELEASE)/.stamp ## Build the site into site/; a warning is an error
	$(RELEASE)/bin/python -m zensical build --strict

dist: $(RELEASE)/.stamp ## Build wheels and sdists into dist/, and try each in an empty environment of each Python here
	rm -rf dist
	for folder in . demo; do $(RELEASE)/bin/python -m build --outdir dist $$folder || exit; done
	$(RELEASE)/bin/python -m twine check --strict dist/*
	scripts/try-distributions dist

clean: ## Stop the services; remove .venv, caches and the services' data
	$(SERVICES) stop
	rm -rf .venv .services .coverage .coverage.* .cache htmlcov build dist site mutants .hypothesis \
		.mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
