"""Predictors: Theorem 4.1 for one layer, equation 4.3 for the symmetric pair."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from saddles.concepts.assumptions import Pair, check_assumptions, check_pair
from saddles.concepts.observe import PAPER_CLOCK, to_trajectory
from saddles.concepts.task import Identity
from saddles.core.status import FINISHED, Ending, Status
from saddles.core.trajectory import Trajectory
from saddles.core.validation import arguments_explained, check_keep
from saddles.errors import SaddlesError
from saddles.runtime.device import on_device
from saddles.runtime.precision import in_double_precision
from saddles.solvers.dynamics import Dynamics, Path
from saddles.solvers.methods import GradientFlow
from saddles.solvers.ode import SAVED_TIMES

LEARNED = 1e-4
"""Without times the flow is followed until its loss is this part of that of W = 0."""

PATIENCE = 1e5
"""Time scales of the fastest entry after which a flow that has not learned is given up."""

SMALLEST = 1e-15
"""Least absolute error of W: its small entries live by cancellation beside entries of order 1."""

OUTSIDE = 1e-6
"""Part of W's largest eigenvalue that may lie in directions which W(0) does not have. The flow preserves rank, so that
what is there is the solver's error; it grows as W does, and at order 1 W has learned what it never would."""


@runtime_checkable
class _Started(Protocol):
    def start(self, task: Identity, seed: int = 0) -> object: ...


@arguments_explained
@dataclass(frozen=True)
class OneLayerTheory:
    """Theorem 4.1, exact for gradient flow on f = W z from any W(0).

        f(z)_k = 1{k≤s} (1 − e^{−a_k t}) z_k + Σ_i e^{−a_i t} w_ki(0) z_i,

    the sum over all i ≤ d. The paper stops it at s, which is exact only where z_i = 0 beyond s,
    as at x̂. On finitely many samples the same formula holds in the eigenvectors of their second
    moment, and that is used. `growth` and `noise_term` (time, coordinate) are its two parts at x̂.

    It reads W(0) off `model.start(task, seed)`. `jacobian` is large and can be kept. Without times it ends where the
    slowest exponential has fallen to 1 %: the loss is then 1e-4 of its first value.
    """

    def predict(
        self, model: object, task: Identity, *, times: np.ndarray | None = None, seed: int = 0,
        keep: Sequence[str] | None = None,
    ) -> Trajectory:  # fmt: skip
        """Predict the gradient flow of a `OneLayer`, or of another model of one layer, on the task."""
        start, named = self._start(model, task, seed), None if keep is None else check_keep(keep, ("jacobian",))
        clock = self.horizon(model, task)[0] if times is None else np.asarray(times, dtype=float)
        s, d = task.concepts, task.size
        values, vectors = _modes(task)
        # In the eigenvectors of A every column of W decays by itself; beyond s nothing moves.
        strengths = np.concatenate([values, np.zeros(d - s)])
        basis = np.eye(d)
        basis[:s, :s] = vectors
        jacobian = basis @ one_layer(basis.T @ start @ basis, strengths, clock) @ basis.T
        growth = (-np.expm1(-clock[:, None] * strengths) * (basis.T @ task.target)) @ basis.T
        parts = {
            "growth": (("time", "coordinate"), growth),
            "noise_term": (("time", "coordinate"), jacobian @ task.target - growth),
        }
        return to_trajectory(
            task, clock, jacobian=jacobian, keep=named, extra=parts, kind="predicted", model=model, theory=self,
            seed=seed, status=FINISHED,
        )  # fmt: skip

    def horizon(self, model: object, task: Identity) -> tuple[np.ndarray, Status]:
        """Evenly until the slowest exponential has fallen to the root of 1e-4."""
        return np.linspace(0.0, -0.5 * float(np.log(LEARNED) / np.min(_modes(task)[0])), SAVED_TIMES), FINISHED

    def _start(self, model: object, task: Identity, seed: int) -> np.ndarray:
        """W(0) in the frame of the concepts; models of other shapes are refused."""
        start = model.start(task, seed) if isinstance(model, _Started) and not isinstance(model, Pair) else None
        if getattr(start, "shape", None) != (task.size, task.size):
            raise SaddlesError(
                "OneLayerTheory predicts OneLayer, or a model whose `start(task, seed)` is the d × d matrix W(0); "
                f"got {type(model).__name__}. TwoLayerTheory predicts SymmetricTwoLayer."
            )
        return task.to_concepts(np.asarray(start))


