"""Part (B) of Algorithm 1: where gradient flow on a fixed support and orthant comes to rest."""

from dataclasses import dataclass

import numpy as np

from saddles.diagonal.risk import Risk
from saddles.solvers.log_scale import LogScale
from saddles.solvers.mirror import Chosen, MirrorFlow
from saddles.solvers.multistep import TINY, Multistep, StepError, Vector

# Forces below this part of max|g(0)| count as zero.
ZERO = 1e-9

# A coordinate that shrinks and is below this part of the largest has left the support.
GONE = 1e-9

# Error of S per step while the flow is followed; only its basin matters, the end is polished.
COARSE = 1e-3

# The first step is this part of 1/max|g|: a new coordinate starts 1e-8 small, so nothing happens sooner.
FIRST_STEP = 0.1

# Most steps to rest; a flow that needs more has none, as with a loss that only fades.
STEPS = 3000

# |S| at which a coordinate that left is zero in float64: e^{−800} underflows.
NOWHERE = 400.0

# Polishing begins where the forces have fallen to 1e-3 of the first; if it fails, again at a tenth of that, and so on.
# Too early it costs Hessian columns and may lead to another rest than the flow does; after seven tries it is given up.
CALM, CALMER, CALMEST = 1e-3, 0.1, 1e-9

# Newton steps of polishing; it converges quadratically with exact columns, linearly with secants.
POLISH_STEPS = 25

# Polishing ends at forces of this part of the first ones, or where they are round-off of max|∇²L| max|β|.
EXACT, ROUNDING = 1e-11, 1e-14

# Polishing that stopped halving the forces is accepted at this part of the first ones: with few samples or tied
# coordinates the Hessian is nearly singular, and the last digits of the rest do not matter to any later stage. Calmer
# states are tried first, for a small coordinate may grow that slowly; not on a ridge, which the flow would leave.
NEARLY = 1e-7

# A Newton step must bring the forces to this part of what they were, or the Hessian is asked for exactly.
HALVED = 0.5

# A Newton step in S beyond this would change β by more than a factor e: the flow is not near its rest.
LONGEST_STEP = 0.5

# The test of `_firm`: S larger by this (β by 1 %), and the force, relative to the first, that must push back.
GROWTH, PUSHED_BACK = 0.005, 1e-8


@dataclass(frozen=True, eq=False)
class Rest:
    """A stationary point of the flow on a support: β, its signs (0 off the support), g and L there."""

    beta: Vector
    signs: Vector
    force: Vector
    loss: float
    settled: bool


def flow_to_rest(risk: Risk, begin: Vector, signs: Vector) -> Rest:
    """Follow |β_i|' = 2|β_i| s_i g_i (u² = v² = |β|) from `begin` to rest, inside its orthant.

    Coordinates may shrink to zero and leave the support (their force then points to zero).

    Args:
        begin: β, not zero on the support.
        signs: ±1 on the support, 0 elsewhere.
    """
    chosen = np.flatnonzero(signs)
    flow = MirrorFlow(
        lambda part: risk.force(_embed(part, chosen, risk.size))[chosen],
        lambda part, which: risk.columns(_embed(part, chosen, risk.size), chosen[which])[chosen],
        LogScale.balanced(signs[chosen]),
        COARSE,
    )
    stepper = Multistep(flow, flow.coordinates.shift(begin[chosen]), rtol=COARSE, atol=0.0)
    start = float(np.abs(stepper.slope).max())
    stepper.restart(FIRST_STEP / max(start, TINY))
    side, goal, back, nearly = signs[chosen], CALM, np.zeros(len(chosen), dtype=bool), None
    for _ in range(STEPS):
        try:
            stepper.advance(np.inf)
        except StepError:
            break
        # β of a leaving coordinate falls for ever and never rests in S, so it must not be waited for. Small ones that
        # grow have just become active. Those that were pushed back are waited for until they grow, or have a small
        # rest; unless others move meanwhile, which may push them out for good.
        part, speed = flow.coordinates.beta(stepper.state), np.abs(stepper.slope)
        leaving = (np.abs(part) < GONE * np.abs(part).max()) & (side * stepper.slope < 0)
        back &= leaving & (speed[~leaving].max(initial=0.0) <= goal * start)
        alive = ~leaving | back
        if speed[alive].max(initial=0.0) > goal * start:
            continue
        found = _polish(flow, stepper.state, alive, side, start)
        if found is not None:
            shift, there = found
            part = np.where(alive, flow.coordinates.beta(shift), 0.0)
            rest = _rest(risk, part, np.where(alive, side, 0.0), chosen, True)
            # One that shrinks on the way and is pushed back there has not left: the flow goes on.
            pushed = ~alive & (side * rest.force[chosen] > ZERO * start)
            if pushed.any():
                back |= pushed
                continue
            if there:
                return rest
            nearly = rest
        goal *= CALMER
        if goal < CALMEST:
            break
    if nearly is not None:
        return nearly
    return _rest(risk, np.nan_to_num(flow.coordinates.beta(stepper.state)), side, chosen, False)


