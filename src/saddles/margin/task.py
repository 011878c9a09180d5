"""The task of the margin lab: sequences of tokens, a query and a label each, and a fixed prediction head.

Scores γ_il = y_i vᵀx_il; the optimal token opt(i) has the largest (paper, Definition 3.1). Everything the dynamics and
the convex problems see of the data are the constraints (x_i,opt − x_il)ᵀ W z_i, one for each token l ≠ opt(i).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from saddles.errors import SaddlesError
from saddles.margin import generate

TIE = 1e-12
"""Two scores closer than this part of the largest score of their sequence are equal."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """Sequences X_i, queries z_i, labels y_i = ±1 and the head v.

    Args:
        X: tokens, shape (sequence, token, coordinate), at least two tokens a sequence.
        z: queries, shape (sequence, coordinate).
        y: labels, each 1 or −1.
        head: v, shape (coordinate,).

    Fails where the optimal token of a sequence is not unique, for then there is nothing to separate.
    """

    X: Any
    z: Any
    y: Any
    head: Any

    def __post_init__(self) -> None:
        X, z, y, head = (_numbers(getattr(self, name), name) for name in ("X", "z", "y", "head"))
        _check_shapes(X, z, y, head)
        for name, value in (("X", X), ("z", z), ("y", y), ("head", head)):
            object.__setattr__(self, name, value)
        _check_scores(self.scores)

    @classmethod
    def random(
        cls,
        n: int,
        length: int,
        dim: int,
        assumption: int = 3,
        seed: int = 0,
        *,
        diagonal: bool = False,
    ) -> "Tokens":
        """Random data that satisfy an assumption of the paper.

        Args:
            n, length, dim: sequences, tokens a sequence, coordinates.
            assumption: 1 separable; 2 and equal scores of the tokens that are not optimal; 3 and a small initial loss;
                4 orthogonal, parallel and paired tokens (2 and 3 hold as well; `length` odd, n ≤ dim − 2).
            seed: of the draw.
            diagonal: draw again until a diagonal W separates, which no assumption grants.
        """
        makers = {1: generate.plain, 2: generate.equal, 3: generate.confident, 4: generate.paired}
        if assumption not in makers:
            raise SaddlesError.about(f"assumption={assumption!r} came", "1, 2, 3 or 4 is generated", "3 is the default")
        generate.check_sizes(n, length, dim, assumption)
        return generate.separable(
            lambda draw: cls(*makers[assumption](n, length, dim, draw)), seed, diagonal=diagonal, sizes=(n, length, dim)
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Sequences, tokens, coordinates."""
        return self.X.shape

    @cached_property
    def scores(self) -> np.ndarray:
        """γ_il = y_i vᵀx_il, shape (sequence, token)."""
        return self.y[:, None] * (self.X @ self.head)

    @cached_property
    def optimal(self) -> np.ndarray:
        """opt(i), shape (sequence,)."""
        return self.scores.argmax(axis=1)

    @cached_property
    def others(self) -> np.ndarray:
        """The tokens that are not optimal, in order, shape (sequence, length − 1)."""
        n, length, _ = self.shape
        return np.broadcast_to(np.arange(length), (n, length))[np.arange(length) != self.optimal[:, None]].reshape(
            n, length - 1
        )

    @cached_property
    def optimal_scores(self) -> np.ndarray:
        """γ_i,opt, shape (sequence,)."""
        return np.take_along_axis(self.scores, self.optimal[:, None], 1)[:, 0]

    @cached_property
    def other_scores(self) -> np.ndarray:
        """γ_il of the tokens that are not optimal, shape (sequence, length − 1)."""
        return np.take_along_axis(self.scores, self.others, 1)

    @cached_property
    def optimal_tokens(self) -> np.ndarray:
        """x_i,opt, shape (sequence, coordinate)."""
        return self.X[np.arange(len(self.X)), self.optimal]

    @cached_property
    def left(self) -> np.ndarray:
        """x_i,opt − x_il, shape (constraint, coordinate); constraints go sequence by sequence."""
        tokens = np.take_along_axis(self.X, self.others[:, :, None], 1)
        return (self.optimal_tokens[:, None] - tokens).reshape(-1, self.shape[2])

    @cached_property
    def right(self) -> np.ndarray:
        """z_i once for each constraint, shape (constraint, coordinate)."""
        return np.repeat(self.z, self.shape[1] - 1, axis=0)

    @cached_property
    def diagonal(self) -> np.ndarray:
        """B_il = z_i ⊙ (x_i,opt − x_il), shape (constraint, coordinate)."""
        return self.left * self.right

    def margins(self, weights: Any) -> np.ndarray:
        """(x_i,opt − x_il)ᵀ W z_i, shape (…, constraint); `weights` is W (…, row, column) or a diagonal's β.

        A vector is a β; anything else has W in its last two axes.
        """
        w = np.asarray(weights, dtype=float)
        if w.ndim == 1:
            return self.diagonal @ w
        n, length, d = self.shape
        seen = w @ self.z.T
        left = self.left.reshape(n, length - 1, d)
        return np.einsum("nld,...dn->...nl", left, seen).reshape(*w.shape[:-2], -1)

    @cached_property
    def least_loss(self) -> float:
        """L* = mean exp(−γ_i,opt), the infimum of the loss."""
        return float(np.exp(-self.optimal_scores).mean())


