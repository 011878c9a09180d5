"""What a package index gets: the source archive, the wheel's metadata and README; and the archive of stored results."""

import email.message
import email.policy
import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from doc_pages import ROOT
from packaging.version import Version

import saddles

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
ADDRESS = PROJECT["urls"]["Repository"]
place = SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "set_address.py")))
TRACKED = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
REPOSITORY = pytest.mark.skipif(not TRACKED, reason="not a git checkout")
LIGHT = 45_000_000
"""Bytes of stored results that the repository may hold; beyond that, older stores move into the release's archive."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: Any) -> Path:
    """Source archive and wheel, built without a network."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    return folder


@pytest.fixture(scope="module")
def metadata(built: Path) -> email.message.EmailMessage:
    """What the wheel says about itself."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"saddles-{saddles.__version__}.dist-info/METADATA").decode()
    return email.message_from_string(text, policy=email.policy.default)  # pyright: ignore[reportReturnType]


def test_source_archive_has_what_builds_tests_and_documents_and_no_stores(built):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert not [name for name in names if ".zarr/" in name and name.startswith("docs/")]
    tops = {name.partition("/")[0] for name in names}
    assert tops - {".gitignore"} == {
        "hatch_build.py", "src", "tests", "benchmarks", "docs", "pyproject.toml", "PKG-INFO", "Makefile",
        "constraints.txt", "README.md", "CHANGELOG.md", "CITATION.cff", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md",
        "LICENSE", "SECURITY.md",
    }  # fmt: skip
    for file in ("docs/conf.py", "docs/results/claims.json", "docs/stores.json", "tests/conftest.py"):
        assert file in names
    assert {file.relative_to(ROOT).as_posix() for file in (ROOT / "src").rglob("*.py")} <= names
    assert archive.stat().st_size < 12_000_000


def test_metadata_says_who_what_and_where(metadata):
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Author"] == "The saddles authors"
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    minors = re.findall(r":: 3\.(\d+)\n", "\n".join(metadata.get_all("Classifier", [])) + "\n")
    assert min(map(int, minors)) == Version(metadata["Requires-Python"].removeprefix(">=")).minor
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    assert set(urls) == {"Repository", "Documentation", "Changelog", "Issues"}
    assert urls["Documentation"] == place.site(ADDRESS)
    assert all(url.startswith((ADDRESS, place.site(ADDRESS))) for url in urls.values())


def test_readme_of_the_index_has_whole_addresses_of_files_that_exist(metadata):
    text = metadata.get_payload()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text("utf-8"))) > 20
    for link in links:
        assert link.startswith("https://"), link
        if link.startswith(ADDRESS):
            kind, tag, file = link.removeprefix(f"{ADDRESS}/").split("/", 2)
            assert tag == f"v{saddles.__version__}"
            assert (ROOT / file).exists(), link
            assert (kind == "raw") == file.endswith((".png", ".gif")), link
    assert sum("/raw/" in link for link in links) == text.count("![")


def test_every_part_of_the_package_is_asked_for_by_a_name(metadata):
    assert set(PROJECT["optional-dependencies"]) == set(metadata.get_all("Provides-Extra", []))
    assert not {"dev", "docs", "lint", "test"} & set(PROJECT["optional-dependencies"]), "groups, not extras"


@REPOSITORY
def test_the_address_is_the_same_everywhere():
    found = set()
    for name in filter(None, TRACKED.split("\0")):
        if (ROOT / name).suffix in {".md", ".toml", ".cff", ".yaml", ".yml", ".py", ".cfg", ""} and "zarr" not in name:
            text = (ROOT / name).read_text("utf-8", errors="ignore") if (ROOT / name).is_file() else ""
            found |= {address[:-1] for address in re.findall(r"https://github\.com/[\w-]+/saddles[/\"'\s)]", text)}
    assert found - {"https://github.com/somebody/saddles"} == {ADDRESS}  # somebody: the test below


def test_a_new_address_is_written_everywhere(tmp_path):
    for name in ("pyproject.toml", "CITATION.cff"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    changed = place.replace("https://github.com/somebody/saddles/", tmp_path)
    assert sorted(changed) == ["CITATION.cff", "pyproject.toml"]
    assert place.address(tmp_path) == "https://github.com/somebody/saddles"
    text = "".join((tmp_path / name).read_text("utf-8") for name in changed)
    assert "https://somebody.github.io/saddles" in text
    assert ADDRESS not in text
    with pytest.raises(SystemExit, match="must be https"):
        place.replace("git@example.org:saddles", tmp_path)


@REPOSITORY
def test_stores_that_the_repository_holds_are_few():
    stores = [ROOT / name for name in TRACKED.split("\0") if name.startswith("docs/results/")]
    assert sum(file.stat().st_size for file in stores if file.is_file()) < LIGHT


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: Any) -> Any:
    """The module that packs stores, with a list and a folder of its own: one store of two files."""
    code = runpy.run_path(str(ROOT / "docs" / "stores.py"))
    results = tmp_path / "results"
    (results / "one.zarr" / "loss").mkdir(parents=True)
    (results / "one.zarr" / ".zattrs").write_text("{}")
    (results / "one.zarr" / "loss" / "0").write_bytes(b"\0" * 100)
    scope = code["pack"].__globals__
    scope["LIST"] = tmp_path / "stores.json"
    scope["LIST"].write_text("{}")
    code["write_list"](results)
    return SimpleNamespace(**{**scope, "results": results})


def test_a_release_carries_stores_and_they_come_back(stores, tmp_path):
    assert stores.listed()["one.zarr"]["bytes"] == 102
    archive = stores.pack(tmp_path / "dist", stores.results)
    again = stores.pack(tmp_path / "more", stores.results)
    assert archive.read_bytes() == again.read_bytes()
    empty = tmp_path / "empty"
    assert stores.unpack(archive, empty) == ["one.zarr"]
    assert stores.read(empty / "one.zarr") == stores.read(stores.results / "one.zarr")
    assert stores.unpack(archive, empty) == []


def test_a_store_that_changed_is_neither_packed_nor_unpacked(stores, tmp_path):
    archive = stores.pack(tmp_path, stores.results)
    (stores.results / "one.zarr" / "loss" / "0").write_bytes(b"\1" * 100)
    with pytest.raises(SystemExit, match="differs from"):
        stores.pack(tmp_path, stores.results)
    stores.write_list(stores.results)
    with pytest.raises(SystemExit, match="Take the archive of this version"):
        stores.unpack(archive, tmp_path / "empty")
    assert not (tmp_path / "empty").exists()