def _rest(risk: Risk, part: Vector, side: Vector, chosen: Chosen, settled: bool) -> Rest:
    beta, signs = _embed(part, chosen, risk.size), _embed(side, chosen, risk.size)
    loss, force = risk.both(beta)
    return Rest(beta, signs, force, loss, settled)


def _embed(part: np.ndarray, chosen: Chosen, size: int) -> np.ndarray:
    whole = np.zeros(size)
    whole[chosen] = part
    return whole


def _polish(
    flow: MirrorFlow, state: Vector, alive: np.ndarray, side: Vector, start: float
) -> tuple[Vector, bool] | None:
    """Newton's method until forces are 1e-11 of `start` or round-off; None if it leads away.

    With S, False where the forces are small but Newton's method did not come to an end: something may still grow.

    The step is taken in β (exact for a quadratic loss), or in S where it would change a sign. Coordinates that
    left are put to zero first. Flat directions (tied coordinates) are left where the flow put them.
    """
    beta_of, shift, which = flow.coordinates.beta, state.copy(), np.flatnonzero(alive)
    shift[~alive] = -NOWHERE * side[~alive]  # not the signs of β, which may have underflowed to 0
    force, exact, step = flow.field(shift), False, None
    for _ in range(POLISH_STEPS):
        if not len(which):
            return shift, True
        size = float(np.abs(force[which]).max())
        if size <= max(EXACT * start, ROUNDING * flow.hessian.scale * np.abs(beta_of(shift)).max()):
            return (shift, True) if _firm(flow, shift, which, start) else None
        # The secant Hessian is free and usually good enough. `exact` is set where it was not, and asks for all columns.
        if exact or not flow.hessian.known[which].all():
            flow.ask(shift, which)
            exact = True
        step = flow.to_rest(shift, force, which)
        if step is not None and np.abs(step).max() <= LONGEST_STEP:
            trial = _moved(flow, shift, which, step)
            there = flow.field(trial)
            if float(np.abs(there[which]).max()) < HALVED * size:
                shift, force, exact = trial, there, False
                continue
        if exact:
            break
        exact = True
    near = float(np.abs(force[which]).max(initial=0.0)) <= NEARLY * start
    return (shift, step is None) if near and _firm(flow, shift, which, start) else None


def _moved(flow: MirrorFlow, shift: Vector, which: Chosen, step: np.ndarray) -> Vector:
    """S after a small change of it, made in β = β(S) + dβ/dS step where that keeps every sign."""
    beta = flow.coordinates.beta(shift)
    aim = beta.copy()
    aim[which] += flow.coordinates.slope(shift)[which] * step
    trial = shift.copy()
    trial[which] = flow.coordinates.shift(aim)[which] if (aim * beta > 0)[which].all() else shift[which] + step
    return trial


def _firm(flow: MirrorFlow, shift: Vector, which: Chosen, start: float) -> bool:
    """Whether weights 1 % larger are pushed back.

    At a rest they are; where a loss only fades (the exponential tail of cross-entropy) forces vanish
    without one.
    """
    larger = shift.copy()
    larger[which] += GROWTH * np.sign(flow.coordinates.beta(shift)[which])
    return float(np.abs(flow.field(larger)[which]).max()) > PUSHED_BACK * start
