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

from saddles.errors import SaddlesError, shown
from saddles.networks.differentiable import Pushed
from saddles.runtime.functions import as_it_is

Tree = Any
"""A pytree of arrays."""

NAMES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
"""How a program spells floating-point types."""

Function = Callable[[Tree, Tree], Array]
"""(parameters, batch) -> outputs, one row for each sample."""


@dataclass(frozen=True, eq=False)
class JaxNetwork:
    """A function of parameters and a batch, both pytrees; the first axis of every array of the batch is the sample."""

    function: Function
    batch: Tree
    samples: int
    memory_errors: tuple[type[Exception], ...] = (jax.errors.JaxRuntimeError,)

    @classmethod
    def on(cls, function: Function, start: Tree, batch: Tree) -> "JaxNetwork":
        """The function on a batch."""
        arrays = jax.tree.leaves(batch)
        _need_numbers(arrays)
        counts = {np.shape(one)[0] if np.ndim(one) else 0 for one in arrays}
        if len(counts) != 1 or counts == {0}:
            raise SaddlesError(f"`batch` must hold at least one sample, as many in each array; got {sorted(counts)}.")
        if not all(np.isfinite(np.asarray(one)).all() for one in arrays):
            raise SaddlesError("`batch` holds numbers that are not finite. Leave those samples out.")
        _floating("start", start)
        function, batch, samples = as_it_is(function), jax.tree.map(jnp.asarray, batch), counts.pop()
        _need_outputs(function, start, batch, samples)
        return cls(function, batch, samples)

    def parameters(self, state: Tree, name: str) -> Tree:
        """A pytree of finite floating-point arrays."""
        _floating(name, state)
        if not all(np.isfinite(np.asarray(one)).all() for one in jax.tree.leaves(state)):
            raise SaddlesError(f"`{name}` holds numbers that are not finite. Did the training diverge?")
        return jax.tree.map(jnp.asarray, state)

    def _rows(self, rows: slice) -> Tree:
        return jax.tree.map(lambda one: one[rows], self.batch)

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


def _need_numbers(arrays: list[object]) -> None:
    """Refuse a batch in which something is not an array of numbers."""
    for one in arrays:
        try:
            numbers = np.asarray(one).dtype.kind not in "OSU"
        except Exception:  # of whatever library it is
            numbers = False
        if not numbers:
            raise SaddlesError.must_be("batch", "a pytree of arrays of numbers", one)


def _floating(name: str, state: Tree) -> set[np.dtype]:
    """The types of numbers in a pytree of parameters."""
    kinds = set()
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        where, kind = f"{name}{jax.tree_util.keystr(path)}", _kind(leaf)
        if kind is None or not jnp.issubdtype(kind, jnp.floating):
            got = shown(leaf) if kind is None else str(kind)
            raise SaddlesError(f"`{name}` must be a pytree of floating-point arrays; `{where}` is {got}.{_hint(leaf)}")
        kinds.add(kind)
    if not kinds:
        raise SaddlesError.must_be(name, "a pytree of floating-point arrays", state)
    return kinds


def _kind(leaf: object) -> np.dtype | None:
    try:
        return jnp.result_type(leaf)
    except TypeError:
        return None


def _hint(leaf: object) -> str:
    if type(leaf).__module__.partition(".")[0] == "torch":
        return " For tensors of torch, `f` must be the torch.nn.Module itself."
    if callable(leaf):
        return (
            " Split a module of Equinox, parameters, rest = eqx.partition(module, eqx.is_inexact_array), and join "
            "both inside f by eqx.combine."
        )
    return ""


def _need_outputs(function: Function, at: Tree, batch: Tree, samples: int) -> None:
    """Refuse a function that returns no outputs; JAX traces it once, and computes nothing."""
    try:
        values = jax.eval_shape(function, at, batch)
    except SaddlesError:
        raise
    except Exception as error:  # a user's own function may raise anything
        raise SaddlesError(
            f"`f` fails when JAX calls it with (parameters, batch) ({type(error).__name__}: "
            f"{next(iter(str(error).splitlines()), '')})."
        ) from error
    if not isinstance(values, jax.ShapeDtypeStruct) or values.shape[:1] != (samples,):
        got = f"the shape {values.shape}" if isinstance(values, jax.ShapeDtypeStruct) else f"a {type(values).__name__}"
        raise SaddlesError(f"The network must return an array with one row per sample; got {got}.")
    if not jnp.issubdtype(values.dtype, jnp.floating):
        parts = " Return real and imaginary parts side by side." if values.dtype.kind == "c" else ""
        raise SaddlesError(f"The network must return real floating-point numbers; got {values.dtype}.{parts}")


def _flat(function: Function, batch: Tree, at: Tree) -> Array:
    values = function(at, batch)
    return jnp.reshape(values, (len(values), -1))


@partial(jax.jit, static_argnums=0)
def _values(function: Function, at: Tree, batch: Tree) -> Array:
    return _flat(function, batch, at)


@partial(jax.jit, static_argnums=0)
def _push(function: Function, at: Tree, along: Tree, batch: Tree) -> tuple[Array, Array]:
    return jax.jvp(partial(_flat, function, batch), (at,), (along,))


@partial(jax.jit, static_argnums=0)
def _pull(function: Function, at: Tree, weights: Array, batch: Tree) -> Tree:
    values, pulled = jax.vjp(partial(_flat, function, batch), at)
    return pulled(jnp.reshape(weights, values.shape).astype(values.dtype))[0]
