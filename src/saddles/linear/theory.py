"""Theories of the two-layer linear network (Tu, Aranguri, Jacot: Mixed Dynamics).

All of them start from the network's own initial matrix A(0) and from σ²w, and know nothing else of its weights. Time is
gradient time: the paper's t times its η.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass
from typing import ClassVar, Generic

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from saddles.core.status import FINISHED, Status
from saddles.core.trajectory import Trajectory
from saddles.errors import SaddlesError
from saddles.linear.aligned import aligned_mode
from saddles.linear.observe import KEEPABLE, Network, Observer, check_finite, observer_of, to_trajectory
from saddles.linear.task import Entrywise, MatrixTask, check_task
from saddles.protocols import Method
from saddles.runtime.device import on_device
from saddles.runtime.precision import in_double_precision
from saddles.solvers.dynamics import Args, Dynamics, Path, check_method, horizon_of, instants_of
from saddles.solvers.methods import GradientFlow
from saddles.solvers.ode import SAVED_TIMES
from saddles.solvers.self_consistent import Rows, self_consistent_factor, stacked_matrix, stacked_slope
from saddles.solvers.two_layer import Cost, Matrix

FITTED = 1e-2
"""A flow has converged when ‖∇C‖_F has fallen to this part of its first value …"""

STILL = 1e-3
"""… or, where a balanced start has too little rank to fit the cost, when the speed of its directions, each in units of
what is there of it (or every saddle would count as the end), has fallen to this part."""

ENOUGH = 10.0
"""Time constants of the slowest mode after which `Aligned` without times ends: e⁻¹⁰ of its distance is left."""


@dataclass(frozen=True)
class _Start:
    """What a theory is given."""

    matrix: np.ndarray
    """A(0)."""
    threshold: float
    """σ²w."""
    precision: str

    def array(self, values: np.ndarray | float) -> Array:
        """In the precision asked for."""
        return jnp.asarray(values, dtype=self.precision)


class LinearTheory(ABC):
    """What the theories below have in common: they read A(0) and σ²w off the model, and observe a matrix over time."""

    keepable: ClassVar[tuple[str, ...]] = ("matrix",)

    @in_double_precision
    def predict(
        self,
        model: object,
        task: object,
        *,
        times: np.ndarray | None = None,
        seed: int = 0,
        keep: Sequence[str] | None = None,
        skip: Sequence[str] = (),
        device: str | None = None,
        precision: str = "float64",
    ) -> Trajectory:
        """Predict the run of a `TwoLayer` network, or of any with `start`, `threshold` and `width`.

        Without times a flow is followed until ‖∇C‖_F has fallen to 1 % of its first value; of `Balanced`, where A(0)
        has not full rank and cannot fit the cost, until the relative speed of each direction has fallen to 0.1 %.

        Args:
            keep: more to keep: `matrix`, and of `SelfConsistent` and `Balanced` also `gram`, `alignment`, `factor`.
            skip: ("singular_value",) leaves out the singular values.
        """
        network, problem = self._check(model, task)
        with on_device(device):
            observer = observer_of(problem, keep, self._instants(times), precision, skip, self.keepable)
            path = self._follow(_start_of(network, problem, seed, precision), observer, times)
        drawn = seed if getattr(model, "random", True) else None
        return to_trajectory(path, network, problem, kind="predicted", theory=self, seed=drawn)

    @in_double_precision
    def horizon(
        self, model: object, task: object, *, seed: int = 0, device: str | None = None, precision: str = "float64"
    ) -> tuple[np.ndarray | None, Status]:
        """The times at which a prediction without `times` is saved; None where the method's steps decide."""
        network, problem = self._check(model, task)
        with on_device(device):
            observer = observer_of(problem, (), 0, precision)
            return self._horizon(_start_of(network, problem, seed, precision), observer)

    def _check(self, model: object, task: object) -> tuple[Network, MatrixTask]:
        if isinstance(model, type) or not isinstance(model, Network):
            name = model.__name__ if isinstance(model, type) else type(model).__name__
            raise SaddlesError(
                f"{type(self).__name__} predicts TwoLayer, or any model with `start`, `threshold`, `width`; got {name}."
            )
        return model, check_task(task)

    def _instants(self, times: np.ndarray | None) -> int:
        return SAVED_TIMES if times is None else len(times)

    @abstractmethod
    def _follow(self, start: _Start, observer: Observer, times: np.ndarray | None) -> Path:
        """Compute the prediction."""

    @abstractmethod
    def _horizon(self, start: _Start, observer: Observer) -> tuple[np.ndarray | None, Status]:
        """See `horizon`."""


