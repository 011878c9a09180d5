import jax.numpy as jnp
import numpy as np
import pytest

from saddles.core.status import FINISHED, Ending, Status
from saddles.errors import SaddlesError
from saddles.solvers.ode import from_zero, settle, solve


def decay(t, y, rates):
    return -rates * y


RATES = jnp.array([1.0, 3.0])
TIMES = np.linspace(0.0, 5.0, 37)


def exact(times):
    return np.exp(-times[:, None] * np.array([1.0, 3.0])) * [1.0, 2.0]


def test_exact_solution_between_steps_too():
    found = solve(decay, np.array([1.0, 2.0]), TIMES, args=RATES)
    assert found.status == FINISHED
    assert np.abs(found.saved - exact(TIMES)).max() < 5e-9


@pytest.mark.parametrize("stiff", [False, True])
def test_error_follows_the_tolerance(stiff):
    errors = [
        np.abs(solve(decay, np.array([1.0, 2.0]), TIMES, args=RATES, rtol=rtol, stiff=stiff).saved - exact(TIMES)).max()
        for rtol in (1e-4, 1e-6, 1e-8)
    ]
    assert errors[0] > 10 * errors[1] > 100 * errors[2]


def test_implicit_solver_crosses_a_stiff_layer_in_few_steps():
    def field(t, y, args):
        return -1e6 * (y - jnp.cos(t))

    found = solve(field, np.array([0.0]), np.array([0.0, 1.0]), stiff=True, rtol=1e-6)
    assert found.saved[-1, 0] == pytest.approx(np.cos(1.0), abs=2e-6)
    assert found.steps < 200


def test_observation_is_saved_instead_of_the_state():
    found = solve(decay, np.array([1.0, 2.0]), TIMES, args=RATES, observe=lambda t, y, a: {"sum": y.sum()})
    np.testing.assert_allclose(found.saved["sum"], exact(TIMES).sum(axis=1), atol=1e-8)


def test_halt_keeps_what_came_before():
    found = solve(decay, np.array([1.0, 2.0]), TIMES, args=RATES, halt=lambda t, y, a: y[0] < 0.5)
    assert found.status == Status(Ending.STOPPED, "halt condition met")
    assert np.log(2) <= found.end < np.log(2) + 0.5
    assert found.times[-1] <= found.end
    np.testing.assert_allclose(found.saved, exact(found.times), atol=1e-8)


def test_blow_up_stops_by_itself():
    found = solve(lambda t, y, a: y * y, np.array([1.0]), np.linspace(0, 2, 20))
    assert found.status.ending == Ending.DIVERGED
    assert found.status.reason.startswith("near time 0.9")
    np.testing.assert_allclose(found.saved[:, 0], 1 / (1 - found.times), rtol=1e-6)


def test_steps_are_limited():
    found = solve(decay, np.array([1.0, 2.0]), TIMES, args=RATES, max_steps=7)
    assert found.status.ending == Ending.STOPPED
    assert found.status.reason.startswith("7 solver steps")
    np.testing.assert_allclose(found.saved, exact(found.times), atol=1e-8)


def test_a_start_whose_square_underflows_is_followed_to_its_own_accuracy():
    found = solve(lambda t, y, a: y, np.array([1e-200]), np.array([0.0, 200.0]))
    assert found.saved[-1, 0] == pytest.approx(1e-200 * np.exp(200.0), rel=1e-6, abs=0)


def test_settle_finds_rest():
    end, met = settle(decay, np.array([1.0, 2.0]), lambda t, y, a: jnp.abs(y[0]) < 1e-3, args=RATES)
    assert met
    assert np.log(1000) <= end < 1.5 * np.log(1000)
    _, met = settle(decay, np.array([1.0, 2.0]), lambda t, y, a: y[0] < -1.0, args=RATES, max_steps=50)
    assert not met


def test_statistics_count_evaluations():
    found = solve(decay, np.array([1.0, 2.0]), TIMES, args=RATES)
    assert found.evaluations >= 6 * found.steps > 0
    assert found.wall_time > 0


@pytest.mark.parametrize("times", [[], [1.0, 0.5], [-1.0, 2.0], [0.0, np.nan], [[0.0, 1.0]]])
def test_bad_times_are_refused(times):
    with pytest.raises(SaddlesError, match="`times` must be increasing"):
        from_zero(times)


def test_a_flow_does_not_go_back_in_time():
    """`flow_many` and others hand their times on as they are; the solver's own check would give NaN in commands."""
    with pytest.raises(SaddlesError, match="`times` must be increasing numbers"):
        solve(lambda t, y, args: -y, np.ones(2), [0.0, 0.5, 0.2, 1.0])


def test_start_is_put_in_front():
    times, added = from_zero([1.0, 2.0])
    assert times.tolist() == [0.0, 1.0, 2.0]
    assert added == 1


def test_a_flow_that_slides_along_a_kink_is_told_so():
    """y₁ falls to 0 and is pushed back there: between −1 and 1 every solution slides along 0 (Filippov)."""

    def field(t, y, args):
        return jnp.stack([-jnp.sign(y[0]), jnp.ones(())])

    found = solve(field, np.array([0.5, 0.0]), np.array([0.0, 0.4, 100.0]), max_steps=3000)
    assert found.status.ending == Ending.STOPPED
    assert found.status.reason.startswith("3000 solver steps")
    assert "sliding along a kink" in found.status.reason
    np.testing.assert_allclose(found.saved[-1], [0.1, 0.4], rtol=1e-8)
    # with larger steps it arrives, and the error is of their size
    coarse = solve(field, np.array([0.5, 0.0]), np.array([0.0, 10.0]), rtol=1e-2, max_steps=3000)
    assert coarse.status == FINISHED
    np.testing.assert_allclose(coarse.saved[-1], [0.0, 10.0], atol=0.05)


@pytest.mark.parametrize(
    "field",
    [
        lambda t, y, a: -jnp.array([1.0, 1e5]) * y,  # stiff, and smooth
        lambda t, y, a: jnp.array([y[1], 1e3 * (1 - y[0] ** 2) * y[1] - y[0]]),  # van der Pol's
        lambda t, y, a: jnp.array([-y[1], y[0]]) * 1e4,  # many turns
        lambda t, y, a: jnp.array([1.0, jnp.abs((y[0] * 40) % 2 - 1)]) * 1e3,  # kinks that are crossed
        lambda t, y, a: jnp.array([1.0, jnp.sign((y[0] * 40) % 2 - 1)]) * 1e3,  # jumps that are crossed
    ],
)
def test_other_flows_that_spend_their_steps_are_not(field):
    found = solve(field, np.array([1.0, 0.5]), np.array([0.0, 1e3]), max_steps=2000)
    assert found.status.ending == Ending.STOPPED
    assert "kink" not in found.status.reason
