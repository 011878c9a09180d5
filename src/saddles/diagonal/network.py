"""What the networks h(x; u ⊙ v) have in common: a start, training, and the axes of their results."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from jaxtyping import Array, Float

from saddles.core.status import Status
from saddles.core.trajectory import Trajectory
from saddles.diagonal.scale import LogAlpha
from saddles.diagonal.simulate import common_clock, product_problem, train_products
from saddles.errors import SaddlesError
from saddles.protocols import ArrayLike
from saddles.runtime.device import on_device
from saddles.runtime.precision import in_double_precision

Beta = Float[Array, " coordinate"]
Weights = tuple[ArrayLike, ArrayLike] | None
"""u₀ and v₀, or None where they are drawn."""


def positive(exponents: ArrayLike, shape: tuple[int, ...], many: str) -> np.ndarray:
    """Exponents a of the initial scale α^a in a shape; `many` says in words what may be given besides one number."""
    try:
        powers = np.broadcast_to(np.asarray(exponents, dtype=float), shape)
    except ValueError as error:
        raise SaddlesError.must_be("exponents", f"one number or {many}", exponents) from error
    if not (powers > 0).all() or not np.isfinite(powers).all():
        raise SaddlesError.must_be("exponents", "positive (the paper's are 1)", exponents)
    return powers


class Network(ABC):
    """f(x; u, v) = h(x; u ⊙ v) (paper, Definition 3.1): a smooth h and a draw of u₀, v₀.

    A network of your own needs `coordinates` and `output`, and `log_alpha` to be simulated:

        class Tanh(Network):
            coordinates, log_alpha = 3, -30.0
            def output(self, beta, inputs):
                return jnp.tanh(inputs @ beta)
    """

    log_alpha: LogAlpha = None
    weights: Weights = None
    exponents: ArrayLike = 1.0

    @property
    @abstractmethod
    def coordinates(self) -> int:
        """The length of β."""

    @abstractmethod
    def output(self, beta: Beta, inputs: Array) -> Array:
        """The outputs h(β, inputs) of a whole batch, samples first."""

    def canonical(self) -> "Network":
        """One instance for all models of the same h, so that compiled code is shared between them."""
        return self

    @property
    def random(self) -> bool:
        """Whether u₀ and v₀ are drawn by the seed."""
        return self.weights is None

    @property
    def families(self) -> list[str]:
        """The name of the matrix that each coordinate is a diagonal entry of."""
        return ["weight"] * self.coordinates

    @property
    def powers(self) -> np.ndarray:
        """The exponents a of the initial scale α^a, one per coordinate."""
        return positive(self.exponents, (self.coordinates,), f"{self.coordinates} of them")

    def sample(self, samples: int, tokens: int, draw: np.random.Generator) -> np.ndarray:
        """Gaussian inputs of this model's shape."""
        raise SaddlesError(
            f"The shape of the inputs of {type(self).__name__} is not known, so that TeacherStudent cannot draw them. "
            "Use Supervised with inputs of your own."
        )

    def teach(self, draw: np.random.Generator) -> np.ndarray:
        """A teacher's β: the product of two standard Gaussian vectors."""
        return draw.normal(size=self.coordinates) * draw.normal(size=self.coordinates)

    def start(self, task: object = None, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """u₀ and v₀ before the factor α^a: i.i.d. N(0, 1), unless the model was given `weights`.

        They do not depend on the task.
        """
        if self.weights is not None:
            u, v = (np.asarray(part, dtype=float) for part in self.weights)
            if u.shape != (self.coordinates,) or v.shape != (self.coordinates,):
                raise SaddlesError(
                    f"`weights` must be two vectors of {self.coordinates} entries, one per coordinate; got shapes "
                    f"{u.shape} and {v.shape}."
                )
            if not (np.isfinite(u).all() and np.isfinite(v).all()):
                raise SaddlesError("`weights` must be finite; they hold NaN or infinity.")
            return u, v
        draw = np.random.default_rng([seed, 33])
        return draw.normal(size=self.coordinates), draw.normal(size=self.coordinates)

    @in_double_precision
    def simulate(
        self,
        task: object,
        method: object,
        *,
        times: np.ndarray | None = None,
        seed: int = 0,
        keep: Sequence[str] | None = None,
        device: str | None = None,
        precision: str = "float64",
    ) -> Trajectory:
        """Train by `Flow`, `Descent`, or another method with a `follow`; `time` is rescaled, t / log(1/α).

        A `Flow` without times is saved at the end of every solver step: close where something happens, far apart on
        plateaus. Variables are `beta` (time, coordinate), `loss` and `gradient_time`, and of a `Flow` also
        `log_scale` (time, coordinate) = log_α|u+v|, the b of Algorithm 1. With times, a method of steps saves
        the nearest step to each.

        Kept on request: `weights` (u and v) and, of a `Flow`, `crossings` (plateaus crossed: from, to, stated error).
        """
        with on_device(device):
            return train_products(self, task, method, times, seed, keep, precision)

    @in_double_precision
    def horizon(
        self, task: object, method: object, *, seed: int = 0, device: str | None = None, precision: str = "float64"
    ) -> tuple[np.ndarray | None, Status]:
        """The rescaled times of a run without `times`, where several must share them."""
        with on_device(device):
            return common_clock(method, product_problem(self, task, method, seed, precision))
