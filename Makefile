# Everything runs in .venv, which the first target makes. Only Python 3.11+, make and a package index are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
CORES ?= auto

export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax

.PHONY: reproduce test docs setup lint types test-long test-slow mutate attack bench address clean

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
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[all]" --group dev
	touch $(STAMP)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/pyright

# What takes five seconds and more each: kills and resumes, whole experiments, second precisions.
test-long: setup
	$(BIN)/python -m pytest -n $(CORES) --dist loadgroup -m long

test-slow: setup
	$(BIN)/python -m pytest -n $(CORES) -m slow

# Bugs put into a copy of the package: which of them do the tests catch?
mutate: setup
	$(BIN)/python tests/support/mutations.py

# Damaged and hostile files, kills and fuzz, in their long form. A failure prints ATTACK_SEED, which repeats it.
attack: export ATTACK_SEED ?= $(shell date +%s)
attack: setup
	@echo ATTACK_SEED=$(ATTACK_SEED)
	$(BIN)/python -m pytest -n $(CORES) -m "attack or not attack" tests/attack

# A warning breaks it, and so does a dead link; every tutorial and every block of code runs. Open docs/_build/html/index.html.
docs: setup
	$(BIN)/python -m pytest -n $(CORES) -m docs tests/docs/test_code.py
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html
	$(BIN)/python docs/check_site.py docs/_build/html

bench: setup
	$(BIN)/python -m benchmarks

# Once, and again when the repository moves: make address REPOSITORY=https://github.com/OWNER/saddles
address:
	$(PYTHON) docs/set_address.py $(REPOSITORY)

clean:
	rm -rf $(VENV) .cache docs/_build docs/gallery
