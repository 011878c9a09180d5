"""Shapes and labels that JAX would stretch, repeat or clamp without a word."""

import re

import jax
import jaxtyping
import numpy as np
import pytest

from saddles import predict
from saddles.diagonal import (
    AttentionHead,
    Diagonal,
    DiagonalTransformer,
    FullHead,
    Incremental,
    LinearDiagonal,
    Supervised,
    TeacherStudent,
    check_assumptions,
    cross_entropy,
)
from saddles.errors import SaddlesError


def _classes(labels):
    """Three inputs, three outputs."""
    return predict(
        Diagonal(lambda beta, batch: batch * beta[None], 3),
        Supervised(np.eye(3), labels, cross_entropy),
        Incremental(1),
    )


def _other():
    """A prediction of another network."""
    predicted = predict(LinearDiagonal(2), Supervised(np.eye(2), np.ones(2)), Incremental(1))
    check_assumptions(LinearDiagonal(3), Supervised(np.eye(3), np.ones(3)), predicted)


HEAD = AttentionHead(2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DiagonalTransformer(2, 1, 2, offsets=np.zeros((1, 3, 3))), "1 layers of 2 heads; got (1, 3, 3)"),
        (lambda: DiagonalTransformer(2, 1, 2, offsets=np.zeros((3, 3))), "`offsets` must have the shape"),
        (lambda: DiagonalTransformer(2, 3, 2, offsets=np.zeros((2, 2, 3, 3))), "3 layers of 2 heads"),
        (lambda: DiagonalTransformer(2, 1, 2, exponents=[1, 2, 3]).powers, "`exponents` must be one number or one for"),
        (lambda: DiagonalTransformer(2, 1, 2, exponents=[1, -1]).powers, "`exponents` must be positive"),
        (lambda: LinearDiagonal(2, exponents=np.inf).powers, "`exponents` must be positive"),
        (lambda: _classes(np.array([1, 2, 3])), "Labels count from 0"),
        (lambda: _classes(np.array([0, -1, 2])), "Labels count from 0"),
        (lambda: TeacherStudent(HEAD, 5, 3, teacher=[1, 2, 3]).targets, "finite numbers of shape (4,)"),
        (lambda: TeacherStudent(LinearDiagonal(2), 5, teacher=[1, 2, 3]).targets, "`teacher` must be"),
        (lambda: TeacherStudent(LinearDiagonal(2), 5, sparsity=-1), "`sparsity` must be"),
        (lambda: TeacherStudent(LinearDiagonal(2), 5, sparsity=3).truth, "`sparsity` must be"),
        (_other, "which has 3 coordinates; it has 2"),
        (lambda: TeacherStudent(FullHead(2), 5, sparsity=1).truth, "`sparsity` must be"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(make, words):
    with pytest.raises(SaddlesError, match=re.escape(words)):
        make()


def test_what_fits_is_taken():
    for shape in ((2, 3, 3), (1, 2, 3, 3)):
        DiagonalTransformer(2, 1, 2, offsets=np.zeros(shape))
    powers = DiagonalTransformer(2, 3, 2, exponents=[[1, 2], [3, 4], [5, 6]]).powers
    np.testing.assert_array_equal(powers, np.repeat(np.arange(1.0, 7.0), 4))
    assert np.isfinite(_classes(np.array([2, 0, 1]))["stage_loss"]).all()
    np.testing.assert_array_equal(TeacherStudent(LinearDiagonal(2), 5, teacher=[1, 2]).truth, [1, 2])
    assert np.count_nonzero(TeacherStudent(LinearDiagonal(5), 5, sparsity=2).truth) == 2


def test_outputs_that_would_be_compared_with_all_targets_are_refused():
    """Outputs (sample, 3, 1) beside targets (sample, 3), without the checks of shapes that only tests switch on."""
    column = Diagonal(lambda beta, batch: (batch @ beta)[..., None], 2)
    task = Supervised(np.ones((4, 3, 2)), np.ones((4, 3)))
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with jax.numpy_rank_promotion("allow"), pytest.raises(SaddlesError, match=r"got \(3, 1\) and \(3,\)"):
            predict(column, task, Incremental(1))
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
