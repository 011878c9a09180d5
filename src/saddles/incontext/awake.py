"""Neurons that are awake: the flow of the loss in them, to its rest."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from saddles.incontext.neurons import Sum, Theta
from saddles.solvers.ode import solve

BEGIN = 1e-3
"""A neuron that wakes begins with this part of the output that would fit best along its direction."""

CALM = 1e-4
"""The flow is near its rest where ‖∇L‖‖θ‖ is this part of the loss that the new neuron gains."""

POLISHED = 1e-11
"""Newton's method ends at this part."""

FIRM = 1e-6
"""Curvatures below this part of the largest are not used: rescalings that change no output have none, but for noise."""

NEWTON_STEPS = 12
"""Newton steps; it converges quadratically."""

NEARBY = 0.1
"""A Newton step that changes a neuron by more than this part of its norm would lead to another rest than the flow."""

EXPLICIT, IMPLICIT = 5_000, 20_000
"""Steps of an explicit solver; a flow that is not at rest by then is stiff, and an implicit one goes on."""

CREEPING = 1e-2
"""A flow that is not at rest after all explicit steps counts as resting if, at its present rate, the time spent so far
would bring it this part of the gain: the loss then falls like a power of time, and rests at no finite time."""

LARGEST = 800
"""Most weights for Newton's method and the implicit solver, whose Hessians are dense."""

GONE = 1e-2
"""A neuron that makes less than this part of the largest output, and is pulled to zero, falls asleep if it is pulled
there still where the others rest without it. (At the flow's end alone a weak pull cannot be told from its error.)"""

LEFT, PULLED = 1e-6, 1e-3
"""A neuron leaves while others still flow once the norms give it this part of the largest output, if its utility is
below zero by this part of the first one: a little longer, and its round-off would grow on the other side of zero."""

RTOL = 1e-7
"""Error per step of the flow."""


@dataclass(frozen=True, eq=False)
class Rest:
    """Where the awake neurons rest; `gone` fell asleep, and `left` are their weights as they did."""

    theta: np.ndarray
    loss: float
    push: Array
    gone: Int[np.ndarray, " neuron"]
    left: np.ndarray
    settled: bool


class _Flow(eqx.Module):
    output: Any
    loss: Any
    gain: Array
    before: Array
    first: Array
    degree: int = eqx.field(static=True)

    def total(self, theta: Theta) -> Float[Array, ""]:
        return self.loss(jnp.sum(jax.vmap(self.output)(theta), axis=0))


def _field(t: Array, theta: Theta, args: _Flow) -> Theta:
    return -jax.grad(args.total)(theta)


_field_once = eqx.filter_jit(_field)
"""For a single call; the solver compiles its own."""


def _effort(theta: Theta, slope: Theta) -> Array:
    return jnp.sqrt(jnp.sum(slope**2) * jnp.sum(theta**2))


def _leaving(theta: Theta, slope: Theta, args: _Flow) -> Array:
    """Who is tiny, and pulled to zero: −θ·∇L = κU(θ) is below zero."""
    size = jnp.sum(theta**2, axis=1) ** (args.degree / 2)
    utility = -jnp.sum(theta * slope, axis=1) / args.degree
    return (size > 0) & (size < LEFT * jnp.max(size)) & (utility < -PULLED * args.first * size)


def _rested(t: Array, theta: Theta, args: _Flow) -> Array:
    value, slope = jax.value_and_grad(args.total)(theta)
    calm = (_effort(theta, slope) <= CALM * args.gain) & (value <= args.before - args.gain / 2)
    return calm | jnp.any(_leaving(theta, slope, args))


@eqx.filter_jit
def _leavers(theta: Theta, args: _Flow) -> Array:
    return _leaving(theta, jax.grad(args.total)(theta), args)


@eqx.filter_jit
def _creeps(theta: Theta, args: _Flow, spent: Array) -> Array:
    value, slope = jax.value_and_grad(args.total)(theta)
    return (spent * jnp.sum(slope**2) <= CREEPING * args.gain) & (value <= args.before - args.gain / 2)


def _nothing(t: Array, theta: Theta, args: _Flow) -> Array:
    return t


@eqx.filter_jit
def look(network: Any, theta: Theta) -> tuple[Array, Array, Array]:  # network: (output, loss)
    """The sum z, L(z) and −∇L(z)."""
    output, loss = network
    total = jnp.sum(jax.vmap(output)(theta), axis=0)
    value, slope = jax.value_and_grad(loss)(total)
    return total, value, -slope


@eqx.filter_jit
def _ray(network: Any, total: Array, added: Array) -> tuple[Array, Array]:  # network: as above
    """First and second derivative of L(z + s·added) at s = 0."""
    _, loss = network

    def along(s: Array) -> Array:
        return loss(total + s * added)

    zero = jnp.zeros((), dtype=total.dtype)
    return jax.grad(along)(zero), jax.grad(jax.grad(along))(zero)


@eqx.filter_jit
def _outputs(output: Any, theta: Theta) -> Array:  # output: an Output
    return jax.vmap(output)(theta)


