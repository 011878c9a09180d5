"""Algorithm 1: the stages of learning at vanishing initialisation, predicted one by one.

Boix-Adserà et al., Transformers learn through gradual rank increase (2023), section 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from saddles.core.trajectory import FINISHED, Trajectory
from saddles.core.validation import check_keep, check_times
from saddles.diagonal.method import check_log_alpha
from saddles.diagonal.observe import KEEPABLE, to_trajectory
from saddles.diagonal.rest import ZERO, Rest, flow_to_rest
from saddles.diagonal.risk import Risk, risk_of
from saddles.errors import SaddlesError
from saddles.runtime.device import on_device
from saddles.runtime.progress import bar
from saddles.solvers.log_scale import LogScale

TIE = 1e-9
"""Times until activation that differ by less than this part are a tie."""

BEGIN = 1e-8
"""|β| of a newly active coordinate at the start of part (B), relative to the largest |β| (or 1): the paper's ε²."""


@dataclass(frozen=True)
class Incremental:
    """Incremental learning of a network with diagonal weights (Algorithm 1).

    From T = 0, β = 0 and b = 1, with g = g(β^k):
    (A) Δ(i) = (b_i − 1 + sgn g_i)/g_i, i_k = argmin Δ, T ← T + Δ(i_k), b ← b − g Δ(i_k) (10)–(12);
    (B) β^{k+1}: where gradient flow on the support and i_k comes to rest (13).
    The listing prints b⁰ = 0; (10) and appendix C.5 need 1.

    Args:
        max_stages: most activations to predict.
        log_alpha: None is the limit α → 0. A number is the finite form: b⁰ = log_α|α p₀| and upper
            barrier log_α(α²|p₀ q₀|) instead of 1 and 2, with the run's own u₀, v₀.
        until: stop at this rescaled time; None goes on until nothing grows any more.
    """

    max_stages: int = 100
    log_alpha: float | None = None
    until: float | None = None

    def __post_init__(self) -> None:
        if self.max_stages < 1:
            raise SaddlesError.about(f"max_stages={self.max_stages!r} came", "at least 1 is predicted", "try 10")
        if self.log_alpha is not None:
            check_log_alpha(self.log_alpha)


@dataclass(eq=False)
class _Progress:
    """The state of Algorithm 1 and the table it writes."""

    time: float
    log_scale: np.ndarray
    beta: np.ndarray
    signs: np.ndarray
    rows: list[dict[str, Any]] = field(default_factory=list)
    stages: list[tuple[float, np.ndarray, float]] = field(default_factory=list)
    status: str = FINISHED


def predict(
    model: Any,
    task: Any,
    theory: Incremental,
    *,
    times: Any = None,
    seed: int = 0,
    keep: Sequence[str] | None = None,
    device: str | None = None,
    precision: str = "float64",
) -> Trajectory:
    """Predict the stages of a network; the result is piecewise constant over rescaled time.

    One row a newly active coordinate: `stage_time`, `stage_coordinate`, `stage_sign`, `stage_loss` and
    `support_size` after the stage; `stage_tie` (how many became active together), `stage_gap` (gap to
    the next Δ, relative to Δ), `stage_margin` (the same relative to the stage's time), `stage_left` (how many left
    the support), `stage_exit_force` (smallest |g| of those, relative to max|g(0)|), `stage_beta` and
    `stage_log_scale` (b at the activation). A tie breaks Assumption 4.3: all tied coordinates are started alike.
    """
    check_keep(keep, KEEPABLE)
    asked = check_times(times)
    if not isinstance(theory, Incremental):
        raise SaddlesError.about(f"{type(theory).__name__} came as a theory", "Incremental is predicted", "use it")
    with on_device(device):
        risk = risk_of(model, task, precision)
        floor, ceiling, start = _barriers(model, theory, seed)
        made = _run(risk, theory, start, ceiling - floor, floor)
    return _labelled(made, risk, model, task, theory, asked, seed)


