"""Folders: what is found in them, and that nothing leads out of them or runs code."""

import base64
import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from shown_runs import begin_recording, row_of, small_run

import saddles
from saddles.core.claim import check, write_claims
from saddles.explorer import run_folders
from saddles.explorer.pages import recording_panels, runs
from saddles.explorer.pages.runs_view import Runs
from saddles.explorer.run_folders import RunFolders
from saddles.explorer.view import RefusedError, joined
from saddles.probe.recording.journal import Journal


@pytest.fixture
def home(tmp_path):
    root = tmp_path / "home"
    small_run(root / "lab" / "one")
    small_run(root / "lab" / "two", 2)
    begin_recording(root / "live", [10, 20])
    grid = xr.Dataset({"best_test_error": (("rate", "width"), np.arange(6.0).reshape(2, 3))}, {"rate": [0.1, 0.2]})
    saddles.save(grid, root / "grid.zarr")
    _sweep(root / "phase")
    small_run(tmp_path / "outside")
    (tmp_path / "secret.txt").write_text("secret")
    return root


def _sweep(folder):
    """What `saddles sweep` leaves: the grid as axes, marks for the cells that are whole."""
    done = np.array([[1.0, 1.0, np.nan], [1.0, 0.0, 1.0]])
    loss = np.random.default_rng(0).random((4, 2, 3))
    axes = {"time": np.arange(4.0), "rate": [0.1, 0.2], "width": [5, 10, 20]}
    data = xr.Dataset({"test_error": (("time", "rate", "width"), loss), "cell_done": (("rate", "width"), done)}, axes)
    saddles.save(data, folder / "trajectory.zarr")
    facts = {"experiment": "linear/figure-1", "size": "tiny", "cells": 6, "status": "running"}
    (folder / "sweep.json").write_text(json.dumps(facts))


def test_a_sweep_is_shown_over_its_grid(home):
    folders = RunFolders([home])
    words = {one.name: one.words for one in folders.list()}["0/phase"]
    assert words.startswith("linear/figure-1, tiny, sweep of 6 cells, running")
    page = runs.page(folders)
    view = Runs(run="0/phase", variable="test_error", at="rate=1", instant=0.0)
    found = page.compute(view, False)
    grid = page.panels(view, found)[-1]
    assert grid.title == "test error over width and rate"
    assert [value is None for row in grid.data[0]["z"] for value in row] == [False, False, True, False, True, False]


def test_what_is_found(home):
    found = {one.name: one.kind for one in RunFolders([home]).list()}
    assert found == {
        "0/lab/one": "run", "0/lab/two": "run", "0/live": "recording at work", "0/grid.zarr": "trajectory",
        "0/phase": "sweep",
    }  # fmt: skip
    assert list(RunFolders([home]).open("0/live")) == ["heads"]
    assert RunFolders([home / "lab" / "one"]).list()[0].name == "0"


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(saddles.SaddlesError, match="must be a folder"):
        RunFolders([tmp_path / "nowhere"])


@pytest.mark.parametrize(
    "name",
    [
        "0/../outside", "0/lab/../../outside", "0//etc", "1/lab/one", "-1/x", "lab/one", "",
        "0/lab/one/../../../secret.txt", "0/\0", "0/nothing", "0/%2e%2e/outside", "٠/lab/one",
    ],
)  # fmt: skip
def test_no_path_leads_out(home, name):
    with pytest.raises(saddles.SaddlesError):
        RunFolders([home]).open(name)


def test_links_that_lead_out_are_not_followed(home, tmp_path):
    os.symlink(tmp_path / "outside", home / "lab" / "link")
    folders = RunFolders([home])
    assert "0/lab/link" not in {one.name for one in folders.list()}
    with pytest.raises(saddles.SaddlesError, match="in none of the folders"):
        folders.open("0/lab/link")
    store = home / "lab" / "one" / "trajectory.zarr"
    os.symlink(tmp_path / "secret.txt", store / "loss" / "9")
    with pytest.raises(saddles.SaddlesError, match="leads out"):
        folders.open("0/lab/one")


