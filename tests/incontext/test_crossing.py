"""Crossed plateaus and frozen heads, against an independent solver of the whole flow."""

import numpy as np
import pytest
from scipy.integrate import DOP853, solve_ivp

import saddles
from saddles.incontext import GradientFlow, Regression, Separate, crossing
from saddles.incontext.crossing import follow_heads
from saddles.incontext.heads import Heads, Part

SPECTRUM = np.cumprod([1.0, 0.7, 0.8, 0.65, 0.75, 0.7, 0.62, 0.78])


def _problem(dim, heads, rank, scale, seed):
    """The heads of a random start in the frame of Λ, and the losses half-way between its plateaus."""
    task = Regression(SPECTRUM[:dim], 31)
    system = Heads(SPECTRUM[:dim], np.diag(np.asarray(task.cost.moment)), heads, rank)
    draw = np.random.default_rng(seed)
    return system, scale * draw.normal(size=system.size), (task.plateaus[1:] + task.plateaus[:-1]) / 2


@pytest.mark.parametrize(("dim", "heads", "rank", "scale"), [(3, 5, 1, 3e-3), (3, 2, 2, 3e-3)])
def test_stage_times_agree_with_lsoda(dim, heads, rank, scale):
    """LSODA is implicit on plateaus, knows nothing of heads at rest, and finds every drop by itself."""
    system, start, levels = _problem(dim, heads, rank, scale, 11)
    events = [lambda t, y, level=level: system.loss(system.matrix(y)) - level for level in levels]
    events[-1].terminal = True  # pyright: ignore[reportFunctionMemberAccess]
    exact = solve_ivp(system.slope, (0, 2e4), start, "LSODA", rtol=1e-9, atol=1e-13, events=events)
    drops = [float(when[0]) for when in exact.t_events]
    found = follow_heads(system, start, until=drops[-1], times=np.array(drops), rtol=1e-9)
    assert found.crossings
    seen = [system.loss(system.matrix(state)) for state in found.states]
    # At these times the loss is falling through the middle of a drop: an error of 1e-4 of the time would show as 1 %.
    np.testing.assert_allclose(seen, levels, rtol=2e-3)


def test_a_plateau_that_cannot_be_crossed_is_stepped_through(monkeypatch):
    class Failing(DOP853):
        def step(self):
            if np.isfinite(self.t_bound):
                return super().step()
            self.status = "failed"  # as where the step would be smaller than the spacing of numbers
            return self.TOO_SMALL_STEP

    system, start, _ = _problem(3, 5, 1, 3e-3, 11)
    times = np.array([300.0])
    plain = follow_heads(system, start, until=times[0], times=times, cross=False)
    monkeypatch.setattr(crossing, "DOP853", Failing)
    found = follow_heads(system, start, until=times[0], times=times)
    assert not found.crossings
    np.testing.assert_allclose(found.states[-1], plain.states[-1], atol=1e-5)


def test_eight_directions_from_1e_8_take_few_slopes():
    """Without freezing it takes 45,000: the steps are then those of the largest eigenvalue all along."""
    task = Regression(SPECTRUM, 31)
    run = saddles.simulate(Separate(16, 1, 1e-8), task, GradientFlow(rtol=1e-7), seed=4)
    assert run.attrs["status"] == "converged"
    assert run.attrs["gradient_evaluations"] < 12_000
    middle = [np.interp(np.mean(edge), run["time"], run["loss"]) for edge in run["crossing"].values]
    np.testing.assert_allclose(middle, task.plateaus[:8], rtol=1e-4)


def test_others_feel_what_frozen_heads_leave():
    """The push is that of the loss minimised over everything that the frozen heads can take back."""
    system, start, _ = _problem(4, 3, 1, 0.3, 5)
    frozen = np.array([True, False, False])
    spans = [part[:1].T / np.linalg.norm(part[0]) for part in system.split(start)[1:]]
    part = Part.of(system, frozen, start, spans)
    matrix = system.matrix(start)
    key, query = (span[:, 0] for span in spans)
    taken = np.hstack([np.kron(key[:, None], np.eye(4)), np.kron(np.eye(4), query[:, None])])
    weight = 2 * (system.moment[:, None] * system.values).ravel()
    push = (2 * np.diag(system.values**2)).ravel() - weight * matrix.ravel()
    answer = np.linalg.lstsq(np.sqrt(weight)[:, None] * taken, push / np.sqrt(weight), rcond=None)[0]
    expected = (push - weight * (taken @ answer)).reshape(4, 4)
    moving = start[part.mine]
    np.testing.assert_allclose(part.system.push(part.system.matrix(moving)), expected, atol=1e-12)
    np.testing.assert_allclose(key @ expected, 0, atol=1e-12)
    np.testing.assert_allclose(expected @ query, 0, atol=1e-12)


def test_of_two_heads_on_one_direction_only_one_is_frozen():
    """Both rest, but the smaller can still turn to another direction, and is left to move."""
    system, start, _ = _problem(3, 4, 1, 1e-8, 7)
    best = (SPECTRUM[0] / system.moment[0]) ** (1 / 3)
    value, key, query = system.split(start)
    for head, share in ((0, 0.9), (1, 0.1)):
        value[head] = best * share ** (1 / 3)
        key[head], query[head] = value[head] * np.eye(3)[[0, 0]]
    part = Part.everything(system).rested(start, 1e-5, 1e-7)
    assert part is not None
    assert part.frozen.tolist() == [True, False, False, False]


def test_frozen_heads_are_released_to_take_back_what_others_add():
    """With as many heads as directions the last one adds to those before it: never released, M ends 0.1 away."""
    values = np.array([1.0, 0.7, 0.5])
    task = Regression(values, 31)
    system = Heads(values, np.diag(np.asarray(task.cost.moment)), 3, 1)
    start = 0.03 * np.random.default_rng(0).normal(size=system.size)
    run = follow_heads(system, start, until=2e3, times=np.array([2e3]), rtol=1e-7)
    assert run.crossings
    np.testing.assert_allclose(system.matrix(run.states[-1]), task.target, atol=1e-4)
