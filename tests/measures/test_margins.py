"""Measures of margin and optimality on arrays whose answers are known."""

import numpy as np
import pytest
import xarray as xr

from saddles.errors import SaddlesError
from saddles.measures import (
    alignment_defect,
    count_above,
    direction_error,
    effective_rank,
    kkt_residuals,
    unit_margin,
)

LEFT = np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
RIGHT = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
BEST = np.diag([1.0, 0.5, 0.0])
MULTIPLIERS = np.array([1.0, 0.5])


@pytest.mark.parametrize("weights", [BEST, np.diag(BEST)], ids=["matrix", "diagonal"])
@pytest.mark.parametrize("size", [1.0, 1e6])
def test_residuals_vanish_at_the_solution(weights, size):
    """min ‖W‖_* with W11 ≥ 1, 2 W22 ≥ 1: W = diag(1, ½, 0), λ = (1, ½)."""
    norm = "nuclear" if weights.ndim == 2 else "l1"
    assert kkt_residuals(size * weights, LEFT, RIGHT, MULTIPLIERS, norm) == pytest.approx((0, 0, 0), abs=1e-12)


def test_each_residual_sees_its_own_fault():
    feasible, stationary, slack = kkt_residuals(np.diag([1.0, 0.7, 0.0]), LEFT, RIGHT, MULTIPLIERS, "nuclear")
    assert (feasible, stationary) == pytest.approx((0, 0), abs=1e-12)
    assert slack == pytest.approx(0.5 * 0.4)
    assert kkt_residuals(BEST, LEFT, RIGHT, 0.8 * MULTIPLIERS, "nuclear")[1] == pytest.approx(0.2)
    assert kkt_residuals(np.diag(BEST), LEFT, RIGHT, 1.3 * MULTIPLIERS, "l1")[1] == pytest.approx(0.3)
    lost = kkt_residuals(-BEST, LEFT, RIGHT, MULTIPLIERS, "nuclear")
    assert lost[0] == 1
    assert np.isnan(lost[1:]).all()
    wider = np.vstack([LEFT, [0.0, 0.0, 1.0]]), np.vstack([RIGHT, [0.0, 0.0, 1.0]])
    off = kkt_residuals(np.diag([1.0, 0.5, 1.0]), *wider, np.array([1.0, 0.5, 0.0]), "nuclear")
    assert off[1] == pytest.approx(1.0)


def test_stationarity_of_the_nuclear_norm_sees_the_rest_block():
    """At W of rank 1 the multipliers may push across it with at most 1: beyond that W would grow there."""
    frame, W = np.eye(2), np.diag([1.0, 1e-6])  # a second singular value that counts as 0
    for push, residual in ((0.4, 0.0), (1.0, 0.0), (1.7, 0.7)):
        _, found, _ = kkt_residuals(W, frame, frame, np.array([1.0, push]), "nuclear")
        assert found == pytest.approx(residual, abs=1e-12)


def test_stationarity_of_the_l1_norm_sees_coordinates_that_are_zero():
    """Beyond the support the multipliers may push with at most 1, too."""
    frame, beta = np.eye(2), np.array([1.0, 1e-6])
    for push, residual in ((0.4, 0.0), (1.0, 0.0), (-1.7, 0.7)):
        _, found, _ = kkt_residuals(beta, frame, frame, np.array([1.0, push]), "l1")
        assert found == pytest.approx(residual, abs=1e-12)


def test_frobenius_stationarity():
    """min ‖W‖_F: W = diag(1, ½), multipliers (1, ¼)/‖W‖."""
    size = np.hypot(1, 0.5)
    right = np.array([1.0, 0.25]) / size
    assert kkt_residuals(BEST, LEFT, RIGHT, right, "frobenius")[1] == pytest.approx(0, abs=1e-12)
    assert kkt_residuals(BEST, LEFT, RIGHT, MULTIPLIERS, "frobenius")[1] > 0.1


def _run(weights, margin):
    weights = np.asarray(weights, dtype=float)
    return xr.Dataset(
        {
            "weights": (("time", "row", "column"), weights),
            "margin": ("time", margin),
            "nuclear_norm": ("time", [np.linalg.norm(w, "nuc") for w in weights]),
            "frobenius_norm": ("time", [np.linalg.norm(w) for w in weights]),
        },
        coords={"time": np.arange(len(weights))},
    )


def test_norms_directions_ranks():
    run = _run([np.zeros((2, 2)), np.diag([2.0, 2.0]), np.diag([3.0, 0.01])], [-1.0, 2.0, 3.0])
    np.testing.assert_allclose(unit_margin(run)["nuclear"], [np.nan, 2.0, 3.01 / 3])
    np.testing.assert_allclose(effective_rank(run["weights"])[:2], [0, 2])
    np.testing.assert_array_equal(count_above(run["weights"]), [0, 2, 1])
    apart = direction_error(run, np.eye(2))
    np.testing.assert_allclose(apart["norm"], [np.nan, 0, np.hypot(0, 0.01 / 3 - 1) / np.sqrt(2)])
    assert float(apart["cosine"][1]) == pytest.approx(0, abs=1e-12)
    turn = np.array([[0.0, 1.0], [1.0, 0.0]])
    np.testing.assert_allclose(alignment_defect(run, np.eye(2), np.eye(2)), 0)
    np.testing.assert_allclose(alignment_defect(run, turn, np.eye(2)), [0, 1, 1])


def test_missing_variables_are_named():
    with pytest.raises(SaddlesError, match="margin"):
        unit_margin(xr.Dataset())
