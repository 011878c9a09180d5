"""Stores that someone else wrote, and stores that a disk has damaged."""

import csv
import json
import os
import pickle
import random
import shutil

import h5py
import numpy as np
import pytest
import xarray as xr
from damage import SEED, flip

import saddles
from saddles.core.store import export, load, save
from saddles.core.trajectory import make_trajectory
from saddles.errors import SaddlesError


def sample():
    draw = np.random.default_rng(1)
    return make_trajectory(
        {"loss": (("time", "kind"), draw.normal(size=(40, 3))), "note": (("kind",), ["a", "bb", "c"])},
        np.arange(40.0),
        coords={"kind": ["x", "y", "z"], "step": ("time", np.arange(40))},
    )


class Bomb:
    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return (os.mkdir, (self.place,))


PICKLE = {
    "filters": [{"id": "vlen-utf8"}],
    "compressor": {"id": "pickle", "protocol": 5},
    "dtype": "|O",
    "fill_value": "",
}


def hostile_link(home, bomb):
    """The array's folder is elsewhere, where a search that does not follow links does not look."""
    save(sample(), home / "t.zarr")
    shutil.move(home / "t.zarr" / "loss", home / "elsewhere")
    facts = json.loads((home / "elsewhere" / ".zarray").read_text())
    facts |= PICKLE
    (home / "elsewhere" / ".zarray").write_text(json.dumps(facts))
    for chunk in (home / "elsewhere").glob("[0-9]*"):
        chunk.write_bytes(bomb)
    (home / "t.zarr" / "loss").symlink_to(home / "elsewhere")
    (home / "t.zarr" / ".zmetadata").unlink()
    (home / "t.zarr" / ".checksums").unlink(missing_ok=True)


def hostile_name(home, bomb):
    """An array called `attributes`, of format 2 inside the consolidated metadata of format 3."""
    with pytest.warns(match="Consolidated metadata"):
        xr.Dataset({"attributes": ("time", np.arange(3.0)), "b": ("time", np.arange(3))}).to_zarr(
            home / "t.zarr", zarr_format=3, consolidated=True
        )
    place = home / "t.zarr" / "zarr.json"
    facts = json.loads(place.read_text())
    facts["consolidated_metadata"]["metadata"]["attributes"] = {
        "zarr_format": 2, "shape": [3], "chunks": [3], "order": "C",
        "attributes": {"_ARRAY_DIMENSIONS": ["time"]}, "dimension_separator": ".", **PICKLE,
    }  # fmt: skip
    place.write_text(json.dumps(facts))
    (home / "t.zarr" / "attributes" / "0").write_bytes(bomb)


def hostile_list(home, bomb):
    """The array is harmless by itself; the consolidated list, which readers prefer, says otherwise."""
    save(sample(), home / "t.zarr")
    place = home / "t.zarr" / ".zmetadata"
    facts = json.loads(place.read_text())
    facts["metadata"]["loss/.zarray"] |= PICKLE
    place.write_text(json.dumps(facts))
    for chunk in (home / "t.zarr" / "loss").glob("[0-9]*"):
        chunk.write_bytes(bomb)
    (home / "t.zarr" / ".checksums").unlink(missing_ok=True)


def hostile_shards(home, bomb):
    """A pickle inside a codec that holds codecs, which holds codecs."""
    xr.Dataset({"loss": ("time", np.arange(8.0))}).to_zarr(home / "t.zarr", zarr_format=3, consolidated=False)
    place = home / "t.zarr" / "loss" / "zarr.json"
    facts, numbers = json.loads(place.read_text()), {"name": "bytes", "configuration": {"endian": "little"}}
    codecs = [numbers, {"name": "numcodecs.pickle", "configuration": {}}]
    for _ in range(3):
        inner = {"chunk_shape": [8], "codecs": codecs, "index_codecs": [numbers], "index_location": "end"}
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
    place.write_text(json.dumps(facts | {"codecs": codecs}))
    (home / "t.zarr" / "loss" / "c" / "0").write_bytes(bomb)


@pytest.mark.filterwarnings("ignore:Numcodecs codecs")
@pytest.mark.parametrize("prepare", [hostile_link, hostile_name, hostile_list, hostile_shards])
def test_no_store_reaches_a_pickle(tmp_path, prepare):
    prepare(tmp_path, pickle.dumps(Bomb(str(tmp_path / "exploded"))))
    with pytest.raises(SaddlesError, match=r"is a link|codec:? '(numcodecs\.)?pickle"):
        load(tmp_path / "t.zarr")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("place", ["loss/0.0", ".checksums", "other/.zarray"])