def _start_of(model: Network, task: MatrixTask, seed: int, precision: str) -> _Start:
    inner, outer = model.start(task, seed)
    matrix = outer @ inner.T
    check_finite(task.cost(jnp.asarray(matrix)), task)
    return _Start(matrix, model.threshold, precision)


@dataclass(frozen=True)
class _Moved(LinearTheory):
    """A theory that is a dynamics, moved by any method.

    Args:
        method: moves it, for instance the `GradientDescent` that trains the network, to stand beside that run step by
            step; None is the continuous flow.
        rtol: relative error per step of the flow.
    """

    method: Method | None = None
    rtol: float = 1e-9
    descent: InitVar[Method | None] = None

    def __post_init__(self, descent: Method | None) -> None:
        if descent is not None:
            warnings.warn("`descent` is now `method`; the next release removes the old name.", DeprecationWarning,
                          stacklevel=3)  # fmt: skip
            object.__setattr__(self, "method", descent)
        if self.method is not None:
            check_method(self.method, self)

    @property
    def mover(self) -> Method:
        """The method, or the flow."""
        return GradientFlow(rtol=self.rtol) if self.method is None else self.method

    @abstractmethod
    def _dynamics(self, start: _Start, observer: Observer) -> Dynamics:
        """The theory's own dynamics."""

    def _instants(self, times: np.ndarray | None) -> int:
        return instants_of(self.mover, times, SAVED_TIMES)

    def _follow(self, start: _Start, observer: Observer, times: np.ndarray | None) -> Path:
        return self.mover.follow(self._dynamics(start, observer), times)

    def _horizon(self, start: _Start, observer: Observer) -> tuple[np.ndarray | None, Status]:
        return horizon_of(self.mover, self._dynamics(start, observer))


class _Factored(_Moved):
    """A theory that moves a factor of [[C1, Aᵀ], [A, C2]] by L' = −[[0, Gᵀ], [G, 0]] L."""

    keepable = KEEPABLE

    @abstractmethod
    def factor(self, matrix: np.ndarray, threshold: float) -> np.ndarray:
        """The stacked factor at the start, (d_in + d_out) × hidden."""

    def _dynamics(self, start: _Start, observer: Observer) -> Dynamics[Rows, Observer]:
        rows = start.array(self.factor(start.matrix, start.threshold))
        return _ready(rows, observer, slope_rows, _observe_rows, represented_rows, observer.cost)


class SelfConsistent(_Factored):
    """A' = −√(AAᵀ+σ⁴w²I) G − G √(AᵀA+σ⁴w²I), equation (1).

    One square root, at the start: the blocks C1, C2 of the flow stay on the manifold C1 = √(AᵀA+σ⁴w²I),
    C2 = √(AAᵀ+σ⁴w²I) if they begin there, so a factor of them is moved by matrix products alone.

    Args:
        method: moves it, for instance the `GradientDescent` that trains the network, to stand beside that run step by
            step; None is the continuous flow.
        rtol: relative error per step of the flow.
    """

    def factor(self, matrix: np.ndarray, threshold: float) -> np.ndarray:
        """The stacked factor of [[Ĉ1, Aᵀ], [A, Ĉ2]]."""
        return self_consistent_factor(matrix, threshold)


