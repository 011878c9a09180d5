"""The worked diffs of CONTRIBUTING.md apply, and what they add passes its tests; so does its package."""

import json
import os
import shutil
import subprocess
import sys
import tomllib

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


@pytest.fixture
def installed(tmp_path):
    """The package of the page where Python finds it, as `pip install` would leave it: the environment of a command."""
    (project,) = [block.code for block in blocks(ROOT / "CONTRIBUTING.md") if block.language == "toml"]
    (code,) = [block.code for block in blocks(ROOT / "CONTRIBUTING.md") if block.language == "text"]
    facts = tomllib.loads(project)["project"]
    home = tmp_path / "site"
    written = home / f"{facts['name']}-{facts['version']}.dist-info"
    written.mkdir(parents=True)
    (written / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {facts['name']}\nVersion: {facts['version']}\n")
    lines = [
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in row.items()) for group, row in facts["entry-points"].items()
    ]
    (written / "entry_points.txt").write_text("".join(lines))
    (home / f"{facts['name']}.py").write_text(code)
    paths = [str(home), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def test_the_package_of_the_page_is_listed_run_and_swept(installed, tmp_path):
    def saddles(*words):
        command = [sys.executable, "-m", "saddles", *words]
        done = subprocess.run(command, cwd=tmp_path, env=installed, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "decays/one" in saddles("list")
    saddles("run", "decays/one", "--out", "one")
    (claim,) = json.loads((tmp_path / "one" / "claims.json").read_text())
    assert claim["verdict"] == "holds"
    assert claim["value"] < 1e-8
    assert claim["null"] > 0.1
    assert "2 of 2 cells finished" in saddles(
        "sweep", "decays/one", "--grid", "rate=1,2", "--workers", "1", "--out", "two"
    )