def test_a_pipe_among_the_files_is_refused_and_not_waited_for(tmp_path, place):
    store = save(sample(), tmp_path / "t.zarr")
    (store / place).unlink(missing_ok=True)
    (store / place).parent.mkdir(exist_ok=True)
    os.mkfifo(store / place)
    with pytest.raises(SaddlesError, match=r"is not a file"):
        load(store)


def test_endless_chunks_are_counted_first(tmp_path):
    store = save(sample(), tmp_path / "t.zarr")
    (store / ".checksums").unlink()
    facts = json.loads((store / ".zmetadata").read_text())
    facts["metadata"]["loss/.zarray"] |= {"shape": [10**9, 3], "chunks": [1, 1]}
    (store / ".zmetadata").write_text(json.dumps(facts))
    with pytest.raises(SaddlesError, match="cuts 'loss' into 3,000,000,000 pieces"):
        load(store)


def test_axes_that_do_not_fit_together_are_one_sentence(tmp_path):
    export(sample(), tmp_path / "t.nc", "netcdf")
    with h5py.File(tmp_path / "t.nc", "a") as file:
        file.create_dataset("one", data=np.zeros(2))
        file.create_dataset("two", data=np.zeros(41))
    with pytest.raises(SaddlesError, match="cannot be read as a stored trajectory"):
        load(tmp_path / "t.nc")


def test_numcodecs_with_known_holes_is_refused(tmp_path, monkeypatch):
    save(sample(), tmp_path / "t.zarr")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.16.5")
    with pytest.raises(SaddlesError, match=r"numcodecs 0\.16\.5 opens pickles.*0\.16\.6"):
        load(tmp_path / "t.zarr")


def flips(store, count, read):
    """How many of `count` flips, each in a random file, are told."""
    draw, told = random.Random(SEED), 0
    files = [p for p in sorted(store.rglob("*")) if p.is_file()]
    for _ in range(count):
        file = draw.choice(files)
        before = file.read_bytes()
        flip(file, draw)
        try:
            read()
        except SaddlesError as error:
            told += 1
            assert "\n" not in str(error)  # noqa: PT017
        finally:
            file.write_bytes(before)
    read()
    return told


@pytest.mark.parametrize("count", [30, pytest.param(300, marks=pytest.mark.attack)])
def test_every_flipped_bit_is_told(tmp_path, count, monkeypatch):
    monkeypatch.setattr("saddles.runtime.checksums.LOOK_SECONDS", 0.0)
    store = save(sample(), tmp_path / "t.zarr")
    assert flips(store, count, lambda: load(store)) == count, f"ATTACK_SEED={SEED}"


def test_a_flipped_end_of_a_line_in_the_checksums_is_told(tmp_path, monkeypatch):
    """One of its bits makes it another character at which Python ends lines."""
    monkeypatch.setattr("saddles.runtime.checksums.LOOK_SECONDS", 0.0)
    list_ = save(sample(), tmp_path / "t.zarr") / ".checksums"
    whole = list_.read_bytes()
    for at in [k for k, letter in enumerate(whole) if letter == ord("\n")]:
        list_.write_bytes(whole[:at] + b"\x0b" + whole[at + 1 :])
        with pytest.raises(SaddlesError, match="damaged"):
            load(list_.parent)


def test_every_deleted_file_is_told(tmp_path):
    store = save(sample(), tmp_path / "t.zarr")
    for file in [p for p in store.rglob("*") if p.is_file() and p.name != ".checksums"]:
        before = file.read_bytes()
        file.unlink()
        with pytest.raises(SaddlesError, match=r"damaged|cannot be read"):
            load(store)
        file.write_bytes(before)
    assert load(store).sizes["time"] == 40


def test_a_store_without_checksums_still_opens(tmp_path):
    store = save(sample(), tmp_path / "t.zarr")
    (store / ".checksums").unlink()
    xr.testing.assert_identical(load(store), sample())
    assert saddles.load(store).sizes["time"] == 40


def external_link(home):
    with h5py.File(home / "t.nc", "a") as file:
        file["stolen"] = h5py.ExternalLink(str(home / "secret.h5"), "/numbers")


