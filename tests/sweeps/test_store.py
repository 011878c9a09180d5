"""The folder of a sweep: what readers see, what survives, what is refused."""

import errno
import json
import os
import threading
from contextlib import closing
from dataclasses import replace

import grid_experiment
import numpy as np
import pytest
import xarray as xr

import saddles
from saddles.core.experiment import Context
from saddles.core.status import Ending, Status
from saddles.core.store import load, save
from saddles.errors import SaddlesError
from saddles.runtime import files
from saddles.runtime.checksums import Checksums
from saddles.sweeps import arrays
from saddles.sweeps.cells import Job, Outcome, Packed, Task, compute, pack
from saddles.sweeps.grid import checked_grid
from saddles.sweeps.half_made import remove_half_made
from saddles.sweeps.plan import make_plan
from saddles.sweeps.store import Store, create

ROW = grid_experiment.ROW


def begun(folder, grid, seeds=None, zipped=False, **changes):
    plan = make_plan(ROW, "tiny", changes, checked_grid(ROW, "tiny", grid, zipped, seeds))
    create(plan, folder)
    return Store(folder, ROW)


def outcomes(store, cells=None):
    jobs = tuple(Job(c.number, store.plan.cell_settings(c), c.seed) for c in (store.cells if cells is None else cells))
    made = compute(Task(ROW, "tiny", jobs))
    assert isinstance(made, list)
    return made


def single(store, cell):
    return ROW.run(store.plan.cell_settings(cell), Context(cell.seed, "tiny"))


def test_every_cell_is_what_run_gives(tmp_path):
    with begun(tmp_path / "s", {"rate": [1.0, 2.0]}, seeds=2) as store:
        store.commit(outcomes(store))
        whole = load(store.folder)
        for cell in store.cells:
            here = whole.isel(rate=cell.place[0], seed=cell.place[1])
            alone = single(store, cell)
            assert here["value"].values.tobytes() == alone["value"].values.tobytes()
            assert here["own_inner_seed"].values.tolist() == alone["seed"].values.tolist()
            assert float(here["steps"]) == 4
            assert here["late"].values.tolist() == [0, 0, 1, 1]
            assert here["claim_value"].values[0] == cell.changes["rate"]
    assert whole["value"].dims == ("time", "rate", "seed", "inner_seed")
    assert whole["claim_holds"].isel(seed=0, claim=0).values.tolist() == [1, 0]
    assert np.isnan(whole["claim_holds"].isel(claim=1)).all()
    assert whole["time"].attrs["unit"] == "s"
    assert str(whole["family"].values) == "decay"
    assert whole["kind"].values.tolist() == ["a", "b"]
    assert "kind" in whole.coords


def test_it_opens_with_xarray_alone_and_can_be_saved_again(tmp_path):
    with begun(tmp_path / "s", {"rate": [1.0, 2.0], "levels": [[1.0], [2.0, 3.0]]}) as store:
        store.commit(outcomes(store))
    plain = xr.open_zarr(tmp_path / "s" / "trajectory.zarr", chunks=None)
    assert plain.sel(rate=2.0, levels="2.0,3.0")["value"].notnull().all()
    again = load(save(load(tmp_path / "s"), tmp_path / "again.zarr"))
    xr.testing.assert_equal(again, load(tmp_path / "s"))


def test_shorter_cells_are_padded_and_the_clock_stays_where_all_agree(tmp_path):
    with begun(tmp_path / "s", {"points": [3, 5, 2]}) as store:
        for cell in store.cells:
            store.commit(outcomes(store, [cell]))
        whole = load(store.folder)
    assert whole["time"].values.tolist() == [0, 1, 2, 3, 4]
    assert whole["value"].notnull().any("seed").sum("time").values.tolist() == [
        3, 5, 2,
    ]  # fmt: skip
    assert "own_time" not in whole


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
@pytest.mark.parametrize("together", [True, False])
def test_clocks_that_differ_are_kept_for_each_cell_whatever_the_order(tmp_path, order, together):
    grid = {"rate": [1.0, 2.0, 3.0], "points": [4, 2, 6]}
    with begun(tmp_path / "s", grid, zipped=True, clock="own") as store:
        made = [outcomes(store, [store.cells[k]]) for k in order]
        for batch in [[one for row in made for one in row]] if together else made:
            store.commit(batch)
        whole = load(store.folder)
    assert whole["rate"].values.tolist() == [1, 2, 3]
    assert "unit" in whole["time"].attrs
    assert whole["time"].values.tolist() == [0, 1, 2, 3, 4, 5]
    for k, (rate, points) in enumerate(zip(*grid.values(), strict=True)):
        clock = whole["own_time"].isel(point=k).values
        assert clock[:points].tolist() == [rate * t for t in range(points)]
        assert np.isnan(clock[points:]).all()
    assert whole["inner_rate"].isel(seed=0).values.tolist() == [1, 2, 3]
    plain = xr.open_zarr(tmp_path / "s" / "trajectory.zarr", chunks=None)
    assert "own_time" in plain.coords