def test_links_inside_are_fine(home):
    os.symlink(home / "lab" / "one", home / "again")
    assert "loss" in RunFolders([home]).open("0/again")[""]


def test_no_pickle_is_opened(home, tmp_path):
    """A store whose filter is a pickle would run it when read; it is refused before anything is read."""

    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "exploded"),))

    array = home / "lab" / "one" / "trajectory.zarr" / "loss"
    facts = json.loads((array / ".zarray").read_text())
    facts |= {"filters": [{"id": "pickle", "protocol": 5}], "compressor": None, "dtype": "|O"}
    (array / ".zarray").write_text(json.dumps(facts))
    (array / "0").write_bytes(pickle.dumps(Bomb()))
    whole = home / "lab" / "one" / "trajectory.zarr" / ".zmetadata"
    told = json.loads(whole.read_text())
    told["metadata"]["loss/.zarray"] = facts
    whole.write_text(json.dumps(told))
    for read in (lambda: RunFolders([home]).open("0/lab/one"), lambda: saddles.load(home / "lab" / "one")):
        with pytest.raises(saddles.SaddlesError, match="pickle"):
            read()
    assert not (tmp_path / "exploded").exists()


def test_a_run_that_is_too_large_is_refused_with_the_limit(home, monkeypatch):
    monkeypatch.setattr(run_folders, "MOST_BYTES", 1000)
    with pytest.raises(saddles.SaddlesError, match="up to 0 MB"):
        RunFolders([home]).open("0/lab/one")


@pytest.mark.parametrize(("variable", "part"), [("loss", "shape"), ("seed", "shape"), ("loss", "chunks")])
def test_sizes_are_those_of_the_arrays_that_would_be_opened(tmp_path, monkeypatch, variable, part):
    """The consolidated metadata is what is opened: a small store may hold any shape, without a single chunk of it."""
    saddles.save(xr.Dataset({"loss": ("time", np.zeros(10))}, {"seed": np.arange(10.0)}), tmp_path / "one.zarr")
    whole = tmp_path / "one.zarr" / ".zmetadata"
    told = json.loads(whole.read_text())
    told["metadata"][f"{variable}/.zarray"][part] = [1_000_000]
    whole.write_text(json.dumps(told))
    read = []
    monkeypatch.setattr(run_folders, "MOST_BYTES", 1_000_000)
    monkeypatch.setattr(run_folders, "load", lambda place: read.append(place) or xr.Dataset())
    with pytest.raises(saddles.SaddlesError, match=r"up to 1 MB of numbers; one\.zarr holds 8 MB"):
        RunFolders([tmp_path]).open("0/one.zarr")
    assert read == []


def test_a_compressed_file_is_as_large_as_its_numbers(tmp_path, monkeypatch):
    zeros = xr.Dataset({"loss": ("time", np.zeros(1_000_000))})
    zeros.to_netcdf(tmp_path / "zeros.nc", engine="h5netcdf", encoding={"loss": {"zlib": True}})
    assert (tmp_path / "zeros.nc").stat().st_size < 100_000
    assert RunFolders([tmp_path]).open("0/zeros.nc")[""].sizes == {"time": 1_000_000}
    monkeypatch.setattr(run_folders, "MOST_BYTES", 1_000_000)
    with pytest.raises(saddles.SaddlesError, match="holds 8 MB"):
        RunFolders([tmp_path]).open("0/zeros.nc")


def test_a_recording_grows(home):
    page = runs.page(RunFolders([home]))
    assert page.stamp is not None
    view = Runs(run="0/live")
    before = page.compute(view, False)["run/heads"]
    assert page.stamp is not None
    stamp = page.stamp(view)
    Journal(home / "live").add(30, row_of(30))
    assert page.stamp(view) != stamp
    after = page.compute(view, False)["run/heads"]
    assert before["step"].values.tolist() == [10, 20]
    assert after["step"].values.tolist() == [10, 20, 30]