def _barriers(model: Any, theory: Incremental, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where b means active (0 from above; the ceiling from below), and b⁰."""
    powers = model.powers
    if theory.log_alpha is None:
        return np.zeros(model.coordinates), 2 * powers, powers
    u, v = model.start(seed)
    coordinates = LogScale.from_weights(u, v, theory.log_alpha, powers)
    start = coordinates.log_p / theory.log_alpha
    return np.zeros(model.coordinates), (coordinates.log_p + coordinates.log_q) / theory.log_alpha, start


def waiting(log_scale: np.ndarray, ceiling: np.ndarray, force: np.ndarray) -> np.ndarray:
    """Δ of (10): b/g upward, (b − ceiling)/g downward, ∞ where g = 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        left = np.where(force > 0, log_scale / force, (log_scale - ceiling) / force)
    return np.where(force == 0, np.inf, np.maximum(left, 0.0))


def _run(risk: Risk, theory: Incremental, start: np.ndarray, ceiling: np.ndarray, floor: np.ndarray) -> _Progress:
    size = risk.size
    loss, first = risk.both(np.zeros(size))
    tiny = ZERO * float(np.abs(first).max())
    now = _Progress(0.0, start - floor, np.zeros(size), np.zeros(size))
    now.stages.append((0.0, now.beta, loss))
    force = first
    with bar("Algorithm 1", float(theory.max_stages)) as progress:
        while len(now.rows) < theory.max_stages:
            force = np.where((now.signs != 0) | (np.abs(force) <= tiny), 0.0, force)
            left = waiting(now.log_scale, ceiling, force)
            wait = float(left.min())
            if not np.isfinite(wait) or (theory.until is not None and now.time + wait > theory.until):
                break
            tied = left <= wait * (1 + TIE) + 1e-300
            others = left[~tied & np.isfinite(left)]
            gap = float(others.min() - wait) if len(others) else np.inf
            now.time += wait
            now.log_scale = np.where(tied, np.where(force > 0, 0.0, ceiling), now.log_scale - force * wait)
            rest = _learn(risk, now, np.flatnonzero(tied), np.sign(force))
            if rest is None:
                break
            force = rest.force
            _write(now, np.flatnonzero(tied), rest, (wait, gap), float(np.abs(first).max()))
            progress.reach(float(len(now.rows)))
    return now


def _learn(risk: Risk, now: _Progress, new: np.ndarray, direction: np.ndarray) -> Rest | None:
    """Part (B): start the new coordinates at ε and follow the flow on the support to rest."""
    signs = now.signs.copy()
    signs[new] = direction[new]
    begin = now.beta.copy()
    begin[new] = signs[new] * BEGIN * max(1.0 if not now.beta.any() else float(np.abs(now.beta).max()), 1e-12)
    rest = flow_to_rest(risk, begin, signs)
    if not rest.settled:
        now.status = (
            f"stopped: the flow after activation {len(now.rows) + 1} came to no rest within its limit (loss "
            f"{rest.loss:.4g}, largest weight {np.abs(rest.beta).max():.4g}); Assumption 4.4 needs a strict local "
            "minimum, which a loss with an exponential tail does not have"
        )
        return None
    return rest


def _write(now: _Progress, new: np.ndarray, rest: Rest, waits: tuple[float, float], largest: float) -> None:
    wait, gap = waits
    before = now.signs.copy()
    before[new] = 1.0
    gone = np.flatnonzero((before != 0) & (rest.signs == 0))
    sides = np.sign(now.log_scale[new])  # the ceiling is positive: active downward; 0: active upward
    now.beta, now.signs = rest.beta, rest.signs
    for i, side in zip(new, sides, strict=True):
        now.rows.append({
            "stage_time": now.time, "stage_coordinate": int(i), "stage_sign": -int(side) if side else 1,
            "stage_loss": rest.loss, "support_size": int((rest.signs != 0).sum()), "stage_tie": len(new),
            "stage_gap": gap / wait if wait > 0 else np.inf, "stage_margin": gap / now.time, "stage_left": len(gone),
            "stage_exit_force": float(np.abs(rest.force[gone]).min() / largest) if len(gone) else np.inf,
            "stage_beta": rest.beta, "stage_log_scale": now.log_scale,
        })  # fmt: skip
    now.stages.append((now.time, rest.beta, rest.loss))


def _labelled(
    made: _Progress, risk: Risk, model: Any, task: Any, theory: Incremental, asked: np.ndarray | None, seed: int
) -> Trajectory:
    edges = np.array([time for time, _, _ in made.stages])
    if asked is None:
        end = theory.until if theory.until is not None else 1.1 * edges[-1] if edges[-1] > 0 else 1.0
        jumps = np.unique(np.concatenate([edges[1:] * (1 - 1e-9), edges, [max(end, edges[-1])]]))
        asked = jumps[jumps >= 0]
    where = np.searchsorted(edges, asked, side="right") - 1
    betas, losses = np.stack([beta for _, beta, _ in made.stages]), np.array([loss for *_, loss in made.stages])
    variables: dict[str, Any] = {
        "beta": (("time", "coordinate"), betas[where]),
        "loss": (("time",), losses[where]),
    }
    names = ("stage_time", "stage_coordinate", "stage_sign", "stage_loss", "support_size", "stage_tie", "stage_gap",
             "stage_margin", "stage_left", "stage_exit_force")  # fmt: skip
    whole = ("stage_coordinate", "stage_sign", "support_size", "stage_tie", "stage_left")
    for name in names:
        kind = int if name in whole else float
        variables[name] = (("stage",), np.array([row[name] for row in made.rows], dtype=kind))
    for name in ("stage_beta", "stage_log_scale"):
        rows = np.array([row[name] for row in made.rows]).reshape(len(made.rows), model.coordinates)
        variables[name] = (("stage", "coordinate"), rows)
    return to_trajectory(
        variables,
        asked,
        model,
        task,
        log_alpha=theory.log_alpha,
        coords={"stage": np.arange(len(made.rows))},
        kind="predicted",
        theory=theory,
        seed=seed,
        status=made.status,
        gradient_evaluations=risk.counts.gradients,
        hessian_products=risk.counts.products,
        not_applicable=_broken(model, seed),
    )


def _broken(model: Any, seed: int) -> str | None:
    """Which assumption on the initial weights is broken, if any."""
    u, v = model.start(seed)
    equal = np.flatnonzero(np.abs(u) == np.abs(v))
    if not len(equal):
        return None
    return f"Assumption 4.3: |u_0| = |v_0| at coordinate {', '.join(map(str, equal[:5]))}"
