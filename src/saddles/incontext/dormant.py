"""Neurons that sleep: how each climbs the utility of the residual, and which wakes first.

The push g = −∇L(z) of what the awake neurons leave is constant on a plateau, so that every sleeping neuron moves alone
along θ' = ∇U(θ), U(θ) = ⟨g, f(θ)⟩, of degree κ. Two ways to follow it, both with norms as logarithms:

`LinearSleep`, where U is a quadratic form ½θᵀAθ (products of two weights): the solution is e^{At}θ. Each neuron is kept
as signed logarithms of its coefficients in the eigenvectors of A, so that a component of 1e-300 is remembered beside
one of 1, as a coordinate that shrinks must be until it grows again. When A changes, only eigenvectors that A couples
are turned: components that never mix keep their logarithms exactly.

`CurvedSleep`, for all other neurons: direction θ̄ and log-norm ℓ are integrated in a clock τ with
dτ = Σ_i ‖θ_i‖^(κ−2) ‖∇U(θ̄_i)‖ dt, in which no log-norm grows faster than τ. For κ > 2 norms blow up in a finite time t;
in τ nothing does.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy.sparse.csgraph import connected_components

from saddles.incontext.neurons import Output, Sum
from saddles.solvers.ode import solve

Vector = Float[np.ndarray, " weight"]
Mask = Bool[np.ndarray, " neuron"]

COUPLED = 1e-9
"""Two eigenvectors mix if A couples them by this part of its largest entry; less is round-off of the rest before."""

TIE = 1e-9
"""Waits that differ by less than this part are a tie: all these neurons wake together."""

NEWTON_STEPS = 60
"""For the time at which a norm is reached: convex and approached from above, so that it converges in a few."""

FLAT = 1e-7
"""A push below this part of the first one wakes nobody: the awake neurons fit what there is to fit."""

LONGEST = 1e4
"""τ per neuron after which nobody is expected to wake: e^10000 would have been reached."""

RTOL = 1e-6
"""Error of directions and log-norms per step."""


@runtime_checkable
class Sleep(Protocol):
    """Sleeping neurons."""

    def wake(self, push: Array, asleep: Mask, target: float) -> tuple[float, Int[np.ndarray, " awake"]]:
        """Move those asleep until the first reaches log-norm `target`: the time it takes, and who it was."""
        ...

    def direction(self, neuron: int) -> Vector:
        """A neuron's unit direction."""
        ...

    def lie_down(self, neuron: int, weights: Vector) -> None:
        """A neuron that was awake is pulled back to zero, from these weights."""
        ...


@eqx.filter_jit
def _form(output: Output, push: Array, theta: Array) -> tuple[Array, Array]:
    """∇U and ∇²U at θ."""

    def utility(one: Array) -> Array:
        return jnp.sum(push * output(one))

    return jax.grad(utility)(theta), jax.hessian(utility)(theta)


def sleep_of(network: Sum, push: Array) -> Sleep:
    """The faster of the two ways that is exact for these neurons, tested on the first push."""
    if network.degree == 2:
        # A quadratic form has one ∇²U everywhere, and ∇U(θ) is that times θ: tested at two places drawn at random.
        draw = np.random.default_rng(0).normal(size=(2, network.start.shape[1]))
        _, form = _form(network.output, push, jnp.asarray(draw[0]))
        slope, _ = _form(network.output, push, jnp.asarray(draw[1]))
        if np.allclose(form @ draw[1], slope, atol=1e-9 * float(np.abs(slope).max())):
            return LinearSleep(network)
    return CurvedSleep(network)


