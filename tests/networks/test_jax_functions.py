"""Functions of JAX as users have them: callable objects, modules of Equinox, and what cannot be measured."""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from saddles import networks
from saddles.errors import SaddlesError
from saddles.networks.jax_network import JaxNetwork, _values

DRAW = np.random.default_rng(8)
BATCH = jnp.asarray(DRAW.normal(size=(5, 3)))
START, END = (jnp.asarray(DRAW.normal(size=(3, 2))) for _ in range(2))


def curved(at, x):
    return jnp.tanh(x @ at)


def of_curved():
    return networks.linearity(curved, START, END, BATCH)


@dataclass
class Gained:
    """Callable, and without a hash, because it can be compared and changed."""

    gain: float

    def __call__(self, at, x):
        return self.gain * curved(at, x)


class Slotted:
    """Callable, without a hash and without attributes that can be looked at."""

    __slots__ = ("power",)
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __init__(self, power):
        self.power = power

    def __call__(self, at, x):
        return (x @ at) ** self.power


class Scaled(eqx.Module):
    """Callable, a pytree, and without a hash, because it holds an array."""

    scale: jax.Array

    def __call__(self, at, x):
        return self.scale * curved(at, x)


@pytest.mark.parametrize("f", [Gained(2.0), Scaled(jnp.asarray(2.0))])
def test_callables_without_a_hash_are_functions_too(f):
    with pytest.raises(TypeError, match="unhashable"):
        hash(f)
    assert networks.linearity(f, START, END, BATCH) == pytest.approx(of_curved(), rel=1e-12)
    before = _values._cache_size()  # pyright: ignore[reportAttributeAccessIssue]
    networks.beside(f, START, [(BATCH, jnp.zeros((5, 2)))] * 4, BATCH, rate=0.1)
    assert _values._cache_size() == before  # pyright: ignore[reportAttributeAccessIssue]


class Hashed(Gained):
    """The same with the hash of its identity."""

    def __hash__(self):
        return id(self)

    def __eq__(self, other):
        return self is other


@pytest.mark.parametrize(("f", "name"), [(Gained(2.0), "gain"), (Slotted(2.0), "power"), (Hashed(2.0), "gain")])
def test_a_callable_that_was_changed_is_not_taken_for_the_old_one(f, name):
    for value in (2.0, 3.0):
        setattr(f, name, value)
        found = JaxNetwork.on(f, START, BATCH).values(START, slice(0, 5))
        np.testing.assert_allclose(found, f(START, BATCH), rtol=1e-12)


def test_a_module_of_equinox_is_split_into_arrays_and_the_rest():
    one, other = (eqx.nn.MLP(3, 2, 8, 1, key=jax.random.key(seed)) for seed in range(2))

    def whole(module, x):
        return jax.vmap(module)(x)

    with pytest.raises(SaddlesError, match=r"`start.activation` is .*eqx.partition\(module, eqx.is_inexact_array\)"):
        networks.linearity(whole, one, other, BATCH)
    (start, rest), (end, _) = (eqx.partition(module, eqx.is_inexact_array) for module in (one, other))
    found = networks.linearity(lambda at, x: whole(eqx.combine(at, rest), x), start, end, BATCH)

    def plain(at, x):
        (first, low), (last, high) = at
        return jax.nn.relu(x @ first.T + low[None]) @ last.T + high[None]

    pairs = [[(layer.weight, layer.bias) for layer in module.layers] for module in (one, other)]
    assert found == pytest.approx(networks.linearity(plain, pairs[0], pairs[1], BATCH), rel=1e-9)


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (lambda at, x: (curved(at, x), 1.0), "an array with one row per sample; got a tuple"),
        (lambda at, x: {"logits": curved(at, x)}, "got a dict"),
        (lambda at, x: None, "got a NoneType"),
        (lambda at, x: curved(at, x).sum(), r"got the shape \(\)"),
        (lambda at, x: curved(at, x)[1:], r"got the shape \(4, 2\)"),
        (lambda at, x: curved(at, x) + 1j, "real floating-point numbers; got complex128. Return real and imaginary"),
        (lambda at, x: curved(at, x).argmax(-1), r"real floating-point numbers; got int64\.$"),
        (lambda at, x: torch.tanh(x @ at), r"`f` fails when JAX calls it with .* \(TypeError: tanh\(\): argument"),
        (lambda at, x: torch.ones(5, 2), "`f` fails .*TypeError"),
        (lambda at, x: at["weight"], "`f` fails .*string indexing"),
        (lambda at, x: x @ at if at.sum() > 0 else x, "`f` fails .*TracerBoolConversionError"),
    ],
)
def test_what_is_no_function_of_jax_is_refused(f, words):
    with pytest.raises(SaddlesError, match=words):
        networks.linearity(f, START, END, BATCH)
    with pytest.raises(SaddlesError, match=words):
        networks.beside(f, START, [(BATCH, jnp.zeros((5, 2)))], BATCH, rate=0.1)


def test_what_is_no_tree_of_arrays_is_refused():
    tensors = {"weight": torch.zeros(3, 2)}
    with pytest.raises(SaddlesError, match=r"`start\['weight'\]` is .* `f` must be the torch.nn.Module itself"):
        networks.linearity(lambda at, x: x @ at["weight"], tensors, tensors, BATCH)
    with pytest.raises(SaddlesError, match=r"`start\['n'\]` is int"):
        networks.linearity(lambda at, x: x @ at["w"], {"w": START, "n": 3}, {"w": END, "n": 3}, BATCH)
    with pytest.raises(SaddlesError, match="`end` must be a pytree of floating-point arrays"):
        networks.linearity(curved, START, None, BATCH)
    for batch in (["a"], {"x": object()}, torch.zeros(5, 3, requires_grad=True)):
        with pytest.raises(SaddlesError, match="`batch` must be a pytree of arrays of numbers; got"):
            networks.linearity(curved, START, END, batch)
    read = networks.linearity(curved, START, END, torch.tensor(np.asarray(BATCH)))
    assert read == pytest.approx(of_curved(), rel=1e-12)
