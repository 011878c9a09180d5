"""The networks of the lab: one layer, a symmetric pair of layers, and MLPs of any depth."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from saddles.concepts.assumptions import check_assumptions
from saddles.concepts.method import SampleMethod
from saddles.concepts.observe import PAPER_CLOCK, is_kept, runs_to_trajectory, to_trajectory
from saddles.concepts.simulate import DrawnLayers, factor_dynamics, is_linear, network_dynamics, weights_dynamics
from saddles.concepts.task import Identity
from saddles.core.status import FINISHED, Status
from saddles.core.trajectory import Trajectory
from saddles.core.validation import arguments_explained, check_keep
from saddles.errors import SaddlesError
from saddles.protocols import AXIS, ArrayLike
from saddles.runtime.device import on_device
from saddles.runtime.precision import in_double_precision
from saddles.solvers.dynamics import Dynamics, Path, check_method

_ONE, _TWO, _MLP = 30, 31, 32
"""Tags that keep the draws of one seed apart."""

DEFAULT_SCALE = 0.1
"""Standard deviation of "gaussian" weights of an MLP where none is given."""

ROUNDING = 1e-12
"""Asymmetry and negative eigenvalues of W(0), relative to its largest eigenvalue, that are taken for rounding."""


class Trainable(ABC):
    """What the models of the lab share: a method moves their dynamics, or trains them on samples.

    A flow without `times` and `until` runs until the loss is 1e-4 of that of W = 0.
    """

    @abstractmethod
    def dynamics(self, task: Identity, seed: int = 0, precision: str = "float64") -> Dynamics:
        """Where training starts, which way it moves, and what is observed, in the concepts' frame."""

    @abstractmethod
    def _keepable(self, task: Identity) -> tuple[str, ...]:
        """Large variables that a run on this task can keep."""

    @abstractmethod
    def _label(self, task: Identity, path: Path, keep: tuple[str, ...] | None, facts: dict[str, Any]) -> Trajectory:
        """The trajectory of what the method saw; `facts` are provenance of any type."""

    @in_double_precision
    def simulate(
        self, task: Identity, method: object, *, times: np.ndarray | None = None, seed: int = 0,
        keep: Sequence[str] | None = None, device: str | None = None, precision: str = "float64",
    ) -> Trajectory:  # fmt: skip
        """Train on the task.

        By `GradientFlow`, `GradientDescent` or any other method with a `follow`: on the exact loss of the task's
        second moment (networks that are not linear: on its samples, all at once). By `SGD` or any other method with a
        `train`: on its samples. The class docstring lists what can be kept.
        """
        with on_device(device):
            if isinstance(method, SampleMethod):  # it asks for layers, and refuses a model that has none
                return method.train(self, task, times=times, seed=seed, keep=keep, precision=precision)
            follow = check_method(method, self, "GradientFlow, GradientDescent or (OneLayer and MLP) SGD").follow
            named = None if keep is None else check_keep(keep, self._keepable(task))
            path = follow(self.dynamics(task, seed, precision), times)
        facts = {"kind": "simulated", "model": self, "method": method, "seed": seed, **path.facts}
        return self._label(task, path, named, facts)

    @in_double_precision
    def horizon(
        self, task: Identity, method: object, *, seed: int = 0, device: str | None = None, precision: str = "float64"
    ) -> tuple[np.ndarray | None, Status]:
        """The times at which a run without `times` is saved; None where the method's steps decide."""
        find = getattr(method, "horizon", None)
        if find is None or isinstance(method, SampleMethod):
            return None, FINISHED
        with on_device(device):
            return find(self.dynamics(task, seed, precision))


@arguments_explained
@dataclass(frozen=True, eq=False)
class OneLayer(Trainable):
    """f(x) = W x.

    `jacobian` is large and can be kept; under `SGD` also `hierarchy`, the losses at all x̂(v).

    Args:
        weights: W(0), d × d in the network's frame; None draws U(−1/√d, 1/√d), as a linear layer
            of PyTorch does.
    """

    weights: ArrayLike | None = field(default=None, repr=False)

    @property
    def activation(self) -> str:
        """There is nothing between layers."""
        return "linear"

    @property
    def random(self) -> bool:
        """Whether W(0) is drawn."""
        return self.weights is None

    def start(self, task: Identity, seed: int = 0) -> np.ndarray:
        """W(0), d × d in the network's frame."""
        if self.weights is None:
            draw = np.random.default_rng([seed, _ONE]).uniform(-1, 1, size=(task.size, task.size))
            return draw / np.sqrt(task.size)
        return _square(self.weights, task.size)

    def layers(self, task: Identity, seed: int = 0) -> DrawnLayers:
        """W(0) as the only layer."""
        return [(self.start(task, seed), None)]

    def dynamics(self, task: Identity, seed: int = 0, precision: str = "float64") -> Dynamics:
        return weights_dynamics(task, self.start(task, seed), precision)

    def _keepable(self, task: Identity) -> tuple[str, ...]:
        return ("jacobian",)

    def _label(self, task: Identity, path: Path, keep: tuple[str, ...] | None, facts: dict[str, Any]) -> Trajectory:
        return to_trajectory(task, path.times, jacobian=path.saved["jacobian"], keep=keep, coords=path.coords, **facts)