@arguments_explained
@dataclass(frozen=True)
class TwoLayerTheory:
    """Gradient flow of the symmetric pair as an equation for W = UUᵀ (equation 4.3, in gradient time).

        W' = 2 (AW + WA) − (AW² + W²A + 2WAW).

    In W the small entries live by cancellation beside entries of order 1, so starts with entries
    below about 1e-12 are lost to rounding: simulate those (the flow of U keeps them). From a rank-deficient W(0)
    errors grow into the missing directions, too; the prediction ends before that matters, and its status says so.

    It reads W(0) off `model.product(task, seed)`. `jacobian` and, on infinitely many samples, `terms` (those of
    equation 4.3) are large and can be kept. Without times the flow is followed until the loss is 1e-4 of that of W = 0.

    Args:
        rtol: relative error per step.
        power: integrate A^power instead of A. The authors' public theory scripts use 2 where the
            text has 1; 1 is the gradient flow.
    """

    rtol: float = 1e-9
    power: int = 1

    def __post_init__(self) -> None:
        if self.power < 1:
            raise SaddlesError.must_be("power", "at least 1", self.power)

    @in_double_precision
    def predict(
        self, model: object, task: Identity, *, times: np.ndarray | None = None, seed: int = 0,
        keep: Sequence[str] | None = None, device: str | None = None, precision: str = "float64",
    ) -> Trajectory:  # fmt: skip
        """Predict the gradient flow of a `SymmetricTwoLayer`, or of another model with a `product`, on the task."""
        pair = check_pair(model, "TwoLayerTheory")
        diagonal = task.samples is None
        named = None if keep is None else check_keep(keep, ("jacobian", "terms") if diagonal else ("jacobian",))
        with on_device(device):
            dynamics = self._dynamics(pair, task, seed, precision)
            path = _of_rank(np.asarray(dynamics.start), GradientFlow(rtol=self.rtol).follow(dynamics, times))
        return to_trajectory(
            task, path.times, jacobian=path.saved["jacobian"], keep=named,
            strengths=task.strengths**self.power if diagonal else None, kind="predicted", model=model, theory=self,
            seed=seed, assumptions=check_assumptions(pair, task, seed=seed).summary, **path.facts,
        )  # fmt: skip

    @in_double_precision
    def horizon(
        self, model: object, task: Identity, *, seed: int = 0, device: str | None = None, precision: str = "float64"
    ) -> tuple[np.ndarray, Status]:
        """Evenly until the flow has learned."""
        with on_device(device):
            dynamics = self._dynamics(check_pair(model, "TwoLayerTheory"), task, seed, precision)
            return GradientFlow(rtol=self.rtol).horizon(dynamics)

    def _dynamics(self, pair: Pair, task: Identity, seed: int, precision: str) -> Dynamics[Array, Array]:
        start = task.to_concepts(pair.product(task, seed))
        moment = np.zeros((task.size, task.size))
        moment[: task.concepts, : task.concepts] = np.linalg.matrix_power(task.moment, self.power)
        pace = float(1 / (4 * np.abs(np.linalg.eigvalsh(moment)).max()))
        return Dynamics(
            jnp.asarray(start, dtype=precision), jnp.asarray(moment, dtype=precision), two_layer_field, _observe,
            rested=_learned, pace=pace, limit=PATIENCE * pace,
            atol=max(self.rtol * float(np.sqrt(np.mean(start**2))), SMALLEST), title="theory",
        )  # fmt: skip


def _of_rank(start: np.ndarray, path: Path) -> Path:
    """The rows in which W still has the rank of W(0), up to `OUTSIDE`; all of them where that is full."""
    rank = int(np.linalg.matrix_rank(start, hermitian=True))
    if rank == len(start):
        return path
    sizes = np.sort(np.abs(np.linalg.eigvalsh(path.saved["jacobian"])), axis=1)[:, ::-1]
    fine = sizes[:, rank] <= OUTSIDE * sizes[:, 0]
    if fine.all() and path.status.ending != Ending.DIVERGED:
        return path
    rows = len(fine) if fine.all() else max(int(np.argmin(fine)), 1)  # the start is kept whatever it is
    reason = f"W(0) has rank {rank}, and errors grow beyond it after time {path.times[rows - 1]:.6g}"
    saved = {name: values[:rows] for name, values in path.saved.items()}
    return replace(path, times=path.times[:rows], saved=saved, status=Status(Ending.STOPPED, reason))


def one_layer(weights: np.ndarray, strengths: np.ndarray, times: np.ndarray) -> np.ndarray:
    """W(t) = I − e^{−At} + W(0) e^{−At} for diagonal A, shape (time, d, d)."""
    # expm1 keeps the digits of 1 − e^{−at} at early times.
    decay = np.exp(-np.asarray(times)[:, None] * strengths)
    rest = -np.expm1(-np.asarray(times)[:, None] * strengths)
    return weights[None] * decay[:, None, :] + rest[:, :, None] * np.eye(len(strengths))


def two_layer_field(
    weights: Float[Array, "row column"], moment: Float[Array, "row column"]
) -> Float[Array, "row column"]:
    """W' of the symmetric pair under gradient flow: 2(AW+WA) − (AW²+W²A+2WAW)."""
    AW = moment @ weights
    both = AW + AW.T
    square = AW @ weights
    return 2 * both - (square + square.T + 2 * weights @ AW)


def paper_field(weights: Float[Array, "row column"], moment: Float[Array, "row column"]) -> Float[Array, "row column"]:
    """The same as equations 4.3 and D.2 print it: in the paper's clock, which is half of the gradient flow."""
    return two_layer_field(weights, moment) / PAPER_CLOCK


def _modes(task: Identity) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors of A on the concepts' coordinates."""
    if task.samples is None:
        return task.strengths[: task.concepts], np.eye(task.concepts)
    values, vectors = np.linalg.eigh(task.moment)
    return values, vectors


def _loss(weights: Array, moment: Array) -> Array:
    """The theory's own: it shares none with the simulation that it is compared with."""
    gap = weights - jnp.eye(weights.shape[0], dtype=weights.dtype)
    return jnp.sum((gap @ moment) * gap) / 2


def _observe(weights: Array, moment: Array) -> dict[str, Array]:
    return {"jacobian": weights}


def _learned(weights: Array, moment: Array) -> Array:
    return _loss(weights, moment) <= LEARNED * jnp.trace(moment) / 2
