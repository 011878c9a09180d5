"""What `beside` refuses: targets and losses that do not fit the network, each in one sentence."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from saddles import networks
from saddles.errors import SaddlesError
from saddles.networks.side_by_side import loss_of, pairs

DRAW = np.random.default_rng(6)
INPUTS, TARGETS = DRAW.normal(size=(6, 4)), DRAW.normal(size=(6, 3))
LABELS = np.array([0, 2, 1, 1, 0, 2])
START = {"weight": jnp.asarray(DRAW.normal(size=(4, 3)))}


def affine(at, x):
    return jnp.asarray(x) @ at["weight"]


def run(targets, loss: Any = "squared", steps=2):
    return networks.beside(affine, START, [(INPUTS, targets)] * steps, INPUTS, rate=0.1, loss=loss)


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (LABELS.astype(float), r"one whole number, its class, for each of 6 samples; got float64 of shape \(6,\)"),
        (TARGETS, r"got float64 of shape \(6, 3\)"),
        (LABELS[:5], r"for each of 6 samples; got int64 of shape \(5,\)"),
        (LABELS > 1, r"got bool of shape \(6,\)"),
        (np.where(LABELS == 2, -1, LABELS), "classes from 0 to 2, as the network has 3 outputs; got -1"),
        (np.where(LABELS == 2, 3, LABELS), "classes from 0 to 2, as the network has 3 outputs; got 3"),
        (torch.full((6,), -100), "got -100"),
    ],
)
def test_labels_that_are_no_classes_are_refused(targets, words):
    with pytest.raises(SaddlesError, match=words):
        run(targets, "cross-entropy")


def test_labels_may_be_a_column_and_of_any_library():
    expected = run(LABELS, "cross-entropy")
    for targets in (LABELS[:, None], torch.tensor(LABELS), jnp.asarray(LABELS), LABELS.astype(np.uint8)):
        assert run(targets, "cross-entropy").equals(expected)


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (TARGETS[:, :2], r"one row for each of 6 samples, with its 3 outputs; got float64 of shape \(6, 2\)"),
        (TARGETS[:5], r"got float64 of shape \(5, 3\)"),
        (TARGETS.reshape(-1), r"got float64 of shape \(18,\)"),
        (TARGETS.T, r"got float64 of shape \(3, 6\)"),
        (TARGETS + 1j, r"got complex128 of shape \(6, 3\)"),
        (np.where(TARGETS > 1, np.nan, TARGETS), "not finite"),
        ([[1.0], [2.0, 3.0]], "`targets` must be an array of numbers"),
    ],
)
def test_targets_of_another_shape_are_refused(targets, words):
    with pytest.raises(SaddlesError, match=words):
        run(targets)


def test_targets_of_narrow_types_are_read():
    narrow = torch.tensor(TARGETS).bfloat16()
    expected = run(narrow.double())
    assert run(narrow).equals(expected)
    assert run(jnp.asarray(TARGETS).astype(jnp.bfloat16)).equals(expected)


def halves(values, targets):
    rest = values - targets
    return np.sum(rest**2) / (2 * len(rest)), rest / len(rest)


def test_a_loss_of_ones_own():
    expected = run(TARGETS)
    assert run(TARGETS, halves).equals(expected)

    def in_torch(values, targets):
        at = torch.tensor(values, requires_grad=True)
        loss = (at - torch.tensor(targets)).square().sum() / (2 * len(values))
        loss.backward()
        return loss, at.grad

    again = run(TARGETS, in_torch)
    for name in ("loss", "linearised_loss"):
        np.testing.assert_allclose(again[name], expected[name], rtol=1e-12)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (nn.MSELoss(), r"`loss` fails on outputs and targets, which it gets as arrays of NumPy \(\w+Error: "),
        (lambda values, targets: torch.tensor(1.0), "its gradient by the outputs, .* got Tensor"),
        (lambda values, targets: torch.zeros(2), "got Tensor"),
        (lambda values, targets: 1.0, "got float"),
        (lambda values, targets: (1.0, np.zeros(6)), r"of shape \(6, 3\); got float64 of shape \(\), float64 of shape"),
        (lambda values, targets: (1.0, values + 1j), "complex128"),
        (lambda values, targets: values["a"], "`loss` fails .*IndexError"),
    ],
)
def test_a_loss_that_gives_something_else_is_refused(loss, words):
    with pytest.raises(SaddlesError, match=words):
        run(TARGETS, loss)
    with pytest.raises(SaddlesError, match="`loss` must be 'squared', 'cross-entropy' or a function"):
        loss_of(5)


@pytest.mark.parametrize("batches", [[INPUTS], [INPUTS[:2]], {"a": 1}, 5, [(INPUTS, TARGETS, 1)]])
def test_batches_are_pairs(batches):
    with pytest.raises(SaddlesError, match=r"`batches` must be pairs \(inputs, targets\), one for each step; got"):
        list(pairs(batches))
