"""Measures against the weights of wide networks that were really trained."""

import numpy as np
import pytest
import xarray as xr

import saddles
from saddles import measures
from saddles.errors import SaddlesError
from saddles.linear.model import TwoLayer
from saddles.linear.task import Denoising
from saddles.solvers.methods import GradientDescent, GradientFlow

TASK = Denoising(7, 2, dim_out=5, seed=4)
WIDTH = 90


@pytest.fixture(scope="module")
def wide() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(2)
    return 0.2 * draw.normal(size=(WIDTH, 7)), 0.2 * draw.normal(size=(5, WIDTH))


@pytest.fixture(scope="module")
def run(wide) -> xr.Dataset:
    return saddles.simulate(
        TwoLayer.from_weights(*wide, variance=0.04), TASK, GradientDescent(0.3, 40),
        keep=("matrix", "gram", "alignment", "factor"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(wide) -> tuple[np.ndarray, np.ndarray]:
    """The wide weights after 40 plain steps."""
    first, second = wide
    for _ in range(40):
        slope = 2 * (second @ first - TASK.observed) / 35
        first, second = first - 0.3 * second.T @ slope, second - 0.3 * slope @ first.T
    return first, second


def test_gram_matrices_are_those_of_the_wide_weights(run, trained):
    first, second = trained
    np.testing.assert_allclose(run["gram_in"].values[-1], first.T @ first, atol=1e-12)
    np.testing.assert_allclose(run["gram_out"].values[-1], second @ second.T, atol=1e-12)


def test_alignment_is_the_cosine_of_hidden_vectors(run, trained):
    first, second = trained
    left, _, right = np.linalg.svd(second @ first, full_matrices=False)
    cosines = [
        (second.T @ left[:, i]) @ (first @ right[i])
        / np.linalg.norm(second.T @ left[:, i]) / np.linalg.norm(first @ right[i])
        for i in range(5)
    ]  # fmt: skip
    np.testing.assert_allclose(run["alignment"].values[-1], cosines, atol=1e-12)


def test_predicted_alignment_is_close_in_a_wide_network():
    model = TwoLayer(10**8, 2e-8)
    run = saddles.simulate(model, TASK, GradientFlow(), times=np.linspace(0, 40, 9), keep=("alignment",))
    gap = np.abs(run["alignment"] - measures.alignment(run))
    assert float(gap.max()) < 1e-3
    assert float(run["alignment"].max()) > 0.9
    assert float(run["alignment"].isel(time=0).max()) < 1e-3


def test_gram_error_by_hand(run):
    found = measures.gram_error(run)
    matrix = run["matrix"].values[-1]
    threshold = 0.04 * WIDTH
    values, vectors = np.linalg.eigh(matrix.T @ matrix + threshold**2 * np.eye(7))
    predicted = (vectors * np.sqrt(values)) @ vectors.T
    error = np.abs(np.linalg.eigvalsh(run["gram_in"].values[-1] - predicted)).max()
    assert float(found["error"].sel(side="in")[-1]) == pytest.approx(error, rel=1e-9)
    norm = np.linalg.norm(run["gram_in"].values[-1], 2)
    bound = min(threshold, np.sqrt(7 / WIDTH) * norm)
    assert float(found["ratio"].sel(side="in")[-1]) == pytest.approx(error / bound, rel=1e-9)


def test_invariant_is_conserved_by_the_flow_and_drifts_with_the_rate():
    """Zero drift under the flow; under descent O(η) at a fixed time, O(η²) a step."""
    model = TwoLayer(20, 0.05)
    flow = saddles.simulate(model, TASK, GradientFlow(rtol=1e-11), times=[0.0, 20.0], keep=("factor",))
    assert float(measures.invariant_drift(flow)[-1]) < 1e-9
    rates = [0.4, 0.2, 0.1]
    at_time, one_step = [], []
    for rate in rates:
        method = GradientDescent(rate, round(20 / rate))
        drift = measures.invariant_drift(saddles.simulate(model, TASK, method, keep=("factor",)))
        at_time.append(float(drift[-1]))
        one_step.append(float(drift[1]))
    assert np.polyfit(np.log(rates), np.log(at_time), 1)[0] == pytest.approx(1.0, abs=0.15)
    assert np.polyfit(np.log(rates), np.log(one_step), 1)[0] == pytest.approx(2.0, abs=0.02)


def test_invariant_is_that_of_the_wide_weights(run, wide, trained):
    balance = [f @ f.T - s.T @ s for f, s in (wide, trained)]
    expected = np.linalg.norm(balance[1] - balance[0]) / np.linalg.norm(balance[0])
    assert float(measures.invariant_drift(run)[-1]) == pytest.approx(expected, rel=1e-8)


def test_stable_rank_and_best():
    data = xr.Dataset(
        {
            "singular_value": (("time", "mode"), [[0.0, 0.0], [2.0, 2.0], [3.0, 0.0]]),
            "test_error": ("time", [3.0, 1.0, 2.0]),
        },
        coords={"time": [0.0, 0.5, 1.0], "step": ("time", [0, 5, 10])},
    )
    assert measures.stable_rank(data).values.tolist() == [0.0, 2.0, 1.0]
    found = measures.best(data)
    assert (float(found["best_test_error"]), float(found["best_time"]), int(found["best_step"])) == (1.0, 0.5, 5)


def test_stable_rank_of_tiny_and_of_missing_spectra():
    rows = [[1e-200, 1e-200], [3e200, 4e200], [np.nan, np.nan], [np.inf, 1.0]]
    rows.append([1.0, np.nan])  # of a smaller matrix, padded
    data = xr.Dataset({"singular_value": (("time", "mode"), rows)}, coords={"time": np.arange(5.0)})
    np.testing.assert_allclose(measures.stable_rank(data), [2.0, 25 / 16, np.nan, np.nan, 1.0])


def test_stable_rank_of_modes_with_a_sign():
    """`Aligned` gives its modes a sign; a norm has none."""
    rows = [[0.5, -2.0], [-1.0, -2.0], [-1e-200, -1e-200]]
    data = xr.Dataset({"singular_value": (("time", "mode"), rows)}, coords={"time": np.arange(3.0)})
    np.testing.assert_allclose(measures.stable_rank(data), [17 / 16, 5 / 4, 2.0])


def test_states_and_crossing_times():
    data = xr.Dataset(
        {"singular_value": (("time", "mode"), [[0.1, 0.1], [1.0, 0.2], [9.0, 0.3]]), "threshold": ((), 0.9)},
        coords={"time": [0.0, 0.5, 1.0]},
    )
    assert measures.mode_state(data).values.tolist() == [["lazy", "lazy"], ["crossing", "lazy"], ["active", "crossing"]]
    crossing = measures.crossing_time(data).values
    assert crossing[0] == 0.5
    assert np.isnan(crossing[1])


def test_a_mode_of_aligned_counts_by_its_size_whatever_its_sign():
    data = xr.Dataset(
        {"singular_value": (("time", "mode"), [[-9.0, 0.1], [-0.1, 0.1]]), "threshold": ((), 0.9)},
        coords={"time": [0.0, 0.5]},
    )
    assert measures.mode_state(data).values.tolist() == [["active", "lazy"], ["lazy", "lazy"]]
    assert measures.crossing_time(data).values[0] == 0.0


def test_initial_matrix_has_the_expected_size():
    """‖A(0)‖ ~ σ²√(wd): the median over seeds of the largest singular value is within a factor 3."""
    sizes = [
        np.linalg.norm(outer @ inner.T, 2)
        for inner, outer in (TwoLayer(10**6, 1e-3).start(Denoising(30, 2), seed) for seed in range(9))
    ]
    assert 1 < np.median(sizes) / (1e-3 * np.sqrt(1e6 * 30)) < 3


def test_missing_variables_are_named(run):
    with pytest.raises(SaddlesError, match="gram_in"):
        measures.gram_error(run.drop_vars("gram_in"))