def test_stages_of_a_recording_with_few_spectra(home):
    heads = runs.page(RunFolders([home])).compute(Runs(run="0/live"), False)["run/heads"]
    between = heads.isel(time=[0, 0, 1, 1])
    between["singular_value"] = between["singular_value"].where(xr.DataArray([False, True, False, True], dims="time"))
    words = [
        panel.words
        for rows in (heads, between)
        for panel in recording_panels.panels(Runs(), {"heads": rows})
        if panel.title.startswith("Stages")
    ]
    assert words[0] == words[1]


def test_panels_of_every_kind(home):
    page = runs.page(RunFolders([home]))
    for view, titles in (
        (Runs(run="0/live"), ["stable rank by layer and head, step 20", "Spectrum: layer 0, head 0"]),
        (Runs(run="0/live", instant=0.0, layer=1, head=3, product="VO"), ["stable rank by layer and head, step 10"]),
        (Runs(run="0/lab/one"), ["singular value over step", "singular value along mode at step 60", "loss over step"]),
        (Runs(run="0/lab/one", variable="test_error"), ["test error over step"]),
        (Runs(run="0/grid.zarr"), ["best test error over width and rate"]),
        (Runs(run="0/lab/one", other="0/live"), ["singular value over step", "beside: stable rank by layer and head"]),
    ):
        found = page.compute(view, False)
        panels = page.panels(view, found)
        for title, panel in zip(titles, panels, strict=False):
            assert panel.title.startswith(title)
            assert len(panel.words) > 30
        assert page.say(view, found)
        made: dict = {}
        exec(page.code(view), made)
        assert made["run"] is not None


@pytest.mark.parametrize(
    ("view", "setting", "words"),
    [
        (Runs(run="0/live", layer=7), "layer", "layers 0 to 1"),
        (Runs(run="0/lab/one", variable="nope"), "variable", "singular_value"),
        (Runs(run="0/lab/one", at="mode=99"), "at", "0 to 7"),
        (Runs(run="0/nothing"), "run", "in none of the folders"),
        (Runs(run="0/lab/one", other="9/x"), "other", "in none of the folders"),
        (Runs(run="0/lab/one", over="0/nothing"), "over", "in none of the folders"),
        (Runs(run="0/lab/one", over="0/live"), "over", "nothing over time"),
        (Runs(run="0/lab/one", over="0/lab/two", at="mode=99"), "over", "0 to 7"),
    ],
)
def test_what_is_refused_says_where(home, view, setting, words):
    page = runs.page(RunFolders([home]))
    with pytest.raises(RefusedError, match=words) as told:
        page.panels(view, page.compute(view, False))
    assert told.value.setting == setting


def test_fields_fit_what_is_open(home):
    page = runs.page(RunFolders([home]))
    live, plain = (page.fit(v, page.compute(v, False)) for v in (Runs(run="0/live"), Runs(run="0/lab/one")))
    assert (live["layer"], live["head"], live["variable"]) == (1, 3, None)
    assert plain["layer"] is None
    assert isinstance(plain["variable"], list)
    assert "singular_value" in plain["variable"]
    assert "instant" not in plain
    still = Runs(run="0/grid.zarr")
    assert page.fit(still, page.compute(still, False))["instant"] is None


