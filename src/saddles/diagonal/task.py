"""Tasks of the diagonal lab: samples, targets, and a loss a sample."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import saddles.runtime.float64  # noqa: F401
from saddles.errors import SaddlesError

Loss = Callable[[Any, Any], Any]
"""loss(output, target) of one sample: a number."""


def squared_error(output: Float[Array, "*out"], target: Float[Array, "*out"]) -> Float[Array, ""]:
    """The mean over all entries of (output − target)²."""
    return jnp.mean((output - target) ** 2)


def cross_entropy(output: Float[Array, " label"], target: Any) -> Float[Array, ""]:
    """−log softmax(output)[target] of a whole-number label.

    On separable data it has no minimum: the weights grow for ever, and with them
    Assumption 4.4 fails (the theory says so when it meets it).
    """
    return jax.nn.logsumexp(output) - output[target]


class Task(Protocol):
    """What the lab needs of a task."""

    @property
    def inputs(self) -> np.ndarray:
        """Samples first."""
        ...

    @property
    def targets(self) -> np.ndarray:
        """Samples first."""
        ...

    @property
    def loss(self) -> Loss:
        """Of one sample."""
        ...


@dataclass(frozen=True, eq=False)
class Supervised:
    """Given inputs and targets: L = mean over samples of loss(output, target).

    Args:
        inputs: samples first; the model sees them all at once.
        targets: samples first.
        loss: of one sample, a smooth JAX function.
    """

    inputs: Any
    targets: Any
    loss: Loss = squared_error

    def __post_init__(self) -> None:
        inputs, targets = np.asarray(self.inputs), np.asarray(self.targets)
        if not inputs.ndim or not targets.ndim or len(inputs) != len(targets) or not len(inputs):
            raise SaddlesError.about(
                f"inputs of shape {inputs.shape} and targets of shape {targets.shape} came",
                "both have the samples first, and as many",
                "check their first axes",
            )
        if not (np.isfinite(inputs).all() and np.isfinite(targets).all()):
            raise SaddlesError.about(
                "data with NaN or infinity came", "Assumption 2.1 needs bounded data", "clean it first"
            )
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "targets", targets)


@dataclass(frozen=True, eq=False)
class TeacherStudent:
    """Gaussian inputs labelled by a teacher of the student's own kind.

    Inputs are i.i.d. N(0, 1). Each of the teacher's weights is i.i.d. N(0, 1), so that its
    β is a product of two of them (paper, appendix A; the papers do not print the teacher's
    scale, see the lab's page).

    Args:
        model: the student; it knows the shape of its inputs.
        samples: how many.
        tokens: length of a sequence, for models that read sequences.
        seed: draws inputs and teacher.
        teacher: the teacher's β instead of a draw.
        sparsity: how many of the teacher's coordinates are not zero; None leaves all.
        noise: standard deviation of Gaussian noise on the targets.
        loss: of one sample.
    """

    model: Any
    samples: int = 1000
    tokens: int = 10
    seed: int = 0
    teacher: Any = field(default=None, repr=False)
    sparsity: int | None = None
    noise: float = 0.0
    loss: Loss = squared_error

    def __post_init__(self) -> None:
        if self.samples < 1 or self.tokens < 1 or not 0 <= self.noise < float("inf"):
            raise SaddlesError.about(
                f"samples={self.samples!r}, tokens={self.tokens!r}, noise={self.noise!r} came",
                "counts are at least 1 and noise is not negative",
                "try samples=1000, tokens=10",
            )

    @cached_property
    def inputs(self) -> np.ndarray:
        """N(0, 1) inputs, samples first."""
        return self.model.sample(self.samples, self.tokens, np.random.default_rng([self.seed, 30]))

    @cached_property
    def truth(self) -> np.ndarray:
        """The teacher's β (for a full head: its four matrices, stacked)."""
        draw = np.random.default_rng([self.seed, 31])
        if self.teacher is not None:
            return np.asarray(self.teacher, dtype=float)
        beta = self.model.teach(draw)
        if self.sparsity is not None:
            beta = np.where(np.isin(np.arange(beta.size), draw.permutation(beta.size)[: self.sparsity]), beta, 0.0)
        return beta

    @cached_property
    def targets(self) -> np.ndarray:
        """The teacher's outputs."""
        clean = np.asarray(self.model.output(jnp.asarray(self.truth), jnp.asarray(self.inputs)))
        return clean + self.noise * np.random.default_rng([self.seed, 32]).normal(size=clean.shape)