@dataclass(eq=False)
class LinearSleep:
    """Neurons whose utility is a quadratic form, in closed form."""

    network: Sum
    basis: np.ndarray = field(init=False)
    logs: np.ndarray = field(init=False)
    signs: np.ndarray = field(init=False)
    first: float = 0.0

    def __post_init__(self) -> None:
        self.basis = np.eye(self.network.start.shape[1])
        self._write(self.network.start, np.full(len(self.network.start), self.network.log_scale))

    def _write(self, rows: np.ndarray, scale: np.ndarray) -> None:
        with np.errstate(divide="ignore"):
            self.logs, self.signs = np.log(np.abs(rows)) + scale[:, None], np.sign(rows)

    def wake(self, push: Array, asleep: Mask, target: float) -> tuple[float, Int[np.ndarray, " awake"]]:
        _, form = _form(self.network.output, push, jnp.zeros(len(self.basis)))
        rates = self._turn(np.asarray(form, dtype=float))
        self.first = max(self.first, float(np.abs(rates).max()))
        rates = np.where(np.abs(rates) > FLAT * self.first, rates, 0.0)
        waits = np.where(asleep, _waits(self.logs, rates, target), np.inf)
        wait = float(waits.min())
        if not np.isfinite(wait):
            return np.inf, np.zeros(0, dtype=int)
        self.logs += wait * rates  # of those awake, too: θ' = Aθ holds for them, until they lie down and beyond
        return wait, np.flatnonzero(waits <= wait * (1 + TIE))

    def _turn(self, form: np.ndarray) -> Vector:
        """Turn the basis to eigenvectors of A, block by block of what it couples; return the eigenvalues."""
        inside = self.basis.T @ form @ self.basis
        coupled = np.abs(inside) > COUPLED * max(float(np.abs(inside).max()), 1e-300)
        _, block = connected_components(coupled, directed=False)
        rates = np.diag(inside).copy()
        turn = np.eye(len(rates))
        for number in np.flatnonzero(np.bincount(block) > 1):
            mine = np.flatnonzero(block == number)
            rates[mine], turn[np.ix_(mine, mine)] = np.linalg.eigh(inside[np.ix_(mine, mine)])
        if (np.bincount(block) > 1).any():
            self._rewrite(turn)
        return rates

    def _rewrite(self, turn: np.ndarray) -> None:
        """Coefficients in the turned basis: sums of terms that may be 1e-300 apart, so as logarithms."""
        self.basis = self.basis @ turn
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = self.logs[:, :, None] + np.log(np.abs(turn))[None]
            top = terms.max(axis=1, keepdims=True)
            safe = np.where(np.isfinite(top), top, 0.0)
            total = np.sum(self.signs[:, :, None] * np.sign(turn)[None] * np.exp(terms - safe), axis=1)
            self.logs, self.signs = np.log(np.abs(total)) + safe[:, 0], np.sign(total)

    def direction(self, neuron: int) -> Vector:
        logs = self.logs[neuron]
        theta = self.basis @ (self.signs[neuron] * np.exp(logs - logs.max()))
        return theta / np.linalg.norm(theta)

    def lie_down(self, neuron: int, weights: Vector) -> None:
        """Its logarithms have been followed while it was awake, and it goes on from them."""


def _waits(logs: np.ndarray, rates: Vector, target: float) -> np.ndarray:
    """When ½ log Σ_j e^{2(ℓ_j + a_j t)} reaches the target for the last time; ∞ where nothing grows."""
    with np.errstate(divide="ignore", invalid="ignore"):
        alone = np.where((rates > 0)[None] & np.isfinite(logs), (target - logs) / rates, np.inf)
    time = alone.min(axis=1)  # one component alone gets there by this time, so all of them together do earlier
    some = np.isfinite(time)
    for _ in range(NEWTON_STEPS):
        there = logs[some] + rates * time[some, None]
        top = there.max(axis=1, keepdims=True)
        weight = np.exp(2 * (there - top))
        height = top[:, 0] + 0.5 * np.log(weight.sum(axis=1)) - target
        slope = (weight * rates).sum(axis=1) / weight.sum(axis=1)
        step = np.where(slope > 0, height / slope, 0.0)
        time[some] = np.maximum(time[some] - step, 0.0)
        if np.abs(step).max(initial=0.0) <= 1e-14 * np.abs(time[some]).max(initial=1e-300):
            break
    return time


class _Climb(eqx.Module):
    """What the clock of `CurvedSleep` needs."""

    output: Output
    push: Array
    asleep: Array
    top: Array
    target: Array
    degree: int = eqx.field(static=True)

    def slopes(self, bar: Array) -> Array:
        return jax.vmap(jax.grad(lambda theta: jnp.sum(self.push * self.output(theta))))(bar)


def _climb(tau: Array, state: Any, args: _Climb) -> Any:  # state: (direction, log-norm less the first top, time)
    bar, level, _ = state
    slopes = args.slopes(bar)
    grown = jnp.where(args.asleep, jnp.exp((args.degree - 2) * level), 0.0)
    pace = 1 / jnp.sum(grown * jnp.sqrt(jnp.sum(slopes**2, axis=1)))
    along = jnp.sum(bar * slopes, axis=1)
    turn = (grown * pace)[:, None] * (slopes - along[:, None] * bar)
    return turn, grown * pace * along, pace


