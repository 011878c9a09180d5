"""Three parametrisations of one attention layer: diagonal K and Q, full K and Q, and W = KQᵀ itself."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from saddles.core.status import FINISHED, Status
from saddles.core.trajectory import Trajectory
from saddles.core.validation import arguments_explained
from saddles.errors import SaddlesError
from saddles.margin.attention import AttentionFlow, DiagonalFlow, FactoredFlow, JointFlow
from saddles.margin.simulate import State, dynamics_of, train
from saddles.margin.task import Tokens, check_task
from saddles.protocols import AXIS, ArrayLike
from saddles.runtime.threads import one_thread
from saddles.solvers.dynamics import check_method
from saddles.solvers.log_scale import LogScale

Matrix = Float[np.ndarray, "row column"]
Vector = Float[np.ndarray, "coordinate"]
Scale = float | Sequence[float]
"""One number; a list adds the axis `scale`."""


class AttentionModel(ABC):
    """A parametrisation of W. One of your own needs `norm` and `flow`, and `random` where it draws its start.

    For instance, one matrix that starts at another place:

        class Shifted(margin.AttentionModel):
            norm = "frobenius"

            def flow(self, task, seed=0):
                return JointFlow(task), np.full(len(task.left), 2.0)
    """

    norm: str
    """The norm whose max-margin problem the direction of W is expected to solve."""
    diagonal: bool = False
    """Whether W is diagonal, so that its diagonal β is what is trained."""
    random: bool = False
    """Whether a run depends on its seed."""

    @abstractmethod
    def flow(self, task: Tokens, seed: int = 0) -> tuple[AttentionFlow, State]:
        """The flow on a task and the state it starts from."""

    def horizon(self, task: Tokens, method: object, *, seed: int = 0) -> tuple[np.ndarray | None, Status]:
        """The times at which a run without `times` is saved."""
        mover = check_method(method, self, "MarginFlow")
        check_task(task)
        with one_thread(len(task.left)):
            find = getattr(mover, "horizon", None)  # a method of the user's own need not have one
            return find(dynamics_of(self, task, seed)) if find else (None, FINISHED)

    def simulate(
        self,
        task: Tokens,
        method: object,
        *,
        times: np.ndarray | None = None,
        seed: int = 0,
        keep: Sequence[str] | None = None,
    ) -> Trajectory:
        """Follow gradient flow by `MarginFlow` until the weights have its norm, or through `times` (∫|c|dt) instead.

        Variables over time: `beta` (coordinate) or `weights` (row, column), `margin`, `log_time`, `loss`,
        `log_loss_gap` (log(L − L*)), `nuclear_norm`, `frobenius_norm`, `kkt_feasibility`, `kkt_stationarity`,
        `kkt_slackness` (the proof's multipliers), `dual_objective` and `certified_gap` (φ/‖Bφ‖). On request, by `keep`:
        `accumulated` (φ) and, of K and Q apart, `factors` (`key`, `query`).
        Runs on the processor in double precision: nothing is compiled.
        """
        return train(self, task, method, times=times, seed=seed, keep=keep)


def _check_scale(scale: ArrayLike) -> None:
    size = np.asarray(scale, dtype=float)
    if not (np.isfinite(size).all() and (size > 0).all()):
        raise SaddlesError.must_be("scale", "a positive number", scale, "Try 0.01")


@arguments_explained
@dataclass(frozen=True, eq=False)
class DiagonalAttention(AttentionModel):
    """K = diag(ξ_k), Q = diag(ξ_q), β = ξ_k ⊙ ξ_q, started at ξ_k = √2 ω₀, ξ_q = 0 (paper, (5)).

    Args:
        scale: ω₀, any positive number, or an array with one per coordinate. A list adds the axis `scale`.
    """

    scale: Scale | Vector = field(default=0.1, metadata={**AXIS, "vector": True})

    norm = "l1"  # Theorem 4.1
    diagonal = True

    def __post_init__(self) -> None:
        _check_scale(self.scale)

    def start(self, task: Tokens, seed: int = 0) -> tuple[Vector, Vector]:
        """ξ_k(0) and ξ_q(0)."""
        dim, size = task.shape[2], np.asarray(self.scale, dtype=float)
        if size.ndim and size.shape != (dim,):
            raise SaddlesError(
                f"`scale` must be a number or an array of {dim} numbers, one per coordinate of the data; got one of "
                f"shape {size.shape}."
            )
        return np.sqrt(2.0) * np.broadcast_to(size, (dim,)), np.zeros(dim)

    def flow(self, task: Tokens, seed: int = 0) -> tuple[AttentionFlow, State]:
        return DiagonalFlow(task, LogScale.from_weights(*self.start(task))), np.zeros(len(task.left))


@arguments_explained
@dataclass(frozen=True, eq=False)
class FactoredAttention(AttentionModel):
    """Full K and Q of shape (dim, rank), W = KQᵀ.

    Args:
        rank: d_e, columns of K and Q; None is dim.
        scale: standard deviation of the initial entries. A list adds the axis `scale`.
        weights: K(0) and Q(0) instead of a draw; `scale` multiplies them.
    """

    rank: int | None = None
    scale: Scale = field(default=1e-3, metadata=AXIS)
    weights: tuple[ArrayLike, ArrayLike] | None = field(default=None, repr=False)

    norm = "nuclear"  # Theorem 5.1; beyond its data an expectation

    def __post_init__(self) -> None:
        _check_scale(self.scale)
        if self.rank is not None and (int(self.rank) != self.rank or self.rank < 1):
            raise SaddlesError.must_be("rank", "an integer of at least 1, or None for the dimension", self.rank)

    @property
    def random(self) -> bool:  # type: ignore[override]  # given weights leave nothing to draw
        """Whether K(0) and Q(0) are drawn."""
        return self.weights is None

    def start(self, task: Tokens, seed: int = 0) -> tuple[Matrix, Matrix]:
        """K(0) and Q(0)."""
        dim, scale = task.shape[2], np.asarray(self.scale, dtype=float)
        if self.weights is None:
            draw, shape = np.random.default_rng([seed, 61]), (dim, self.rank or dim)
            return scale * draw.normal(size=shape), scale * draw.normal(size=shape)
        key, query = (scale * np.asarray(part, dtype=float) for part in self.weights)
        if key.shape != query.shape or key.ndim != 2 or len(key) != dim:
            raise SaddlesError(
                f"`weights` must be K and Q of one shape with {dim} rows; got shapes {key.shape} and {query.shape}."
            )
        if not (key.any() or query.any()):
            raise SaddlesError("K(0) and Q(0) must not both be 0: from there the flow never moves. Give one of them.")
        return key, query

    def flow(self, task: Tokens, seed: int = 0) -> tuple[AttentionFlow, State]:
        key, query = self.start(task, seed)
        start = np.concatenate([key.ravel(), query.ravel(), np.zeros(len(task.left))])
        return FactoredFlow(task, key.shape[1]), start


@arguments_explained
@dataclass(frozen=True, eq=False)
class JointAttention(AttentionModel):
    """W trained as one matrix, from W = 0."""

    norm = "frobenius"  # Tarzanagh et al., Transformers as support vector machines

    def start(self, task: Tokens, seed: int = 0) -> Matrix:
        """W(0)."""
        return np.zeros((task.shape[2], task.shape[2]))

    def flow(self, task: Tokens, seed: int = 0) -> tuple[AttentionFlow, State]:
        return JointFlow(task), np.zeros(len(task.left))


def aligned_weights(task: Tokens, rank: int | None = None, seed: int = 0) -> tuple[Matrix, Matrix]:
    """K(0) and Q(0) with the alignment property (Definition 5.1) and (5) with ω₀ = 1: K = √2 U_K Vᵀ, Q = 0.

    U_K has the directions of the optimal tokens in its first columns and completes them at random; V is random.
    """
    n, _, dim = task.shape
    columns = rank or dim
    if n > dim or columns < dim:
        raise SaddlesError(
            f"Alignment needs n ≤ dim ≤ rank; got n = {n} sequences, dim = {dim} and rank {columns}. Raise the rank, "
            "or use fewer sequences."
        )
    draw = np.random.default_rng([seed, 62])
    left = aligned_frames(task, seed)[0]
    right = np.linalg.qr(draw.normal(size=(columns, columns)))[0]
    return np.sqrt(2.0) * left @ right[:, :dim].T, np.zeros((dim, columns))


def aligned_frames(task: Tokens, seed: int = 0) -> tuple[Matrix, Matrix]:
    """Orthogonal U_K and U_Q of (7): first the optimal tokens' and the queries' directions, then anything."""
    n, _, dim = task.shape
    filler = np.random.default_rng([seed, 63]).normal(size=(dim, dim))[:, n:]
    return _complete(task.optimal_tokens, filler), _complete(task.z, filler)


def _complete(rows: Float[np.ndarray, "n dim"], filler: Float[np.ndarray, "dim rest"]) -> Float[np.ndarray, "dim dim"]:
    directions = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    whole, triangle = np.linalg.qr(np.concatenate([directions.T, filler], axis=1))
    # QR may turn a column round; the first ones must be the directions themselves.
    return whole * np.sign(np.diag(triangle))
