"""Another seed of a stored trajectory: joined, judged and drawn by one command."""

import json
import runpy
from types import SimpleNamespace

import numpy as np
import pytest
from doc_pages import ROOT

import saddles
from saddles.core.experiment import find
from saddles.errors import SaddlesError

join = SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "join.py")))
NAME = "transformers-vit-cifar10-sgd-paper"
STORE = ROOT / "docs" / "results" / f"{NAME}.zarr"
pytestmark = pytest.mark.skipif(not STORE.exists(), reason="python docs/stores.py unpack saddles-results-VERSION.zip")


@pytest.fixture(scope="module")
def stored():
    """The first seed, as trajectories were stored that hold nothing of the spectra of others, nor of the images."""
    whole = saddles.load(STORE).isel(seed=[0]).drop_vars(["leading_singular_value", "spectrum_excess"]).load()
    return whole.assign_attrs(trained_on="")


@pytest.fixture(scope="module")
def scaled():
    """Three scales and two seeds, whatever else is stored by now."""
    whole = saddles.load(ROOT / "docs" / "results" / "transformers-vit-init-scale.zarr")
    whole = whole.sel(scale=[1.0, 0.3, 0.1]).isel(seed=[0, 1]).load()
    told = json.loads(whole.attrs["settings"]) | {"scales": whole["scale"].values.tolist()}
    return whole.assign_attrs(settings=json.dumps(told))


def another(stored, seed=77, **settings):
    """The stored run as if it were of another seed, with ranks twice as high."""
    told = json.loads(stored.attrs["settings"]) | settings
    run = stored.assign_coords(seed=[seed]).assign(stable_rank=lambda one: 2 * one["stable_rank"])
    return run.assign_attrs(settings=json.dumps(told), seed=seed, wall_time_s=100.0, trained_on="cifar10 0123")


def test_a_seed_is_joined_judged_and_drawn(stored, tmp_path, capsys):
    (tmp_path / "results").mkdir()
    (tmp_path / "figures").mkdir()
    for run in (stored, another(stored, tests=5), another(stored, 78)):
        place = tmp_path / str(run.attrs["seed"]) / "trajectory.zarr"
        saddles.save(run.drop_encoding(), place)
        join.main([str(place.parent), NAME, "--machine", "a machine", "--note", f"of {run.attrs['seed']}"], tmp_path)
    assert "3 seeds. Next: python docs/derive.py" in capsys.readouterr().out
    assert (tmp_path / "figures" / f"{NAME}.png").stat().st_size > 10_000
    whole = saddles.load(tmp_path / "results" / f"{NAME}.zarr")
    assert whole["seed"].values.tolist() == [*stored["seed"].values, 77, 78]
    assert whole["stable_rank"].dims == stored["stable_rank"].dims
    np.testing.assert_array_equal(whole["stable_rank"].isel(seed=[0]), stored["stable_rank"])
    np.testing.assert_array_equal(whole["singular_value"], stored["singular_value"])
    np.testing.assert_array_equal(whole["epoch"], stored["epoch"])
    assert whole.attrs["wall_time_s"] == pytest.approx(stored.attrs["wall_time_s"] + 200)
    assert whole.attrs["machine"] == "a machine"
    assert whole.attrs["note"] == "of 0; of 77; of 78"
    assert whole.attrs["trained_on"] == "cifar10 0123"
    first, *_, last = whole.attrs["command"].split("; ")
    assert first == "saddles run transformers/vit-cifar10-sgd --size paper --seed 0 --set tests=25 --set store=100.0"
    assert "--seed 78" in last
    claims = find("transformers/vit-cifar10-sgd").claims(whole, "paper")
    assert {claim.seeds for claim in claims} == {3}
    assert claims[0].verdict == "fails", "ranks twice as high are above a quarter of the initial product"
    assert claims[0].spread > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda run: another(run, int(run["seed"][0])), "is stored already"),
        (lambda run: another(run, rate=0.1), "`rate` must be that of the store, 0.3; got 0.1"),
        (lambda run: another(run).assign_attrs(size="gpu"), "`size` must be that of the store, paper; got 'gpu'"),
        (lambda run: another(run).assign_coords(time=run["time"] + 1), "measured at other steps"),
    ],
)
def test_what_does_not_belong_together_is_not_joined(stored, change, words):
    with pytest.raises(SaddlesError, match=words):
        join.joined(stored, change(stored))


def test_a_seed_that_stopped_early_is_nan_from_there_on(stored):
    short = another(stored).isel(time=slice(0, 100), instant=slice(0, 10))
    for pair in ((stored, short), (short, stored)):
        whole = join.joined(*pair)
        assert whole.sizes["time"] == 500
        assert int(whole["stable_rank"].sel(seed=77).isnull().all(("layer", "head", "product", "scale")).sum()) == 400
        assert whole["epoch"].values.tolist() == stored["epoch"].values.tolist()
        verdicts = [claim.verdict for claim in find("transformers/vit-cifar10-sgd").claims(whole, "paper")]
        assert verdicts[0] == "fails", "a measured number is not finite"


