"""Folders of runs that were damaged, or that someone else wrote."""

import json
import random
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