def _woken(tau: Array, state: Any, args: _Climb) -> Array:  # state: as above
    return jnp.max(jnp.where(args.asleep, state[1], -jnp.inf)) + args.top >= args.target


def _nothing(tau: Array, state: Any, args: _Climb) -> Array:  # state: as above
    return tau


@eqx.filter_jit
def _ends(args: _Climb, bar: Array) -> tuple[Array, Array]:
    slopes = args.slopes(bar)
    return jnp.sum(bar * slopes, axis=1), jnp.sqrt(jnp.sum(slopes**2, axis=1))


@dataclass(eq=False)
class CurvedSleep:
    """Neurons of any degree, integrated."""

    network: Sum
    bars: np.ndarray = field(init=False)
    levels: np.ndarray = field(init=False)
    first: float = 0.0

    def __post_init__(self) -> None:
        norms = np.linalg.norm(self.network.start, axis=1)
        self.bars, self.levels = self.network.start / norms[:, None], np.log(norms) + self.network.log_scale

    def wake(self, push: Array, asleep: Mask, target: float) -> tuple[float, Int[np.ndarray, " awake"]]:
        degree, none = self.network.degree, np.zeros(0, dtype=int)
        if not asleep.any():
            return np.inf, none
        top = float(self.levels[asleep].max())
        args = _Climb(self.network.output, push, jnp.asarray(asleep), jnp.asarray(top), jnp.asarray(target), degree)
        force = float(np.max(np.asarray(_ends(args, jnp.asarray(self.bars))[1])[asleep]))
        self.first = max(self.first, force)
        if force <= FLAT * self.first:
            return np.inf, none
        # Levels above the highest sleeper (awake neurons keep theirs) are masked; their exponential must not overflow.
        levels = np.where(asleep, self.levels - top, 0.0)
        state = (jnp.asarray(self.bars), jnp.asarray(levels), jnp.asarray(0.0))
        edges = np.concatenate([[0.0], np.geomspace(1.0, LONGEST * asleep.sum(), 15)])
        done = solve(_climb, state, edges, args=args, observe=_nothing, halt=_woken, rtol=RTOL, atol=RTOL,
                     title="sleeping neurons")  # fmt: skip
        if not done.halted:
            return np.inf, none
        bar, level, time = (np.array(part) for part in done.state)
        bar /= np.linalg.norm(bar, axis=1, keepdims=True)
        winner = int(np.argmax(np.where(asleep, level, -np.inf)))
        along = np.asarray(_ends(args, jnp.asarray(bar))[0])
        # The step that woke it overshot: back along d‖θ‖/dt = κU‖θ‖^(κ−1), with `along` = κU.
        over, grown = level[winner] + top - target, (degree - 2) * level[winner]
        excess = over / along[winner] if degree == 2 else (
            np.exp(-grown) * np.expm1((degree - 2) * over) / ((degree - 2) * along[winner]))  # fmt: skip
        back = excess * np.where(np.arange(len(bar)) == winner, 0.0, along * np.exp((degree - 2) * level))
        # To first order in the time that is taken back, so only where that is small.
        level = level - np.where(np.abs(back) < 1, back, 0.0)
        level[winner] -= over
        self.bars = np.where(asleep[:, None], bar, self.bars)
        self.levels = np.where(asleep, level + top, self.levels)
        # Norms were counted in units of e^top, so that time was counted in units of e^{−(κ−2) top}.
        return float(time - excess) * float(np.exp(-(degree - 2) * top)), np.array([winner])

    def direction(self, neuron: int) -> Vector:
        return self.bars[neuron]

    def lie_down(self, neuron: int, weights: Vector) -> None:
        """It goes on from there: d‖θ‖/dt = κU‖θ‖^(κ−1) with U < 0 makes it shrink like t^(−1/(κ−2)) for κ > 2.

        On a plateau of a length of order s^(2−κ), s being the first size, it comes down to the order of s, wherever it
        began. Its direction is that of the flow's end; what is conserved beside it, of the order of s², is not known.
        """
        size = float(np.linalg.norm(weights))
        self.bars[neuron], self.levels[neuron] = weights / size, np.log(size)