def _numbers(value: Any, name: str) -> np.ndarray:
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError) as error:
        raise SaddlesError.about(
            f"{name} came that is no array of numbers", "sequences have one common length", "pad or cut them"
        ) from error
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise SaddlesError.about(
            f"{name} with {array[where]} at {list(where)} came", "finite numbers are needed", "clean it first"
        )
    return array


def _check_shapes(X: np.ndarray, z: np.ndarray, y: np.ndarray, head: np.ndarray) -> None:
    if X.ndim != 3 or 0 in X.shape:
        raise SaddlesError.about(
            f"tokens X of shape {X.shape} came", "(sequence, token, coordinate), none of them empty, is needed",
            "leave out empty sequences",
        )  # fmt: skip
    n, length, dim = X.shape
    if length < 2:
        raise SaddlesError.about(
            "sequences of one token came", "there is nothing to separate it from", "give at least two tokens each"
        )
    if z.shape != (n, dim) or y.shape != (n,) or head.shape != (dim,):
        raise SaddlesError.about(
            f"z, y and head of shapes {z.shape}, {y.shape} and {head.shape} came",
            f"X of shape {X.shape} needs {(n, dim)}, {(n,)} and {(dim,)}", "one query and one label a sequence",
        )  # fmt: skip
    if not np.isin(y, (-1.0, 1.0)).all():
        raise SaddlesError.about(
            f"the label {y[~np.isin(y, (-1.0, 1.0))][0]:g} came", "labels are 1 or -1", "map your two classes to them"
        )


def _check_scores(scores: np.ndarray) -> None:
    ordered = np.sort(scores, axis=1)
    size = TIE * np.maximum(np.abs(scores).max(axis=1), np.finfo(float).tiny)
    if (flat := np.flatnonzero(ordered[:, -1] - ordered[:, 0] <= size)).size:
        raise SaddlesError.about(
            f"sequence {flat[0]} came with equal scores {ordered[flat[0], 0]:.4g} of all its tokens",
            "one token must have the largest score yᵢ vᵀx", "check the head, or leave the sequence out",
        )  # fmt: skip
    if (tied := np.flatnonzero(ordered[:, -1] - ordered[:, -2] <= size)).size:
        row = scores[tied[0]]
        both = np.flatnonzero(row >= row.max() - size[tied[0]])
        raise SaddlesError.about(
            f"sequence {tied[0]} came with tied optimal tokens {both.tolist()} (score {row.max():.6g})",
            "the optimal token must be unique (Assumption 1)", "break the tie or leave the sequence out",
        )  # fmt: skip