def test_runs_are_laid_over_each_other(home):
    small_run(home / "lab" / "three | 3", 3)
    page = runs.page(RunFolders([home]))
    view = Runs(run="0/lab/one", over=joined(["0/lab/two", "0/lab/three | 3", "0/lab/one"]), variable="test_error")
    found = page.compute(view, False)
    first, second = page.panels(view, found)[:2]
    assert (first.title, second.title) == ("test error: 3 runs", "loss: 3 runs")
    assert [trace["name"] for trace in first.data] == ["one", "two", "three | 3"]
    for trace, name in zip(first.data, ("one", "two", "three | 3"), strict=True):
        whole = saddles.load(home / "lab" / name)["test_error"]
        np.testing.assert_allclose(trace["y"], whole.values, rtol=1e-5)
    made: dict = {}
    exec(page.code(view), made)
    assert {"run", "over_1", "over_2"} <= set(made)
    with pytest.raises(RefusedError, match="At most 7"):
        page.check(replace(view, over=joined(f"0/{k}" for k in range(8))))


def test_a_sweep_opens_with_what_its_experiment_measured(tmp_path):
    """And not with the seconds that its cells took, which stand first in its file."""
    cells = {name: ("rate", np.arange(3.0)) for name in ("cell_done", "cell_seconds", "claim_value", "excess")}
    saddles.save(xr.Dataset(cells, {"rate": [0.1, 0.2, 0.3]}), tmp_path / "sweep.zarr")
    page, view = runs.page(RunFolders([tmp_path])), Runs(run="0/sweep.zarr")
    found = page.compute(view, False)
    assert page.panels(view, found)[0].title.startswith("excess")
    assert page.fit(view, found)["variable"] == ["excess", "cell_done", "cell_seconds", "claim_value"]


def test_every_further_axis_has_its_list(home):
    page = runs.page(RunFolders([home]))
    sweep = Runs(run="0/phase", variable="test_error")
    assert page.fit(sweep, page.compute(sweep, False))["at"] == {"rate": ["0.1", "0.2"], "width": ["5", "10", "20"]}
    one = Runs(run="0/lab/one")
    assert page.fit(one, page.compute(one, False))["at"] == {"mode": [str(k) for k in range(8)]}
    fixed = replace(one, variable="test_error", at="mode=3")  # another variable's axis
    assert page.panels(fixed, page.compute(fixed, False))[0].title.startswith("test error")


def test_a_trajectory_of_lab_transformers_is_shown_as_a_recording():
    stored = Path(__file__).parents[2] / "docs" / "results"
    page = runs.page(RunFolders([stored]))
    name = next(
        one.name for one in RunFolders([stored]).list() if one.name.endswith("transformers-vit-init-scale.zarr")
    )
    view = Runs(run=name, layer=1, head=2)
    found = page.compute(view, False)
    panels = page.panels(view, found)
    assert [panel.title for panel in panels][-2:] == ["stable rank, mean over a layer's heads", "Loss"]
    data, scales = found["run"].isel(scale=0, seed=0), found["run"]["scale"].values
    last = panels[0].data[0]["z"][1][2]
    assert last == pytest.approx(float(data["stable_rank"].isel(time=-1, layer=1, head=2).sel(product="KQ")), rel=1e-4)
    spectrum = data["singular_value"].isel(instant=-1, layer=1, head=2).sel(product="KQ").values
    np.testing.assert_allclose(panels[1].data[-1]["y"], spectrum, rtol=1e-3)
    assert page.panels(replace(view, at="scale=2"), found)[0].data[0]["z"][1][2] < last  # a smaller start, a lower rank
    past = f"scale={scales.size}"
    with pytest.raises(RefusedError, match=past):
        page.panels(replace(view, at=past), found)
    seeds = [str(seed) for seed in found["run"]["seed"].values]
    assert page.fit(view, found)["at"] == {"scale": [f"{scale:g}" for scale in scales], "seed": seeds}


def test_twelve_layers_can_be_told_apart():
    stored = Path(__file__).parents[2] / "docs" / "results"
    page = runs.page(RunFolders([stored]))
    view = Runs(run="0/transformers-gpt2-enwik8-tokens.zarr")
    layers = next(p for p in page.panels(view, page.compute(view, False)) if p.title.startswith("stable rank, mean"))
    looks = {(trace["line"]["color"], trace["line"]["dash"]) for trace in layers.data}
    assert len(looks) == len(layers.data) == 12