@arguments_explained
@dataclass(frozen=True, eq=False)
class SymmetricTwoLayer(Trainable):
    """f(x) = U Uᵀ x, section 4.2: d × d' factor U, Jacobian W = U Uᵀ.

        SymmetricTwoLayer(top=0.2)                 # U(0) drawn from the run's seed
        SymmetricTwoLayer(hidden=2, scale=0.01)    # the same, Gaussian, with two columns
        SymmetricTwoLayer(factor=U)                # a given start

    `jacobian` and, on infinitely many samples, `terms` (those of equation 4.3) are large and can be kept. A
    rank-deficient start never learns everything, and the status of its flow says so.

    Args:
        weights: W(0), symmetric and positive semidefinite, d × d in the network's frame; or
        factor: U(0), d × d'; or
        top: U(0) uniform on [0, top], so that all entries of W(0) are positive; a list adds an axis; or
        scale: U(0) with entries N(0, scale²), appendix E.2; a list adds an axis.
        hidden: d' of a drawn factor; None is d.
        size: d of a drawn factor, where only tasks of this dimension should be accepted.
    """

    weights: ArrayLike | None = field(default=None, repr=False)
    factor: ArrayLike | None = field(default=None, repr=False)
    hidden: int | Sequence[int] | np.ndarray | None = field(default=None, metadata=AXIS)
    top: float | Sequence[float] | np.ndarray | None = field(default=None, metadata=AXIS)
    scale: float | Sequence[float] | np.ndarray | None = field(default=None, metadata=AXIS)
    size: int | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("weights", "factor", "top", "scale") if getattr(self, name) is not None]
        if len(given) != 1:
            raise SaddlesError(
                "SymmetricTwoLayer needs exactly one of `weights` (W(0)), `factor` (U(0)), `top` and `scale` (a draw); "
                f"got {' and '.join(given) or 'none of them'}."
            )
        if not self.random and (self.hidden is not None or self.size is not None):
            raise SaddlesError(f"`hidden` and `size` belong to a drawn factor; `{given[0]}` is given. Leave them out.")
        for name in ("hidden", "top", "scale", "size"):
            values = getattr(self, name)
            if values is not None and not ((np.asarray(values) > 0) & (np.asarray(values) < np.inf)).all():
                raise SaddlesError.must_be(name, "positive", values)
        if self.hidden is not None and (np.asarray(self.hidden) % 1 != 0).any():
            raise SaddlesError.must_be("hidden", "a whole number of columns", self.hidden)

    @classmethod
    def uniform(cls, size: int, hidden: int, top: float, seed: int | None = None) -> "SymmetricTwoLayer":
        """U(0), d × d', uniform on [0, top]: one draw with a seed, else drawn from the seed of each run."""
        law = cls(hidden=hidden, top=top, size=size)
        return law if seed is None else cls(factor=law._draw(size, seed))

    @classmethod
    def gaussian(cls, size: int, hidden: int, scale: float, seed: int | None = None) -> "SymmetricTwoLayer":
        """U(0), d × d', with entries N(0, scale²): one draw with a seed, else drawn from the seed of each run."""
        law = cls(hidden=hidden, scale=scale, size=size)
        return law if seed is None else cls(factor=law._draw(size, seed))

    @property
    def random(self) -> bool:
        """Whether U(0) is drawn."""
        return self.weights is None and self.factor is None

    @property
    def factored(self) -> bool:
        """Whether U(0) is known to all digits, and not as a square root of W(0)."""
        return self.weights is None

    def start(self, task: Identity, seed: int = 0) -> np.ndarray:
        """U(0) in the network's frame; of a given W(0), its symmetric square root."""
        if self.random:
            if self.size not in (None, task.size):
                raise SaddlesError(f"This model has size={self.size}; the task has dimension {task.size}.")
            return self._draw(task.size, seed)
        if self.factor is not None:
            factor = np.asarray(self.factor, dtype=float)
            if factor.ndim != 2 or factor.shape[0] != task.size or not np.isfinite(factor).all():
                raise SaddlesError(f"`factor` must be {task.size} rows of finite numbers; got shape {factor.shape}.")
            return factor
        assert self.weights is not None
        weights = _square(self.weights, task.size)
        values, vectors = np.linalg.eigh((weights + weights.T) / 2)
        slack = ROUNDING * max(float(np.abs(values).max()), np.finfo(float).tiny)
        if np.abs(weights - weights.T).max() > slack or values.min() < -slack:
            raise SaddlesError(
                "`weights` must be symmetric and positive semidefinite, as U Uᵀ is; "
                f"the least eigenvalue is {values.min():.3g}. Or give factor=U(0)."
            )
        return vectors * np.sqrt(np.clip(values, 0, None))

    def _draw(self, size: int, seed: int) -> np.ndarray:
        rng, shape = np.random.default_rng([seed, _TWO]), (size, size if self.hidden is None else int(self.hidden))  # type: ignore[arg-type]
        return rng.uniform(0, self.top, size=shape) if self.scale is None else self.scale * rng.normal(size=shape)  # type: ignore[arg-type, operator]

    def product(self, task: Identity, seed: int = 0) -> np.ndarray:
        """W(0) = U(0) U(0)ᵀ in the network's frame, as it was given where it was."""
        factor = self.start(task, seed)
        return factor @ factor.T if self.weights is None else np.asarray(self.weights, dtype=float)

    def dynamics(self, task: Identity, seed: int = 0, precision: str = "float64") -> Dynamics:
        return factor_dynamics(task, self.start(task, seed), precision)

    def _keepable(self, task: Identity) -> tuple[str, ...]:
        return ("jacobian", "terms") if task.samples is None else ("jacobian",)

    def _label(self, task: Identity, path: Path, keep: tuple[str, ...] | None, facts: dict[str, Any]) -> Trajectory:
        rate = getattr(facts["method"], "rate", None)  # the flow has none
        checked = check_assumptions(self, task, seed=facts["seed"], rate=None if rate is None else PAPER_CLOCK * rate)
        return to_trajectory(
            task, path.times, jacobian=path.saved["jacobian"], keep=keep, coords=path.coords,
            strengths=task.strengths if task.samples is None else None, assumptions=checked.summary, **facts,
        )  # fmt: skip


