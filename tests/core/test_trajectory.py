import json
import os
from contextlib import closing

import numpy as np
import pytest
import xarray as xr

from saddles.core import store
from saddles.core.store import export, load, save
from saddles.core.trajectory import SCHEMA, make_trajectory
from saddles.errors import SaddlesError
from saddles.runtime import progress


@pytest.fixture
def trajectory() -> xr.Dataset:
    return make_trajectory(
        {"loss": (("time", "kind"), np.arange(6.0).reshape(3, 2)), "threshold": ((), 0.5)},
        [0.0, 0.5, 2.0],
        unit="gradient time",
        coords={"kind": ["short", "a longer word"], "step": ("time", [0, 1, 4])},
        model={"width": 3},
        seed=7,
    )


def test_save_and_load_give_the_same(trajectory, tmp_path):
    xr.testing.assert_identical(load(save(trajectory, tmp_path / "t.zarr")), trajectory)


def test_opens_with_plain_xarray(trajectory, tmp_path):
    save(trajectory, tmp_path / "t.zarr")
    with xr.open_zarr(tmp_path / "t.zarr", chunks=None) as plain:
        xr.testing.assert_identical(plain.load(), trajectory)


def test_provenance_is_flat_and_readable(trajectory):
    assert trajectory.attrs["schema"] == SCHEMA
    assert trajectory.attrs["status"] == "finished"
    assert trajectory.attrs["model"] == '{"width": 3}'
    assert all(isinstance(value, str | int | float) for value in trajectory.attrs.values())
    assert "gradient time" in trajectory["time"].attrs["unit"]
    assert "loss" in trajectory._repr_html_()


def test_tree_survives(trajectory, tmp_path):
    tree = xr.DataTree.from_dict({"/": xr.Dataset(attrs={"schema": SCHEMA}), "/heads": trajectory})
    back = load(save(tree, tmp_path / "t.zarr"))
    xr.testing.assert_identical(back["heads"].to_dataset(), trajectory)


def test_saving_never_overwrites(trajectory, tmp_path):
    save(trajectory, tmp_path / "t.zarr")
    with pytest.raises(SaddlesError, match="already exists"):
        save(trajectory, tmp_path / "t.zarr")
    assert [p.name for p in tmp_path.iterdir()] == ["t.zarr"]


def test_failed_save_leaves_nothing(trajectory, tmp_path):
    broken = trajectory.assign(bad=("time", np.array([object(), 1, 2], dtype=object)))
    with pytest.raises(Exception, match=r".+"):
        save(broken, tmp_path / "t.zarr")
    assert list(tmp_path.iterdir()) == []


