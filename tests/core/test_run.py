import dataclasses
import functools
import importlib.metadata
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import toy_experiment
import xarray as xr

import saddles
from saddles.core import experiment, provenance, run
from saddles.core.experiment import Context, find, register, registry
from saddles.core.run import planned_folder, resume, run_experiment
from saddles.core.status import Ending, Status
from saddles.core.trajectory import make_trajectory
from saddles.errors import SaddlesError

ROW = toy_experiment.ROW


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    toy_experiment.calls.clear()
    toy_experiment.trouble.clear()
    monkeypatch.setattr(experiment, "_own", {})


@pytest.fixture
def registered():
    return register(ROW)


def test_a_run_writes_what_the_design_names():
    made = run_experiment(ROW, out="here")
    assert sorted(p.name for p in made.folder.iterdir()) == [
        "claims.json", "figure.pdf", "figure.png", "figure.svg", "run.json", "trajectory.zarr",
    ]  # fmt: skip
    record = json.loads((made.folder / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["settings"]["points"] == 4
    assert {"versions", "machine", "wall_time_s", "seed", "size", "experiment"} <= set(record)
    stored = xr.open_zarr(made.folder / "trajectory.zarr", chunks=None)
    assert stored.attrs["experiment"] == "toy/decay"
    assert made.claims[0].verdict == "holds"
    assert made.claims[0].seeds == 3


def test_a_finished_identical_run_is_shown_not_repeated():
    first = run_experiment(ROW)
    assert first.folder.parent.as_posix() == "runs/toy/decay"
    again = run_experiment(ROW)
    assert (again.folder, again.computed, len(toy_experiment.calls)) == (first.folder, False, 3)
    assert again.claims == first.claims
    assert run_experiment(ROW, seed=1).folder != first.folder
    assert run_experiment(ROW, changes={"rate": 2.0}).folder != first.folder
    fresh = run_experiment(ROW, fresh=True)
    assert fresh.folder.name == f"{first.folder.name}-2"
    assert fresh.computed


@pytest.mark.parametrize(
    ("trouble", "ending"), [(KeyboardInterrupt(), Ending.INTERRUPTED), (SaddlesError("it broke"), Ending.FAILED)]
)
def test_an_interrupted_run_is_resumed_where_it_was(registered, trouble, ending):
    toy_experiment.trouble.append(trouble)
    with pytest.raises(type(trouble)):
        run_experiment(ROW, out="here")
    record = json.loads(Path("here/run.json").read_text())
    assert Status.parse(record["status"]).ending == ending
    assert len(list(os.scandir("here/parts"))) == 2
    for part in os.scandir("here/parts"):
        assert saddles.load(part.path).sizes["time"] == 4
    done = resume("here")
    assert done.record["status"] == "finished"
    assert len(toy_experiment.calls) == 3, "finished parts were computed again"
    reference = run_experiment(ROW, out="other")
    xr.testing.assert_equal(done.trajectory, reference.trajectory)


def _refusing(settings, context):
    """As the toy, with its trouble before the first piece."""
    if toy_experiment.trouble:
        raise toy_experiment.trouble.pop()
    return toy_experiment.run(settings, context)


def test_a_refused_run_leaves_its_folder_empty():
    toy_experiment.trouble.append(SaddlesError("it must be otherwise"))
    with pytest.raises(SaddlesError, match="it must be otherwise"):
        run_experiment(dataclasses.replace(ROW, run=_refusing), out="here")
    assert list(os.scandir("here")) == []
    assert run_experiment(ROW, out="here").record["status"] == "finished"


def test_a_run_that_was_interrupted_before_is_not_forgotten():
    register(dataclasses.replace(ROW, run=_refusing))
    toy_experiment.trouble += [SaddlesError("it must be otherwise"), KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        run_experiment("toy/decay", out="here")
    with pytest.raises(SaddlesError, match="it must be otherwise"):
        resume("here")
    assert resume("here").record["status"] == "finished"


def test_a_run_whose_results_could_not_be_written_is_not_forgotten(monkeypatch):
    def write_nothing(*_):
        raise SaddlesError("there is no room")

    register(dataclasses.replace(ROW, run=lambda settings, _: toy_experiment.run(settings, Context(seed=0))))
    monkeypatch.setattr(run, "_write_results", write_nothing)
    with pytest.raises(SaddlesError, match="there is no room"):
        run_experiment("toy/decay", out="here")
    record = json.loads(Path("here/run.json").read_text())
    assert record["status"] == "failed: there is no room"


@pytest.mark.parametrize(("short", "there"), [(0.0, 2), (60.0, 0)])
def test_short_pieces_are_written_only_where_a_run_breaks_off(registered, monkeypatch, short, there):
    """A run that is killed keeps the pieces that took long."""
    monkeypatch.setattr(run, "SHORT", short)
    monkeypatch.setattr(run._Pieces, "write", lambda pieces: None)
    toy_experiment.trouble.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_experiment(ROW, out="here")
    assert len(list(os.scandir("here/parts"))) == there
    assert resume("here").record["status"] == "finished"


@pytest.mark.parametrize(("unsaved", "there"), [(0.0, ["a.zarr", "b.zarr"]), (60.0, [])])
def test_short_pieces_are_written_before_much_could_be_lost(tmp_path, monkeypatch, unsaved, there):
    monkeypatch.setattr(run, "UNSAVED", unsaved)
    pieces = run._Pieces(tmp_path)
    made = [pieces(name, lambda: make_trajectory({"loss": [1.0, 0.5]}, [0.0, 1.0])) for name in "ab"]
    assert sorted(part.name for part in tmp_path.iterdir()) == there
    pieces.write()
    assert sorted(part.name for part in tmp_path.iterdir()) == ["a.zarr", "b.zarr"]
    xr.testing.assert_equal(saddles.load(tmp_path / "a.zarr"), made[0])


def test_resume_finds_the_experiment_by_its_name(registered):
    toy_experiment.trouble.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_experiment("toy/decay", out="here")
    assert resume("here").record["status"] == "finished"


def test_resume_refuses_another_version(registered, monkeypatch):
    toy_experiment.trouble.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_experiment(ROW, out="here")
    monkeypatch.setattr(saddles, "__version__", "99.0")
    with pytest.raises(SaddlesError, match=r"with 99\.0"):
        resume("here")


def test_a_source_tree_that_is_not_installed_resumes_its_own_run(registered, monkeypatch):
    found = importlib.metadata.version

    def version(name):
        if name == "saddles":
            raise importlib.metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    provenance._installed.cache_clear()
    toy_experiment.trouble.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_experiment(ROW, out="here")
    assert resume("here").record["versions"]["saddles"] == saddles.__version__
    stored = xr.open_zarr("here/trajectory.zarr", chunks=None)
    assert json.loads(stored.attrs["versions"]) == provenance.versions()


def test_an_existing_folder_is_never_touched(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(SaddlesError, match="already exists"):
        run_experiment(ROW, out="mine")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("place", ["file/run", "locked/run"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked").chmod(stat.S_IRUSR | stat.S_IXUSR)
    if place.startswith("locked") and os.access(tmp_path / "locked", os.W_OK):
        pytest.skip("this user may write everywhere, so no folder is locked")
    with pytest.raises(SaddlesError, match="cannot be written"):
        run_experiment(ROW, out=place)


def test_settings_are_read_like_their_defaults():
    changed = ROW.settings("tiny", {"points": "7", "rate": "2", "levels": "3,4.5", "fast": "false", "name": "x"})
    assert changed == toy_experiment.Settings(7, 2.0, "x", (3.0, 4.5), fast=False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ponts": 3}, "Did you mean 'points'"),
        ({"points": "many"}, "a value like 4"),
        ({"points": "2.5"}, "a value like 4"),
        ({"fast": "maybe"}, "a value like True"),
        ({"levels": "high"}, r"a value like 1.0,2.0"),
    ],
)
def test_bad_settings_are_explained(changes, words):
    with pytest.raises(SaddlesError, match=words):
        ROW.settings("tiny", changes)


def test_unknown_names_are_explained(registered):
    with pytest.raises(SaddlesError, match="Did you mean 'toy/decay'"):
        find("toy/decai")
    with pytest.raises(SaddlesError, match="tiny, laptop"):
        planned_folder("toy/decay", size="huge")
    assert "toy/decay" in registry()
    assert "linear/figure-1" in registry()


def test_an_experiment_registered_again_by_its_own_module_takes_the_place_of_the_old_one(registered):
    edited = dataclasses.replace(ROW, title="Edited", run=functools.partial(toy_experiment.run))
    assert register(edited) is edited
    assert find("toy/decay").title == "Edited"


def test_a_cell_of_a_notebook_may_run_twice():
    cell = f"{Path(toy_experiment.__file__).read_text()}\nimport saddles; saddles.register(ROW)"
    done = subprocess.run([sys.executable, "-c", f"for _ in range(2): exec({cell!r})"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_edited_experiment_is_computed_and_not_shown_from_before(registered):
    first = run_experiment("toy/decay")
    swept = saddles.sweep("toy/decay", {"rate": [1.0]}, on="serial")
    levels = []

    def run(settings, context):
        return toy_experiment.run(settings, Context(seed=len(levels)))

    register(dataclasses.replace(ROW, run=functools.partial(toy_experiment.run)))
    assert not run_experiment("toy/decay").computed
    experiment._own.clear()
    register(dataclasses.replace(ROW, run=run))
    second = run_experiment("toy/decay")
    assert (second.computed, second.folder != first.folder) == (True, True)
    assert second.record["code"] != first.record["code"]
    levels.append(1)  # the function is the same, and what it reads is not
    assert run_experiment("toy/decay").computed
    assert saddles.sweep("toy/decay", {"rate": [1.0]}, on="serial").folder != swept.folder
    assert find("linear/figure-1").code == ""


@pytest.mark.parametrize(
    ("name", "place"), [("toy/decay", "toy_experiment"), ("linear/figure-1", "saddles.linear.experiments.figure_1")]
)
def test_the_name_of_an_experiment_of_others_is_refused(registered, name, place):
    mine = dataclasses.replace(ROW, name=name, run=lambda settings, _: toy_experiment.run(settings, Context()))
    with pytest.raises(SaddlesError, match=f"named '{name}' exists already, in {place}. Choose another name."):
        register(mine)
    theirs = dataclasses.replace(find(name), title="Other")
    if name != "toy/decay":
        with pytest.raises(SaddlesError, match="exists already"):
            register(theirs)


def test_seeds_derive_from_the_one_given():
    one, same, other = (experiment.Context(seed=s).seeds(3) for s in (1, 1, 2))
    assert one == same
    assert len({*one, *other}) == 6
