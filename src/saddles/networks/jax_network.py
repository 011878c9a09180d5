"""A JAX function f(parameters, batch) as something that can be differentiated both ways."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from saddles.errors import SaddlesError
from saddles.networks.differentiable import Pushed

Tree = Any
"""A pytree of arrays."""

NAMES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
"""How a program spells floating-point types."""


@dataclass(frozen=True, eq=False)
class JaxNetwork:
    """A function of parameters and a batch, both pytrees; the first axis of every array of the batch is the sample."""

    function: Callable[[Tree, Tree], Array]
    batch: Tree
    samples: int
    memory_errors: tuple[type[Exception], ...] = (jax.errors.JaxRuntimeError,)

    @classmethod
    def on(cls, function: Callable[[Tree, Tree], Array], start: Tree, batch: Tree) -> "JaxNetwork":
        """The function on a batch."""
        arrays = jax.tree.leaves(batch)
        counts = {np.shape(one)[0] if np.ndim(one) else 0 for one in arrays}
        if len(counts) != 1 or counts == {0}:
            raise SaddlesError(f"`batch` must hold at least one sample, as many in each array; got {sorted(counts)}.")
        if not all(np.isfinite(np.asarray(one)).all() for one in arrays):
            raise SaddlesError("`batch` holds numbers that are not finite. Leave those samples out.")
        return cls(function, batch, counts.pop())

    def parameters(self, state: Tree, name: str) -> Tree:
        """A pytree of finite floating-point arrays."""
        leaves = jax.tree.leaves(state)
        if not leaves or not all(jnp.issubdtype(jnp.result_type(one), jnp.floating) for one in leaves):
            raise SaddlesError.must_be(name, "a pytree of floating-point arrays", state)
        if not all(np.isfinite(np.asarray(one)).all() for one in leaves):
            raise SaddlesError(f"`{name}` holds numbers that are not finite. Did the training diverge?")
        return jax.tree.map(jnp.asarray, state)

    def _rows(self, rows: slice) -> Tree:
        return jax.tree.map(lambda one: jnp.asarray(one)[rows], self.batch)

    def values(self, at: Tree, rows: slice) -> np.ndarray:
        """f(x; θ) of some samples."""
        return np.asarray(_values(self.function, at, self._rows(rows)), dtype=float)

    def push(self, at: Tree, along: Tree, rows: slice) -> Pushed:
        """f(x; θ) and J(x; θ) v."""
        try:
            values, tangent = _push(self.function, at, along, self._rows(rows))
        except TypeError as error:
            if "forward-mode" not in str(error):
                raise
            program = str(jax.make_jaxpr(self.function)(at, self._rows(rows)))
            which = re.search(r"custom_vjp_call\w*\[\s*name=(\w+)", program)
            raise SaddlesError(
                f"The network uses {which.group(1) if which else 'a function of its own'}, which JAX cannot "
                "differentiate forward (jax.custom_vjp). Replace it by plain operations, or by jax.custom_jvp."
            ) from error
        return Pushed(np.asarray(values, dtype=float), np.asarray(tangent, dtype=float))

    def pull(self, at: Tree, weights: np.ndarray, rows: slice) -> Tree:
        """Jᵀ u."""
        return _pull(self.function, at, jnp.asarray(weights), self._rows(rows))

    def joined(self, blocks: list[np.ndarray]) -> np.ndarray:
        """The outputs of several blocks of samples."""
        return np.concatenate(blocks)

    def dot(self, one: np.ndarray, other: np.ndarray) -> float:
        """Σ u v in float64."""
        return float(np.vdot(one, other))

    def array(self, values: np.ndarray) -> np.ndarray:
        """Outputs, which are on the host already: JAX has float64 on the device only where a program asks for it."""
        return values

    def rounded(self, at: Tree) -> Tree:
        """θ (1 ± u), u the unit roundoff of the narrowest numbers in the function's program."""
        program = str(jax.make_jaxpr(self.function)(at, self._rows(slice(0, 1))))
        kinds = {NAMES[name] for name in re.findall(rf"\b({'|'.join(NAMES)})\[", program)}
        unit = max(float(jnp.finfo(kind).eps) for kind in kinds) / 2
        draw = np.random.default_rng(24)
        return jax.tree.map(lambda one: one + one * unit * draw.choice([-1.0, 1.0], jnp.shape(one)), at)

    def difference(self, end: Tree, start: Tree) -> Tree:
        """θ − θ₀."""
        if jax.tree.structure(end) != jax.tree.structure(start):
            raise SaddlesError("`start` and `end` must be parameters of one network; their structures differ.")
        pairs = zip(jax.tree.leaves_with_path(start), jax.tree.leaves(end), strict=True)
        for (path, one), other in pairs:
            if jnp.shape(one) != jnp.shape(other):
                raise SaddlesError(
                    f"`start` and `end` must have the same shapes; {jax.tree_util.keystr(path)} has {jnp.shape(one)} "
                    f"and {jnp.shape(other)}."
                )
        return jax.tree.map(jnp.subtract, end, start)

    def plus(self, at: Tree, along: Tree, scale: float) -> Tree:
        """θ + scale·v."""
        return jax.tree.map(lambda one, other: one + scale * other, at, along)

    def norm(self, along: Tree) -> float:
        """‖v‖."""
        return float(np.sqrt(sum(float(np.sum(np.asarray(part, dtype=float) ** 2)) for part in jax.tree.leaves(along))))


def _flat(function: Callable[[Tree, Tree], Array], batch: Tree, at: Tree) -> Array:
    values = function(at, batch)
    count = jnp.shape(jax.tree.leaves(batch)[0])[0]
    if jnp.ndim(values) == 0 or jnp.shape(values)[0] != count:
        raise SaddlesError(
            f"The network must return an array with one row per sample; got the shape {jnp.shape(values)}."
        )
    return jnp.reshape(values, (count, -1))


@partial(jax.jit, static_argnums=0)
def _values(function: Callable[[Tree, Tree], Array], at: Tree, batch: Tree) -> Array:
    return _flat(function, batch, at)


@partial(jax.jit, static_argnums=0)
def _push(function: Callable[[Tree, Tree], Array], at: Tree, along: Tree, batch: Tree) -> tuple[Array, Array]:
    return jax.jvp(partial(_flat, function, batch), (at,), (along,))


@partial(jax.jit, static_argnums=0)
def _pull(function: Callable[[Tree, Tree], Array], at: Tree, weights: Array, batch: Tree) -> Tree:
    values, pulled = jax.vjp(partial(_flat, function, batch), at)
    return pulled(jnp.reshape(weights, values.shape).astype(values.dtype))[0]