@eqx.filter_jit
def _newton(args: _Flow, theta: Theta) -> tuple[Array, Array]:
    """Newton step and effort; flat directions are left as they are.

    A weight that is exactly 0 after the flow has never had a slope, and stays 0: round-off of the eigenvectors would
    grow there in the next flow, into a direction that no neuron awake has.
    """
    value = (theta != 0).ravel().astype(theta.dtype)
    slope = jax.grad(args.total)(theta).ravel() * value
    form = jax.hessian(args.total)(theta).reshape(theta.size, theta.size) * value[:, None] * value[None, :]
    values, vectors = jnp.linalg.eigh(form)
    firm = jnp.abs(values) > FIRM * jnp.max(jnp.abs(values))
    inverse = jnp.where(firm, 1 / jnp.where(firm, values, 1.0), 0.0)
    step = value * (vectors @ (inverse * (vectors.T @ slope)))
    return step.reshape(theta.shape), _effort(theta * value.reshape(theta.shape), slope.reshape(theta.shape))


def learn(network: Sum, theta: np.ndarray, new: np.ndarray, directions: np.ndarray, first: float) -> Rest:
    """Wake neurons in their directions and follow the flow to rest.

    Args:
        theta: weights, zero for those asleep.
        new: who wakes, with unit `directions`.
        first: the largest utility of the first stage, to which others are compared.
    """
    pair = network.output, network.loss
    total, before, _ = look(pair, jnp.asarray(theta))
    added = jnp.sum(_outputs(network.output, jnp.asarray(directions)), axis=0)
    slope, bend = (float(value) for value in _ray(pair, total, added))
    fit = -slope / bend if bend > 0 else 1.0
    gain = max(0.5 * abs(slope) * fit, 1e-300)
    theta = theta.copy()
    theta[new] = directions * (BEGIN * fit) ** (1 / network.degree)
    args = _Flow(*pair, jnp.asarray(gain), before, jnp.asarray(first), network.degree)
    moves = np.asarray(_field_once(jnp.asarray(0.0), jnp.asarray(theta), args))[new]
    speed = max(float(np.linalg.norm(moves) / np.linalg.norm(theta[new])), 1e-300)
    state, left, settled = _flow(args, theta, speed)
    polish = partial(_polish, args) if theta.size <= LARGEST else np.copy
    small = _pulled(network, state, state) & _slight(network, state)
    rest = polish(np.where(small[:, None], 0.0, state))
    while (back := small & ~_pulled(network, state, rest)).any():
        small &= ~back
        rest = polish(np.where(small[:, None], 0.0, state))
    left[small] = state[small]
    _, value, push = look(pair, jnp.asarray(rest))
    gone = np.flatnonzero(left.any(axis=1))
    return Rest(rest, float(value), push, gone, left[gone], settled)


def _flow(args: _Flow, theta: np.ndarray, speed: float) -> tuple[np.ndarray, np.ndarray, bool]:
    """Weights at the rest of the flow, those of neurons that left on the way, and whether it came to rest."""
    edges = np.concatenate([[0.0], np.cumsum(2.0 ** np.arange(31)) / speed])
    left, settled, phase = np.zeros_like(theta), False, 0
    while not settled and phase < (2 if theta.size <= LARGEST else 1):
        done = solve(_field, jnp.asarray(theta), edges, args=args, observe=_nothing, halt=_rested, rtol=RTOL,
                     atol=RTOL * 1e-2, stiff=phase == 1, max_steps=(EXPLICIT, IMPLICIT)[phase],
                     title="awake neurons")  # fmt: skip
        theta = np.array(done.state)
        out = np.asarray(_leavers(done.state, args))
        if out.any():  # the others go on without them
            left[out], theta[out] = theta[out], 0.0
            continue
        settled = done.halted or bool(_creeps(done.state, args, jnp.asarray(done.end)))
        phase += 1
    return theta, left, settled


def _polish(args: _Flow, theta: np.ndarray) -> np.ndarray:
    """Newton's method, as long as it comes nearer to rest."""
    norms = np.linalg.norm(theta, axis=1)
    step, effort = _newton(args, jnp.asarray(theta))
    for _ in range(NEWTON_STEPS):
        step = np.asarray(step)
        if effort <= POLISHED * args.gain or (np.linalg.norm(step, axis=1) > NEARBY * norms).any():
            break
        next_step, next_effort = _newton(args, jnp.asarray(theta - step))
        if not next_effort < effort:
            break
        theta, step, effort = theta - step, next_step, next_effort
    return theta


def _slight(network: Sum, theta: np.ndarray) -> Bool[np.ndarray, " neuron"]:
    """Who makes little of the output."""
    rows = np.asarray(_outputs(network.output, jnp.asarray(theta))).reshape(len(theta), -1)
    made = np.linalg.norm(rows, axis=1)
    return theta.any(axis=1) & (made < GONE * made.max())


def _pulled(network: Sum, theta: np.ndarray, others: np.ndarray) -> Bool[np.ndarray, " neuron"]:
    """Who would shrink from θ, with negative utility, in the residual that others leave."""
    rows = np.asarray(_outputs(network.output, jnp.asarray(theta)))
    _, _, push = look((network.output, network.loss), jnp.asarray(others))
    return np.sum(np.asarray(push) * rows, axis=tuple(range(1, rows.ndim))) < 0
