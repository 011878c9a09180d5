"""Certified solutions: two solvers agree, certificates are checked by hand, infeasibility is proved."""

import numpy as np
import pytest

from saddles import predict
from saddles.errors import SaddlesError
from saddles.margin import (
    DiagonalAttention,
    FactoredAttention,
    InfeasibleError,
    JointAttention,
    MaxMargin,
    Tokens,
    aligned_frames,
    max_margin,
    solve,
)
from saddles.margin.certificate import certify
from saddles.margin.primal_dual import PROX, Constraints
from saddles.margin.separation import separation

DUAL = {"l1": lambda m: np.abs(m).max(), "nuclear": lambda m: np.linalg.norm(m, 2), "frobenius": np.linalg.norm}
PRIMAL = {"l1": lambda m: np.abs(m).sum(), "nuclear": lambda m: np.linalg.norm(m, "nuc"), "frobenius": np.linalg.norm}


def _by_hand(task, found):
    """Recompute the certificate from the data with loops."""
    w = np.diag(found.solution) if found.diagonal else found.solution
    push, k = np.zeros_like(w), 0
    for i in range(task.shape[0]):
        best = int(np.argmax(task.y[i] * task.X[i] @ task.head))
        for l in range(task.shape[1]):
            if l == best:
                continue
            gap = task.X[i, best] - task.X[i, l]
            assert gap @ w @ task.z[i] >= 1 - 1e-9
            push += found.multipliers[k] * np.outer(gap, task.z[i])
            k += 1
    if found.diagonal:
        push = np.diag(np.diag(push))
    assert (found.multipliers >= 0).all()
    assert DUAL[found.problem](push) <= 1 + 1e-9
    assert found.dual_objective == pytest.approx(found.multipliers.sum())
    assert found.objective == pytest.approx(PRIMAL[found.problem](w))
    assert found.gap == pytest.approx(1 - found.dual_objective / found.objective, abs=1e-12)


@pytest.mark.parametrize("problem", ["l1", "nuclear", "frobenius"])
@pytest.mark.parametrize("seed", range(3))
def test_both_solvers_agree_and_prove_it(problem, seed):
    task = Tokens.random(3, 4, 8, 1, seed, diagonal=True)
    inner, first = (max_margin(task, problem, method=method) for method in ("interior_point", "primal_dual"))
    assert inner.solver != first.solver
    for found in (inner, first):
        assert found.feasible
        assert -1e-12 <= found.gap <= 1e-6
        _by_hand(task, found)
    assert inner.objective == pytest.approx(first.objective, rel=2e-6)


def test_diagonal_of_every_problem():
    task = Tokens.random(3, 4, 8, 3, 5, diagonal=True)
    one, two = (max_margin(task, name, diagonal=True) for name in ("l1", "nuclear"))
    np.testing.assert_allclose(one.solution, two.solution)
    for method in ("interior_point", "primal_dual"):
        ridge = max_margin(task, "frobenius", diagonal=True, method=method)
        assert ridge.gap <= 1e-6
        _by_hand(task, ridge)
        assert np.abs(ridge.solution).sum() > one.objective
    whole = max_margin(task, "l1", diagonal=False)
    assert whole.objective <= one.objective + 1e-9
    _by_hand(task, whole)


@pytest.mark.parametrize("seed", range(5))
def test_closed_form_of_aligned_data(seed):
    task = Tokens.random(4, 5, 8, 4, seed)
    closed = max_margin(task, "aligned")
    assert abs(closed.gap) < 1e-12
    _by_hand(task, closed)
    assert max_margin(task, "nuclear", method="primal_dual").objective == pytest.approx(closed.objective, rel=2e-6)
    left, right = aligned_frames(task)
    turned = Tokens(task.X @ left, task.z @ right, task.y, left.T @ task.head)
    rotated = max_margin(turned, "l1")
    assert rotated.objective == pytest.approx(closed.objective, rel=1e-9)


def test_recipe_gives_its_number():
    """Σ 1/((1 − c) r_i s_i), from the data alone."""
    task = Tokens.random(3, 3, 6, 4, seed=2)
    best = task.optimal_tokens
    r, s = np.linalg.norm(best, axis=1), np.linalg.norm(task.z, axis=1)
    c = (task.X[0, task.others[0, 0]] @ best[0]) / r[0] ** 2
    assert max_margin(task, "aligned").objective == pytest.approx((1 / ((1 - c) * r * s)).sum(), rel=1e-10)


