"""Neurons that are awake: the flow of the loss in them, to its rest."""

from dataclasses import dataclass
from enum import StrEnum
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
"""A flow that is not at rest after all its steps counts as resting if, at its present rate, the time spent so far would
bring it this part of the gain, and the loss falls like a power of time: it then rests at no finite time."""

STEEPEST = 10.0
"""Largest power of time that counts as one: near rest (z − z*)^m falls like t^(−m/(m−2)), t^−2 for m = 4. A faster fall
is exponential, and what comes after it is not known."""

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


class Outcome(StrEnum):
    """How the flow of the awake neurons ended, in words that follow their name."""

    RESTED = "came to rest"
    CREEPING = "creep, as a power of time"
    FALLING = "did not come to rest"
    """All steps are taken, and the loss still falls fast."""
    CUT_SHORT = "took all their steps before it could be judged whether they rest"
    """The loss falls slowly, and not like a power of time: it may be about to fall again."""


@dataclass(frozen=True, eq=False)
class Rest:
    """Where the awake neurons rest; `gone` fell asleep, and `left` are their weights as they did."""

    theta: np.ndarray
    loss: float
    push: Array
    gone: Int[np.ndarray, " neuron"]
    left: np.ndarray
    outcome: Outcome

    @property
    def settled(self) -> bool:
        """It is a rest, or as good as one."""
        return self.outcome in (Outcome.RESTED, Outcome.CREEPING)


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
    # The effort is small at the start, too, where the new neuron is tiny: only with half of its gain made is it a rest.
    calm = (_effort(theta, slope) <= CALM * args.gain) & (value <= args.before - args.gain / 2)
    return calm | jnp.any(_leaving(theta, slope, args))


@eqx.filter_jit
def _leavers(theta: Theta, args: _Flow) -> Array:
    return _leaving(theta, jax.grad(args.total)(theta), args)


def _descent(t: Array, theta: Theta, args: _Flow) -> tuple[Array, Array]:
    """The loss, and −dL/dt = ‖∇L‖²."""
    value, slope = jax.value_and_grad(args.total)(theta)
    return value, jnp.sum(slope**2)


_descent_once = eqx.filter_jit(_descent)


def _judge(times: np.ndarray, rates: np.ndarray, value: float, args: _Flow) -> Outcome:
    """What a flow that has taken all its steps does.

    Where L − L* falls like t^−p, so does t·‖∇L‖². At a plateau on the way it is small too, but rises again: p is
    measured from the last look in the first half of the time, which a flow that was stopped early may not have.

    Args:
        times, rates: looks at ‖∇L‖² since the neurons woke, the last one at the end.
        value: the loss there.
    """
    sizes = times * rates
    if sizes[-1] > CREEPING * float(args.gain) or value > float(args.before) - float(args.gain) / 2:
        return Outcome.FALLING
    early = np.flatnonzero((times > 0) & (times <= times[-1] / 2))
    if not len(early):
        return Outcome.CUT_SHORT
    at = early[-1]
    power = np.log(sizes[at] / sizes[-1]) / np.log(times[-1] / times[at])
    return Outcome.CREEPING if 0 < power <= STEEPEST else Outcome.CUT_SHORT


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
    # What the parabola of L along the new outputs promises: `fit` is where it is lowest, 1 where it has no such place.
    gain = max(0.5 * abs(slope) * fit, 1e-300)
    theta = theta.copy()
    # The output is of degree κ in the weights, so that they are the κ-th root of a part of it.
    theta[new] = directions * (BEGIN * fit) ** (1 / network.degree)
    args = _Flow(*pair, jnp.asarray(gain), before, jnp.asarray(first), network.degree)
    moves = np.asarray(_field_once(jnp.asarray(0.0), jnp.asarray(theta), args))[new]
    speed = max(float(np.linalg.norm(moves) / np.linalg.norm(theta[new])), 1e-300)
    state, left, outcome = _flow(args, theta, speed)
    polish = partial(_polish, args) if theta.size <= LARGEST else np.copy
    small = _pulled(network, state, state) & _slight(network, state)
    rest = polish(np.where(small[:, None], 0.0, state))
    # Putting neurons to sleep changes the residual: those that it now pulls up stay awake. `small` only shrinks, so
    # this ends.
    while (back := small & ~_pulled(network, state, rest)).any():
        small &= ~back
        rest = polish(np.where(small[:, None], 0.0, state))
    left[small] = state[small]
    _, value, push = look(pair, jnp.asarray(rest))
    gone = np.flatnonzero(left.any(axis=1))
    return Rest(rest, float(value), push, gone, left[gone], outcome)


def _flow(args: _Flow, theta: np.ndarray, speed: float) -> tuple[np.ndarray, np.ndarray, Outcome]:
    """Weights at the rest of the flow, those of neurons that left on the way, and how it ended."""
    edges = np.concatenate([[0.0], np.cumsum(2.0 ** np.arange(31)) / speed])
    left, phase, outcome = np.zeros_like(theta), 0, Outcome.FALLING
    times, rates = np.zeros(0), np.zeros(0)
    while phase < (2 if theta.size <= LARGEST else 1):
        done = solve(_field, jnp.asarray(theta), edges, args=args, observe=_descent, halt=_rested, rtol=RTOL,
                     atol=RTOL * 1e-2, stiff=phase == 1, max_steps=(EXPLICIT, IMPLICIT)[phase],
                     title="awake neurons")  # fmt: skip
        theta, before = np.array(done.state), times[-1] if len(times) else 0.0
        value, rate = map(float, _descent_once(jnp.asarray(0.0), done.state, args))
        times = np.concatenate([times, before + done.times, [before + done.end]])
        rates = np.concatenate([rates, done.saved[1], [rate]])
        out = np.asarray(_leavers(done.state, args))
        # The phase is not counted: there is one neuron less each time, so this ends as well.
        if out.any():  # the others go on without them
            left[out], theta[out] = theta[out], 0.0
            continue
        outcome = Outcome.RESTED if done.halted else _judge(times, rates, value, args)
        if outcome in (Outcome.RESTED, Outcome.CREEPING):
            break
        phase += 1
    return theta, left, outcome


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
