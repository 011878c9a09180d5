"""Sweeps over damaged files."""

import json
import os
import random

import grid_experiment
import pytest
import xarray as xr
from damage import SEED, chunks, flip

from saddles.core import experiment
from saddles.core.store import load
from saddles.errors import SaddlesError
from saddles.sweeps.api import sweep

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
