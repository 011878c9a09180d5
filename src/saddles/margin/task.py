"""The task of the margin lab: sequences of tokens, a query and a label each, and a fixed prediction head.

Scores γ_il = y_i vᵀx_il; the optimal token opt(i) has the largest (paper, Definition 3.1). Everything the dynamics and
the convex problems see of the data are the constraints (x_i,opt − x_il)ᵀ W z_i, one for each token l ≠ opt(i).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from saddles.core.validation import arguments_explained
from saddles.errors import SaddlesError
from saddles.margin import generate
from saddles.margin.separation import Constraints, separation
from saddles.protocols import ArrayLike

TIE = 1e-12
"""Two scores closer than this part of the largest score of their sequence are equal."""

TRIES = 200
"""Draws before `Tokens.random` gives up."""

SEPARATED = 1e-9
"""Least margin (of a W of norm 1) of data that are drawn: above rounding, far below typical ones."""

PerSequence = Float[np.ndarray, "sequence"]
Places = Int[np.ndarray, "sequence"]
Coordinates = Float[np.ndarray, "coordinate"]


@arguments_explained
@dataclass(frozen=True, eq=False, init=False)
class Tokens:
    """Sequences X_i, queries z_i, labels y_i = ±1 and the head v.

    Args:
        X: tokens, shape (sequence, token, coordinate), at least two tokens per sequence.
        z: queries, shape (sequence, coordinate).
        y: labels, each 1 or −1.
        head: v, shape (coordinate,).

    Fails where the optimal token of a sequence is not unique, for then there is nothing to separate.
    """

    X: Float[np.ndarray, "sequence token coordinate"]
    z: Float[np.ndarray, "sequence coordinate"]
    y: PerSequence
    head: Coordinates

    def __init__(self, X: ArrayLike, z: ArrayLike, y: ArrayLike, head: ArrayLike) -> None:
        arrays = {name: _numbers(given, name) for name, given in (("X", X), ("z", z), ("y", y), ("head", head))}
        _check_shapes(**arrays)
        for name, array in arrays.items():
            object.__setattr__(self, name, array)  # the dataclass is frozen
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
            n, length, dim: sequences, tokens per sequence, coordinates.
            assumption: 1 separable; 2 and equal scores of the tokens that are not optimal; 3 and a small initial loss;
                4 orthogonal, parallel and paired tokens (2 and 3 hold as well; `length` odd, n ≤ dim − 2).
            seed: of the draw.
            diagonal: draw again until a diagonal W separates, which no assumption grants.
        """
        makers = {1: generate.plain, 2: generate.equal, 3: generate.confident, 4: generate.paired}
        if assumption not in makers:
            raise SaddlesError.must_be("assumption", "1, 2, 3 or 4", assumption)
        generate.check_sizes(n, length, dim, assumption, seed)
        for attempt in range(TRIES):
            # Each attempt has a generator of its own, so that the data of a seed do not depend on what came before.
            task = cls(*makers[assumption](n, length, dim, np.random.default_rng([seed, 60, attempt])))
            if separation(task.left, task.right, diagonal) > SEPARATED:
                return task
        raise SaddlesError(
            f"None of {TRIES} draws with n={n}, length={length}, dim={dim} is separated by a "
            f"{'diagonal W' if diagonal else 'W'}. Raise dim, or lower n or length."
        )

    def rescored(self, scores: Float[np.ndarray, "sequence token"]) -> "Tokens":
        """The same data with every token moved along the head to the score it shall have."""
        return Tokens(*generate.rescored((self.X, self.z, self.y, self.head), scores))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Sequences, tokens, coordinates."""
        return self.X.shape

    @cached_property
    def scores(self) -> Float[np.ndarray, "sequence token"]:
        """γ_il = y_i vᵀx_il, shape (sequence, token)."""
        return self.y[:, None] * (self.X @ self.head)

    @cached_property
    def optimal(self) -> Places:
        """opt(i), shape (sequence,)."""
        return self.scores.argmax(axis=1)

    @cached_property
    def others(self) -> Int[np.ndarray, "sequence other"]:
        """The tokens that are not optimal, in order, shape (sequence, length − 1)."""
        n, length, _ = self.shape
        return np.broadcast_to(np.arange(length), (n, length))[np.arange(length) != self.optimal[:, None]].reshape(
            n, length - 1
        )

    @cached_property
    def optimal_scores(self) -> PerSequence:
        """γ_i,opt, shape (sequence,)."""
        return np.take_along_axis(self.scores, self.optimal[:, None], 1)[:, 0]

    @cached_property
    def other_scores(self) -> Float[np.ndarray, "sequence other"]:
        """γ_il of the tokens that are not optimal, shape (sequence, length − 1)."""
        return np.take_along_axis(self.scores, self.others, 1)

    @cached_property
    def optimal_tokens(self) -> Float[np.ndarray, "sequence coordinate"]:
        """x_i,opt, shape (sequence, coordinate)."""
        return self.X[np.arange(len(self.X)), self.optimal]

    @cached_property
    def left(self) -> Constraints:
        """x_i,opt − x_il, shape (constraint, coordinate); constraints go sequence by sequence."""
        tokens = np.take_along_axis(self.X, self.others[:, :, None], 1)
        return (self.optimal_tokens[:, None] - tokens).reshape(-1, self.shape[2])

    @cached_property
    def right(self) -> Constraints:
        """z_i once for each constraint, shape (constraint, coordinate)."""
        return np.repeat(self.z, self.shape[1] - 1, axis=0)

    @cached_property
    def diagonal(self) -> Constraints:
        """B_il = z_i ⊙ (x_i,opt − x_il), shape (constraint, coordinate)."""
        return self.left * self.right

    def margins(self, weights: ArrayLike) -> Float[np.ndarray, "*time constraint"]:
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


def check_task(task: object) -> None:
    """Refuse anything but `Tokens` before something is computed."""
    if not isinstance(task, Tokens):
        raise SaddlesError(
            f"The attention layers of saddles.margin are trained on Tokens; got {type(task).__name__}. Build them from "
            "arrays: Tokens(X, z, y, head)."
        )


def _numbers(value: ArrayLike, name: str) -> Float[np.ndarray, "..."]:
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError) as error:
        raise SaddlesError(
            f"`{name}` must be a rectangular numeric array. Sequences have one common length: pad or cut them."
        ) from error
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise SaddlesError(f"`{name}` must hold finite numbers; got {array[where]} at {list(where)}.")
    return array


def _check_shapes(X: np.ndarray, z: np.ndarray, y: np.ndarray, head: np.ndarray) -> None:
    if X.ndim != 3 or 0 in X.shape:
        raise SaddlesError(
            f"`X` must have the shape (sequence, token, coordinate), none of them 0; got {X.shape}. Leave out empty "
            "sequences."
        )
    n, length, dim = X.shape
    if length < 2:
        raise SaddlesError("A sequence must have at least two tokens: there is nothing to separate a single one from.")
    if z.shape != (n, dim) or y.shape != (n,) or head.shape != (dim,):
        raise SaddlesError(
            f"`z`, `y` and `head` must have shapes {(n, dim)}, {(n,)} and {(dim,)} for X of shape {X.shape}: one query "
            f"and one label per sequence; got {z.shape}, {y.shape} and {head.shape}."
        )
    if not np.isin(y, (-1.0, 1.0)).all():
        raise SaddlesError.must_be("y", "1 or -1 for each sequence", float(y[~np.isin(y, (-1.0, 1.0))][0]))


def _check_scores(scores: Float[np.ndarray, "sequence token"]) -> None:
    ordered = np.sort(scores, axis=1)
    size = TIE * np.maximum(np.abs(scores).max(axis=1), np.finfo(float).tiny)
    if (flat := np.flatnonzero(ordered[:, -1] - ordered[:, 0] <= size)).size:
        raise SaddlesError(
            f"One token of each sequence must have the largest score yᵢ vᵀx; all tokens of sequence {flat[0]} have "
            f"equal scores, {ordered[flat[0], 0]:.4g}. Check the head, or leave the sequence out."
        )
    if (tied := np.flatnonzero(ordered[:, -1] - ordered[:, -2] <= size)).size:
        row = scores[tied[0]]
        both = np.flatnonzero(row >= row.max() - size[tied[0]])
        raise SaddlesError(
            f"The optimal token of each sequence must be unique (Assumption 1); sequence {tied[0]} has tied optimal "
            f"tokens {both.tolist()} of score {row.max():.6g}. Break the tie, or leave the sequence out."
        )