@arguments_explained
@dataclass(frozen=True)
class MLP(Trainable):
    """A fully connected network d → widths → d.

    Of a linear network without biases, `jacobian` is large and can be kept; under `SGD` also `hierarchy`, the losses
    at all x̂(v).

    Args:
        widths: sizes of the hidden layers; () is a single linear layer.
        activation: "linear" or "relu", between layers.
        bias: with biases. The text's theory has none; the authors' runs do.
        init: "pytorch" draws all of a layer from U(±1/√fan_in); "gaussian" draws weights from
            N(0, scale²) and sets biases to 0.
        scale: standard deviation for "gaussian", 0.1 where it is not given; a list adds an axis.
    """

    widths: Sequence[int] = ()
    activation: str = "linear"
    bias: bool = False
    init: str = "pytorch"
    scale: float | Sequence[float] | np.ndarray | None = field(default=None, metadata=AXIS)

    def __post_init__(self) -> None:
        if self.activation not in ("linear", "relu"):
            raise SaddlesError.must_be("activation", "'linear' or 'relu'", self.activation)
        if self.init not in ("pytorch", "gaussian"):
            raise SaddlesError.must_be("init", "'pytorch' or 'gaussian'", self.init)
        if self.scale is not None and self.init == "pytorch":
            raise SaddlesError("`scale` is that of init='gaussian'; init='pytorch' has its own. Leave one of them out.")
        if self.scale is not None and not (np.isfinite(self.scale) & (np.asarray(self.scale) >= 0)).all():
            raise SaddlesError.must_be("scale", "a standard deviation of at least 0", self.scale)
        if any(int(w) != w or w < 1 for w in self.widths):
            raise SaddlesError.must_be("widths", "whole numbers of at least 1, or () for one layer", self.widths)
        object.__setattr__(self, "widths", tuple(int(w) for w in self.widths))

    def start(self, task: Identity, seed: int = 0) -> DrawnLayers:
        """(weights out × in, biases or None) of each layer in the network's frame."""
        draw = np.random.default_rng([seed, _MLP])
        layers: DrawnLayers = []
        for fan_in, fan_out in pairwise([task.size, *self.widths, task.size]):
            if self.init == "gaussian":
                scale = DEFAULT_SCALE if self.scale is None else self.scale
                weights, biases = scale * draw.normal(size=(fan_out, fan_in)), np.zeros(fan_out)
            else:
                edge = 1 / np.sqrt(fan_in)
                weights, biases = draw.uniform(-edge, edge, (fan_out, fan_in)), draw.uniform(-edge, edge, fan_out)
            layers.append((weights, biases if self.bias else None))
        return layers

    layers = start

    def dynamics(self, task: Identity, seed: int = 0, precision: str = "float64") -> Dynamics:
        return network_dynamics(task, self.start(task, seed), self.activation, precision)

    def _keepable(self, task: Identity) -> tuple[str, ...]:
        return ("jacobian",) if is_linear(self.start(task), self.activation) else ()

    def _label(self, task: Identity, path: Path, keep: tuple[str, ...] | None, facts: dict[str, Any]) -> Trajectory:
        saved = {
            name: values[:, None]
            for name, values in path.saved.items()
            if name != "jacobian" or is_kept(name, keep, values.size)
        }
        return runs_to_trajectory([task], path.times, saved, coords=path.coords, **facts).isel(run=0, drop=True)


def _square(given: ArrayLike, size: int) -> np.ndarray:
    matrix = np.asarray(given, dtype=float)
    if matrix.shape != (size, size) or not np.isfinite(matrix).all():
        raise SaddlesError(
            f"`weights` must be {size} × {size} finite numbers, to match the task; got shape {matrix.shape}."
        )
    return matrix
