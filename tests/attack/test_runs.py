"""Folders of runs that were damaged, or that someone else wrote."""

import dataclasses
import errno
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import toy_experiment
from damage import SEED, flip

from saddles.core import experiment
from saddles.core.run import resume, run_experiment
from saddles.errors import SaddlesError

ROW = toy_experiment.ROW


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(experiment, "_own", {ROW.name: ROW})
    monkeypatch.setattr("saddles.runtime.checksums.LOOK_SECONDS", 0.0)
    toy_experiment.calls.clear()
    toy_experiment.trouble.clear()


@pytest.mark.parametrize("name", ["run.json", "claims.json", "figure.png", "figure.svg", "trajectory.zarr/.checksums"])
def test_every_flipped_bit_of_a_finished_run_is_told(name):
    file, draw = run_experiment(ROW).folder / name, random.Random(SEED)
    whole = file.read_bytes()
    for _ in range(20):
        flip(file, draw)
        with pytest.raises(SaddlesError, match=rf"{name}.*(damaged|JSON|must be)"):
            run_experiment(ROW)
        file.write_bytes(whole)
    assert not run_experiment(ROW).computed


def test_a_damaged_part_is_told_with_what_is_computed_again():
    toy_experiment.trouble.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_experiment(ROW, out="here")
    part = sorted(Path("here/parts").iterdir())[0]
    flip(part / "value" / "0", random.Random(SEED))
    with pytest.raises(SaddlesError, match=rf"{part.name} is damaged: value/0 .* computes this part again"):
        resume("here")


WRONG = [
    ("seed", "<script>"), ("seed", True), ("settings", [1]), ("versions", None), ("status", 3), ("wall_time_s", "x"),
    ("size", "enormous"), ("size", ["tiny"]), ("experiment", {}), ("settings", {"points": "many"}),
    ("settings", {"unknown": 1}), ("experiment", "nobody/nothing"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_wrong_types_in_run_json_are_one_sentence(key, value):
    toy_experiment.trouble.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_experiment(ROW, out="here")
    file = Path("here/run.json")
    facts = json.loads(file.read_text()) | {key: value}
    del facts["check"]
    file.write_text(json.dumps(facts))
    with pytest.raises(SaddlesError) as told:
        resume("here")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "null", '{"seed": 1e999}', "\x00\xff", '{"a": ' * 50_000])
def test_what_is_no_record_is_one_sentence(text):
    Path("here").mkdir()
    Path("here/run.json").write_text(text)
    with pytest.raises(SaddlesError, match=r"here/run\.json"):
        resume("here")


@pytest.mark.parametrize("text", ["[" * 100_000, "{}", "[1]", '[{"claim": 1}]', "null"])
def test_claims_of_others_are_one_sentence(text):
    folder = run_experiment(ROW).folder
    (folder / "claims.json").write_text(text)
    facts = json.loads((folder / "run.json").read_text())
    del facts["check"], facts["digests"]
    (folder / "run.json").write_text(json.dumps(facts))
    with pytest.raises(SaddlesError, match=r"claims\.json"):
        run_experiment(ROW)


def test_a_size_that_the_experiment_does_not_have_is_refused():
    folder = run_experiment(ROW).folder
    facts = json.loads((folder / "run.json").read_text()) | {"size": "enormous"}
    del facts["check"]
    (folder / "run.json").write_text(json.dumps(facts))
    with pytest.raises(SaddlesError, match=r"`size` must be one of tiny, laptop for toy/decay; got 'enormous'"):
        resume(folder)


def test_two_identical_runs_at_once(registered_run):
    """The second is refused in one sentence, and the first ends well."""
    first, told = registered_run
    assert first.record["status"] == "finished"
    assert told == ["Another process is writing to here. Wait until it ends, or stop it first."]
    assert not Path("here/.lock").exists()


@pytest.fixture
def registered_run(monkeypatch):
    told = []
    real = ROW.claims

    def claims(trajectory, size):
        with pytest.raises(SaddlesError) as error:
            resume("here")
        told.append(str(error.value))
        return real(trajectory, size)

    row = dataclasses.replace(ROW, claims=claims)
    monkeypatch.setattr(experiment, "_own", {ROW.name: row})
    return run_experiment(row, out="here"), told


@pytest.mark.parametrize("name", ["figure.png", "figure.svg", "parts", ".lock", "run.json", "trajectory.zarr"])
def test_resume_does_not_write_through_links(tmp_path, name):
    toy_experiment.trouble.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_experiment(ROW, out="here")
    outside = tmp_path / "outside"
    place = Path("here") / name
    if place.exists():
        place.rename(outside)
    elif name.endswith("zarr"):
        outside.mkdir()
    else:
        outside.write_text("years of work")
    before = {p: p.read_bytes() for p in [outside, *outside.rglob("*")] if p.is_file()}
    place.symlink_to(outside)
    with pytest.raises(SaddlesError, match=rf"here/{name} is a link"):
        resume("here")
    assert {p: p.read_bytes() for p in [outside, *outside.rglob("*")] if p.is_file()} == before


def full(*any, **more):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("moment", ["run", "saddles.core.run.save_drawing", "saddles.core.store.seal",
                                    "saddles.core.run.write_claims"])  # fmt: skip
def test_a_full_disk_is_one_sentence_and_the_run_is_resumed(monkeypatch, tmp_path, moment):
    row = dataclasses.replace(ROW, run=full) if moment == "run" else ROW
    if moment != "run":
        monkeypatch.setattr(moment, full)
    with pytest.raises(SaddlesError, match=r"cannot be written \(No space left on device"):
        run_experiment(row, out="here")
    monkeypatch.undo()
    monkeypatch.setattr(experiment, "_own", {ROW.name: ROW})
    assert resume(tmp_path / "here").record["status"] == "finished"


def test_drafts_of_killed_processes_are_removed(tmp_path):
    from saddles.runtime.files import new_folder

    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    dead, mine = int(gone.stdout), os.getpid()
    litter, young, other, alive = (
        tmp_path / name
        for name in (f".s-{dead}-00000000", f".s-{dead}-00000001", f".t-{dead}-00000002", f".s-{mine}-00000003")
    )
    for place in (litter, young, other, alive):
        place.mkdir()
        (place / "half").write_text("")
        os.utime(place, (0, 0))
    os.utime(young)
    with new_folder(tmp_path / "s"):
        pass
    assert [place.exists() for place in (litter, young, other, alive)] == [False, True, True, True]
    toy_experiment.trouble.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_experiment(ROW, out="here")
    Path(f"here/.run-{dead}-00000000.json").write_text("{")
    resume("here")
    assert sorted(p.name for p in Path("here").iterdir() if p.name.startswith(".")) == []
