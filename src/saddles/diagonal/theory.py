"""Algorithm 1: the stages of learning at vanishing initialisation, predicted one by one.

Boix-Adserà et al., Transformers learn through gradual rank increase (2023), section 4.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from saddles.core.status import FINISHED, Ending, Status
from saddles.core.trajectory import Trajectory, Variable
from saddles.core.validation import arguments_explained
from saddles.diagonal.observe import to_trajectory
from saddles.diagonal.rest import ZERO, Rest, flow_to_rest
from saddles.diagonal.risk import Risk, check_network, risk_of
from saddles.diagonal.scale import scale_of, warn_moved
from saddles.diagonal.task import check_task
from saddles.errors import SaddlesError
from saddles.runtime.device import on_device
from saddles.runtime.precision import in_double_precision
from saddles.runtime.progress import bar
from saddles.solvers.log_scale import LogScale
from saddles.solvers.ode import SAVED_TIMES

TIE = 1e-9
"""Times until activation that differ by less than this part are a tie."""

BEGIN = 1e-8
"""|β| of a newly active coordinate at the start of part (B), relative to the scale of β: the paper's ε²."""

BEFORE = 1e-9
"""A prediction without `times` is saved this part before each jump, so that a line through its points is a stair."""


@arguments_explained
@dataclass(frozen=True)
class Incremental:
    """Incremental learning of a network with diagonal weights (Algorithm 1).

    From T = 0, β = 0 and b = 1, with g = g(β^k):
    (A) Δ(i) = (b_i − 1 + sgn g_i)/g_i, i_k = argmin Δ, T ← T + Δ(i_k), b ← b − g Δ(i_k) (10)–(12);
    (B) β^{k+1}: where gradient flow on the support and i_k comes to rest (13).
    The listing prints b⁰ = 0; (10) and appendix C.5 need 1. A force below 1e-9 of the first counts as 0: stages that
    would come a billion times as late are not predicted.

    Args:
        max_stages: most activations to predict.
        until: stop at this rescaled time; None continues until nothing grows any more.
        finite: False is the limit α → 0, which does not read the model's α. True is the finite form, with the model's
            own α and the run's u₀, v₀: b⁰ = log_α|α p₀| and upper barrier log_α(α²|p₀ q₀|) instead of 1 and 2.
        log_alpha: the old way to ask for the finite form; give it to the model, and finite=True.
    """

    max_stages: int = 100
    until: float | None = None
    finite: bool = False
    log_alpha: float | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        warn_moved(self, self.log_alpha)
        if self.max_stages < 1:
            raise SaddlesError.must_be("max_stages", "at least 1", self.max_stages)
        if self.until is not None and not (math.isfinite(self.until) and self.until > 0):
            raise SaddlesError.must_be("until", "a positive rescaled time", self.until)

    @property
    def random(self) -> bool | None:
        """False: the limit does not depend on what is drawn; None for the finite form, which reads the model's draw."""
        return None if self._finite else False

    def horizon(self, model: object, task: object) -> tuple[np.ndarray | None, Status]:
        """The limit jumps at the same times for every seed and α; finite forms need one clock, evenly until `until`."""
        if not self._finite:
            return None, FINISHED
        if self.until is None:
            raise SaddlesError("Several finite forms jump at different times and need one clock: give `until` or "
                               "`times`.")  # fmt: skip
        return np.linspace(0.0, self.until, SAVED_TIMES), FINISHED

    @property
    def _finite(self) -> bool:
        return self.finite or self.log_alpha is not None

    @in_double_precision
    def predict(
        self,
        model: object,
        task: object,
        *,
        times: np.ndarray | None = None,
        seed: int = 0,
        device: str | None = None,
        precision: str = "float64",
    ) -> Trajectory:
        """Predict the stages of a network; the result is piecewise constant over rescaled time.

        One row per newly active coordinate: `stage_time`, `stage_coordinate`, `stage_sign`, `stage_loss` and
        `support_size` after the stage; `stage_tie` (how many became active together), `stage_gap` (gap to
        the next Δ, relative to Δ), `stage_margin` (the same relative to the stage's time), `stage_left` (how many left
        the support), `stage_exit_force` (smallest |g| of those, relative to max|g(0)|), `stage_beta` and
        `stage_log_scale` (b at the activation). A tie breaks Assumption 4.3: all tied coordinates are started alike.
        """
        network = check_network(model, self)
        log_alpha = scale_of(model, self) if self._finite else None
        u, v = network.start(task, seed)
        with on_device(device):
            risk = risk_of(network, check_task(task, model), precision)
            run = _run(risk, self, *_barriers(network.powers, u, v, log_alpha))
        clock = _clock(run, self.until) if times is None else times
        variables, coords = _variables(run, clock)
        if log_alpha is not None:
            variables["gradient_time"] = (("time",), -log_alpha * clock)
        return to_trajectory(
            variables, clock, model, task, coords=coords, kind="predicted", theory=self, seed=seed,
            log_alpha=log_alpha, status=run.status, gradient_evaluations=risk.counts.gradients,
            hessian_products=risk.counts.products, not_applicable=_broken(u, v),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Stage:
    """A row of the table of stages; names and types are those of the trajectory's variables."""

    stage_time: float
    stage_coordinate: int
    stage_sign: int
    stage_loss: float
    support_size: int
    stage_tie: int
    stage_gap: float
    stage_margin: float
    stage_left: int
    stage_exit_force: float
    stage_beta: np.ndarray
    stage_log_scale: np.ndarray


@dataclass(eq=False)
class _Progress:
    """The state of Algorithm 1 and the table it writes; `rests` has (time, β, loss) of every plateau.

    `log_scale` is b = log_α|p|, which is 0 where a coordinate becomes active upward; `other` is log_α|q|, 0 where it
    does downward. Their sum never changes, yet both are kept: of a start with p = 0 it is infinite.
    """

    time: float
    log_scale: np.ndarray
    other: np.ndarray
    beta: np.ndarray
    signs: np.ndarray
    rows: list[_Stage] = field(default_factory=list)
    rests: list[tuple[float, np.ndarray, float]] = field(default_factory=list)
    status: Status = FINISHED


def _barriers(
    powers: np.ndarray, u: np.ndarray, v: np.ndarray, log_alpha: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """log_α|p| and log_α|q| at the start: what is left until a coordinate becomes active upward, and downward."""
    if log_alpha is None:
        return powers, powers
    start = LogScale.from_weights(u, v, log_alpha, powers)
    return start.log_p / log_alpha, start.log_q / log_alpha


def waiting(log_scale: np.ndarray, other: np.ndarray, force: np.ndarray) -> np.ndarray:
    """Δ of (10): log_α|p|/g upward, log_α|q|/|g| downward, ∞ where g = 0 or what would grow is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        left = np.where(force > 0, log_scale / force, -other / force)
    # Round-off may leave b just beyond a barrier that it has reached: it is due now, not in the past.
    return np.where(force == 0, np.inf, np.maximum(left, 0.0))


def _run(risk: Risk, theory: Incremental, start: np.ndarray, other: np.ndarray) -> _Progress:
    size, whole = risk.size, start + other
    loss, first = risk.both(np.zeros(size))
    largest = float(np.abs(first).max())
    now = _Progress(0.0, start, other, np.zeros(size), np.zeros(size))
    now.rests.append((0.0, now.beta, loss))
    force = first
    with bar("Algorithm 1", float(theory.max_stages)) as progress:
        while len(now.rows) < theory.max_stages:
            # Active coordinates rest, so that what is left of their force is round-off and must not move b.
            force = np.where((now.signs != 0) | (np.abs(force) <= ZERO * largest), 0.0, force)
            left = waiting(now.log_scale, now.other, force)
            wait = float(left.min())
            if not np.isfinite(wait) or (theory.until is not None and now.time + wait > theory.until):
                break
            tied = left <= wait * (1 + TIE) + 1e-300  # the last term for a wait of 0
            others = left[~tied & np.isfinite(left)]
            gap = float(others.min() - wait) if len(others) else np.inf
            now.time += wait
            # The winners are put exactly onto their barrier; the others move by (12).
            up, down = tied & (force > 0), tied & (force < 0)
            now.log_scale = np.where(up, 0.0, np.where(down, whole, now.log_scale - force * wait))
            now.other = np.where(down, 0.0, np.where(up, whole, now.other + force * wait))
            new = {int(i): int(np.sign(force[i])) for i in np.flatnonzero(tied)}
            rest = _learn(risk, now, force, new)
            if not rest.settled:
                break
            force = rest.force
            _write(now, new, rest, (wait, gap), largest)
            progress.reach(float(len(now.rows)))
    return now


def _learn(risk: Risk, now: _Progress, force: np.ndarray, new: Mapping[int, int]) -> Rest:
    """Part (B): start the new coordinates, given with their signs, at ε and follow the flow on the support to rest."""
    signs, begin = now.signs.copy(), now.beta.copy()
    small = BEGIN * _scale(risk, now.beta, force, list(new))
    for i, sign in new.items():
        signs[i], begin[i] = sign, sign * small
    rest = flow_to_rest(risk, begin, signs)
    if not rest.settled:
        now.status = Status(
            Ending.STOPPED,
            f"the flow after activation {len(now.rows) + 1} did not come to rest within its limit (loss "
            f"{rest.loss:.4g}, largest weight {np.abs(rest.beta).max():.4g}); Assumption 4.4 needs a strict local "
            "minimum, which a loss with an exponential tail does not have",
        )
    return rest


def _scale(risk: Risk, beta: np.ndarray, force: np.ndarray, new: list[int]) -> float:
    """The largest |β|; before anything is learned 1, or ten Newton steps of the first coordinates if that is less.

    From β = 0 a fixed start could lie far beyond the rest of a small target, and would not be a start near the saddle.
    Ten steps, because one is but a guess of where the rest is: targets of usual size keep 1.
    """
    if beta.any():
        return float(np.abs(beta).max())
    curvature = np.abs(np.diagonal(risk.columns(beta, np.array(new))[new]))
    with np.errstate(divide="ignore"):
        return min(1.0, 10 * float((np.abs(force[new]) / curvature).min()))


def _write(now: _Progress, new: Mapping[int, int], rest: Rest, waits: tuple[float, float], largest: float) -> None:
    wait, gap = waits
    # New coordinates count as present before, so that one that does not survive its own stage is among those that left.
    before = now.signs.copy()
    before[list(new)] = 1.0
    gone = np.flatnonzero((before != 0) & (rest.signs == 0))
    now.beta, now.signs = rest.beta, rest.signs
    for i, sign in new.items():
        now.rows.append(_Stage(
            stage_time=now.time, stage_coordinate=i, stage_sign=sign,
            stage_loss=rest.loss, support_size=int((rest.signs != 0).sum()), stage_tie=len(new),
            stage_gap=gap / wait if wait > 0 else np.inf, stage_margin=gap / now.time if now.time > 0 else np.inf,
            stage_left=len(gone),
            stage_exit_force=float(np.abs(rest.force[gone]).min() / largest) if len(gone) else np.inf,
            stage_beta=rest.beta, stage_log_scale=now.log_scale,
        ))  # fmt: skip
    now.rests.append((now.time, rest.beta, rest.loss))


def _clock(run: _Progress, until: float | None) -> np.ndarray:
    """Times just before and at each jump, and an end beyond the last."""
    edges = np.array([time for time, _, _ in run.rests])
    last = float(edges[-1])
    # A tenth beyond the last jump, so that the last plateau is seen.
    end = max(until, last) if until is not None else 1.1 * last if last > 0 else 1.0
    return np.unique(np.concatenate([edges[1:] * (1 - BEFORE), edges, [end]]))


def _variables(run: _Progress, clock: np.ndarray) -> tuple[dict[str, Variable], dict[str, object]]:
    """The stairs on a clock and the table of stages, with the coordinate of its rows."""
    edges, betas, losses = (np.array(column) for column in zip(*run.rests, strict=True))
    where = np.searchsorted(edges, clock, side="right") - 1
    variables: dict[str, Variable] = {
        "beta": (("time", "coordinate"), betas[where]),
        "loss": (("time",), losses[where]),
    }
    for column in dataclasses.fields(_Stage):
        values = [getattr(row, column.name) for row in run.rows]
        if column.type is np.ndarray:
            rows = np.array(values, dtype=float).reshape(len(values), betas.shape[1])
            variables[column.name] = (("stage", "coordinate"), rows)
        else:
            variables[column.name] = (("stage",), np.array(values, dtype=column.type))  # type: ignore[arg-type]
    return variables, {"stage": np.arange(len(run.rows))}


def _broken(u: np.ndarray, v: np.ndarray) -> str | None:
    """Which assumption on the initial weights is broken, if any."""
    equal = np.flatnonzero(np.abs(u) == np.abs(v))
    if not len(equal):
        return None
    return f"Assumption 4.3: |u_0| = |v_0| at coordinate {', '.join(map(str, equal[:5]))}"
