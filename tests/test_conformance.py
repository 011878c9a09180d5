"""Every lab has the same rooms, and every experiment keeps the same promises."""

import importlib
import inspect
from pathlib import Path

import matplotlib.figure
import pytest
import xarray as xr

import saddles
from saddles.core.experiment import LABS, SIZES, Context, as_dict, registry
from saddles.core.store import load, save

ROWS = registry()
RECORDED = {"transformers", "diffusion"}
"""Labs of real training, which record what others simulate and predict."""
REFERENCES = Path(__file__).parents[1] / "docs" / "references.bib"


@pytest.mark.parametrize("lab", [lab for lab in LABS if lab not in RECORDED])
def test_lab_has_its_rooms(lab):
    for room, verb in (("simulate", "simulate"), ("theory", "predict")):
        function = getattr(importlib.import_module(f"saddles.{lab}.{room}"), verb, None)
        if function is None:  # a method of the models and theories; tests/test_arguments.py looks at those
            continue
        names = list(inspect.signature(function).parameters)
        assert names[1:2] == ["task"]
        assert {"times", "seed", "keep", "device", "precision"} <= set(names)
    importlib.import_module(f"saddles.{lab}.task")
    importlib.import_module(f"saddles.{lab}.model")


@pytest.mark.parametrize(
    "package", ["saddles", "saddles.measures", "saddles.probe", "saddles.studies", *(f"saddles.{lab}" for lab in LABS)]
)
def test_every_public_name_is_there_and_explained(package):
    module = importlib.import_module(package)
    source = Path(str(module.__file__)).read_text()
    for name in module.__all__:
        thing = getattr(module, name)
        assert thing.__doc__, f"{package}.{name} has no docstring"
        assert f"{name} as {name}" in source, f"{package}.{name} is hidden from type checkers"


@pytest.mark.parametrize("name", ROWS)
def test_row_is_complete(name):
    row = ROWS[name]
    assert f"{{{row.paper}," in REFERENCES.read_text(), "the paper is not in docs/references.bib"
    assert name.startswith(f"{row.lab}/")
    assert "tiny" in row.sizes
    assert row.default in row.sizes
    assert set(row.sizes) <= set(SIZES)
    assert row.sizes["tiny"].seconds <= 20
    first = set(as_dict(row.sizes["tiny"].settings))
    assert all(set(as_dict(size.settings)) == first for size in row.sizes.values())


@pytest.mark.parametrize("name", ROWS)
def test_tiny_run_gives_a_trajectory_claims_and_a_figure(name, tmp_path):
    row = ROWS[name]
    if row.data(row.settings("tiny")):
        pytest.skip("needs a data set; its own tests run it on made data")
    module = row
    trajectory = module.run(row.settings("tiny"), Context(seed=11, size="tiny"))
    dimensions = [variable.dims for variable in trajectory.data_vars.values() if "time" in variable.dims]
    assert dimensions
    assert all(dims[0] == "time" for dims in dimensions)
    assert trajectory["time"].attrs["unit"]
    assert trajectory.attrs["status"] == "finished"
    claims = module.claims(trajectory, "tiny")
    assert claims
    assert all(claim.paper == row.paper for claim in claims)
    assert all(claim.against for claim in claims), "a claim has a null, or says why there is none"
    assert all(claim.verdict != "fails" for claim in claims)
    drawing = module.figure(trajectory)
    assert isinstance(drawing, matplotlib.figure.Figure)
    for axis in drawing.axes:
        assert axis.get_xlabel() or axis.get_ylabel() or axis.get_shared_x_axes(), "an axis without a label"
    stored = load(save(trajectory, tmp_path / "t.zarr"))
    xr.testing.assert_equal(stored, trajectory)
    assert [c.value for c in module.claims(stored, "tiny")] == pytest.approx([c.value for c in claims], nan_ok=True)


@pytest.mark.parametrize("name", ["linear/trade-off", "diagonal/figure-2", "concepts/figure-2a", "margin/aligned"])
def test_same_seed_same_numbers(name):
    row = ROWS[name]
    one, same, other = (row.run(row.settings("tiny"), Context(seed=s)) for s in (1, 1, 2))
    xr.testing.assert_equal(one, same)
    assert any(not one[variable].equals(other[variable]) for variable in one.data_vars)


def test_names_of_the_package():
    assert {"simulate", "predict", "compare", "load"} <= set(saddles.__all__)
    with pytest.raises(AttributeError, match="no attribute 'dance'"):
        saddles.dance  # type: ignore[attr-defined]  # noqa: B018
