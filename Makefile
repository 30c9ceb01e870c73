# Each target does its own set-up: on a bare machine `make demo` or `make test` is all that is needed.
#   make demo        a real model: eager, cold, warm in a fresh process
#   make test        the tests that CI runs            make test-full   also the slow ones (minutes to hours)
#   make test-quick  a minute of them: stored artifacts, generated code by digest, the predicates of guards, the arrows
#   make test-gpu    the tests that need a CUDA device, all of torch's op_db on it, and compute-sanitizer over a sample: 10 minutes
#   make test-fresh  random tests with fresh inputs and more programs: for a nightly run (a failure prints the seed that repeats it)
#   make mutate      wrong edits of the sources, each with the tests that must notice: 12 of them, others each time; ARGS=--all (tests/mutation)
#   make fuzz        parsers of what comes from elsewhere, with inputs found by coverage: a minute each, 25 minutes in all (ARGS="--seconds 10": less)
#   make asan        generated code (a sample of the op table) and the native runtime under AddressSanitizer: 10 minutes (ARGS="--every 3 --undefined": more)
#   make test-oldest  with torch 2.11 on Python 3.12 (constraints-oldest.txt), in .venv-oldest
#   make test-torch VERSION=2.15   with another torch (2.11 to 2.15, or any release: 2.16.0rc1), in .venv-VERSION
#   make check       ruff, mypy, import arrows         make bench       side by side with torch.compile and AOTInductor
#   PYTHON=…         the Python to build .venv with (3.11 to 3.13)      ARGS=…  passed on

SHELL := /bin/bash
VENV := .venv
RUN := $(VENV)/bin/python

.PHONY: help demo test test-quick test-full test-fresh test-oldest test-torch test-gpu mutate fuzz asan check format bench setup setup-dev clean
.DEFAULT_GOAL := help

help:
	@sed -n '2,14s/^# *//p' Makefile

setup:
	@.ci/setup test
setup-dev:
	@.ci/setup test,dev

demo: setup
	@$(RUN) -m precast.cli demo $(ARGS)

test: setup
	@$(RUN) -m pytest -m "not slow" $(ARGS)

QUICK := tests/replay tests/artifact_store tests/lowering/ir tests/runtime/guards/test_predicates.py tests/codegen/test_stages.py \
  tests/mutation/test_table.py tests/repository/test_layering.py tests/repository/test_docs.py
test-quick: setup
	@$(RUN) -m pytest -q -n 2 -m "not slow" $(QUICK) $(ARGS)

test-fresh: setup
	@unset PRECAST_TEST_SEED; export PRECAST_RANDOM_PROGRAMS=$${PRECAST_RANDOM_PROGRAMS:-60} PRECAST_RANDOM_GRAPHS=$${PRECAST_RANDOM_GRAPHS:-400}; \
	  $(RUN) -m pytest -m "not slow" tests/fuzz tests/ops tests/lowering $(ARGS)

test-oldest:
	@PYTHON="$${PYTHON:-python3.12}" .ci/setup test .venv-oldest constraints-oldest.txt
	@.venv-oldest/bin/python -m pytest -m "not slow" $(ARGS)

test-torch:
	@venv=$$(.ci/setup-torch "$(VERSION)") && "$$venv/bin/python" -m pytest -m "not slow" $(ARGS)

test-gpu: setup
	@$(RUN) -m tests.gpu.run_all --rivals --sanitize $(ARGS)

mutate: setup
	@$(RUN) -m tests.mutation.run $(ARGS)

fuzz: setup-dev
	@$(RUN) -m tests.fuzz.coverage_guided $(ARGS)

asan: setup
	@$(RUN) -m tests.ops.native_asan
	@$(RUN) -m tests.ops.asan $(ARGS)

test-full: setup
	@$(RUN) -m pytest $(ARGS)

check: setup-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	.ci/arrows
	$(VENV)/bin/mypy

format: setup-dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: setup
	@$(RUN) -m precast.cli bench $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