@pytest.mark.parametrize("moment", ["_write_batch", "_publish", "_drop"])
def test_a_crash_while_clocks_part_ways_is_mended(tmp_path, monkeypatch, moment):
    grid = {"rate": [1.0, 2.0, 3.0], "points": [4, 2, 6]}
    with begun(tmp_path / "s", grid, seeds=2, zipped=True, clock="own") as store:
        made = outcomes(store)
        store.commit(made[:1])
        before = load(store.folder)
        monkeypatch.setattr(arrays.Arrays, moment, crash)
        with pytest.raises(KeyboardInterrupt):
            store.commit(made[1:])
        monkeypatch.undo()
    at = {"point": 0, "seed": 0}
    xr.testing.assert_equal(load(tmp_path / "s")["value"].isel(at), before["value"].isel(at))
    with Store(tmp_path / "s", ROW) as again:
        assert [cell.number for cell in again.pending()] == [1, 2, 3, 4, 5]
        again.commit(made[1:])
    with begun(tmp_path / "t", grid, seeds=2, zipped=True, clock="own") as straight:
        straight.commit(made)
    one, other = load(tmp_path / "s"), load(tmp_path / "t")
    xr.testing.assert_equal(one.drop_vars("cell_seconds"), other.drop_vars("cell_seconds"))


def crash(*any, **more):
    raise KeyboardInterrupt


def packed(**variables):
    return Packed(variables, {}, {})


def test_a_cell_that_does_not_fit_fails_and_says_why(tmp_path):
    with begun(tmp_path / "s", {"rate": [1.0, 2.0, 3.0]}) as store:
        rows = store.commit(
            [
                Outcome(0, 0.1, packed(a=(("time",), np.ones(3)))),
                Outcome(1, 0.1, packed(a=(("time", "mode"), np.ones((3, 2))))),
                Outcome(2, 0.1, packed(a=(("time",), np.array(["x", "y"])))),
            ]
        )
        assert [row["status"] for row in rows] == ["finished", "failed", "failed"]
        assert "numbers over time, mode" in rows[1].get("error", "")
        assert "text over time" in rows[2].get("error", "")
        assert load(store.folder)["cell_done"].values.tolist() == [1, 0, 0]


def test_a_variable_that_looks_like_an_own_clock_keeps_its_numbers(tmp_path):
    with begun(tmp_path / "s", {"rate": [1.0, 2.0]}) as store:
        for k in range(2):
            clock, theirs = np.arange(3.0) + k, np.full(3, 7.0 + k)
            coords = {"time": (("time",), clock)}
            store.commit([Outcome(k, 0.1, Packed({"own_time": (("time",), theirs)}, coords, {}))])
        whole = load(store.folder)
    assert whole["inner_own_time"].isel(time=0).values.tolist() == [7, 8]
    assert whole["own_time"].isel(time=0).values.tolist() == [0, 1]


def test_labels_grow_in_number_and_in_length(tmp_path):
    words = [["a", "b"], ["a", "b", "a much longer word"], ["a"]]
    with begun(tmp_path / "s", {"rate": [1.0, 2.0, 3.0]}) as store:
        for k, labels in enumerate(words):
            coords = {"mode": (("mode",), np.arange(len(labels))), "name": (("mode",), np.array(labels))}
            store.commit([Outcome(k, 0.1, Packed({"a": (("mode",), np.ones(len(labels)))}, coords, {}))])
        whole = load(store.folder)
    assert whole["mode"].values.tolist() == [0, 1, 2]
    assert whole["name"].values.tolist() == words[1]
    assert whole["a"].sum("mode").values.tolist() == [2, 3, 1]