def deep_link(home):
    with h5py.File(home / "t.nc", "a") as file:
        inner = file.create_group("a/b")
        inner["up"] = file["/"]
        inner["stolen"] = h5py.ExternalLink(str(home / "secret.h5"), "/numbers")


def external_storage(home):
    with h5py.File(home / "t.nc", "a") as file:
        file.create_dataset("stolen", shape=(3,), dtype="f8", external=[(str(home / "secret.h5"), 0, 24)])


def virtual_storage(home):
    layout = h5py.VirtualLayout(shape=(3,), dtype="f8")
    layout[:] = h5py.VirtualSource(str(home / "secret.h5"), "numbers", shape=(3,))
    with h5py.File(home / "t.nc", "a") as file:
        file.create_virtual_dataset("stolen", layout)


@pytest.mark.parametrize("prepare", [external_link, deep_link, external_storage, virtual_storage])
def test_a_netcdf_file_reads_no_other_file(tmp_path, prepare):
    with h5py.File(tmp_path / "secret.h5", "w") as secret:
        secret["numbers"] = np.arange(3.0)
    export(sample(), tmp_path / "t.nc", "netcdf")
    assert load(tmp_path / "t.nc").sizes["time"] == 40
    prepare(tmp_path)
    with pytest.raises(SaddlesError, match=r"keeps 'stolen' in another file"):
        load(tmp_path / "t.nc")


def loop(home):
    with h5py.File(home / "t.nc", "a") as file:
        inner = file.create_group("a/b")
        inner["up"] = file["/a"]


def soft_loop(home):
    with h5py.File(home / "t.nc", "a") as file:
        file.create_group("a")["up"] = h5py.SoftLink("/a")


def ladder(home):
    with h5py.File(home / "t.nc", "a") as file:
        for k in range(60):
            below = file.create_group(f"{k}")
            if k:
                below["left"] = below["right"] = file[f"{k - 1}"]


@pytest.mark.parametrize("prepare", [loop, soft_loop, ladder])
def test_groups_of_a_netcdf_file_that_do_not_end_are_refused(tmp_path, prepare):
    export(sample(), tmp_path / "t.nc", "netcdf")
    prepare(tmp_path)
    with pytest.raises(SaddlesError, match="has a group in two places"):
        load(tmp_path / "t.nc")


def test_tables_with_one_name_do_not_overwrite_each_other(tmp_path):
    whole = xr.DataTree.from_dict({
        "/": xr.Dataset({"x": (("a", "b"), np.ones((2, 2)))}, attrs={"schema": 1}),
        "/a": xr.Dataset({"y": (("c/d",), np.zeros(2)), "z": (("c_d",), np.ones(2))}),
        "/a-b": xr.Dataset({"v": ((), 1.0)}),
    })  # fmt: skip
    files = export(whole, tmp_path / "t.csv", "csv")
    assert len({*files}) == len(files) == len(list(tmp_path.iterdir())) == 5
    text = "".join(file.read_text() for file in files)
    assert all(f"{name}\n" in text for name in "xyzv")


def test_a_spreadsheet_computes_nothing(tmp_path):
    cells = ["=HYPERLINK(1)", "+1", "@SUM(A1)", "-2+3", "plain"]
    data = xr.Dataset({"=evil": ("kind", cells), "number": ("kind", [-1.0, 2.0, 3.0, 4.0, 5.0])}, {"kind": cells})
    table, _ = export(data, tmp_path / "t.csv", "csv")
    rows = list(csv.reader(table.read_text().splitlines()))
    assert rows[0] == ["kind", "'=evil", "number"]
    assert rows[1] == ["'=HYPERLINK(1)", "'=HYPERLINK(1)", "-1.0"]
    assert not any(cell.startswith(("=", "+", "@")) for row in rows for cell in row)


def test_a_folder_without_a_trajectory_is_not_searched(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    monkeypatch.setattr(os, "walk", lambda *any, **more: pytest.fail("walked the disk"))
    monkeypatch.setattr("pathlib.Path.rglob", lambda *any: pytest.fail("walked the disk"))
    for place in (tmp_path, "/"):
        with pytest.raises(SaddlesError, match="holds no stored trajectory"):
            load(place)


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + ".zarr", "a\x00b"])
def test_names_that_no_file_can_have_are_one_sentence(tmp_path, name):
    with pytest.raises(SaddlesError):
        load(tmp_path / name)
    with pytest.raises(SaddlesError):
        save(sample(), tmp_path / name)
