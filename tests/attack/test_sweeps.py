"""Sweeps over damaged files."""

import dataclasses
import itertools
import json
import os
import random
import time
from pathlib import Path

import grid_experiment
import pytest
import xarray as xr
from damage import SEED, chunks, flip

from saddles.core import experiment
from saddles.core.store import load
from saddles.errors import SaddlesError
from saddles.sweeps.api import sweep
from saddles.sweeps.grid import read_grid

GRID = {"rate": [0.5, 1.0, 2.0], "points": [3, 5]}


@pytest.fixture(autouse=True)
def registered(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(experiment, "_own", {grid_experiment.ROW.name: grid_experiment.ROW})
    monkeypatch.setattr("saddles.runtime.checksums.LOOK_SECONDS", 0.0)
    monkeypatch.setattr("saddles.sweeps.arrays.SMALL", 64)  # one cell in each chunk


def made(place="s", **options):
    return sweep(grid_experiment.ROW, GRID, seeds=2, out=place, on="serial", **options)


def numbers(folder):
    return load(folder).drop_vars("cell_seconds")


@pytest.mark.parametrize("count", [15, pytest.param(300, marks=pytest.mark.attack)])
@pytest.mark.parametrize("kind", ["flip", "delete"])
def test_a_damaged_chunk_is_told_and_computed_again(count, kind):
    before = numbers(made().folder)
    draw = random.Random(SEED)
    files = chunks(made("t").folder / "trajectory.zarr")
    mended = lost = 0
    for file in draw.choices(files, k=count) if kind == "flip" else files[:count]:
        kept = file.read_bytes()
        if kind == "flip":
            flip(file, draw)
        else:
            file.unlink()
        with pytest.raises(SaddlesError, match=r"is damaged: .* saddles sweep --resume t --retry\.$"):
            load("t")
        try:
            resumed = sweep(grid_experiment.ROW, resume="t", on="serial", retry=True)
        except SaddlesError as error:
            assert "all cells depend on it" in str(error)  # noqa: PT017
            file.write_bytes(kept)
            lost += 1
        else:
            assert not resumed.failed
            mended += 1
        xr.testing.assert_equal(numbers("t"), before)
    assert mended > lost, f"ATTACK_SEED={SEED}"


def test_without_retry_the_cells_have_failed_and_the_others_go_on():
    store = made().folder / "trajectory.zarr"
    file = next(p for p in chunks(store) if p.parent.name == "value")
    flip(file, random.Random(SEED))
    resumed = sweep(grid_experiment.ROW, resume="s", on="serial")
    assert [text for text, _ in resumed.errors] == ["what was stored of this cell has been damaged"]
    assert int(load("s")["value"].notnull().any(["time", "inner_seed"]).sum()) == 12 - len(resumed.failed)


@pytest.mark.parametrize("name", ["sweep.json", "cells.jsonl"])
def test_every_flipped_bit_of_the_records_is_told(name):
    folder = made().folder
    draw, whole = random.Random(SEED), (folder / name).read_bytes()
    for _ in range(60):
        flip(folder / name, draw)
        try:
            again = sweep(grid_experiment.ROW, resume=folder, on="serial")
        except SaddlesError as error:
            assert name in str(error)  # noqa: PT017
        else:  # the end of the last line: its cell is missing, and computed again
            assert name == "cells.jsonl"
            assert len(again.rows) == 12
        (folder / name).write_bytes(whole)


def test_an_older_sweep_without_checksums_is_resumed():
    folder = made().folder
    (folder / "trajectory.zarr" / ".checksums").unlink()
    facts = json.loads((folder / "sweep.json").read_text())
    del facts["check"]
    (folder / "sweep.json").write_text(json.dumps(facts | {"status": "interrupted"}))
    lines = [json.loads(line) for line in (folder / "cells.jsonl").read_text().splitlines()]
    text = "".join(json.dumps({k: v for k, v in line.items() if k != "check"}) + "\n" for line in lines[:-1])
    (folder / "cells.jsonl").write_text(text)
    assert len(sweep(grid_experiment.ROW, resume=folder, on="serial").rows) == 12
    assert os.path.exists(folder / "trajectory.zarr" / ".checksums")
    file = chunks(folder / "trajectory.zarr")[0]
    flip(file, random.Random(SEED))
    with pytest.raises(SaddlesError, match="is damaged"):
        load(folder)


@pytest.mark.parametrize("words", [
    ["--seeds", "1000000000"], ["--grid", "rate=0:1:1000000000"], ["--grid", "rate=log:1:2:1000000000"],
    ["--grid", "rate=0:1:2000", "--grid", "wait=0:1:2000"],
])  # fmt: skip
def test_endless_grids_are_counted_first(words):
    options = dict(zip(words[::2], words[1::2], strict=True))
    grid = [word for flag, word in zip(words[::2], words[1::2], strict=True) if flag == "--grid"]
    began = time.perf_counter()
    with pytest.raises(SaddlesError, match=r"at most 1,000,000 cells; got (4,000,000|1,000,000,000)"):
        read_grid(grid_experiment.ROW, "tiny", grid, seeds=options.get("--seeds"))
    assert time.perf_counter() - began < 5


def test_endless_values_of_the_function_are_counted_too():
    for values, seeds in (({"rate": itertools.count()}, None), ({"rate": range(10**9)}, None), ({}, range(10**9))):
        with pytest.raises(SaddlesError, match=r"at most 1,000,000 cells"):
            sweep(grid_experiment.ROW, values, seeds=seeds, out="s", on="serial")
    assert not os.path.exists("s")


def surrogate(settings, context):
    raise RuntimeError("half a character: \ud800")


def test_an_error_text_that_is_not_utf8_is_kept_and_the_sweep_goes_on():
    row = dataclasses.replace(grid_experiment.ROW, run=surrogate)
    done = sweep(row, {"rate": [1.0, 2.0]}, out="s", on="serial")
    assert [text for text, _ in done.errors] == [r"RuntimeError: half a character: \ud800"]
    assert done.facts["status"] == "finished"
    again = sweep(grid_experiment.ROW, resume="s", on="serial", retry=True)
    assert not again.failed


@pytest.mark.parametrize("changes", [{"rate": float("nan")}, {"levels": [float("nan")]}])
def test_a_sweep_with_a_setting_that_is_not_a_number_is_refused_before_it_begins(changes):
    # A sweep that was begun with one could never be resumed: it is not equal to itself.
    (name,) = changes
    with pytest.raises(SaddlesError, match=f"`{name}` must be between .* got nan"):
        sweep(grid_experiment.ROW, {"points": [3, 4]}, changes=changes, out="s", on="serial")
    with pytest.raises(SaddlesError, match=f"`{name}` must be between .* got nan"):
        sweep(grid_experiment.ROW, {name: [changes[name]]}, out="t", on="serial")
    assert not Path("s").exists()
    assert not Path("t").exists()


WRONG = [
    ("grid", {"rate": 3}), ("grid", []), ("seeds", [1.5, 2]), ("seeds", "12"), ("zipped", "no"), ("cells", 3),
    ("cells", -1), ("settings", None), ("versions", []), ("size", 7), ("status", None), ("wall_time_s", "long"),
    ("experiment", ["toy/grid"]), ("size", "enormous"), ("grid", {"rate": [[[1]]]}), ("settings", {"rate": "fast"}),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_wrong_types_in_sweep_json_are_one_sentence(key, value):
    folder = made().folder
    facts = json.loads((folder / "sweep.json").read_text()) | {"status": "interrupted"} | {key: value}
    del facts["check"]
    (folder / "sweep.json").write_text(json.dumps(facts))
    with pytest.raises(SaddlesError) as told:
        sweep(resume=folder, on="serial")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("line", [
    "[]", "7", "{}", '{"cell": 1}', "[" * 100_000, "\x00", '{"cell": 99}', '{"cell": "1"}', '{"cell": -1}',
    '{"sizes": {"time": "x"}}', '{"status": "perhaps"}', '{"seconds": null}',
])  # fmt: skip
def test_wrong_lines_in_cells_are_one_sentence(line):
    folder = made().folder
    first = json.loads((folder / "cells.jsonl").read_text().splitlines()[0])
    del first["check"]
    try:
        changed = json.dumps(first | json.loads(line))
    except (ValueError, TypeError, RecursionError):
        changed = line
    (folder / "cells.jsonl").write_text((line if line in ("{}", '{"cell": 1}') else changed) + "\n")
    with pytest.raises(SaddlesError, match=r"cells\.jsonl, line 1"):
        sweep(resume=folder, on="serial")