def test_text_of_cells_may_grow(tmp_path):
    with begun(tmp_path / "s", {"rate": [1.0, 2.0, 3.0]}) as store:
        store.commit([Outcome(0, 0.1, packed(word=((), np.array("ab"))))])
        store.commit([Outcome(2, 0.1, packed(word=((), np.array("a longer word"))))])
        whole = load(store.folder)
        assert whole["word"].values.tolist() == ["ab", "", "a longer word"]
        save(whole, tmp_path / "again.zarr")


@pytest.mark.parametrize("shape", [(), (7,), (3000, 3)])
def test_large_and_small_cells_alike(tmp_path, shape, monkeypatch):
    monkeypatch.setattr(arrays, "LARGE", 30_000)
    draw = np.random.default_rng(0)
    values = draw.normal(size=(6, *shape))
    dims = ("time", "mode")[: len(shape)]
    with begun(tmp_path / "s", {"rate": [1.0, 2.0, 3.0], "points": [2, 3]}) as store:
        for k in (4, 0, 5, 2):
            store.commit([Outcome(k, 0.1, packed(a=(dims, np.asarray(values[k]))))])
        whole = load(store.folder)["a"].transpose("rate", "points", *dims).values.reshape(6, *shape)
    for k in range(6):
        expected = values[k] if k in (4, 0, 5, 2) else np.full(shape, np.nan)
        np.testing.assert_array_equal(whole[k], expected)


def test_a_finished_cell_is_not_written_twice(tmp_path):
    with begun(tmp_path / "s", {"rate": [1.0]}) as store:
        (one,) = outcomes(store)
        assert len(store.commit([one])) == 1
        assert store.commit([one]) == []
    assert len((tmp_path / "s" / "cells.jsonl").read_text().splitlines()) == 1


def test_a_line_that_was_cut_off_does_not_count(tmp_path):
    with begun(tmp_path / "s", {"rate": [1.0, 2.0]}) as store:
        store.commit(outcomes(store))
    file = tmp_path / "s" / "cells.jsonl"
    file.write_text(file.read_text()[:-20])
    with Store(tmp_path / "s", ROW) as again:
        assert [cell.number for cell in again.pending()] == [1]
        assert load(again.folder)["cell_done"].values.tolist()[0] == 1
        assert np.isnan(load(again.folder)["value"].isel(rate=1)).all()
        again.commit(outcomes(again, again.pending()))
        assert again.counts() == {"finished": 2, "failed": 0, "missing": 0}


def test_marks_are_made_good_after_a_crash_between_line_and_mark(tmp_path, monkeypatch):
    with begun(tmp_path / "s", {"rate": [1.0, 2.0]}) as store:
        monkeypatch.setattr(Store, "_publish", lambda *any: None)
        store.commit(outcomes(store))
        assert np.isnan(load(store.folder)["cell_done"]).all()
        monkeypatch.undo()
    with Store(tmp_path / "s", ROW) as again:
        assert again.pending() == []
        assert load(again.folder)["cell_done"].values.tolist() == [1, 1]


def full_disk(*any, **more):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("when", ["arrays", "lines", "marks"])
def test_a_full_disk_is_told_and_loses_nothing(tmp_path, monkeypatch, when):
    with begun(tmp_path / "s", {"rate": [1.0, 2.0, 3.0]}) as store:
        store.commit(outcomes(store, store.cells[:1]))
        before = load(store.folder)
        later = outcomes(store, store.cells[1:])
        if when == "lines":
            real = os.fsync
            monkeypatch.setattr(os, "fsync", lambda handle: full_disk() if _is_lines(handle) else real(handle))
        else:
            import zarr.storage._local as local

            real_put = local._put
            doomed = "value" if when == "arrays" else "cell_done"
            put = lambda path, *more, **how: full_disk() if path.parent.name == doomed else real_put(path, *more, **how)  # noqa: E731
            monkeypatch.setattr(local, "_put", put)
        with pytest.raises(SaddlesError, match=r"No space left on device.*--resume"):
            store.commit(later)
        monkeypatch.undo()
        assert json.loads((store.folder / "sweep.json").read_text())["cells"] == 3
        seen = load(store.folder)
        xr.testing.assert_equal(seen.isel(rate=0)["value"], before.isel(rate=0)["value"])
        assert np.isnan(seen["value"].isel(rate=slice(1, None))).all()
    with Store(tmp_path / "s", ROW) as again:
        assert len(again.pending()) == (0 if when == "marks" else 2)
        again.commit(outcomes(again, again.pending()))
        assert load(again.folder)["cell_done"].values.tolist() == [1, 1, 1]


