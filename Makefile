# Everything runs in .venv, which the first target makes. Only Python 3.11+, make and a package index are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
CORES ?= auto

export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax

.PHONY: reproduce test setup lint types test-slow bench clean

# A claim of a paper that fails (exit code 1) is a finding, not a broken build.
reproduce: setup
	$(BIN)/saddles reproduce || test $$? -eq 1

test: setup lint types
	$(BIN)/python -m pytest -n $(CORES) --dist loadgroup

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade --constraint constraints.txt pip
	$(BIN)/python -m pip install --quiet $(shell grep '^torch==' constraints.txt)  # first and alone: no other build is pulled in
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[all]"
	touch $(STAMP)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/pyright

test-slow: setup
	$(BIN)/python -m pytest -n $(CORES) -m slow

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .cache
