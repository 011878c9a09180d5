"""The phase diagram's cells against plain runs, and its certificate against runs that go on."""

import numpy as np
import pytest

import saddles
from saddles.linear import diagram, slots
from saddles.linear.cell import ENDINGS
from saddles.linear.diagram import follow_cells, unit_starts
from saddles.linear.experiments.scaling import rate
from saddles.linear.model import TwoLayer
from saddles.linear.task import Denoising
from saddles.linear.theory import SelfConsistent
from saddles.measures import best, stable_rank
from saddles.solvers.methods import GradientDescent

DIM, SEED = 20, 3
TASK = Denoising(DIM, 3, seed=SEED)
GAMMAS = [(0.2, -1.0), (0.7, -2.0), (1.1, -1.5), (1.6, -1.2), (2.25, -1.85), (2.5, -1.3), (2.6, -0.2)]
WIDTHS = [round(DIM**g) for g, _ in GAMMAS]
CELLS = [(i, DIM**v, rate(DIM, g, v, TASK.target, 5.0)) for i, (g, v) in enumerate(GAMMAS)]


@pytest.fixture(scope="module")
def found():
    return follow_cells(TASK, WIDTHS, CELLS, seed=SEED, limit=3000)


@pytest.mark.parametrize("place", range(len(CELLS)), ids=[str(g) for g in GAMMAS])
def test_a_cell_is_a_plain_run(found, place):
    index, variance, pace = CELLS[place]
    model = TwoLayer(WIDTHS[index], variance)
    method = GradientDescent(pace, int(found["steps"][place]))
    run = saddles.simulate(model, TASK, method, seed=SEED, keep=("matrix",))
    twin = saddles.predict(model, TASK, SelfConsistent(method), seed=SEED, keep=("matrix",))
    at = best(run)
    assert found["best_test_error"][place] == pytest.approx(float(at["best_test_error"]), rel=1e-8)
    step = int(found["best_step"][place])
    assert found["stable_rank"][place] == pytest.approx(float(stable_rank(run).isel(time=step)), rel=1e-6)
    gap = ((run["matrix"] - twin["matrix"].values) ** 2).mean(["row", "column"]).values
    assert found["distance_at_best"][place] == pytest.approx(gap[step], rel=1e-5, abs=1e-16)
    assert gap[: step + 1].max() * (1 - 1e-5) <= found["distance_most"][place] <= gap.max() * (1 + 1e-5) + 1e-16


def test_nothing_better_comes_after_the_certificate(found):
    """Certified cells are run twenty times as long: the best test error stays where it was."""
    certified = np.flatnonzero(found["ending"] == ENDINGS.index("certified"))
    assert len(certified) >= 4
    for place in certified:
        index, variance, pace = CELLS[place]
        method = GradientDescent(pace, 20 * int(found["steps"][place]) + 200)
        run = saddles.simulate(
            TwoLayer(WIDTHS[index], variance), TASK, method, seed=SEED, keep=(), skip=("singular_value",)
        )
        assert int(best(run)["best_step"]) == found["best_step"][place]


def test_slots_and_cores_give_the_same_numbers(found, monkeypatch):
    """The program for GPUs, with fewer slots and smaller batches than cells, on this machine."""
    monkeypatch.setattr(slots, "SLOTS", 3)
    monkeypatch.setattr(slots, "BATCHES", (4, 2, 1))
    monkeypatch.setattr(diagram, "batched", lambda: True)
    ticks = []
    other = follow_cells(TASK, WIDTHS, CELLS, seed=SEED, limit=3000, tick=ticks.append)
    assert sum(ticks) == len(CELLS)
    for name, values in found.items():
        np.testing.assert_allclose(other[name], values, rtol=1e-9, atol=1e-14, err_msg=name)


def test_starts_scale_with_the_deviation():
    """One unit start a width serves every variance, on both sides."""
    (unit,), (twin,) = unit_starts([500], TASK, SEED)
    model = TwoLayer(500, 0.09)
    inner, outer = model.start(TASK, SEED)
    np.testing.assert_allclose(0.3 * unit[0], inner, rtol=1e-12)
    stacked = SelfConsistent().factor(outer @ inner.T, model.threshold)
    ours = 0.3 * twin
    np.testing.assert_allclose(ours @ ours.T, stacked @ stacked.T, atol=1e-10)


def test_a_diverging_cell_ends_alone():
    cells = [(0, 0.01, 1e4), (0, 0.01, 5.0)]
    found = follow_cells(TASK, [100], cells, seed=SEED, limit=500)
    assert [ENDINGS[e] for e in found["ending"]] == ["diverged", "certified"]