@pytest.mark.parametrize("doomed", ["value", ".zmetadata", "list"])
def test_a_disk_that_is_full_for_a_moment_damages_no_finished_cell(tmp_path, monkeypatch, doomed):
    """What is stored when the sweep stops has room again: nothing of the failed commit may count as written."""
    import zarr.storage._local as local

    real_put, real_text, real_write = local._put, files.write_text, os.write

    def put(path, *more, **how):
        return full_disk() if path.parent.name == doomed else real_put(path, *more, **how)

    def text(path, *more, **how):
        return full_disk() if path.name == doomed else real_text(path, *more, **how)

    def write(handle, data):
        return real_write(handle, data[:9]) if b"value/" in data and doomed == "list" else real_write(handle, data)

    with begun(tmp_path / "s", {"rate": [1.0, 2.0, 3.0]}) as store:
        store.commit(outcomes(store, store.cells[:1]))
        later = outcomes(store, store.cells[1:])
        if doomed == ".zmetadata":  # the layout changes: a longer cell
            later = [replace(made, packed=longer(made.packed)) for made in later]
        monkeypatch.setattr(local, "_put", put)
        monkeypatch.setattr(arrays, "write_text", text)
        monkeypatch.setattr(os, "write", write)
        with pytest.raises(SaddlesError, match=r"No space left on device.*--resume"):
            store.commit(later)
        monkeypatch.undo()
        store.close_with(Status(Ending.STOPPED), 1.0)
        assert load(store.folder)["cell_done"].values[0] == 1
    with Store(tmp_path / "s", ROW) as again:
        assert again.counts() == {"finished": 1, "failed": 0, "missing": 2}
        again.commit(later)
    assert load(again.folder)["cell_done"].values.tolist() == [1, 1, 1]


def test_commands_in_messages_can_be_typed_where_a_name_has_spaces(tmp_path, monkeypatch):
    with begun(tmp_path / "my sweep", {"rate": [1.0, 2.0]}) as store:
        store.commit(outcomes(store, store.cells[:1]))
        later = outcomes(store, store.cells[1:])
        monkeypatch.setattr(arrays, "sync", full_disk)
        with pytest.raises(SaddlesError, match=r"saddles sweep --resume '.*my sweep'`"):
            store.commit(later)
        monkeypatch.undo()
    (chunk,) = (store.folder / "trajectory.zarr" / "value").glob("0*")
    chunk.write_bytes(b"damaged")
    with pytest.raises(SaddlesError, match=r"saddles sweep --resume '.*my sweep' --retry"):
        load(store.folder)


@pytest.mark.parametrize("name", ["a/b", "/a", "..", ".zattrs"])
def test_a_name_that_is_a_path_fails_its_cell_and_no_other(name):
    data = xr.Dataset({"loss": ("time", np.ones(2))}, {"time": [0.0, 1.0]})
    assert "loss" in pack(data, []).variables
    for wrong in (data.assign({name: data["loss"]}), data.assign_coords({name: ("time", [1, 2])})):
        with pytest.raises(SaddlesError, match="must not be paths"):
            pack(wrong, [])


def longer(packed):
    """The same with one more instant."""
    grown = {n: (d, np.append(v, v[-1:] + 1, 0) if d[:1] == ("time",) else v) for n, (d, v) in packed.coords.items()}
    rows = {n: (d, np.append(v, v[-1:], 0) if d[:1] == ("time",) else v) for n, (d, v) in packed.variables.items()}
    return replace(packed, variables=rows, coords=grown)


