"""The border of wide linear networks, against networks that were trained; the cells of the diagram, against the lab."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saddles
from saddles import networks
from saddles.errors import SaddlesError
from saddles.networks import diagram
from saddles.networks.diagram import follow_grid
from saddles.networks.phases import crossing, slope_of
from saddles.solvers.top_eigenvalue import top_eigenvalue

DRAW = np.random.default_rng(2)
INPUTS = np.linalg.qr(DRAW.normal(size=(40, 4)))[0] * np.sqrt(40)  # whitened: XᵀX/n = 1
TARGET = np.diag([1.0, 0.6, 0.3, 0.0])[:3]
TASK = networks.Regression(INPUTS, INPUTS @ TARGET.T, INPUTS[:5], INPUTS[:5] @ TARGET.T)


def test_predicted_linearity_of_lazy_modes_keeps_its_digits():
    """e = x²/8 − O(x⁴) for x = s/σ²w: below x = 1e-8 it used to be 0."""
    thresholds = 10.0 ** np.arange(4, 13)
    found = networks.predicted_linearity([1.0], thresholds)
    np.testing.assert_allclose(found * thresholds**2, 0.125, rtol=1e-7)
    # e = 1 − 1/cosh G and x = sinh 2G, from G
    for level in (1e-14, 1e-3, 0.5, 0.999):
        exact = 1 / np.sinh(2 * np.arccosh(1 / (1 - level))) if level > 1e-6 else 1 / np.sqrt(8 * level)
        assert networks.predicted_border([1.0], level) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
@pytest.mark.parametrize("level", [1e-30, 0.5, 1 - 1e-7])
def test_borders_do_not_depend_on_units_and_lie_between_those_of_the_modes(size, level):
    """They used to be searched for between 1e-12 and 1e12 of the largest mode, from squares."""
    cosh = 1 / (1 - level)
    own = 2 * cosh * np.sqrt((cosh - 1) * (cosh + 1)) if level > 1e-3 else np.sqrt(8 * level)
    assert networks.predicted_border([size, 0.0], level) == pytest.approx(size / own, rel=1e-6)
    border = networks.predicted_border([size, 0.3 * size], level)
    assert 0.3 * size / own < border < size / own
    assert networks.predicted_linearity([size, 0.3 * size], border) == pytest.approx(level, rel=1e-9)


@pytest.mark.parametrize(("values", "level"), [([0.0, 0.0], 0.5), ([], 0.5), ([np.nan], 0.5), ([1.0], 1.0)])
def test_a_border_that_is_not_there_is_refused(values, level):
    with pytest.raises(SaddlesError, match="must be"):
        networks.predicted_border(values, level)


@pytest.mark.parametrize("threshold", [0.02, 0.2])
def test_predicted_linearity_is_that_of_a_wide_linear_network(threshold):
    width = 4000
    row = follow_grid(TASK, [width], [threshold / width], activation="linear", steps=120, saved=1, precision="float64")
    assert row["loss"][-1] < 1e-6
    assert row["linearity"][-1, 0, 0] == pytest.approx(
        float(networks.predicted_linearity([1, 0.6, 0.3], threshold)), abs=0.02
    )


def test_border_of_one_mode_is_at_four_root_three():
    assert networks.predicted_border([1.0]) == pytest.approx(1 / (4 * np.sqrt(3)), rel=1e-9)
    assert float(networks.predicted_linearity([2.0, 1.0], networks.predicted_border([2.0, 1.0]))) == pytest.approx(0.5)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_cell_has_the_linearity_of_the_measure(activation):
    """From the same weights: what a cell says of its change is what `linearity` and `simulate` say."""
    row = follow_grid(TASK, [8], [0.05, 0.5], activation=activation, steps=30, saved=1, precision="float64")
    row = {name: values[:, 0] for name, values in row.items()}
    assert row["linearity"].shape == (2, 2)
    assert (row["linearity"][0] == 0).all()
    assert (row["loss"][-1] < row["loss"][0]).all()
    flow = saddles.simulate(networks.Perceptron(8, 0.05, activation), TASK, networks.GradientFlow(until=40.0))
    close = int(abs(flow["loss"] / (np.sum(TASK.targets**2) / 80) - row["loss"][-1, 0]).values.argmin())
    assert float(flow["linearity"][close]) == pytest.approx(row["linearity"][-1, 0], abs=0.1)


def parted(flat, width):
    inner, outer = jnp.split(flat, [width * 4])
    return inner.reshape(width, 4), outer.reshape(3, width)


def loss_of(flat, width, loss):
    inner, outer = parted(flat, width)
    values = jnp.tanh(INPUTS @ inner.T) @ outer.T
    if loss == "squared":
        return jnp.sum((values - TASK.targets) ** 2) / 80
    return -jnp.mean(jnp.log(jax.nn.softmax(values))[np.arange(40), TASK.targets.argmax(1)])


curved, slope = (jax.jit(make(loss_of), static_argnums=(1, 2)) for make in (jax.hessian, jax.grad))


def descent(width, variance, steps, loss):
    """Loss over that of f = 0 and stable rank of ΔW_1, from dense Hessians and plain matrices."""
    start = networks.Perceptron(width, variance, "tanh").start(TASK, 5)
    draw, size = np.random.default_rng([5, 33]), 0.0
    at = jnp.concatenate([part.reshape(-1) for part in start])
    along = jnp.concatenate([draw.normal(size=part.shape).reshape(-1) for part in start])
    for step in range(-20, steps):
        bent = curved(at, width, loss) @ along
        size = max(float(jnp.linalg.norm(bent)), 0.9 * size)
        along = bent / jnp.linalg.norm(bent)
        at = at - (step >= 0) * slope(at, width, loss) / size
    moved = np.linalg.svd(np.asarray(parted(at, width)[0]) - start[0], compute_uv=False)
    return float(loss_of(at, width, loss) / loss_of(0 * at, width, loss)), float(np.sum(moved**2) / moved[0] ** 2)


@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_cells_of_a_grid_are_networks_alone(loss, monkeypatch):
    """Whatever blocks they are cut into and whichever load they are in."""
    widths, variances, steps = [3, 7], [0.05, 0.5], 4
    monkeypatch.setattr(diagram, "LARGEST_BLOCK", 2)
    monkeypatch.setitem(diagram.ROOM, "cpu", 600)  # 15 hidden units of 40 samples: several loads
    ticks = []
    grid = follow_grid(
        TASK,
        widths,
        variances,
        activation="tanh",
        loss=loss,
        seed=5,
        steps=steps,
        saved=2,
        precision="float64",
        tick=ticks.append,
    )
    assert sum(ticks) == 20
    assert len(ticks) == 2
    for place, (width, variance) in enumerate((w, v) for w in widths for v in variances):
        expected, rank = descent(width, variance, steps, loss)
        assert grid["loss"][-1].ravel()[place] == pytest.approx(expected, rel=1e-9)
        assert grid["stable_rank"][-1].ravel()[place] == pytest.approx(rank, rel=1e-9)


def test_loads_are_of_equal_size():
    sizes = np.array([1, 1, 2, 3, 5, 8, 1, 1, 2, 3, 5, 8])
    loads = diagram.dealt(sizes, 14)
    assert sorted(np.concatenate(loads)) == list(range(12))
    assert [int(sizes[load].sum()) for load in loads] == [14, 13, 13]
    assert len(diagram.dealt(sizes, 3)) == 5  # a load has room for the largest


def test_top_eigenvalue():
    draw = np.random.default_rng(0)
    factors = draw.normal(size=(3, 9, 6))
    factors[1] = 0
    factors[2] = np.linalg.qr(factors[2])[0]  # all eigenvalues equal
    grams = np.swapaxes(factors, 1, 2) @ factors
    expected = np.linalg.eigvalsh(grams)[:, -1]
    np.testing.assert_allclose(top_eigenvalue(jnp.asarray(grams)), expected, rtol=1e-13)


def test_crossing_and_slope():
    across = np.array([-3.0, -2.0, -1.0, 0.0])
    assert crossing(np.array([1.0, 0.8, 0.3, 0.1]), across) == pytest.approx(-1.4)
    assert np.isnan(crossing(np.array([0.1, 0.1, 0.1, 0.1]), across))
    assert np.isnan(crossing(np.array([1.0, 0.9, 0.8, 0.7]), across))
    assert slope_of(np.array([-2.0, -2.5, np.nan, -3.5]), np.array([1.0, 1.5, 2.0, 2.5])) == pytest.approx(-1)
    assert np.isnan(slope_of(np.array([-2.0, np.nan, np.nan]), np.arange(3.0)))
