# Everything runs in .venv, which the first target makes. Only Python 3.11+, make and a package index are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
CORES ?= auto

export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax

.PHONY: reproduce test docs setup setup-locked lock lint types test-long test-slow mutate attack bench setup-lowest test-lowest check-release dist smoke address clean

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

# The same from the lock: every file by its SHA-256, as CI installs it. Torch apart, from the index of its CPU builds.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
setup-locked:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps --requirement requirements/lock.txt
	$(BIN)/python -m pip install --quiet --no-deps --index-url $(TORCH_INDEX) $(shell grep '^torch==' constraints.txt)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(STAMP)

# The locks, made anew from pyproject.toml and constraints.txt; `uv` must be installed. No torch in them, nor what only its
# CUDA build brings: its CPU build has other files on an index of its own.
LOCK := uv pip compile --quiet --generate-hashes --no-annotate --no-emit-package torch --no-emit-package triton \
	--no-emit-package cuda-toolkit --no-emit-package cuda-bindings --no-emit-package cuda-pathfinder \
	$(addprefix --no-emit-package nvidia-,cublas cuda-cupti cuda-nvrtc cuda-runtime cudnn-cu13 cufft cufile curand cusolver \
	cusparse cusparselt-cu13 nccl-cu13 nvjitlink nvshmem-cu13 nvtx) --custom-compile-command "make lock" pyproject.toml
lock:
	$(LOCK) --universal --python-version 3.11 --extra all --group dev --constraint constraints.txt --output-file requirements/lock.txt
	$(LOCK) --python-version 3.11 --python-platform linux --resolution lowest-direct --extra all --group test \
		--constraint requirements/torch.txt --output-file requirements/lowest.txt
	uv pip compile --quiet --generate-hashes --no-annotate --custom-compile-command "make lock" --universal \
		--python-version 3.11 --group release --output-file requirements/release.txt

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

# A warning breaks it, and so does a dead link; every tutorial and every block of code runs, and the explorer's rooms are computed.
# Open docs/_build/html/index.html.
docs: setup
	$(BIN)/python -m pytest -n $(CORES) -m docs tests/docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html
	$(BIN)/python docs/rooms.py docs/_build/html/rooms
	$(BIN)/python docs/check_site.py docs/_build/html

bench: setup
	$(BIN)/python -m benchmarks

# The lowest versions that pyproject.toml allows, torch apart. Warnings are no errors here: old packages have old ones.
setup-lowest:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps --requirement requirements/lowest.txt
	$(BIN)/python -m pip install --quiet --no-deps --index-url $(TORCH_INDEX) $(shell grep '^torch==' constraints.txt)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .

test-lowest:
	$(BIN)/python -m pytest -n $(CORES) -W default $(addprefix --ignore tests/,attack docs explorer release runtime/test_progress.py)

# The tools of requirements/release.txt, from BIN. Workflows, settings and the citation against their schemas; the
# workflows' rights and pins; the package as an index reads it.
check-release: dist
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/zizmor --offline --persona pedantic .github

dist:
	rm -rf dist
	$(BIN)/python -m build --quiet .
	$(BIN)/twine check --strict dist/*

# The wheel alone in a fresh environment: it starts, and the theory half computes.
smoke:
	rm -rf dist/.smoke
	$(PYTHON) -m venv dist/.smoke
	dist/.smoke/bin/python -m pip install --quiet --constraint constraints.txt "$$(ls dist/*.whl)[labs]"
	cd dist && .smoke/bin/saddles --version && .smoke/bin/saddles run linear/trade-off --size tiny --out .smoke/run
	rm -rf dist/.smoke

# Once, and again when the repository moves: make address REPOSITORY=https://github.com/OWNER/saddles
address:
	$(PYTHON) docs/set_address.py $(REPOSITORY)

clean:
	rm -rf $(VENV) .cache docs/_build docs/gallery