@pytest.mark.parametrize("file", [".zarray", ".zattrs"])
def test_an_array_that_a_full_disk_left_half_made_is_made_again(tmp_path, monkeypatch, file):
    import zarr.storage._local as local

    real = local._put
    with begun(tmp_path / "s", {"rate": [1.0, 2.0]}) as store:
        made = outcomes(store)
        doomed = ("value", file)
        put = lambda path, *more, **how: full_disk() if path.parts[-2:] == doomed else real(path, *more, **how)  # noqa: E731
        monkeypatch.setattr(local, "_put", put)
        with pytest.raises(SaddlesError, match=r"No space left on device.*--resume"):
            store.commit(made)
        monkeypatch.undo()
    with Store(tmp_path / "s", ROW) as again:
        again.commit(outcomes(again, again.pending()))
        assert load(again.folder)["cell_done"].values.tolist() == [1, 1]
        assert again.commit(made) == []


def test_only_what_a_sweep_left_half_made_is_removed(tmp_path):
    """Arrays and folders that others put beside those of a sweep stay."""
    (tmp_path / ".zmetadata").write_text('{"metadata": {}}')
    for file in ("half/.zarray", "mine/.zarray", "mine/0.0", "notes/thesis.txt"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("{}")
    with closing(Checksums(tmp_path)) as checksums:
        remove_half_made(tmp_path, checksums)
    assert sorted(place.name for place in tmp_path.glob("[!.]*")) == ["mine", "notes"]


def _is_lines(handle):
    return os.readlink(f"/proc/self/fd/{handle}").endswith("cells.jsonl")


def test_two_processes_do_not_write_one_store(tmp_path):
    with begun(tmp_path / "s", {"rate": [1.0]}), pytest.raises(SaddlesError, match="Another process is writing"):
        Store(tmp_path / "s", ROW).__enter__()


def test_what_exists_is_refused_and_left_alone(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "thesis.tex").write_text("years of work")
    with pytest.raises(SaddlesError, match="already exists"):
        begun(tmp_path / "s", {"rate": [1.0]})
    assert [p.name for p in (tmp_path / "s").iterdir()] == ["thesis.tex"]
    (tmp_path / "empty").mkdir()
    begun(tmp_path / "empty", {"rate": [1.0]})


@pytest.mark.parametrize("place", ["file/s", "locked/s"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "locked").mkdir(mode=0o500)
    if place.startswith("locked") and os.access(tmp_path / "locked", os.W_OK):
        pytest.skip("this user may write everywhere, so no folder is locked")
    with pytest.raises(SaddlesError, match="cannot be written"):
        begun(tmp_path / place, {"rate": [1.0]})


def test_a_folder_without_a_sweep_is_named(tmp_path):
    with pytest.raises(SaddlesError, match=r"holds no sweep\.json"):
        Store(tmp_path)


LOOKED_AT = ("value", "steps", "claim_value", "claim_threshold")


def test_two_readers_see_only_whole_cells(tmp_path):
    """One reads through saddles, one with xarray alone and the rule of the documentation: marks first."""
    store = begun(tmp_path / "s", {"rate": [float(k) for k in range(1, 16)]})
    problems, seen = [], {"saddles": set(), "xarray": set()}
    stop, looked = threading.Event(), threading.Semaphore(0)

    def look(name, read):
        while not stop.is_set():
            try:
                found, marks = read(store.folder)
                rows = [found[v].transpose("rate", ...).notnull().values.reshape(15, -1).all(axis=1) for v in LOOKED_AT]
                whole = np.array(rows)
                if not whole[:, marks == 1].all() or (name == "saddles" and whole[:, marks != 1].any()):
                    problems.append((name, marks, whole))
                seen[name].add(int((marks == 1).sum()))
            except Exception as error:
                problems.append((name, repr(error)))
            looked.release()

    with store:
        made = outcomes(store)
        store.commit(made[:1])
        readers = [
            threading.Thread(target=look, args=way) for way in (("saddles", _by_saddles), ("xarray", _by_xarray))
        ]
        for reader in readers:
            reader.start()
        for one in made[1:]:
            store.commit([one])
            looked.acquire(timeout=1)
        stop.set()
        for reader in readers:
            reader.join()
    assert not problems
    assert all(len(counts) > 1 for counts in seen.values()), "the readers saw it grow"


def _by_saddles(folder):
    found = saddles.load(folder)
    return found, found["cell_done"].values


def _by_xarray(folder):
    found = xr.open_zarr(folder / "trajectory.zarr", chunks=None)
    marks = found["cell_done"].values
    return found.load(), marks
