"""Networks that see their weights only through β = u ⊙ v, and one that does not.

The initial scale is the model's: weights start at α(u₀, v₀) with `log_alpha` = log α. It may be any negative number,
−2302.6 (α = 1e-1000) included; a list adds the axis `log_alpha`. The limit α → 0 of the theory does not need it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from saddles.core.status import Status
from saddles.core.trajectory import Trajectory
from saddles.core.validation import arguments_explained
from saddles.diagonal.network import Beta, Network, Weights, positive
from saddles.diagonal.scale import LogAlpha, check_log_alpha
from saddles.diagonal.simulate import common_clock, full_problem, train_full
from saddles.errors import SaddlesError
from saddles.protocols import AXIS, ArrayLike
from saddles.runtime.device import on_device
from saddles.runtime.precision import in_double_precision

Sequences = Float[Array, "sample token dim"]


@lru_cache
def _shared(kind: Callable[..., Network], *sizes: int) -> Network:
    return kind(*sizes)


def _check_size(value: int, name: str) -> None:
    if int(value) != value or value < 1:
        raise SaddlesError.must_be(name, "a whole number of at least 1", value)


@arguments_explained
@dataclass(frozen=True, eq=False)
class Diagonal(Network):
    """A network given by a function.

    Args:
        function: h(β, batch), a twice differentiable JAX function of a whole batch (Definition 3.1
            excludes the ReLU).
        size: the length of β.
        weights: u₀ and v₀ instead of a draw.
        exponents: the initial scale of coordinate i is α^a_i; one number or one per coordinate.
        log_alpha: log α; a list adds an axis.
    """

    function: Callable[[Array, Array], Array]
    size: int
    weights: Weights = field(default=None, repr=False)
    exponents: ArrayLike = 1.0
    log_alpha: LogAlpha = field(default=None, kw_only=True, metadata=AXIS)

    def __post_init__(self) -> None:
        _check_size(self.size, "size")
        check_log_alpha(self.log_alpha)

    @property
    def coordinates(self) -> int:
        return self.size

    def output(self, beta: Beta, inputs: Array) -> Array:
        return self.function(beta, inputs)


@arguments_explained
@dataclass(frozen=True, eq=False)
class LinearDiagonal(Network):
    """The linear diagonal network: f(x) = Σ u_i v_i x_i.

    Args:
        dim: number of inputs and of coordinates.
        weights, exponents, log_alpha: as in `Diagonal`.
    """

    dim: int
    weights: Weights = field(default=None, repr=False)
    exponents: ArrayLike = 1.0
    log_alpha: LogAlpha = field(default=None, kw_only=True, metadata=AXIS)

    def __post_init__(self) -> None:
        _check_size(self.dim, "dim")
        check_log_alpha(self.log_alpha)

    @property
    def coordinates(self) -> int:
        return self.dim

    def canonical(self) -> Network:
        return _shared(LinearDiagonal, self.dim)

    def output(self, beta: Beta, inputs: Float[Array, "sample dim"]) -> Float[Array, " sample"]:
        return inputs @ beta

    def sample(self, samples: int, tokens: int, draw: np.random.Generator) -> np.ndarray:
        return draw.normal(size=(samples, self.dim))


def attend(
    states: Sequences,
    key_query: Float[Array, " dim"],
    value_output: Float[Array, " dim"],
    offset: Float[Array, "token token"] | None = None,
) -> Sequences:
    """smax(X diag(k) Xᵀ + offset) X diag(o), the softmax over each row: (1) with diagonal weights."""
    logits = jnp.einsum("snd,smd->snm", states * key_query[None, None, :], states)
    if offset is not None:
        logits = logits + offset[None, :, :]
    return jnp.einsum("snm,smd->snd", jax.nn.softmax(logits, axis=-1), states) * value_output[None, None, :]


@arguments_explained
@dataclass(frozen=True, eq=False)
class AttentionHead(Network):
    """One attention head with diagonal weights: smax(X diag(k) Xᵀ) X diag(o), β = [k, o].

    k = w_K ⊙ w_Q are the entries of W_K W_Qᵀ and o = w_V ⊙ w_O those of W_V W_Oᵀ. No mask and no 1/√d.

    Args:
        dim: d; β has 2d coordinates.
        weights, exponents, log_alpha: as in `Diagonal`.
    """

    dim: int
    weights: Weights = field(default=None, repr=False)
    exponents: ArrayLike = 1.0
    log_alpha: LogAlpha = field(default=None, kw_only=True, metadata=AXIS)

    def __post_init__(self) -> None:
        _check_size(self.dim, "dim")
        check_log_alpha(self.log_alpha)

    @property
    def coordinates(self) -> int:
        return 2 * self.dim

    @property
    def families(self) -> list[str]:
        return ["key_query"] * self.dim + ["value_output"] * self.dim

    def canonical(self) -> Network:
        return _shared(AttentionHead, self.dim)

    def output(self, beta: Beta, inputs: Sequences) -> Sequences:
        return attend(inputs, beta[: self.dim], beta[self.dim :])

    def sample(self, samples: int, tokens: int, draw: np.random.Generator) -> np.ndarray:
        return draw.normal(size=(samples, tokens, self.dim))


@arguments_explained
@dataclass(frozen=True, eq=False)
class DiagonalTransformer(Network):
    """The transformer of Example 3.2 with diagonal attention weights, only these trained.

        Z̃_ℓ = Z_{ℓ−1} + Σ_i smax(Z diag(k_{ℓi}) Zᵀ) Z diag(o_{ℓi}),   Z_ℓ = Z̃_ℓ + σ(Z̃_ℓ W_A) W_Bᵀ.

    β lists, layer by layer and head by head, k then o: index ((ℓ H + i) 2 + which) d + entry.

    Args:
        dim, layers, heads: d, L and H.
        feedforward: width of the frozen part, whose W_A and W_B have N(0, 1/d) and N(0, 1/width)
            entries and σ = GELU; 0 leaves it out.
        exponents: initial exponent of each head, (head,) or (layer, head): breaks the symmetry of heads.
        offsets: frozen logits (head, token, token) or (layer, head, token, token): another way to break it.
        seed: draws W_A and W_B.
        weights, log_alpha: as in `Diagonal`.
    """

    dim: int
    layers: int = 2
    heads: int = 2
    feedforward: int = 0
    exponents: ArrayLike = 1.0
    offsets: ArrayLike | None = field(default=None, repr=False)
    seed: int = 0
    weights: Weights = field(default=None, repr=False)
    log_alpha: LogAlpha = field(default=None, kw_only=True, metadata=AXIS)

    def __post_init__(self) -> None:
        for name in ("dim", "layers", "heads"):
            _check_size(getattr(self, name), name)
        if self.feedforward < 0:
            raise SaddlesError.must_be("feedforward", "a width, or 0 for none", self.feedforward)
        check_log_alpha(self.log_alpha)
        self._check_offsets()

    def _check_offsets(self) -> None:
        """JAX reads the last head's in the place of one that is missing, so shapes are checked here."""
        if self.offsets is None:
            return
        shape = np.shape(self.offsets)
        if shape[:-2] not in ((self.heads,), (self.layers, self.heads)) or shape[-1] != shape[-2]:
            raise SaddlesError(
                f"`offsets` must have the shape (head, token, token) or (layer, head, token, token) with "
                f"{self.layers} layers of {self.heads} heads; got {shape}."
            )

    @property
    def coordinates(self) -> int:
        return 2 * self.dim * self.layers * self.heads

    @property
    def powers(self) -> np.ndarray:
        per_head = positive(self.exponents, (self.layers, self.heads), f"one for each of {self.heads} heads, by layer")
        return np.repeat(per_head.ravel(), 2 * self.dim)

    @property
    def families(self) -> list[str]:
        names = [
            f"layer {layer} head {head} {family}"
            for layer in range(self.layers)
            for head in range(self.heads)
            for family in ("key_query", "value_output")
        ]
        return [name for name in names for _ in range(self.dim)]

    @cached_property
    def frozen(self) -> tuple[np.ndarray, np.ndarray]:
        """W_A and W_B of every layer, (layer, dim, feedforward) each."""
        draw = np.random.default_rng([self.seed, 34])
        shape = (self.layers, self.dim, self.feedforward)
        return draw.normal(size=shape) / np.sqrt(self.dim), draw.normal(size=shape) / np.sqrt(max(self.feedforward, 1))

    def canonical(self) -> Network:
        # Offsets are arrays, which have no hash: such a model is not shared.
        if self.offsets is not None:
            return self
        return _shared(_transformer, self.dim, self.layers, self.heads, self.feedforward, self.seed)

    def output(self, beta: Beta, inputs: Sequences) -> Sequences:
        parts = beta.reshape(self.layers, self.heads, 2, self.dim)
        states = inputs
        for layer in range(self.layers):
            states = states + sum(
                attend(states, parts[layer, head, 0], parts[layer, head, 1], self._offset(layer, head))
                for head in range(self.heads)
            )
            if self.feedforward:
                first, second = (jnp.asarray(block[layer]) for block in self.frozen)
                states = states + jax.nn.gelu(states @ first, approximate=False) @ second.T
        return states

    def _offset(self, layer: int, head: int) -> Float[Array, "token token"] | None:
        if self.offsets is None:
            return None
        offsets = jnp.asarray(self.offsets)
        return offsets[layer, head] if offsets.ndim == 4 else offsets[head]

    def sample(self, samples: int, tokens: int, draw: np.random.Generator) -> np.ndarray:
        return draw.normal(size=(samples, tokens, self.dim))