def test_the_newest_run_opens_by_itself(home):
    os.utime(home / "lab" / "one" / "trajectory.zarr", (2e9, 2e9))
    assert runs.page(RunFolders([home])).opening() == {"run": "0/lab/one"}
    assert runs.page(RunFolders()).opening() == {}


def test_a_stored_prediction_is_drawn_over_the_run(tmp_path):
    axes = {"time": np.arange(4.0)}
    beta = np.random.default_rng(0).random((4, 2, 3))
    data = xr.Dataset(
        {"beta": (("time", "seed", "coordinate"), beta), "predicted_beta": (("time", "coordinate"), beta[:, 1] + 1)},
        axes,
    )
    saddles.save(data, tmp_path / "run" / "trajectory.zarr")
    page = runs.page(RunFolders([tmp_path]))
    view = Runs(run="0/run", variable="beta", at="seed=1")
    first = page.panels(view, page.compute(view, False))[0]
    theory = next(trace for trace in first.data if trace["name"] == "predicted")
    drawn = np.array([y for y in theory["y"] if y is not None]).reshape(3, 4)
    for k in range(3):
        assert min(np.abs(drawn - beta[:, 1, k] - 1).max(axis=1)) < 1e-5
    assert "prediction is dashed" in first.words
    loss = xr.Dataset({"loss": (("time", "decade"), beta[:, :, 0]), "predicted_loss": ("time", beta[:, 0, 1])}, axes)
    saddles.save(loss, tmp_path / "many" / "trajectory.zarr")
    view = Runs(run="0/many", variable="loss")
    first = page.panels(view, page.compute(view, False))[0]
    theory = next(trace for trace in first.data if trace["name"] == "predicted")
    np.testing.assert_allclose(theory["y"], beta[:, 0, 1], rtol=1e-5)  # one prediction for every decade


def test_a_variable_with_a_dot_in_its_name_is_drawn(tmp_path):
    losses = np.array([3.0, 2.0, 1.0, 0.5])
    saddles.save(xr.Dataset({"train.loss": ("time", losses)}, {"time": np.arange(4.0)}), tmp_path / "run.zarr")
    page = runs.page(RunFolders([tmp_path]))
    view = Runs(run="0/run.zarr", variable="train.loss")
    first = page.panels(view, page.compute(view, False))[0]
    np.testing.assert_allclose(first.data[0]["y"], losses, rtol=1e-5)


def shown(folder, data, **settings):
    saddles.save(data, folder / "run.zarr")
    page = runs.page(RunFolders([folder]))
    view = Runs(run="0/run.zarr", **settings)
    return page.panels(view, page.compute(view, False))


def test_positions_that_are_names_stand_side_by_side(tmp_path):
    """Seeds that go up and down: at their numbers the rows of a map would lie over each other."""
    values = np.arange(6.0).reshape(3, 2)
    axes = {"seed": [70, 90, 20], "mode": [0, 1]}
    (over,) = shown(tmp_path / "map", xr.Dataset({"loss": (("seed", "mode"), values)}, axes))
    assert (over.data[0]["y"], over.layout["yaxis"]["type"]) == (["70", "90", "20"], "category")
    assert over.data[0]["x"] == [0, 1]
    assert "type" not in over.layout["xaxis"]
    (along,) = shown(tmp_path / "names", xr.Dataset({"loss": ("point", values[:, 0])}, {"point": ["11", "10", "00"]}))
    assert (along.data[0]["x"], along.layout["xaxis"]["type"]) == (["11", "10", "00"], "category")
    (along,) = shown(tmp_path / "numbers", xr.Dataset({"loss": ("rate", values[:, 0])}, {"rate": [0.4, 0.2, 0.1]}))
    assert along.data[0]["x"] == [0.4, 0.2, 0.1]


