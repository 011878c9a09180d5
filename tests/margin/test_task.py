"""Tokens, generators, checkers: every assumption drawn, checked, broken; bad input named."""

import numpy as np
import pytest

from saddles.errors import SaddlesError
from saddles.margin import Tokens, check_assumptions
from saddles.margin.assumptions import CONDITIONS
from saddles.margin.separation import hull


def _parts(seed=0, n=3, length=4, dim=5):
    draw = np.random.default_rng(seed)
    return (
        draw.normal(size=(n, length, dim)),
        draw.normal(size=(n, dim)),
        np.array([1.0, -1.0, 1.0][:n]),
        draw.normal(size=dim),
    )


@pytest.mark.parametrize("assumption", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_generated_data_satisfy_their_assumption(assumption, seed):
    checked = check_assumptions(Tokens.random(4, 5, 8, assumption, seed))
    expected = {1: [1], 2: [1, 2], 3: [1, 2, 3], 4: [1, 2, 3, 4]}[assumption]
    assert [k for k in (1, 2, 3, 4) if checked.about(str(k)).hold] == expected
    assert [check.name for check in checked.checks] == list(CONDITIONS)


def _value(task, condition):
    (check,) = check_assumptions(task).about(condition).checks
    return check.value


def test_diagonal_separability_is_a_matter_of_its_own():
    task = Tokens.random(4, 4, 6, 1, seed=3)
    assert _value(task, "1 separable") > 0.1
    assert _value(task, "diagonal separable") == 0
    again = Tokens.random(4, 4, 12, 1, seed=3, diagonal=True)
    assert _value(again, "diagonal separable") > 1e-6


def test_scores_margins_and_constraints_by_loops():
    X, z, y, head = _parts()
    task = Tokens(X, z, y, head)
    w = np.random.default_rng(1).normal(size=(5, 5))
    wanted, flat = [], []
    for i in range(3):
        scores = [y[i] * head @ X[i, l] for l in range(4)]
        best = int(np.argmax(scores))
        assert task.optimal[i] == best
        for l in range(4):
            if l != best:
                wanted.append((X[i, best] - X[i, l]) @ w @ z[i])
                flat.append((X[i, best] - X[i, l]) @ np.diag(np.diag(w)) @ z[i])
    np.testing.assert_allclose(task.margins(w), wanted)
    np.testing.assert_allclose(task.margins(np.diag(w)), flat)
    np.testing.assert_allclose(task.margins(np.stack([w, 2 * w]))[1], 2 * np.array(wanted))


def test_checker_sees_what_is_broken():
    task = Tokens.random(3, 5, 7, 4, seed=1)
    X = task.X.copy()
    X[0, task.others[0, 0]] += 0.1 * np.random.default_rng(0).normal(size=7)
    broken = check_assumptions(Tokens(X, task.z, task.y, task.head))
    assert "4iii paired" in broken.broken
    assert "4iii paired" in broken.reason
    assert "4ii parallel to the query" not in broken.broken
    turned = check_assumptions(Tokens(task.X, task.z + 0.2 * task.z[::-1], task.y, task.head))
    assert "4i queries orthogonal" in turned.broken
    assert _value(Tokens(task.X, task.z, task.y, 0.1 * task.head), "3 initial loss") < 0
    even = np.delete(task.X, task.others[0, 0], axis=1) if (task.optimal != task.others[0, 0]).all() else None
    assert even is None or np.isinf(_value(Tokens(even, task.z, task.y, task.head), "4iii paired"))


def test_the_sufficient_condition_of_assumption_3():
    """Least mean score − largest other score ≥ ln n is enough, and not necessary."""
    for seed in range(20):
        task = Tokens.random(4, 3, 6, 3, seed)
        assert task.scores.mean(axis=1).min() - task.other_scores.max() >= np.log(4)
        assert _value(task, "3 initial loss") > 0


def test_distance_to_the_hull_of_a_known_polygon():
    distance, weights = hull(np.array([[1.0, 1.0, 2.0], [1.0, -1.0, 0.3]]))
    assert distance == pytest.approx(1.0)
    np.testing.assert_allclose(weights, [0.5, 0.5, 0.0], atol=1e-9)
    around = np.array([[1.0, -1.0, 0.0], [1.0, 1.0, -1.0]])
    distance, weights = hull(around)
    assert distance == 0
    np.testing.assert_allclose(around @ weights, 0, atol=1e-12)


def _changed(**changes):
    parts = dict(zip(("X", "z", "y", "head"), _parts(), strict=True))
    return Tokens(**(parts | changes))


def test_bad_input_is_named():
    X, _, _, head = _parts()
    cases = [
        (lambda: _changed(X=np.where(np.arange(5) == 2, np.nan, X)), "`X` must hold finite numbers; got nan at"),
        (lambda: _changed(z=np.full((3, 5), np.inf)), "got inf"),
        (lambda: _changed(X=np.zeros((3, 0, 5))), "none of them 0"),
        (lambda: _changed(X=[[[1.0]], []]), "one common length"),
        (lambda: _changed(X=X[:, :1]), "at least two tokens"),
        (lambda: _changed(y=[1, 0, 1]), "1 or -1"),
        (lambda: _changed(z=np.zeros((3, 4))), "one query and one label"),
        (lambda: _changed(head=np.zeros(5)), "equal scores"),
        (lambda: _changed(X=np.concatenate([X, X], axis=1)), "tied optimal tokens"),
        (lambda: Tokens.random(3, 4, 5, 7), "1, 2, 3 or 4"),
        (lambda: Tokens.random(3, 4, 5, 4), "odd `length`"),
        (lambda: Tokens.random(0, 4, 5), "at least 1"),
        (lambda: Tokens.random(3, 4, 5, seed=-1), "`seed` must be a whole number of at least 0; got -1"),
        (lambda: Tokens.random(40, 8, 2, 1), "None of 200 draws"),
    ]
    for make, words in cases:
        with pytest.raises(SaddlesError, match=words):
            make()
    assert head.shape == (5,)