def test_two_constraints_by_hand():
    """One sequence, two tokens: W = d zᵀ/(|d|²|z|²), norm 1/(|d||z|) in all three matrix norms but l1."""
    X, z = np.array([[[2.0, 1.0], [0.0, 0.0]]]), np.array([[0.0, 3.0]])
    task = Tokens(X, z, [1], [1.0, 0.0])
    for problem in ("nuclear", "frobenius"):
        assert max_margin(task, problem, method="primal_dual").objective == pytest.approx(
            1 / (np.sqrt(5) * 3), rel=1e-6
        )
    assert max_margin(task, "l1", diagonal=False).objective == pytest.approx(1 / 6)
    np.testing.assert_allclose(max_margin(task, "l1").solution, [0, 1 / 3], atol=1e-12)


@pytest.mark.parametrize("method", ["interior_point", "primal_dual"])
@pytest.mark.parametrize("problem", ["l1", "nuclear", "frobenius"])
def test_infeasible_data_come_with_a_proof(problem, method):
    draw = np.random.default_rng(0)
    task = Tokens(
        draw.normal(size=(30, 6, 3)), draw.normal(size=(30, 3)), draw.choice([-1.0, 1.0], 30), draw.normal(size=3)
    )
    with pytest.raises(InfeasibleError, match="combine the constraints to 0") as caught:
        max_margin(task, problem, method=method)
    proof = caught.value.multipliers
    assert (proof >= 0).all()
    assert proof.sum() == pytest.approx(1)
    push = np.einsum("k,kd,ke->de", proof, task.left, task.right)
    push = np.diag(push) if problem == "l1" else push
    assert np.abs(push).max() < 1e-8 * np.abs(task.left).max() * np.abs(task.right).max()


def test_certificate_does_not_trust_its_candidate():
    task = Tokens.random(3, 4, 6, 1, 0)
    best = max_margin(task, "frobenius")
    worse = certify(task, "frobenius", best.solution + 0.01, 2 * best.multipliers, solver="me")
    assert worse.feasible
    assert worse.gap > 1e-4
    scaled = certify(task, "frobenius", 0.3 * best.solution, 7.0 * best.multipliers, solver="me")
    assert scaled.feasible
    assert scaled.gap == pytest.approx(best.gap, abs=1e-12)
    with pytest.raises(SaddlesError, match="must separate"):
        certify(task, "frobenius", -best.solution, best.multipliers, solver="me")


@pytest.mark.parametrize("problem", list(PROX))
def test_prox_is_optimal(problem):
    """y = prox(x): (x − y)/step is a subgradient: dual norm ≤ 1 and ⟨x − y, y⟩ = step ‖y‖."""
    x = np.random.default_rng(1).normal(size=(5, 5))
    y = PROX[problem](x, 0.8)
    pull = (x - y) / 0.8
    assert DUAL[problem](pull) <= 1 + 1e-10
    assert (pull * y).sum() == pytest.approx(PRIMAL[problem](y))


@pytest.mark.parametrize("diagonal", [True, False])
def test_adjoint_is_the_adjoint(diagonal):
    task, draw = Tokens.random(3, 4, 6, 1, 0), np.random.default_rng(0)
    a = Constraints(task, diagonal)
    w, lam = draw.normal(size=6 if diagonal else (6, 6)), draw.normal(size=9)
    assert a.apply(w) @ lam == pytest.approx((w * a.adjoint(lam)).sum())
    np.testing.assert_allclose(a.apply(w) * a.lengths, task.margins(w))


def _scaled(task, tokens, queries):
    return Tokens(tokens * task.X, queries * task.z, task.y, task.head)


SIZES = {6: Tokens.random(3, 4, 6, 1, 1, diagonal=True), 20: Tokens.random(6, 4, 20, 1, 0, diagonal=True)}


