"""Numbers of stored trajectories that grow: seeds that diverged, and what a record says of its origin."""

import json
import runpy
from types import SimpleNamespace

import numpy as np
import pytest
from doc_pages import ROOT

import saddles
from saddles.core.store import write_zarr

derive = SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "derive.py")))
NAME = "transformers-vit-cifar10-sgd-paper"
STORE = ROOT / "docs" / "results" / f"{NAME}.zarr"
pytestmark = pytest.mark.skipif(not STORE.exists(), reason="python docs/stores.py unpack saddles-results-VERSION.zip")


@pytest.fixture(scope="module")
def stored():
    return saddles.load(STORE).isel(seed=[0, 1]).load()


@pytest.mark.parametrize("rows", [1, 9])
def test_a_seed_that_diverged_before_its_first_test_has_a_jump_of_what_it_had(stored, rows):
    """The last row of a run that diverged is not a number."""
    measured = ["train_loss", "test_loss", "test_accuracy", "rate", "stable_rank"]
    late = (stored["seed"] == stored["seed"][1]) & (stored["time"] >= stored["time"][rows - 1])
    found = derive.jump(stored.assign({name: stored[name].where(~late) for name in measured}))
    words = "highest training loss of an epoch after the second, that epoch, its last rate"
    highest = np.array(found[f"seed 2: {words}"], float)
    if rows == 1:
        assert np.isnan(highest).all()
    else:
        losses = stored["train_loss"].isel(scale=0, seed=1)[2:8]
        assert highest[:2].tolist() == [losses.max(), losses["epoch"][losses.argmax("time")]]
    assert np.isnan(np.array(found["seed 2: last training loss, test accuracy"], float)).all()
    for label, value in derive.jump(stored).items():
        if label.startswith("seed 1"):
            np.testing.assert_array_equal(np.array(found[label], float), np.array(value, float))


def test_a_record_tells_of_a_store_that_has_grown_how_it_was_made(stored, tmp_path, monkeypatch):
    place = f"transformers.json#{NAME}"
    names = derive.main.__globals__
    monkeypatch.setitem(names, "RESULTS", tmp_path)
    monkeypatch.setitem(names, "DERIVED", {place: {NAME: lambda run: {"seeds": run.sizes["seed"]}}})
    monkeypatch.setitem(names, "JUDGED", [])
    monkeypatch.setitem(derive.STORES.listed.__globals__, "LIST", tmp_path / "stores.json")
    (tmp_path / "stores.json").write_text("{}")
    (tmp_path / "transformers.json").write_text(json.dumps({"records": {}}))

    def record():
        derive.main()
        return json.loads((tmp_path / "transformers.json").read_text("utf-8"))["records"][NAME]

    one = stored.isel(seed=[0]).assign_attrs(command="the first", machine="a machine")
    saddles.save(one.drop_encoding(), tmp_path / f"{NAME}.zarr")
    assert record()["command"] == "the first"
    written = record() | {"command": "the first, by hand", "date": "2001-02-03", "values": {"hours": 3}}
    (tmp_path / "transformers.json").write_text(json.dumps({"records": {NAME: written}}))
    assert record() == written, "the store is the one that was told of"
    both = stored.assign_attrs(command="the first; the second", machine="a machine")
    write_zarr(both.drop_encoding(), tmp_path / f"{NAME}.zarr", replace=True)
    found = record()
    assert found["command"] == "the first; the second"
    assert found["date"] != "2001-02-03"
    assert found["values"] == {"hours": 3}
    assert found["derived"] == {f"{NAME}.zarr": {"seeds": 2}}