def _transformer(dim: int, layers: int, heads: int, feedforward: int, seed: int) -> DiagonalTransformer:
    return DiagonalTransformer(dim, layers, heads, feedforward, seed=seed)


@arguments_explained
@dataclass(frozen=True, eq=False)
class FullHead:
    """One attention head with full matrices W_K, W_Q, W_V, W_O in R^{d×d'}: (1) as it is.

    It has no coordinates β, and no theory here is about it; it is integrated or descended in its weights, stacked
    as (matrix, dim, inner) in the order key, query, value, output.

    Args:
        dim: d.
        inner: d'; None is d.
        scale: standard deviation of a teacher's entries; None is d^{-1/2} d'^{-1/4}, at which the
            entries of W_K W_Qᵀ are of order 1/d and the teacher's softmax is not saturated.
        log_alpha: log α, at least −300 here; a list adds an axis.
    """

    dim: int
    inner: int | None = None
    scale: float | None = None
    log_alpha: LogAlpha = field(default=None, kw_only=True, metadata=AXIS)

    random: ClassVar[bool] = True
    """The initial weights are drawn by the seed."""

    def __post_init__(self) -> None:
        _check_size(self.dim, "dim")
        _check_size(self.width, "inner")
        if self.scale is not None and not 0 < self.scale < float("inf"):
            raise SaddlesError.must_be("scale", "a positive standard deviation, or None", self.scale)
        check_log_alpha(self.log_alpha)

    @property
    def width(self) -> int:
        """The inner dimension d'."""
        return self.dim if self.inner is None else self.inner

    def canonical(self) -> "FullHead":
        """One instance for all heads of one shape, as `Network.canonical`."""
        return _shared_head(self.dim, self.width)

    def output(self, weights: Float[Array, "matrix dim inner"], inputs: Sequences) -> Sequences:
        """smax(X W_K W_Qᵀ Xᵀ) X W_V W_Oᵀ."""
        key, query, value, output = weights
        logits = jnp.einsum("sni,smi->snm", inputs @ key, inputs @ query)
        return jnp.einsum("snm,smi->sni", jax.nn.softmax(logits, axis=-1), inputs @ value) @ output.T

    def sample(self, samples: int, tokens: int, draw: np.random.Generator) -> np.ndarray:
        """Gaussian sequences."""
        return draw.normal(size=(samples, tokens, self.dim))

    def teach(self, draw: np.random.Generator) -> np.ndarray:
        """A teacher's four matrices, stacked."""
        scale = self.dim**-0.5 * self.width**-0.25 if self.scale is None else self.scale
        return scale * draw.normal(size=(4, self.dim, self.width))

    def start(self, task: object = None, seed: int = 0) -> np.ndarray:
        """The four matrices before the factor α, i.i.d. N(0, 1), stacked; they do not depend on the task."""
        return np.random.default_rng([seed, 35]).normal(size=(4, self.dim, self.width))

    @in_double_precision
    def simulate(
        self,
        task: object,
        method: object,
        *,
        times: np.ndarray | None = None,
        seed: int = 0,
        device: str | None = None,
        precision: str = "float64",
    ) -> Trajectory:
        """Train by `Flow` (which needs `until` or times), `Descent`, or another method with a `follow`.

        Variables are `singular_value` (time, family, mode) of W_K W_Qᵀ and W_V W_Oᵀ, `loss` and `gradient_time`;
        `time` is rescaled, t / log(1/α).
        """
        with on_device(device):
            return train_full(self, self.start(task, seed), task, method, times, seed, precision)

    @in_double_precision
    def horizon(
        self, task: object, method: object, *, seed: int = 0, device: str | None = None, precision: str = "float64"
    ) -> tuple[np.ndarray | None, Status]:
        """The rescaled times of a run without `times`, where several must share them."""
        with on_device(device):
            return common_clock(method, full_problem(self, self.start(task, seed), task, method, seed, precision))


@lru_cache
def _shared_head(dim: int, inner: int) -> FullHead:
    return FullHead(dim, inner)