@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("method", ["interior_point", "primal_dual"])
@pytest.mark.parametrize("problem", ["l1", "nuclear", "frobenius"])
@pytest.mark.parametrize("dim", [6, 20])
def test_no_solver_knows_the_size_of_the_data(dim, problem, method, diagonal):
    """s times the data have 1/s² times the solution, after the same number of iterations."""
    task = SIZES[dim]
    whole = max_margin(task, problem, diagonal=diagonal, method=method)
    slow = dim == 20 and whole.solver == "Clarabel" and problem == "nuclear"  # a semidefinite program each
    for exponent in (-8, 8) if slow else (-8, -6, -5, -4, -3, -1, 2, 3, 5, 8):
        size = 10.0**exponent
        found = max_margin(_scaled(task, size, size), problem, diagonal=diagonal, method=method)
        assert found.feasible
        assert -1e-12 <= found.gap <= 1e-6
        assert found.objective * size**2 == pytest.approx(whole.objective, rel=2e-6)
        np.testing.assert_allclose(found.solution * size**2, whole.solution, atol=2e-3 * np.abs(whole.solution).max())
        assert abs(found.iterations - whole.iterations) <= max(40, 0.1 * whole.iterations)
    mixed = max_margin(_scaled(task, 1e-8, 1e8), problem, diagonal=diagonal, method=method)
    assert mixed.objective == pytest.approx(whole.objective, rel=2e-6)


def test_a_gap_above_the_tolerance_is_an_error():
    task = SIZES[20]
    with pytest.raises(SaddlesError, match="certified gap must be at most 1e-06; primal-dual ended with"):
        max_margin(task, "nuclear", method="primal_dual", max_iterations=40)
    assert max_margin(task, "nuclear", method="primal_dual", max_iterations=40, tolerance=0.5).gap > 1e-6
    with pytest.raises(SaddlesError, match=r"certified gap .* HiGHS"):
        max_margin(task, "l1", tolerance=-1.0)
    crooked = Tokens.random(4, 5, 8, 4, 0)
    moved = crooked.X + 0.05 * np.random.default_rng(0).normal(size=crooked.X.shape)
    with pytest.raises(SaddlesError, match=r"closed form .* needs Assumption 4"):
        max_margin(Tokens(moved, crooked.z, crooked.y, crooked.head), "aligned")


def _near(distance):
    """Separable data with one token at a distance from the best one, on the worse side."""
    task = SIZES[6]
    X, direction = task.X.copy(), np.random.default_rng(3).normal(size=6)
    direction *= -np.sign(direction @ task.head * task.y[0])
    X[0, task.others[0, 0]] = X[0, task.optimal[0]] + distance * direction
    return Tokens(X, task.z, task.y, task.head)


@pytest.mark.parametrize("distance", [1e-3, 1e-9, 1e-11])
def test_a_token_next_to_the_best_one_is_separable(distance):
    """Whether data are separable depends on directions alone."""
    task = _near(distance)
    margin = separation(task.left, task.right, diagonal=False)
    assert 0 < margin <= distance * 10
    exact = max_margin(task, "frobenius", tolerance=1e-5)
    assert margin == pytest.approx(1 / exact.objective, rel=1e-3)
    for method in ("interior_point", "primal_dual"):
        found = max_margin(task, "nuclear", method=method, tolerance=1e-5)
        assert found.objective <= np.sqrt(6) * exact.objective
        assert found.objective >= exact.objective * (1 - 1e-4)


def test_predictions_are_labelled():
    task = Tokens.random(3, 4, 8, 3, 1, diagonal=True)
    for model, name in ((DiagonalAttention(), "beta"), (FactoredAttention(), "weights"), (JointAttention(), "weights")):
        limit = predict(model, task, MaxMargin())
        assert float(limit["margin"][0]) == pytest.approx(1)
        assert limit[name].dims[0] == "time"
        assert np.isinf(limit["time"].values).all()
        assert float(limit["gap"][0]) < 1e-6


def test_old_names_warn_and_work():
    task = Tokens.random(3, 4, 6, 1, 0)
    best = max_margin(task, "frobenius", method="interior_point")
    with pytest.warns(DeprecationWarning, match="max_margin"):
        assert solve(task, "frobenius", method="interior_point").objective == best.objective
    for old, new in (("small", "interior_point"), ("large", "primal_dual")):
        with pytest.warns(DeprecationWarning, match=new):
            result = max_margin(task, "frobenius", method=old)
        assert result.solver == max_margin(task, "frobenius", method=new).solver


def test_bad_requests_are_named():
    task = Tokens.random(3, 4, 6, 1, 0)
    for make, words in (
        (lambda: max_margin(task, "l7"), "Known: l1"),
        (lambda: max_margin(task, "l1", method="magic"), "Known: auto"),
        (lambda: MaxMargin("l7"), "Known: l1"),
        (lambda: MaxMargin("l1", method="magic"), "Known: auto"),
    ):
        with pytest.raises(SaddlesError, match=words):
            make()
