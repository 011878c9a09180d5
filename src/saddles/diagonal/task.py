"""What the networks of this lab are trained on."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from saddles.core.validation import arguments_explained
from saddles.errors import SaddlesError
from saddles.protocols import ArrayLike
from saddles.runtime.precision import in_double_precision

Loss = Callable[[Array, Array], Array]
"""loss(output, target) of one sample: a number."""


def squared_error(output: Float[Array, "*out"], target: Float[Array, "*out"]) -> Float[Array, ""]:
    """The mean over all entries of (output − target)²."""
    # Shapes (3, 1) and (3,) would give the nine differences of all pairs.
    if not output.size == target.size == np.prod(np.broadcast_shapes(output.shape, target.shape)):
        raise SaddlesError(
            f"Outputs and targets of a sample must have the same shape; got {output.shape} and {target.shape}."
        )
    return jnp.mean((output - target) ** 2)


def cross_entropy(output: Float[Array, " label"], target: Int[Array, ""]) -> Float[Array, ""]:
    """−log softmax(output)[target] of an integer label.

    On separable data it has no minimum: the weights grow for ever, and Assumption 4.4 fails (the theory says so
    when it gets there). NaN for a label that the output does not have.
    """
    # JAX would read the nearest entry that there is.
    known = (target >= 0) & (target < output.shape[-1])
    return jnp.where(known, jax.nn.logsumexp(output) - output[target], jnp.nan)


@runtime_checkable
class Task(Protocol):
    """What the lab reads of a task."""

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
        """The loss of one sample."""
        ...


@runtime_checkable
class Teacher(Protocol):
    """What `TeacherStudent` reads of a model."""

    def sample(self, samples: int, tokens: int, draw: np.random.Generator) -> np.ndarray:
        """Inputs of the model's shape, samples first."""
        ...

    def teach(self, draw: np.random.Generator) -> np.ndarray:
        """A teacher's parameters."""
        ...

    def output(self, beta: Array, inputs: Array, /) -> Array:
        """The outputs of a teacher with these parameters."""
        ...


def check_task(task: object, model: object) -> Task:
    """Refuse a task of another kind, before anything is computed."""
    missing = [name for name in ("inputs", "targets", "loss") if not hasattr(task, name)]
    if missing:
        raise SaddlesError(
            f"{type(model).__name__} is trained on Supervised, TeacherStudent, or an object with `inputs`, `targets` "
            f"and `loss`; {type(task).__name__} has no `{missing[0]}`."
        )
    return task  # type: ignore[return-value]


@arguments_explained
@dataclass(frozen=True, eq=False)
class Supervised:
    """Given inputs and targets: L = mean over samples of loss(output, target).

    Args:
        inputs: samples first; the model sees them all at once.
        targets: samples first.
        loss: of one sample, a smooth JAX function.
    """

    inputs: ArrayLike
    targets: ArrayLike
    loss: Loss = squared_error

    def __post_init__(self) -> None:
        inputs, targets = np.asarray(self.inputs), np.asarray(self.targets)
        if not inputs.ndim or not targets.ndim or len(inputs) != len(targets) or not len(inputs):
            raise SaddlesError(
                "`inputs` and `targets` must have the same number of samples along their first axes; got shapes "
                f"{inputs.shape} and {targets.shape}."
            )
        if not (np.isfinite(inputs).all() and np.isfinite(targets).all()):
            raise SaddlesError("`inputs` and `targets` must be finite; they hold NaN or infinity. Clean them first.")
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "targets", targets)


@arguments_explained
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
        sparsity: how many of a drawn teacher's coordinates are not zero; None leaves all.
        noise: standard deviation of Gaussian noise on the targets.
        loss: of one sample.
    """

    model: Teacher
    samples: int = 1000
    tokens: int = 10
    seed: int = 0
    teacher: ArrayLike | None = field(default=None, repr=False)
    sparsity: int | None = None
    noise: float = 0.0
    loss: Loss = squared_error

    def __post_init__(self) -> None:
        for name in ("samples", "tokens"):
            if getattr(self, name) < 1:
                raise SaddlesError.must_be(name, "at least 1", getattr(self, name))
        if not 0 <= self.noise < float("inf"):
            raise SaddlesError.must_be("noise", "a standard deviation of at least 0", self.noise)
        if self.sparsity is not None and self.sparsity < 0:
            raise SaddlesError.must_be("sparsity", "a number of coordinates, or None for all", self.sparsity)

    @property
    def inputs(self) -> np.ndarray:
        """N(0, 1) inputs, samples first."""
        return self._drawn[0]

    @property
    def truth(self) -> np.ndarray:
        """The teacher's β (for a full head: its four matrices, stacked)."""
        return self._drawn[1]

    @property
    def targets(self) -> np.ndarray:
        """The teacher's outputs."""
        return self._drawn[2]

    @cached_property
    @in_double_precision
    def _drawn(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # A generator for each, so that another noise or teacher leaves the inputs as they are.
        inputs = self.model.sample(self.samples, self.tokens, np.random.default_rng([self.seed, 30]))
        truth = self._teacher(np.random.default_rng([self.seed, 31]))
        clean = np.asarray(self.model.output(jnp.asarray(truth), jnp.asarray(inputs)))
        return inputs, truth, clean + self.noise * np.random.default_rng([self.seed, 32]).normal(size=clean.shape)

    def _teacher(self, draw: np.random.Generator) -> np.ndarray:
        beta = self.model.teach(draw)
        if self.teacher is not None:
            given = np.asarray(self.teacher, dtype=float)
            if given.shape != beta.shape or not np.isfinite(given).all():
                raise SaddlesError.must_be("teacher", f"finite numbers of shape {beta.shape}", given)
            return given
        if self.sparsity is None:
            return beta
        if self.sparsity > beta.size or beta.ndim != 1:
            raise SaddlesError.must_be("sparsity", f"a number of the β of shape {beta.shape}", self.sparsity)
        return np.where(np.isin(np.arange(beta.size), draw.permutation(beta.size)[: self.sparsity]), beta, 0.0)
