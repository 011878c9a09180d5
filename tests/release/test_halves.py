"""Each half of the package installs, loads and works without the other, and the core without both."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from doc_pages import ROOT
from packaging.requirements import Requirement

from saddles.runtime.packages import EXTRAS

LABS = ["jax", "jaxlib", "diffrax", "equinox", "cvxpy", "lineax", "optimistix"]
PROBE = ["torch", "transformers", "peft", "safetensors", "tokenizers", "accelerate", "PIL"]
OTHERS = ["lightning", "nicegui", "dask", "distributed", "datasets", "timm"]
BLOCK = """
import sys
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name.partition(".")[0] in {absent!r} else find(name, *rest)
"""
"""A Python in which these packages are not installed."""


def _python(code: str, absent: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", BLOCK.format(absent=absent) + code]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)


def _command(words: list[str], absent: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """A command of saddles; what it loaded is written to loaded.json."""
    code = f"""
import json, sys
sys.argv = ["saddles", *{words!r}]
try:
    from saddles.cli import main
    main()
finally:
    json.dump(sorted({{name.partition(".")[0] for name in sys.modules}}), open("loaded.json", "w"))
"""
    return _python(code, absent, folder)


def _loaded(folder: Path) -> set[str]:
    return set(json.loads((folder / "loaded.json").read_text()))


@pytest.mark.parametrize("words", [["list"], ["doctor"], ["compare", "--help"]], ids=" ".join)
def test_the_core_answers_without_either_half(words, tmp_path):
    done = _command(words, [*LABS, *PROBE, *OTHERS], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(
    ("words", "absent", "extra"),
    [
        (["run", "linear/trade-off", "--size", "tiny"], LABS, "labs"),
        (["run", "transformers/vit-cifar10-adam", "--size", "tiny"], PROBE, "probe"),
        (["inspect", "."], PROBE, "probe"),
        (["explore", "--no-browser"], OTHERS, "explorer"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_command_of_the_missing_half_says_what_to_install(words, absent, extra, tmp_path):
    done = _command(words, absent, tmp_path)
    assert done.returncode == 2, done.stderr
    assert f"pip install 'saddles[{extra}]'" in done.stderr
    assert "bug" not in done.stderr


def test_reproduce_skips_the_missing_half(tmp_path):
    done = _command(["reproduce", "linear", "--size", "tiny", "--workers", "1"], LABS, tmp_path)
    assert "bug" not in done.stdout + done.stderr
    assert "pip install 'saddles[labs]'" in done.stdout + done.stderr


def test_the_theory_never_loads_torch(tmp_path):
    done = _command(["run", "linear/trade-off", "--size", "tiny"], [], tmp_path)
    assert done.returncode == 0, done.stderr
    assert not _loaded(tmp_path) & {"torch", "transformers", "peft"}
    assert "jax" in _loaded(tmp_path)


def test_real_models_never_load_jax(tmp_path):
    code = f"""
import json, sys
sys.path.insert(0, {str(ROOT / "tests" / "support")!r})
import small_models
from saddles.cli import app
for name, shift in (("base", 0.0), ("tuned", 0.1)):
    small_models.nudge(small_models.gpt2(), shift).save_pretrained(name)
app(["lora", "plan", "base", "tuned"], standalone_mode=False)
json.dump(sorted({{name.partition(".")[0] for name in sys.modules}}), open("loaded.json", "w"))
"""
    done = _python(code, [], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "torch" in _loaded(tmp_path)
    assert not _loaded(tmp_path) & {"jax", "jaxlib", "diffrax", "cvxpy"}


def test_extras_bring_what_the_messages_promise():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    brought = {
        re.sub(r"[-_.]+", "-", Requirement(line).name.lower()): extra
        for extra, lines in project["optional-dependencies"].items()
        for line in lines
    }
    names = {"PIL": "pillow", "jaxlib": "jax"}
    assert {package: brought[names.get(package, package)] for package in EXTRAS} == EXTRAS
    core = {Requirement(line).name for line in project["dependencies"]}
    assert not core & set(EXTRAS)