def test_scales_are_joined_in_their_order_for_the_seeds_that_are_stored(scaled):
    """A stored trajectory of three scales, taken apart and put together again."""
    whole, told = scaled, json.loads(scaled.attrs["settings"])
    ends, middle = (
        whole.sel(scale=scales).assign_attrs(settings=json.dumps(told | {"scales": scales}))
        for scales in ([1.0, 0.1], [0.3])
    )
    again = join.joined(ends, middle)
    assert json.loads(again.attrs["settings"]) == told
    assert again.attrs["wall_time_s"] == pytest.approx(2 * whole.attrs["wall_time_s"])
    names = [name for name in whole.data_vars if name in again]
    assert "singular_value" in names
    assert {"stable_rank", "train_loss", "leading_singular_value"} < set(names)
    for name in names:
        np.testing.assert_array_equal(again[name].transpose(*whole[name].dims), whole[name], err_msg=str(name))
    with pytest.raises(SaddlesError, match="runs at other scales all its seeds"):
        join.joined(ends, middle.isel(seed=[0]))
    with pytest.raises(SaddlesError, match=f"are those of the seed {int(whole['seed'][0])}. Give the run of this seed"):
        join.joined(ends, middle.isel(seed=slice(None, None, -1)))
    with pytest.raises(SaddlesError, match=r"the scale 0\.1 is stored already"):
        join.joined(ends, whole.sel(scale=[0.3, 0.1]))


@pytest.mark.parametrize("order", ["0a 1a 0b 1b", "0a 1b 1a 0b", "1a 0b 0a 1b", "0a 1ba 0b"])
def test_runs_of_seeds_and_scales_are_joined_in_any_order(scaled, order):
    whole, told, scales = scaled, json.loads(scaled.attrs["settings"]), {"a": 1.0, "b": 0.3}
    runs = []
    for seed, *letters in order.split():
        mine = [scales[letter] for letter in letters]
        run = whole.sel(scale=mine).isel(seed=[int(seed)])
        spectra = {name: (1 + int(seed)) * run[name] for name in join.SINGLE}  # to be told from those of the other seed
        runs.append(run.assign(spectra).assign_attrs(settings=json.dumps(told | {"scales": mine})))
    found, first = join.together(runs), int(order[0])
    expected = whole.sel(scale=[1.0, 0.3]).isel(seed=[first, 1 - first])
    expected = expected.assign({name: (1 + first) * expected[name] for name in join.SINGLE})
    for name in expected.data_vars:
        np.testing.assert_array_equal(found[name].transpose(*expected[name].dims), expected[name], err_msg=str(name))
    assert found["scale"].values.tolist() == [1.0, 0.3]
    assert found["seed"].values.tolist() == expected["seed"].values.tolist()
    assert json.loads(found.attrs["settings"])["scales"] == [1.0, 0.3]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_runs_at_other_scales_are_joined_seed_by_seed(scaled, tmp_path, order):
    """Each run has one seed, the store two: given at once, they are joined to each other first."""
    whole, told = scaled, json.loads(scaled.attrs["settings"])
    (tmp_path / "figures").mkdir()
    ends = whole.sel(scale=[1.0, 0.1]).assign_attrs(machine="another; a machine", command="earlier")
    saddles.save(ends.drop_encoding(), tmp_path / "results" / "scales.zarr")
    places = [tmp_path / str(seed) for seed in (0, 1)]
    for seed, place in enumerate(places):
        one = whole.sel(scale=[0.3]).isel(seed=[seed]).assign_attrs(settings=json.dumps(told | {"scales": [0.3]}))
        one.attrs = {name: one.attrs[name] for name in one.attrs if name not in ("command", "machine", "note")}
        saddles.save(one.assign_attrs(seed=seed).drop_encoding(), place / "trajectory.zarr")
    words = ["scales", "--machine", "a machine"]
    with pytest.raises(SaddlesError, match="Give the runs of all seeds at once"):
        join.main([str(places[0]), *words], tmp_path)
    join.main([*(str(places[seed]) for seed in order), *words], tmp_path)
    found = saddles.load(tmp_path / "results" / "scales.zarr")
    np.testing.assert_array_equal(found["singular_value"], whole["singular_value"])
    np.testing.assert_array_equal(found["stable_rank"], whole["stable_rank"])
    assert found.attrs["machine"] == "another; a machine"
    assert [line for line in found.attrs["command"].split("; ") if "--set scales=0.3" in line] == [
        f"saddles run transformers/vit-init-scale --size gpu --seed {seed} --set scales=0.3" for seed in (0, 1)
    ]
