"""The max-margin problem with a constraint on the rank."""

import numpy as np
import pytest
import xarray as xr

from saddles.errors import SaddlesError
from saddles.margin import Tokens, low_rank_margin, max_margin
from saddles.margin.experiments.rank import RANK, _only_separating
from saddles.margin.low_rank import local_optimum, separating, truncated, unit_norm


@pytest.mark.parametrize("seed", [1, 5])
def test_rank_one_in_the_plane_is_the_best_of_all_directions(seed):
    """Every W = kqᵀ of the plane is two angles: all of them are tried."""
    task = Tokens.random(2, 3, 2, 1, seed)
    found = low_rank_margin(task, 1)
    angles = np.linspace(0, 2 * np.pi, 1500, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles)])
    margins = (task.left @ circle)[:, :, None] * (task.right @ circle)[:, None, :]
    best = 1 / margins.min(axis=0).max()
    assert found.best.objective <= best
    assert found.best.objective == pytest.approx(best, rel=0.01)
    assert found.proven
    assert np.linalg.matrix_rank(found.best.solution, tol=1e-8) == 1


def test_a_rank_that_does_not_bind_gives_the_convex_solution_and_a_smaller_one_costs():
    task = Tokens.random(4, 4, 6, 3, 0)
    convex = max_margin(task, "nuclear")  # of rank 2
    sizes = [low_rank_margin(task, rank, starts=4, convex=convex) for rank in (1, 2, 3)]
    assert [one.best.feasible for one in sizes] == [True] * 3
    assert [one.best.objective for one in sizes[1:]] == pytest.approx([convex.objective] * 2, rel=1e-6)
    assert all(one.proven for one in sizes)
    assert sizes[0].best.objective > 1.1 * convex.objective
    assert sizes[0].best.dual_objective <= convex.objective
    np.testing.assert_allclose(sizes[1].best.solution, convex.solution, atol=1e-4)


@pytest.mark.parametrize("seed", [24, 31])
def test_all_signs_are_tried(seed):
    """No start leads to anything better; here neither the convex solution nor equal signs lead to the optimum."""
    task, draw = Tokens.random(3, 3, 3, 1, seed), np.random.default_rng(0)
    found = [local_optimum(task, *draw.normal(size=(2, 3, 1))) for _ in range(40)]
    best = min(unit_norm(task, weights) for weights in found if weights is not None)
    assert low_rank_margin(task, 1).best.objective == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize(("tokens", "queries"), [(1e-8, 1e-8), (1e8, 1e8), (1e8, 1e-8)])
def test_the_size_of_the_data_does_not_matter(tokens, queries):
    task = Tokens.random(3, 3, 4, 1, 2)
    scaled = Tokens(tokens * task.X, queries * task.z, task.y, task.head)
    for rank in (1, 2):
        ours, theirs = (low_rank_margin(one, rank, starts=3).best.objective for one in (task, scaled))
        assert theirs * tokens * queries == pytest.approx(ours, rel=1e-5)


def test_a_local_optimum_stays_where_it_is_and_a_wrong_rank_is_told():
    task = Tokens.random(3, 3, 4, 1, 2)
    best = low_rank_margin(task, 1).best
    again = local_optimum(task, *truncated(best.solution, 1))
    assert again is not None
    assert unit_norm(task, again) == pytest.approx(best.objective, rel=1e-6)
    with pytest.raises(SaddlesError, match="between 1 and the 4 coordinates"):
        low_rank_margin(task, 5)


def test_what_only_separates_has_the_signs_that_are_asked_for_and_is_no_optimum():
    task = Tokens.random(4, 4, 6, 3, 1)
    _, query = truncated(low_rank_margin(task, 1).best.solution, 1)
    signs = np.sign(task.z @ query[:, 0])
    pair = separating(task, signs)
    assert pair is not None
    np.testing.assert_array_equal(np.sign(task.z @ pair[1][:, 0]), signs)
    assert task.margins(pair[0] @ pair[1].T).min() > 0
    line = Tokens(np.array([[[1.0], [0.0]], [[0.0], [1.0]]]), np.ones((2, 1)), np.array([1.0, -1.0]), np.ones(1))
    assert separating(line, np.ones(2)) is None  # one k would have to rise and to fall


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_the_null_of_a_local_optimum_is_a_number_and_far_from_one(seed):
    """The first step, cut to rank 1, does not separate here: it would be infinite."""
    task = Tokens.random(4, 4, 6, 3, seed)
    best = low_rank_margin(task, 1).best.solution
    first = np.outer(*(side[:, 0] for side in truncated(task.left.T @ task.right, 1)))
    assert task.margins(first).min() < 0
    null = _only_separating(task, best)
    assert 0.05 < null < np.inf
    signs = np.sign(task.z @ truncated(best, 1)[1][:, 0])
    assert len(set(signs)) == 2
    pair = separating(task, signs)
    assert pair is not None
    # For given signs the problem is convex: the local optimum next to it is the optimum.
    assert unit_norm(task, pair[0] @ pair[1].T) == pytest.approx((1 + null) * unit_norm(task, best), rel=1e-5)


def judged(**changes):
    """Verdicts of three instances that all end near their optimum, but for what is changed."""
    near = {name: np.array([[0.5] * 3, [0.002] * 3]) for name in ("excess_1", "excess_2", "excess_all")}
    far = {name: np.full(3, 0.3) for name in ("other_1", "lower_2", "separating_1", "first_all")}
    values = near | far | {"local_1": np.full(3, 0.002)} | changes
    axes = {1: ("instance",), 2: ("time", "instance")}
    run = xr.Dataset({name: (axes[np.ndim(value)], value) for name, value in values.items()})
    return [claim.verdict for claim in RANK.claims(run, "laptop")]


def test_the_median_at_the_last_norm_is_judged_and_a_lost_flow_is_far():
    assert judged() == ["holds"] * 4
    assert judged(excess_1=np.array([[0.001] * 3, [0.001, 0.02, 0.02]]))[0] == "fails"
    assert judged(excess_2=np.array([[0.5] * 3, [0.001, np.nan, np.nan]]))[1] == "fails"
    assert judged(local_1=np.array([0.001, np.nan, np.nan]))[2] == "fails"
    assert judged(other_1=np.zeros(3), first_all=np.zeros(3)) == ["not_evidence", "holds", "holds", "not_evidence"]
    assert judged(separating_1=np.zeros(3)) == ["holds", "holds", "not_evidence", "holds"]
