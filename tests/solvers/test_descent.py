import numpy as np

from saddles.core.status import FINISHED, Ending, Status
from saddles.solvers.descent import iterate


def halve(state, args):
    return state * args


def see(state, args):
    return {"value": state[0]}


def test_saves_the_start_every_stride_and_the_end():
    done = iterate(halve, np.array([1.0]), 10, args=0.5, observe=see, save_every=4)
    assert done.steps.tolist() == [0, 4, 8, 10]
    np.testing.assert_allclose(done.saved["value"], 0.5 ** np.array([0, 4, 8, 10]))
    assert done.status == FINISHED


def test_long_runs_go_in_blocks():
    done = iterate(halve, np.array([1.0]), 100, args=0.99, observe=see)
    np.testing.assert_allclose(done.saved["value"], 0.99 ** np.arange(101))


def test_divergence_keeps_what_came_before():
    done = iterate(halve, np.array([1.0]), 100, args=10.0, observe=see, guard="value")
    assert done.status == Status(Ending.DIVERGED, "at step 8")
    assert done.steps.tolist() == list(range(8))
    np.testing.assert_allclose(done.saved["value"], 10.0 ** np.arange(8))


def test_a_number_that_falls_far_below_a_tiny_start_has_not_diverged():
    def grow(state, args):
        return state * args

    def below(state, args):
        return {"value": -state[0]}

    done = iterate(grow, np.array([1e-12]), 40, args=2.0, observe=below, guard="value")
    assert done.status.ok
    np.testing.assert_allclose(done.saved["value"], -1e-12 * 2.0 ** np.arange(41))


def test_a_start_that_is_no_number_is_kept_alone():
    done = iterate(halve, np.array([np.nan]), 10, args=0.5, observe=see, guard="value")
    assert done.status == Status(Ending.DIVERGED, "at step 1")
    assert done.steps.tolist() == [0]


def test_no_steps_is_the_start_alone():
    assert iterate(halve, np.array([3.0]), 0, args=0.5, observe=see).saved["value"].tolist() == [3.0]


def test_one_program_serves_all_blocks_and_a_filled_one_takes_no_further_step():
    traced = []

    def observe(state, args):
        traced.append(state)
        return {"value": state[0]}

    done = iterate(halve, np.array([1.0]), 101, args=0.99, observe=observe, save_every=2)
    assert len(traced) == 1  # in the one program of all blocks, the start's among them
    assert done.steps.tolist() == [*range(0, 101, 2), 101]
    np.testing.assert_allclose(done.saved["value"], 0.99**done.steps)
    np.testing.assert_allclose(done.state, [0.99**101])
