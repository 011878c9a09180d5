"""The two-layer linear network, at any width for the price of a narrow one."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from saddles.core.status import Status
from saddles.core.trajectory import Trajectory
from saddles.core.validation import arguments_explained
from saddles.errors import SaddlesError
from saddles.linear.observe import observer_of, to_trajectory
from saddles.linear.simulate import dynamics_of
from saddles.linear.task import Shaped, check_task
from saddles.protocols import AXIS, ArrayLike
from saddles.runtime.device import on_device
from saddles.runtime.precision import in_double_precision
from saddles.solvers.dynamics import check_method, horizon_of, instants_of
from saddles.solvers.ode import SAVED_TIMES
from saddles.solvers.two_layer import drawn


@arguments_explained
@dataclass(frozen=True, eq=False)
class TwoLayer:
    """A = W2 W1 with W1: w × d_in, W2: d_out × w, entries i.i.d. N(0, variance).

    Training sees the weights only through ZZᵀ with Z = [W1ᵀ; W2] (r × w, r = d_in + d_out): a step of gradient descent
    multiplies Z from the left and A is a block of ZZᵀ. So Z may be replaced by any factor L with LLᵀ = ZZᵀ, exactly.
    For w > r the factor is drawn directly (Bartlett: lower triangular, χ with w − i degrees of freedom on the diagonal,
    N(0,1) below, times σ), and a width of 10¹² costs what a width of r costs.

    Args:
        width: w; a list adds the axis `width`.
        variance: σ²; a list adds the axis `variance`.
        weights: given (W1, W2) instead of a draw; see `from_weights`.
    """

    width: float | Sequence[float] | np.ndarray = field(metadata=AXIS)
    variance: float | Sequence[float] | np.ndarray = field(metadata=AXIS)
    weights: tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for width in np.atleast_1d(np.asarray(self.width, dtype=float)):
            if not (width >= 1 and width == np.floor(width)):
                raise SaddlesError.must_be("width", "a whole number of at least 1", float(width))
        for variance in np.atleast_1d(np.asarray(self.variance, dtype=float)):
            if not 0 < variance < np.inf:
                raise SaddlesError.must_be(
                    "variance", "positive (at 0 the network never leaves the saddle)", float(variance), "Try 1 / width"
                )

    @classmethod
    def from_weights(cls, W1: ArrayLike, W2: ArrayLike, variance: float | None = None) -> "TwoLayer":
        """A network with given weights, W1: w × d_in and W2: d_out × w.

        The theories need σ²; without it, it is the mean square of all entries.
        """
        first, second = np.asarray(W1, dtype=float), np.asarray(W2, dtype=float)
        if first.ndim != 2 or second.ndim != 2 or first.shape[0] != second.shape[1]:
            raise SaddlesError(
                f"`W1` must be width × d_in and `W2` d_out × width; got shapes {first.shape} and {second.shape}."
            )
        if not (np.isfinite(first).all() and np.isfinite(second).all()):
            raise SaddlesError("`W1` and `W2` must be finite; they hold NaN or infinity.")
        if variance is None:
            variance = float((np.sum(first**2) + np.sum(second**2)) / (first.size + second.size))
        return cls(first.shape[0], variance, (first, second))

    @property
    def threshold(self) -> float:
        """σ²w: singular values of A below it are lazy, above it active."""
        return float(np.asarray(self.variance)) * float(np.asarray(self.width))

    @property
    def random(self) -> bool:
        """Whether the seed draws the weights: not where they were given."""
        return self.weights is None

    def start(self, task: Shaped, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """The initial factor as its two blocks (d_in × m, d_out × m), m = min(w, d_in + d_out).

        Args:
            task: its `shape` (d_out, d_in) is read.
            seed: draws the weights.
        """
        rows, columns = task.shape
        if self.weights is not None:
            factor = self._given(task)
        else:
            factor = drawn(rows + columns, int(np.asarray(self.width)), np.random.default_rng([seed, 10]))
            factor *= np.sqrt(float(np.asarray(self.variance)))
        return factor[:columns], factor[columns:]

    def _given(self, task: Shaped) -> np.ndarray:
        assert self.weights is not None
        first, second = self.weights
        shape = (second.shape[0], first.shape[1])
        if shape != tuple(task.shape):
            raise SaddlesError(f"The weights give a matrix of shape {shape}; the task has shape {tuple(task.shape)}.")
        stacked = np.concatenate([first.T, second])
        if stacked.shape[1] <= stacked.shape[0]:
            return stacked
        # ZZᵀ = (QR)ᵀQR = RᵀR for QR = Zᵀ: the small triangle has the same products as the given weights.
        return np.asarray(np.linalg.qr(stacked.T, mode="r")).T

    @in_double_precision
    def simulate(
        self,
        task: object,
        method: object,
        *,
        times: np.ndarray | None = None,
        seed: int = 0,
        keep: Sequence[str] | None = None,
        skip: Sequence[str] = (),
        device: str | None = None,
        precision: str = "float64",
    ) -> Trajectory:
        """Train by `GradientDescent`, `GradientFlow`, or a method of your own.

        A flow without times runs until ‖∇C‖_F has fallen to 1 % of its first value, or, where the width cannot fit the
        cost, until the relative speed of each direction of the weights has fallen to 0.1 %; the trajectory's status
        tells if neither happened within the method's steps.

        Args:
            task: `Denoising` or another task of this lab.
            keep: more to keep: `matrix` (time, row, column; by default where it is small), `gram` (`gram_in` = W1ᵀW1,
                `gram_out` = W2W2ᵀ), `alignment` (time, mode), and `factor`, the reduced weights.
            skip: ("singular_value",) leaves out the singular values: of a large network they cost more than the steps.
        """
        mover = check_method(method, self)
        problem = check_task(task)
        with on_device(device):
            observer = observer_of(problem, keep, instants_of(mover, times, SAVED_TIMES), precision, skip)
            path = mover.follow(dynamics_of(self.start(problem, seed), problem, observer, precision), times)
        return to_trajectory(path, self, problem, kind="simulated", method=method, seed=seed if self.random else None)

    @in_double_precision
    def horizon(
        self, task: object, method: object, *, seed: int = 0, device: str | None = None, precision: str = "float64"
    ) -> tuple[np.ndarray | None, Status]:
        """The times at which a run without `times` is saved; None where the method's steps decide."""
        mover, problem = check_method(method, self), check_task(task)
        with on_device(device):
            observer = observer_of(problem, (), 0, precision)
            return horizon_of(mover, dynamics_of(self.start(problem, seed), problem, observer, precision))
