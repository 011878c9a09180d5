"""Separate heads in the eigenvectors of Λ, where the loss is elementwise: slopes, and freezing.

What other heads add to M, a learned head takes back at once wherever it can, in the directions Kaᵀ + bQᵀ of its keys K
and queries Q. So the others feel

    A = (I − SK(KᵀSK)⁻¹Kᵀ) (−∇L(M)) (I − Q(QᵀΛQ)⁻¹QᵀΛ),

M being the sum of all heads: a flow of fewer heads in fewer directions, without the fast rates of what is learned.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

State = Float[np.ndarray, " weight"]
"""Weights of the heads that move."""
Weights = Float[np.ndarray, " every"]
"""Weights of all heads."""
Mask = Bool[np.ndarray, " head"]

AT_REST = 100.0
"""A learned head rests when it moves at less than this many rtol times its own rate: the solver's own error keeps it at
about one."""

FULL = 1e-2
"""… and when no direction still waits inside it: its smallest singular value is this part of the largest."""

APART = 0.1
"""A head is frozen if this part of its keys and queries lies outside those of larger heads. Where two heads share a
direction only one has to rest; the other can still turn to a new one."""


class Frozen(NamedTuple):
    """The parts of M that frozen and other heads made when they were frozen, and the factors of A around −∇L."""

    matrix: np.ndarray
    others: np.ndarray
    left: np.ndarray
    right: np.ndarray


@dataclass(eq=False)
class Heads:
    """The equations in the frame of Λ: λ, the diagonal of S, and the shapes of v, K and Q."""

    values: np.ndarray
    moment: np.ndarray
    heads: int
    rank: int
    frozen: Frozen | None = None
    counter: list[int] = field(default_factory=lambda: [0])
    """Slopes so far, shared with the parts of a frozen whole."""

    def __post_init__(self) -> None:
        self._shape = (-1, len(self.values))
        self._cuts = self.heads, self.heads + self.heads * self.rank * len(self.values)
        self._weight = 2 * self.moment[:, None] * self.values
        # Entry by entry −∇L(M) = 2Λ² − 2 S M Λ.
        self._first = 2 * np.diag(self.values**2)
        if self.frozen is not None:
            self._first = self._first - self._weight * self.frozen.matrix

    @property
    def evaluations(self) -> int:
        """Slopes so far."""
        return self.counter[0]

    @property
    def size(self) -> int:
        """How many weights."""
        return self.heads * (1 + 2 * self.rank * len(self.values))

    @cached_property
    def by_head(self) -> np.ndarray:
        """Places of each head's weights, a head a row."""
        value, *rest = self.split(np.arange(self.size))
        return np.hstack([part.reshape(self.heads, -1) for part in (value, *rest)])

    def split(self, state: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """v (head,), K and Q as (head · rank, D)."""
        one, two = self._cuts
        return state[:one], state[one:two].reshape(self._shape), state[two:].reshape(self._shape)

    def matrix(self, state: State) -> np.ndarray:
        """M of these heads."""
        value, key, query = self.split(state)
        return (key * self._each(value)).T @ query

    def push(self, matrix: np.ndarray) -> np.ndarray:
        """A: −∇L(M), less what frozen heads take back."""
        push = self._first - self._weight * matrix
        return push if self.frozen is None else self.frozen.left @ push @ self.frozen.right

    def moved(self, state: State, push: np.ndarray) -> State:
        """The slope of all heads under a given push."""
        self.counter[0] += 1
        value, key, query = self.split(state)
        seen, scale = query @ push.T, self._each(value)
        moved = np.empty_like(state)
        turn, keys, queries = self.split(moved)
        turn[:] = np.sum((key * seen).reshape(self.heads, -1), axis=1)
        np.multiply(scale, seen, out=keys)
        np.multiply(scale, key @ push, out=queries)
        return moved

    def _each(self, value: np.ndarray) -> np.ndarray:
        return (value if self.rank == 1 else np.repeat(value, self.rank))[:, None]

    def slope(self, time: float, state: State) -> State:
        """−∇L of the weights."""
        return self.moved(state, self.push(self.matrix(state)))

    def sizes(self, state: State) -> np.ndarray:
        """|v| ‖K‖ ‖Q‖ of each head, a bound on its part of M."""
        value, key, query = self.split(state)
        parts = [np.sqrt(np.sum(part.reshape(self.heads, -1) ** 2, axis=1)) for part in (key, query)]
        return np.abs(value) * parts[0] * parts[1]

    def rates(self, state: State) -> np.ndarray:
        """The rate 2 ‖M_i‖^(4/3) (kᵀSk)(qᵀΛq) at which each head returns to rest, k and q of length 1."""
        _, key, query = self.split(state)
        bends = [
            np.sum((part**2 * weight).reshape(self.heads, -1), axis=1)
            / np.sum((part**2).reshape(self.heads, -1), axis=1)
            for part, weight in ((key, self.moment), (query, self.values))
        ]
        return 2 * self.sizes(state) ** (4 / 3) * bends[0] * bends[1]

    def returned(self, state: State) -> float:
        """The largest entry of M that frozen heads have had to take back."""
        if self.frozen is None:
            return 0.0
        added = self._weight * (self.matrix(state) - self.frozen.others)
        return float(np.max(np.abs(added - self.frozen.left @ added @ self.frozen.right) / self._weight))

    def loss(self, matrix: np.ndarray) -> float:
        """L(M)."""
        fit = np.sum(self.values**2 * np.diag(matrix))
        return float(self.values.sum() - 2 * fit + np.sum(self._weight * matrix**2) / 2)

    def of(self, heads: Mask) -> Bool[np.ndarray, " weight"]:
        """Which weights belong to these heads."""
        block = np.repeat(heads, self.rank * len(self.values))
        return np.concatenate([heads, block, block])

    def spans(self, state: State, head: int) -> list[np.ndarray]:
        """Orthonormal bases of a head's keys and of its queries, D × min(R, D); none if directions wait inside it."""
        bases = []
        for part in self.split(state)[1:]:
            rows = part.reshape(self.heads, self.rank, -1)[head]
            _, singular, basis = np.linalg.svd(rows, full_matrices=False)
            if singular[-1] < FULL * singular[0]:
                return []
            bases.append(basis.T)
        return bases


@dataclass(eq=False)
class Part:
    """The heads that move while others are frozen."""

    whole: Heads
    frozen: Mask
    system: Heads
    rest: Weights
    """Weights of the frozen heads, 0 elsewhere."""
    mine: Bool[np.ndarray, " every"]
    spans: list[np.ndarray]
    """Orthonormal bases of the frozen heads' keys and queries."""

    @classmethod
    def everything(cls, whole: Heads) -> "Part":
        """Nothing is frozen."""
        nothing = [np.zeros((len(whole.values), 0))] * 2
        return cls.of(whole, np.zeros(whole.heads, dtype=bool), np.zeros(whole.size), nothing)

    @classmethod
    def of(cls, whole: Heads, frozen: Mask, state: Weights, spans: list[np.ndarray]) -> "Part":
        """Freeze these heads where they are; `spans` are their keys and queries."""
        mine = ~whole.of(frozen)
        rest = np.where(mine, 0.0, state)
        made = None
        if frozen.any():
            heavy = [weight[:, None] * span for span, weight in zip(spans, (whole.moment, whole.values), strict=True)]
            left, right = (
                np.eye(len(span)) - part @ np.linalg.solve(span.T @ part, span.T)
                for span, part in zip(spans, heavy, strict=True)
            )
            made = Frozen(whole.matrix(rest), whole.matrix(state - rest), left, right.T)
        moving = int((~frozen).sum())
        system = Heads(whole.values, whole.moment, moving, whole.rank, made, whole.counter)
        return cls(whole, frozen, system, rest, mine, spans)

    def full(self, state: State) -> Weights:
        """The weights of all heads."""
        weights = self.rest.copy()
        weights[self.mine] = state
        return weights

    def rested(self, state: State, felt: float, rtol: float) -> "Part | None":
        """The next part, with all learned heads frozen; None while one of them is still moving.

        Args:
            state: of the heads that move now.
            felt: a head whose part of M is larger has been learned, or is being.
        """
        sizes = np.zeros(self.whole.heads)
        sizes[~self.frozen] = self.system.sizes(state)
        weights, frozen, spans = self.full(state), self.frozen.copy(), list(self.spans)
        calm = np.ones(self.whole.heads, dtype=bool)
        speed = np.abs(self.system.slope(0.0, state))[self.system.by_head]
        calm[~self.frozen] = speed.max(axis=1) <= AT_REST * rtol * self.system.rates(state)
        # The largest first: a head is measured by what it adds to the directions of those before it.
        for head in np.argsort(-sizes):
            if sizes[head] < felt:
                break
            bases = self.whole.spans(weights, int(head))
            if not bases:
                return None
            outside = [basis - span @ (span.T @ basis) for basis, span in zip(bases, spans, strict=True)]
            if min(np.linalg.svd(part, compute_uv=False)[-1] for part in outside) < APART:
                continue
            if not calm[head]:
                return None
            frozen[head] = True
            spans = [np.hstack([span, np.linalg.qr(part)[0]]) for span, part in zip(spans, outside, strict=True)]
        return self if (frozen == self.frozen).all() else Part.of(self.whole, frozen, weights, spans)
