"""Promises about versions: old names warn, old stores open, pins and bounds agree, the pipeline runs what it says."""

import importlib
import importlib.metadata
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from doc_pages import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import saddles
from saddles.core.trajectory import SCHEMA
from saddles.runtime.lazy import RENAMED

if not (ROOT / "conda").is_dir():
    pytest.skip("the source archive has no recipe, locks and workflows", allow_module_level=True)

STORED = Path(__file__).parent / "stored"
WHOLE: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
RECIPE: dict[str, Any] = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text("utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINS: dict[str, Requirement] = {
    canonicalize_name(line.name): line
    for line in map(Requirement, re.findall(r"^[A-Za-z][^#\s]*", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
}


def _renamed() -> dict[str, tuple[str, str]]:
    for name in saddles.__all__:
        getattr(saddles, name)
    return RENAMED


@pytest.mark.parametrize("old", sorted(_renamed()))
def test_an_old_name_warns_and_says_what_is_new_and_until_when(old, monkeypatch):
    new, gone = RENAMED[old]
    package, _, name = old.rpartition(".")
    monkeypatch.delitem(vars(importlib.import_module(package)), name, raising=False)  # a module of that name, if loaded
    with pytest.warns(DeprecationWarning, match=rf"{re.escape(new)}; .* goes in version {re.escape(gone)}"):
        found = getattr(importlib.import_module(package), name)
    assert found is getattr(importlib.import_module(package), new.rpartition(".")[2])
    assert Version(gone) > Version(saddles.__version__), f"{old} was to be removed in {gone}"


def test_stores_of_every_layout_still_open():
    assert {int(folder.stem.rpartition("-")[2]) for folder in STORED.glob("*.zarr")} == set(range(1, SCHEMA + 1))
    for folder in STORED.glob("*.zarr"):
        assert saddles.load(folder).attrs["schema"] <= SCHEMA


def test_the_first_layout_has_the_numbers_it_had():
    run = saddles.load(STORED / "run-1.zarr")
    assert run["matrix"].shape == (4, 3, 3)
    np.testing.assert_allclose(run["loss"], [1.49839923, 1.4212813, 1.34919074, 1.28034987], atol=1e-8)
    assert run["time"].attrs["unit"]
    assert (run.attrs["lab"], run.attrs["kind"], run.attrs["status"]) == ("linear", "simulated", "finished")
    recording = saddles.load(STORED / "recording-1.zarr")
    np.testing.assert_array_equal(recording["heads/stable_rank"].sel(head="h.1"), [2.0, 2.5])


def _closure(extras: set[str], groups: list[str]) -> set[str]:
    """Names of everything that these extras and groups bring here."""
    todo = [Requirement(line) for line in WHOLE["project"]["dependencies"]]
    for extra in extras:
        todo += [Requirement(line) for line in WHOLE["project"]["optional-dependencies"][extra]]
    for group in groups:
        todo += [Requirement(line) for line in WHOLE["dependency-groups"][group]]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        one = todo.pop()
        key = (canonicalize_name(one.name), frozenset(one.extras))
        if key in seen or key[0] == "saddles":
            continue
        seen.add(key)
        try:
            lines = importlib.metadata.distribution(one.name).requires or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for line in map(Requirement, lines):
            if line.marker is None or any(line.marker.evaluate({"extra": e}) for e in ("", *one.extras)):
                todo.append(line)
    return {name for name, _ in seen}


EVERYTHING = _closure({"labs", "probe", "lightning", "sweep", "explorer"}, ["lint", "test", "docs"])


def _other(name: str) -> bool:
    try:
        return not PINS[name].specifier.contains(importlib.metadata.version(name), prereleases=True)
    except importlib.metadata.PackageNotFoundError:
        return False


OTHERS = sorted(filter(_other, EVERYTHING & set(PINS)))
PINNED = pytest.mark.skipif(bool(OTHERS), reason=f"not the versions of constraints.txt: {', '.join(OTHERS)}")


@PINNED
def test_the_pins_name_everything_that_is_installed():
    """One that is missing lets a new release of somebody else's package break `make setup`."""
    cuda = {name for name in EVERYTHING if name.startswith(("nvidia-", "cuda-", "triton"))}
    assert EVERYTHING - cuda - set(PINS) == set()


def test_the_pins_lie_within_the_bounds_and_install_on_every_python():
    bounds = [*WHOLE["project"]["dependencies"]]
    bounds += [line for lines in WHOLE["project"]["optional-dependencies"].values() for line in lines]
    bounds += [line for group in ("lint", "test", "docs") for line in WHOLE["dependency-groups"][group]]
    for bound in map(Requirement, bounds):
        if (pin := PINS.get(canonicalize_name(bound.name))) is not None:
            version = str(pin.specifier).removeprefix("==")
            assert bound.specifier.contains(version), f"{pin} is not {bound}"
    for name in EVERYTHING & set(PINS):
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        needs = next(iter(found.metadata.get_all("Requires-Python", [])), "")
        if needs and PINS[name].specifier.contains(found.version):
            assert Requirement(f"python{needs}").specifier.contains("3.11.0"), f"{name} needs Python {needs}"


@PINNED
def test_the_locks_are_those_of_the_pins_and_have_a_hash_for_every_file():
    text = (ROOT / "requirements" / "lock.txt").read_text()
    locked = dict(re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)", text, re.MULTILINE))
    assert "torch" not in locked
    assert not [name for name in locked if name.startswith("nvidia")]
    for name, version in locked.items():
        if name in PINS:
            assert PINS[name].specifier.contains(version), name
    here = {name for name in EVERYTHING if not name.startswith(("nvidia-", "cuda-", "triton"))}
    assert here - set(locked) - {"torch"} == set(), "run make lock"
    for file in ("lock", "lowest", "release"):
        lines = (ROOT / "requirements" / f"{file}.txt").read_text()
        for block in re.split(r"\n(?=[a-z0-9])", lines):
            if re.match(r"[a-z0-9._-]+==", block):
                assert "--hash=sha256:" in block, block.splitlines()[0]


def test_the_lowest_versions_are_the_bounds():
    text = (ROOT / "requirements" / "lowest.txt").read_text()
    locked = dict(re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)", text, re.MULTILINE))
    lines = [*WHOLE["project"]["dependencies"]]
    for extra in ("labs", "probe"):
        lines += WHOLE["project"]["optional-dependencies"][extra]
    for bound in map(Requirement, lines):
        low = str(bound.specifier).removeprefix(">=")
        if bound.name != "torch":
            found = locked[canonicalize_name(bound.name)]
            assert Version(found) == Version(low), f"{bound} is never tried: {found} is the lowest that fits"


def test_the_version_is_the_same_everywhere():
    assert f"version = {{{saddles.__version__}}}" in (ROOT / "docs" / "cite.md").read_text("utf-8")
    assert RECIPE["context"]["version"] == saddles.__version__


@pytest.mark.parametrize(("output", "extra"), [(0, None), (1, "labs"), (2, "probe")])
def test_the_conda_recipe_has_the_bounds_of_the_package(output, extra):
    project = WHOLE["project"]
    lines = project["optional-dependencies"][extra] if extra else project["dependencies"]
    bounds = {f"{'pytorch' if one.name == 'torch' else one.name} {one.specifier}" for one in map(Requirement, lines)}
    own = {f"python {project['requires-python']}", "h5py"} if not extra else {"saddles ==${{ version }}"}
    assert set(RECIPE["outputs"][output]["requirements"]["run"]) == bounds | own


FREE = re.compile(
    r"MIT|BSD|Apache|ISC|PSF|Python Software Foundation|MPL|Mozilla|Zlib|CC0|BSL-1|CNRI|Public Domain|Unlicense", re.I
)
licence = runpy.run_path(str(ROOT / "docs" / "list_licences.py"))["licence"]


@PINNED
def test_licences_go_with_ours():
    """Permissive ones, and the Mozilla licence, which asks for its own files only. Nothing is copied into saddles."""
    page = (ROOT / "docs" / "licences.md").read_text("utf-8")
    for name in sorted(EVERYTHING):
        try:
            words = licence(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        assert FREE.search(words), f"{name}: {words}"
        assert "GPL" not in words or name == "docutils", f"{name}: {words}"
        assert f"| {name} |" in page, f"{name} is not on the page: python docs/list_licences.py"


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_are_pinned_and_have_few_rights(file):
    text = file.read_text("utf-8")
    uses = re.findall(r"uses: (\S+)(.*)", text)
    assert uses
    for action, comment in uses:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), f"{action} does not say its version"
    flow = yaml.safe_load(text)
    assert flow["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in flow["jobs"].values())


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_call_targets_and_files_that_exist(file):
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = file.read_text("utf-8")
    assert set(re.findall(r"make ([a-z-]+)", text)) <= targets
    for name in re.findall(r"(?:tests|docs|requirements)/[\w./-]+", text):
        assert (ROOT / name).exists() or name.startswith("docs/_build"), name
    pythons = re.findall(r'"(3\.\d+)"', text)
    assert set(pythons) <= {line.rpartition(" ")[2] for line in WHOLE["project"]["classifiers"]}


def test_the_machine_is_nowhere_in_what_is_published():
    names = [*WORKFLOWS, *(ROOT / "requirements").glob("*.txt"), ROOT / "pyproject.toml", ROOT / "constraints.txt"]
    for file in names:
        assert not re.search(r"/opt/|/root|/home/|index-url (?!https://download\.pytorch\.org)", file.read_text()), file
