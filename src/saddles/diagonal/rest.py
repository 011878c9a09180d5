"""Part (B) of Algorithm 1: where gradient flow on a fixed support and orthant comes to rest."""

from dataclasses import dataclass

import numpy as np

from saddles.diagonal.risk import Risk
from saddles.solvers.log_scale import LogScale
from saddles.solvers.mirror import Stepper
from saddles.solvers.ndf import StepError

ZERO = 1e-9
"""Forces below this part of max|g(0)| count as zero."""

GONE = 1e-9
"""A coordinate that shrinks and is below this part of the largest has left the support."""

COARSE = 1e-3
"""Error of S a step while the flow is followed; only its basin matters, the end is polished."""

NOWHERE = 400.0
"""|S| at which a coordinate that left is zero in float64."""

STEPS = 3000


@dataclass(frozen=True, eq=False)
class Rest:
    """A stationary point of the flow on a support: β, its signs (0 off the support), g and L there."""

    beta: np.ndarray
    signs: np.ndarray
    force: np.ndarray
    loss: float
    settled: bool


def flow_to_rest(risk: Risk, begin: np.ndarray, signs: np.ndarray) -> Rest:
    """Follow |β_i|' = 2|β_i| s_i g_i (u² = v² = |β|) from `begin` to rest, inside its orthant.

    Coordinates may shrink to zero and leave the support (their force then points to zero).

    Args:
        begin: β, not zero on the support.
        signs: ±1 on the support, 0 elsewhere.
    """
    chosen = np.flatnonzero(signs)
    coordinates = LogScale.balanced(signs[chosen])
    flow = Stepper(
        lambda part: risk.force(_embed(part, chosen, risk.size))[chosen],
        lambda part, which: risk.columns(_embed(part, chosen, risk.size), chosen[which])[chosen],
        coordinates,
        coordinates.shift(begin[chosen]),
        0.0,
        COARSE,
    )
    start = float(np.abs(flow.slope).max())
    flow.restart(0.0, flow.shift, flow.slope, 0.1 / max(start, 1e-300))
    side, goal = signs[chosen], 1e-3
    for _ in range(STEPS):
        try:
            flow.advance(np.inf)
        except StepError:
            break
        part = coordinates.beta(flow.shift)
        alive = ~((np.abs(part) < GONE * np.abs(part).max()) & (side * flow.slope < 0))
        if np.abs(flow.slope[alive]).max(initial=0.0) > goal * start:
            continue
        shift = _polish(flow, alive, start)
        if shift is not None:
            return _rest(risk, np.where(alive, coordinates.beta(shift), 0.0), chosen, np.where(alive, side, 0.0))
        goal *= 0.1
        if goal < 1e-9:
            break
    beta = _embed(np.nan_to_num(coordinates.beta(flow.shift)), chosen, risk.size)
    loss, force = risk.both(beta)
    return Rest(beta, signs, force, loss, False)


def _rest(risk: Risk, part: np.ndarray, chosen: np.ndarray, side: np.ndarray) -> Rest:
    beta, signs = _embed(part, chosen, risk.size), _embed(side, chosen, risk.size)
    loss, force = risk.both(beta)
    return Rest(beta, signs, force, loss, True)


def _embed(part: np.ndarray, chosen: np.ndarray, size: int) -> np.ndarray:
    whole = np.zeros(size)
    whole[chosen] = part
    return whole


def _polish(flow: Stepper, alive: np.ndarray, start: float) -> np.ndarray | None:
    """Newton's method until forces are 1e-11 of `start` or round-off; None if it leads away.

    The step is taken in β (exact for a quadratic loss), or in S where it would change a sign. Coordinates that
    left are put to zero first. Flat directions (tied coordinates) are left where the flow put them.
    """
    shift, which = flow.shift.copy(), np.flatnonzero(alive)
    shift[~alive] = -NOWHERE * np.sign(flow.coordinates.beta(shift)[~alive])
    push = flow.evaluate(shift)[which]
    exact = False
    for _ in range(25):
        size = float(np.abs(push).max(initial=0.0))
        if not len(which):
            return shift
        if size <= max(1e-11 * start, 1e-14 * flow.hessian.scale * np.abs(flow.coordinates.beta(shift)).max()):
            return shift if _firm(flow, shift, which, start) else None
        if exact or not flow.hessian.known[which].all():
            flow.hessian.put(which, flow.columns(flow.coordinates.beta(shift), which))
            exact = True
        step = _newton(flow, shift, which, push)
        if step is not None:
            trial = _moved(flow, shift, which, step)
            there = flow.evaluate(trial)[which]
            if float(np.abs(there).max()) < 0.5 * size:
                shift, push, exact = trial, there, False
                continue
        if exact:
            break
        exact = True
    near = float(np.abs(push).max(initial=0.0)) <= 1e-7 * start
    return shift if near and _firm(flow, shift, which, start) else None


def _moved(flow: Stepper, shift: np.ndarray, which: np.ndarray, step: np.ndarray) -> np.ndarray:
    """S after a small change of it, made in β = β(S) + dβ/dS step where that keeps every sign."""
    beta = flow.coordinates.beta(shift)
    aim = beta.copy()
    aim[which] += flow.coordinates.slope(shift)[which] * step
    trial = shift.copy()
    trial[which] = flow.coordinates.shift(aim)[which] if (aim * beta > 0)[which].all() else shift[which] + step
    return trial


def _firm(flow: Stepper, shift: np.ndarray, which: np.ndarray, start: float) -> bool:
    """Whether weights 1 % larger are pushed back.

    At a rest they are; where a loss only fades (the exponential tail of cross-entropy) forces vanish
    without one.
    """
    larger = shift.copy()
    larger[which] += 0.005 * np.sign(flow.coordinates.beta(shift)[which])
    return float(np.abs(flow.evaluate(larger)[which]).max()) > 1e-8 * start


def _newton(flow: Stepper, shift: np.ndarray, which: np.ndarray, push: np.ndarray) -> np.ndarray | None:
    """The Newton step to g = 0, or None at no minimum or where it is long."""
    root = np.sqrt(flow.coordinates.slope(shift)[which])
    block = flow.hessian.matrix[np.ix_(which, which)]
    values, vectors = np.linalg.eigh(root[:, None] * (block + block.T) / 2 * root)
    firm = np.abs(values) > 1e-9 * np.abs(values).max()
    if (values[firm] < 0).any():
        return None
    step = vectors[:, firm] @ (vectors[:, firm].T @ (root * push) / values[firm]) / root
    return step if np.abs(step).max() <= 0.5 else None