def test_parent_that_is_a_file_is_refused(trajectory, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(SaddlesError, match="cannot be written"):
        save(trajectory, tmp_path / "file" / "t.zarr")


def test_newer_layout_is_refused(trajectory, tmp_path):
    trajectory.attrs["schema"] = SCHEMA + 1
    save(trajectory, tmp_path / "t.zarr")
    with pytest.raises(SaddlesError, match="newer saddles"):
        load(tmp_path / "t.zarr")


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_what_is_no_trajectory_is_named(tmp_path, name):
    os.mkdir(tmp_path / "empty")
    with pytest.raises(SaddlesError, match=name):
        load(tmp_path / name)


def test_netcdf_keeps_everything(trajectory, tmp_path):
    (file,) = export(trajectory, tmp_path / "t.nc", "netcdf")
    xr.testing.assert_identical(load(file), trajectory)


def test_csv_has_one_table_for_each_set_of_dimensions(trajectory, tmp_path):
    files = export(trajectory, tmp_path / "t.csv", "csv")
    assert sorted(f.name for f in files) == ["t-attributes.json", "t-scalars.csv", "t-time-kind.csv"]
    lines = (tmp_path / "t-time-kind.csv").read_text().splitlines()
    assert lines[0] == "time,kind,loss,step"
    assert lines[-1] == "2.0,a longer word,5.0,4"
    with pytest.raises(SaddlesError, match="already exists"):
        export(trajectory, tmp_path / "t.csv", "csv")


def test_netcdf_keeps_groups(trajectory, tmp_path):
    heads = xr.Dataset({"rank": (("time", "head"), np.ones((3, 2)))}, {"time": [0.0, 0.5, 2.0]})
    for root in (xr.Dataset(attrs={"schema": SCHEMA}), trajectory):
        tree = xr.DataTree.from_dict({"/": root, "/heads": heads})
        (file,) = export(tree, tmp_path / f"{len(root)}.nc", "netcdf")
        xr.testing.assert_identical(load(file), tree)


OWN = {
    "converged": True, "note": None, "cut": {"a": 1}, "seed": 2**70, "mixed": [1, "a"], "names": ["a", "b"],
    "rates": [0.1, 0.2],
}  # fmt: skip


def test_netcdf_writes_what_it_has_no_type_for_as_json(trajectory, tmp_path):
    trajectory.attrs |= OWN
    trajectory["loss"].attrs["log"] = True
    tree = xr.DataTree.from_dict({"/": trajectory, "/part": trajectory})
    for whole in (trajectory, load(save(trajectory, tmp_path / "t.zarr")), tree):
        (file,) = export(whole, tmp_path / f"{id(whole)}.nc", "netcdf")
        back = load(file)
        for found in [back] if isinstance(back, xr.Dataset) else [node.to_dataset() for node in back.subtree]:
            for name in ("converged", "note", "cut", "seed", "mixed"):
                assert json.loads(found.attrs[name]) == OWN[name]
            assert list(found.attrs["names"]) == OWN["names"]
            assert list(found.attrs["rates"]) == OWN["rates"]
            assert found["loss"].attrs["log"] == "true"
    assert trajectory.attrs["converged"] is True


@pytest.mark.parametrize("value", [np.datetime64("2026-01-01"), object()])
def test_an_attribute_that_cannot_be_stored_is_named_and_leaves_nothing(trajectory, tmp_path, value):
    with pytest.raises(SaddlesError, match=r"t\.zarr cannot be written: Invalid attribute .*not JSON"):
        save(trajectory.assign_attrs(when=value), tmp_path / "t.zarr")
    assert list(tmp_path.iterdir()) == []


def test_csv_is_written_in_blocks_that_are_counted(tmp_path, monkeypatch):
    values = np.random.default_rng(0).random((5, 3))
    words = (("time",), np.array(["a", "=b", "c,d", "e", ""]))
    made = make_trajectory({"value": (("time", "row"), values), "word": words}, np.arange(5.0))
    bars = []
    monkeypatch.setattr(store, "bar", lambda title, total: bars.append(progress.Bar(title, total)) or closing(bars[-1]))
    monkeypatch.setattr(store, "BLOCK", 4)
    export(made, tmp_path / "t.csv", "csv")
    frame = made[["value"]].to_dataframe().reset_index()
    assert (tmp_path / "t-time-row.csv").read_text() == frame.to_csv(index=False)
    assert (tmp_path / "t-time.csv").read_text().splitlines()[::2] == ["time,word", "1.0,'=b", "3.0,e"]
    assert [(bar.state.title, bar.state.amount) for bar in bars] == [("t.csv, rows", "20/20")]
    empty = make_trajectory({"value": np.zeros(0)}, np.zeros(0))
    export(empty, tmp_path / "none.csv", "csv")
    assert (tmp_path / "none-time.csv").read_text() == "time,value\n"


def test_csv_of_a_netcdf_file_has_its_attributes(trajectory, tmp_path):
    trajectory.attrs["rates"] = np.array([0.5, 2])
    (file,) = export(trajectory, tmp_path / "t.nc", "netcdf")
    export(load(file), tmp_path / "t.csv", "csv")
    notes = json.loads((tmp_path / "t-attributes.json").read_text())["/"]
    assert notes["seed"] == 7
    assert notes["rates"] == [0.5, 2]


def test_unknown_format_is_refused(trajectory, tmp_path):
    with pytest.raises(SaddlesError, match="'csv' or 'netcdf'"):
        export(trajectory, tmp_path / "t.mat", "mat")
