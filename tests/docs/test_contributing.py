"""The worked diffs of CONTRIBUTING.md apply, and what they add passes its tests."""

import os
import shutil
import subprocess
import sys

import pytest
from doc_pages import ROOT, blocks

from saddles.probe.layouts.adapters import adapters

DIFFS = [block.code for block in blocks(ROOT / "CONTRIBUTING.md") if block.language == "diff"]


@pytest.fixture
def changed(tmp_path):
    """A copy of the repository with all three."""
    assert len(DIFFS) == 3
    for part in ("src", "tests", "docs/reference"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "docs/references.bib"):
        shutil.copy(ROOT / file, tmp_path / file)
    for diff in DIFFS:
        done = subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=diff, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return tmp_path


def test_worked_diffs_apply_and_are_clean(changed):
    style = [sys.executable, "-m", "ruff", "check", "src", "tests"]
    linted = subprocess.run(style, cwd=changed, capture_output=True, text=True)
    assert linted.returncode == 0, linted.stdout
    code = (
        "from saddles.linear import theory; from saddles.core.experiment import registry;"
        "from saddles.probe.layouts.adapters import adapters;"
        "print(hasattr(theory, 'Wide'), 'linear/early-stopping' in registry(), len(adapters()))"
    )
    environment = {**os.environ, "PYTHONPATH": str(changed / "src")}
    told = subprocess.run([sys.executable, "-c", code], cwd=changed, env=environment, capture_output=True, text=True)
    assert told.stdout.split() == ["True", "True", str(len(adapters()) + 1)], told.stderr


@pytest.mark.slow
def test_what_the_worked_diffs_add_passes_its_tests(changed):
    tests = ["tests/linear/test_theory.py", "tests/probe/test_verify.py", "tests/test_conformance.py"]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", *tests]
    command += ["-k", "wide_is or cpmant or early-stopping or (public_name and linear)"]
    environment = {**os.environ, "PYTHONPATH": str(changed / "src")}
    done = subprocess.run(command, cwd=changed, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:]
    assert done.stdout.count(".") >= 6, done.stdout
