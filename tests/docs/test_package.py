"""What goes with the code: the citation file, the references, the wheel."""

import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from doc_pages import ROOT
from pybtex.database import parse_file

import saddles

CITATION: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
REFERENCES = parse_file(str(ROOT / "docs" / "references.bib"))
KEY = re.compile(r"\b[a-z]+(?:19|20)\d\d[a-z]+\b")


def test_citation_is_valid():
    """The fields that version 1.2.0 of the format requires, and the kinds of those that are used."""
    assert {"cff-version", "message", "title", "authors"} <= set(CITATION)
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["type"] == "software"
    assert CITATION["license"] == importlib.metadata.metadata("saddles")["License-Expression"] == "MIT"
    assert all(isinstance(word, str) for word in CITATION["keywords"])
    for entry in (CITATION, *CITATION["references"]):
        for author in entry["authors"]:
            assert set(author) in ({"name"}, {"family-names", "given-names"}), author
    for reference in CITATION["references"]:
        assert {"type", "title", "authors", "year"} <= set(reference)
        assert reference["type"] in {"conference-paper", "article", "generic"}
        assert isinstance(reference["year"], int)


def test_citation_says_what_the_rest_says():
    assert CITATION["version"] == saddles.__version__
    titles = {entry.fields["title"]: int(entry.fields["year"]) for entry in REFERENCES.entries.values()}
    assert {reference["title"]: reference["year"] for reference in CITATION["references"]} == titles
    assert "MIT License" in (ROOT / "LICENSE").read_text()
    assert f"## {saddles.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_code_cites_by_key_what_is_there_and_nothing_lies_unused():
    text = {file: file.read_text("utf-8") for file in (ROOT / "src").rglob("*.py")}
    cited = {key for words in text.values() for key in KEY.findall(words)}
    assert cited == set(REFERENCES.entries)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: Any) -> Path:
    """A wheel, built without a network and installed alone into a folder."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", str(ROOT), "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder)]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    site = folder / "site"
    place = [*pip, "install", str(wheel), "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run(place, check=True, capture_output=True, timeout=300)
    return site


def test_wheel_holds_the_package_and_nothing_else(installed):
    (wheel,) = installed.parent.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"saddles", f"saddles-{saddles.__version__}.dist-info"}
    source = {file.relative_to(ROOT / "src").as_posix() for file in (ROOT / "src").rglob("*.py")}
    assert source <= set(names)


def _outside(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed), "SADDLES_DATA": ""}
    return subprocess.run(
        [str(installed / "bin" / "saddles"), *words],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_wheel_runs_outside_the_checkout(installed, tmp_path):
    code = "import saddles; print(saddles.__file__)"
    where = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(where.stdout.strip()) == installed / "saddles" / "__init__.py"
    listed = _outside(installed, tmp_path, "list")
    assert listed.returncode == 0, listed.stderr
    assert "linear/figure-2" in listed.stdout
    done = _outside(installed, tmp_path, "run", "linear/trade-off", "--size", "tiny", "--out", "mine")
    assert done.returncode == 0, done.stderr
    made = {file.name for file in (tmp_path / "mine").iterdir()}
    assert {"trajectory.zarr", "claims.json", "figure.png", "figure.svg", "run.json"} <= made