def test_a_point_between_gaps_is_seen(tmp_path):
    gaps = xr.Dataset({"loss": (("time", "mode"), [[np.nan, 1.0], [2.0, 1.0]])}, {"time": [0.0, 20000.0]})
    lines, _ = shown(tmp_path / "a", gaps)
    assert [trace["mode"] for trace in lines.data] == ["lines+markers", "lines"]


def test_an_instant_without_numbers_is_said_in_words(tmp_path):
    gaps = xr.Dataset({"loss": (("time", "mode"), [[np.nan] * 2, [2.0, 1.0]])}, {"time": [0.0, 20000.0]})
    assert (
        shown(tmp_path / "a", gaps, instant=0.0)[1].words == "loss along mode at time 0: 2 values, none of them finite."
    )
    still = xr.Dataset({"loss": (("rate", "mode"), np.full((2, 2), np.nan))})
    assert shown(tmp_path / "b", still)[0].words == "loss over mode and rate, without finite numbers."


def test_lines_that_are_not_drawn_are_said_to_be_left_out(tmp_path):
    many = xr.Dataset({"loss": (("time", "mode"), np.ones((2, 20)))})
    lines = shown(tmp_path / "a", many)[0]
    assert "20 lines, of which the 16 largest are drawn, between 1 and 1." in lines.words
    assert len(lines.data) == 16


def test_a_step_is_written_in_full(tmp_path):
    axes = {"time": [0.0, 1.0], "step": ("time", [0, 22001])}
    data = xr.Dataset({"loss": (("time", "mode"), np.ones((2, 3)))}, axes)
    assert shown(tmp_path / "a", data)[1].title == "loss along mode at step 22001"


def test_a_sweep_is_in_the_table_of_runs_with_its_grid(tmp_path):
    place = small_run(tmp_path / "swept")
    facts = {"experiment": "linear/x", "size": "tiny", "status": "finished", "cells": 6, "seeds": [0, 1]}
    facts |= {"settings": {"dim": 7, "rate": 0.5}, "grid": {"rate": [0.1, 0.2, 0.3]}}
    (place / "sweep.json").write_text(json.dumps(facts))
    details = runs.page(RunFolders([tmp_path])).details
    assert details is not None
    told = ("linear/x", "tiny", "2 seeds", "finished", "", "dim 7, rate 0.1 … 0.3")
    assert "".join(f"<td>{text}</td>" for text in told) in details(Runs())
    for damaged in ({"seeds": 3}, {"grid": {"rate": []}}, {"grid": 3}):
        (place / "sweep.json").write_text(json.dumps(facts | damaged))
        assert "<td>sweep</td><td></td>" in details(Runs())


def test_a_run_shows_its_figure_its_claims_and_its_neighbours(home, tmp_path):
    place = home / "lab" / "one"
    (place / "figure.png").write_bytes(b"a picture")
    (place / "stolen.png").symlink_to(tmp_path / "secret.txt")
    claim = check(
        "<b>A claim</b>", paper="x", where="Figure 1", size="laptop", values=[0.5], relation="<=", threshold=1.0
    )
    write_claims([claim], place / "claims.json")
    facts = {"experiment": "linear/x", "size": "tiny", "seed": 3, "status": "finished", "settings": {"dim": "<i>7"}}
    (place / "run.json").write_text(json.dumps(facts))
    page = runs.page(RunFolders([home]))
    assert page.details is not None
    found = page.details(Runs(run="0/lab/one"))
    assert found.count("<img") == 1
    assert base64.b64encode(b"a picture").decode() in found
    assert "0.5 ≤ 1" in found
    assert "&lt;b&gt;A claim" in found
    assert "<td>1 of 1 hold</td><td>dim &lt;i&gt;7</td>" in found
    assert 'href="/runs?run=0%2Flive"' in found
    assert "<img" not in page.details(Runs())
    (place / "claims.json").write_text("[")
    assert "cannot be read" in page.details(Runs(run="0/lab/one"))