class Balanced(_Factored):
    """A' = −√(AAᵀ) G − G √(AᵀA): the limit σ²w ≪ s_min(A), section 1.5.

    Only the rank(A) directions that are there at the start can ever grow. Arguments as for `SelfConsistent`.
    """

    def factor(self, matrix: np.ndarray, threshold: float) -> np.ndarray:
        """The stacked factor (V√S, U√S) of the balanced network that represents A."""
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        there = values > np.finfo(float).eps * max(matrix.shape) * values[0]  # as numpy.linalg.matrix_rank counts
        root = np.sqrt(values[there])
        return np.concatenate([right[there].T * root, left[:, there] * root])


class Lazy(_Moved):
    """A' = −2σ²w G: the limit σ²w ≫ s_max(A), section 1.4.

    In closed form for denoising, completion and regression (costs with a `flow`); integrated for other costs. Arguments
    as for `SelfConsistent`.
    """

    def _dynamics(self, start: _Start, observer: Observer) -> Dynamics[Array, tuple[Observer, Array]]:
        args = (observer, start.array(2 * start.threshold))
        matrix = start.array(start.matrix)
        return _ready(matrix, args, _slope_matrix, _observe_matrix, _matrix_itself, observer.cost)

    def _follow(self, start: _Start, observer: Observer, times: np.ndarray | None) -> Path:
        flow = getattr(observer.cost, "flow", None)
        if flow is None or self.method is not None:
            return super()._follow(start, observer, times)
        clock, ended = self._horizon(start, observer) if times is None else (times, FINISHED)
        assert clock is not None  # the flow's horizon is never None
        matrix, speed = start.array(start.matrix), start.array(2 * start.threshold)
        return _seen(lambda t: observer.matrix(flow(matrix, speed * t)), clock, start, ended)


@dataclass(frozen=True)
class Aligned(LinearTheory):
    """s_i' = (4/(d_in d_out)) √(s_i²+σ⁴w²) (s_i* − s_i) for a start aligned with the observation.

    With A* + E = U S* Vᵀ the modes start at s_i(0) = u_iᵀ A(0) v_i and never mix. In closed form: for x = e^θ,
    s = σ²w sinh θ, the equation is logistic in x. For `Denoising` only. `singular_value` are the s_i in the order of
    S*, with their sign.
    """

    def _check(self, model: object, task: object) -> tuple[Network, MatrixTask]:
        network, problem = super()._check(model, task)
        cost = problem.cost
        if not (isinstance(cost, Entrywise) and np.ndim(cost.weight) == 0):
            raise SaddlesError(
                f"Aligned predicts Denoising, where every entry is observed alike; got {type(task).__name__}. "
                "Use SelfConsistent for this task."
            )
        return network, problem

    def _follow(self, start: _Start, observer: Observer, times: np.ndarray | None) -> Path:
        left, target, right = _observed_modes(observer)
        first = jnp.sum((left.T @ start.array(start.matrix)) * right, axis=1)
        threshold, pace = start.array(start.threshold), _pace(observer)

        def see(t: Float[Array, ""]) -> dict[str, Array]:
            modes = aligned_mode(t, first, target, threshold, pace)
            seen = observer.matrix((left * modes[None, :]) @ right)
            return seen | ({"singular_value": modes} if "singular_value" in seen else {})

        clock = self._horizon(start, observer)[0] if times is None else times
        return _seen(see, clock, start, FINISHED)

    def _horizon(self, start: _Start, observer: Observer) -> tuple[np.ndarray, Status]:
        _, target, _ = _observed_modes(observer)
        slowest = float(_pace(observer) * jnp.hypot(target[-1], start.threshold))
        return np.linspace(0.0, ENOUGH / slowest, SAVED_TIMES), FINISHED


def _observed_modes(observer: Observer) -> tuple[Array, Array, Array]:
    assert isinstance(observer.cost, Entrywise)
    left, values, right = jnp.linalg.svd(observer.cost.observed, full_matrices=False)
    return left, values, right


def _pace(observer: Observer) -> Float[Array, ""]:
    """4/(d_in d_out)."""
    assert isinstance(observer.cost, Entrywise)
    return 4 * jnp.asarray(observer.cost.weight)


