"""Figures of lab `networks`: one of anything is drawn, and titles do not say more than the data."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import xarray as xr

from saddles import figures
from saddles.core.claim import check
from saddles.core.experiment import registry

WIDTHS = [8, 16, 24]
HEADS = {"layer": [0, 1], "head": [0, 1, 2], "product": ["KQ", "VO"]}


def _made(coords: Mapping[str, Sequence], variables: Mapping[Any, tuple[str, ...]], **attrs: object) -> xr.Dataset:
    """Numbers between 0 and 1 along named axes; e falls along the last axis, so that it has a border."""
    draw = np.random.default_rng(0)
    found = {}
    for name, axes in variables.items():
        values = draw.uniform(0.1, 0.9, [len(coords[axis]) for axis in axes])
        found[name] = (axes, -np.sort(-values, axis=-1) if name == "linearity" else values)
    return xr.Dataset(found, coords, attrs)


def _phase_diagram() -> xr.Dataset:
    coords = {"time": [0, 1], "seed": [1, 2], "gamma_w": [1.0, 1.5, 2.0], "gamma_variance": [-3.0, -2.0, -1.0]}
    cells = ("time", "seed", "gamma_w", "gamma_variance")
    rows = dict.fromkeys(("border", "theory_border"), cells[1:3])
    variables = dict.fromkeys(("linearity", "test_accuracy", "stable_rank"), cells) | rows | {"slope": ("seed",)}
    return _made(coords, variables, activation="relu", source="digits", dim=8)


def _vit_regime() -> xr.Dataset:
    coords = {"time": [0, 1], "seed": [1, 2], "width": WIDTHS, "scale": [0.25, 1.0, 4.0]}
    cells = ("time", "seed", "width", "scale")
    variables = dict.fromkeys(("stable_rank", "test_accuracy", "loss"), cells[1:]) | {"linearity": cells}
    return _made(coords, variables | {"border": cells[1:3]}, source="cifar10", until=0.5)


def _depth() -> xr.Dataset:
    coords = {"time": [0, 1], "seed": [1, 2], "layers": [2, 3], "width": WIDTHS, "reach": [-1.0, 0.0, 1.0]}
    variables = {"linearity": tuple(coords), "border": ("seed", "layers", "width")}
    return _made(coords, variables, activation="relu", source="digits", dim=8)


def _linearised() -> xr.Dataset:
    coords = {"time": [0, 1, 2], "seed": [1, 2], "width": WIDTHS, "vit_step": [0, 1, 2], "vit_width": WIDTHS}
    variables = {"distance": ("time", "seed", "width"), "vit_distance": ("vit_step", "seed", "vit_width")}
    return _made(coords, variables, activation="relu")


def _closure() -> xr.Dataset:
    coords = {"time": [1, 10, 100], "seed": [1, 2], "model": ["vit", "gpt2"], "optimiser": ["adam", "sgd"], **HEADS}
    return _made(coords, dict.fromkeys(("balance", "memory", "linearity", "outside", "stable_rank"), tuple(coords)))


def _narrow_head() -> xr.Dataset:
    coords = {"time": [0, 1], "seed": [1, 2], "ratio": [0.5, 0.9, 1.1, 2.0]}
    return _made(coords, dict.fromkeys(("learned", "linearity"), tuple(coords)))


def _invariants() -> xr.Dataset:
    coords = {"time": [0, 1], "seed": [1, 2], "biases": [False, True], "optimiser": ["sgd", "adam"]}
    coords |= {"rate": [0.25, 0.5, 1.0], "product": ["KQ", "VO"]}
    return _made(coords, dict.fromkeys(("drift", "drift_without_bias"), tuple(coords)))


def _fine_tune() -> xr.Dataset:
    coords = {"time": [0, 1], "seed": [1, 2], "rate": [0.001, 0.01], "domain": [0, 1]}
    pairs, ones = ("time", "seed", "rate"), tuple(coords)
    variables = dict.fromkeys(("kept", "joint_linearity"), pairs) | dict.fromkeys(("linearity", "half_missed"), ones)
    return _made(coords, variables)


def _regime() -> xr.Dataset:
    made = _made(HEADS, dict.fromkeys(("linearity", "outside", "drift"), tuple(HEADS)))
    return made.assign(applies=made["product"] == "VO")


DRAWN = {
    figures.networks.phase_diagram: (_phase_diagram, ["seed"]),
    figures.networks.vit_regime: (_vit_regime, ["seed", "width", "scale"]),
    figures.networks.depth: (_depth, ["seed", "layers", "width", "reach"]),
    figures.networks.linearised: (_linearised, ["seed", "width", "vit_width"]),
    figures.networks.closure: (_closure, ["seed", "time", "layer", "head"]),
    figures.networks.invariants: (_invariants, ["seed", "rate"]),
    figures.networks.narrow_head: (_narrow_head, ["seed", "ratio"]),
    figures.networks.fine_tune: (_fine_tune, ["seed", "rate", "domain"]),
    figures.regime.of_heads: (_regime, ["layer", "head"]),
}


def _words(figure) -> list[str]:
    """Everything that is written."""
    above = [figure.get_suptitle(), *(text.get_text() for legend in figure.legends for text in legend.get_texts())]
    return above + [word for axis in figure.axes for word in (axis.get_title("left"), axis.get_ylabel())]


@pytest.mark.parametrize("draw", DRAWN, ids=lambda draw: draw.__name__)
def test_one_of_anything_is_drawn(draw):
    make, axes = DRAWN[draw]
    whole = make()
    for few in ([], *([axis] for axis in axes), axes):
        figure = draw(whole.isel({axis: [0] for axis in few}))
        figure.draw_without_rendering()
        assert all(axis.has_data() for axis in figure.axes if axis.get_visible() and axis.axison)


@pytest.mark.parametrize("draw", [draw for draw in DRAWN if "border" in DRAWN[draw][0]()], ids=lambda one: one.__name__)
def test_no_border_is_drawn_where_there_is_none(draw):
    make, _ = DRAWN[draw]
    figure = draw(make().map(lambda row: row * np.nan if row.name in ("border", "slope") else row, keep_attrs=True))
    figure.draw_without_rendering()
    assert figure.axes[0].has_data()


def test_a_border_that_is_passed_twice_has_no_slope():
    one = _phase_diagram()
    assert any("slope of e = ½ is" in words for words in _words(figures.networks.phase_diagram(one)))
    twice = one.copy(deep=True)
    twice["linearity"][-1, 0, 0] = [0.9, 0.2, 1.4]
    words = _words(figure := figures.networks.phase_diagram(twice))
    assert not any("slope of e = ½ is" in word for word in words)
    assert any("more than once" in word for word in words)
    figure.draw_without_rendering()


def test_names_are_written_as_in_a_sentence():
    words = _words(figures.networks.phase_diagram(_phase_diagram().assign_attrs(source="cifar10")))
    assert words[0].startswith("ReLU, squared loss, CIFAR-10, d = 8")
    for draw, (make, _) in DRAWN.items():
        assert not any("Linearity" in word or "relu" in word for word in _words(draw(make())))


def test_cells_end_at_the_frame_and_heads_have_whole_numbers():
    figure = figures.networks.vit_regime(_vit_regime())
    figure.draw_without_rendering()
    axis: Any = figure.axes[0]
    cells = axis.collections[0].get_coordinates()
    assert axis.get_ylim() == pytest.approx((cells[..., 1].min(), cells[..., 1].max()))
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["0.25", "0.5", "1", "2", "4"]
    heads = figures.regime.of_heads(_regime())
    assert list(heads.axes[0].get_xticks()) == [0, 1]
    assert list(heads.axes[0].get_yticks()) == [0, 1, 2]


def test_a_drift_that_no_law_forbids_is_not_drawn():
    """Neither in the cells nor in the range of their colours."""
    heads = _regime()
    heads["drift"] = heads["drift"].where(heads["applies"], 1e9)
    whole = xr.Dataset({"linearity": 0.31, "kernel_drift": 0.12, "kernel_drift_error": 0.01})
    figure = figures.regime.of_heads(heads, whole)
    maps: dict[str, Any] = {axis.get_title("left"): axis for axis in figure.axes}
    unlawful, lawful = (maps[f"Drift of the invariant, {product}"] for product in ("KQ", "VO"))
    assert np.ma.getmaskarray(np.ma.masked_invalid(unlawful.collections[0].get_array())).all()
    assert unlawful.collections[1].get_hatch()
    assert len(lawful.collections) == 1
    assert lawful.collections[0].norm.vmax <= 1
    words = " ".join(_words(figure))
    assert "e = 0.31" in words
    assert "kernel drift 0.12 ± 0.01" in words
    assert "no invariant" in words
    assert "rounding" not in words
    noisy = figures.regime.of_heads(heads, whole.assign(linearity_floor=0.2))
    assert "rounding alone gives 0.2" in " ".join(_words(noisy))


def test_a_share_far_away_is_marked_and_flattens_nothing():
    far = _fine_tune()
    far["kept"][-1, 0, 0] = -29.5
    axis = figures.networks.fine_tune(far).axes[0]
    assert axis.get_ylim() == figures.networks.KEPT
    assert "−29.5" in [text.get_text() for text in axis.texts]


def test_a_verdict_names_a_size_that_the_experiment_has():
    claim = check("c", paper="p", where="w", values=1.0, relation="<=", threshold=2.0, size="tiny")
    assert claim.reason == "asserted from size laptop on; tiny is too small to show it"
    assert all({"laptop", "gpu"} <= set(row.sizes) for row in registry().values())