def _seen(see: Callable[[Array], dict[str, Array]], times: np.ndarray, start: _Start, ended: Status) -> Path:
    """A closed form, observed instant by instant."""
    saved = jax.lax.map(see, start.array(times))
    return Path(times, {name: np.asarray(values) for name, values in saved.items()}, None, ended)


# The dynamics of the theories; they share no function with saddles.linear.simulate.


def represented_rows(rows: Rows, observer: Observer) -> Matrix:
    """A = L_out L_inᵀ of the stacked factor L."""
    return stacked_matrix(rows, observer.columns)


def slope_rows(rows: Rows, observer: Observer) -> Rows:
    """−[[0, Gᵀ], [G, 0]] L for the stacked factor L, with G at its A."""
    return stacked_slope(rows, observer.cost.gradient(represented_rows(rows, observer)), observer.columns)


def _observe_rows(rows: Rows, observer: Observer) -> dict[str, Array]:
    return observer.factor(rows[: observer.columns], rows[observer.columns :])


def _matrix_itself(matrix: Matrix, args: tuple[Observer, Array]) -> Matrix:
    return matrix


def _slope_matrix(matrix: Array, args: tuple[Observer, Array]) -> Array:
    observer, speed = args
    return -speed * observer.cost.gradient(matrix)


def _observe_matrix(matrix: Matrix, args: tuple[Observer, Array]) -> dict[str, Array]:
    return args[0].matrix(matrix)


class _Fitted(eqx.Module, Generic[Args]):
    """‖∇C‖_F has fallen to `FITTED` of its first value; of a state with fewer columns than A, or it stands `STILL`."""

    gradient: Float[Array, ""]
    pace: Float[Array, ""]
    cost: Cost
    slope: Callable[[Array, Args], Array] = eqx.field(static=True)
    matrix: Callable[[Array, Args], Matrix] = eqx.field(static=True)

    def __call__(self, state: Array, args: Args) -> Bool[Array, ""]:
        gradient = self.cost.gradient(self.matrix(state, args))
        fitted = jnp.linalg.norm(gradient) <= FITTED * self.gradient
        if state.shape[1] >= min(gradient.shape):
            return fitted
        return fitted | (_pace_of(state, self.slope(state, args)) <= STILL * self.pace)


def _pace_of(state: Array, slope: Array) -> Float[Array, ""]:
    """‖MQ‖_F of L' = ML, Q an orthonormal basis of L's columns: a direction that is small yet counts in full."""
    # With L = QR, MQ = L'R⁻¹: its transpose solves RᵀX = L'ᵀ, and Q itself is not needed.
    upper = jnp.linalg.qr(state, mode="r")
    return jnp.linalg.norm(jax.scipy.linalg.solve_triangular(upper, slope.T, trans=1))


@eqx.filter_jit
def _at_start(
    state: Array,
    args: Args,
    slope: Callable[[Array, Args], Array],
    matrix: Callable[[Array, Args], Matrix],
    cost: Cost,
) -> tuple[Array, Array, Array]:
    """‖∇C‖_F, relative speed, and that of the directions where there are fewer than A has."""
    gradient, moved = cost.gradient(matrix(state, args)), slope(state, args)
    speed = jnp.linalg.norm(moved) / jnp.linalg.norm(state)
    narrow = state.shape[1] < min(gradient.shape)
    return jnp.linalg.norm(gradient), speed, _pace_of(state, moved) if narrow else speed


def _ready(
    state: Array,
    args: Args,
    slope: Callable[[Array, Args], Array],
    observe: Callable[[Array, Args], dict[str, Array]],
    matrix: Callable[[Array, Args], Matrix],
    cost: Cost,
) -> Dynamics[Array, Args]:
    """A theory's dynamics with its criterion of convergence; `matrix(state, args)` is A."""
    gradient, speed, pace = _at_start(state, args, slope, matrix, cost)
    rested = _Fitted(gradient, pace, cost, slope, matrix)
    return Dynamics(state, args, slope, observe, rested=rested, pace=float(1 / speed), title="theory")
