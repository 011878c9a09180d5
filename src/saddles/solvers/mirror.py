"""A stiff integrator for S' = g(β(S)), g = −∇L, that pays for gradients only.

Variable-order backward differentiation (`core.ndf`). The Jacobian is −∇²L diag(dβ/dS): the slopes dβ/dS are known
exactly and are zero for coordinates that are not learned yet, and ∇²L is learned from the gradients themselves by
symmetric rank-one secant updates, with one Hessian column a newly active coordinate. A wrong Hessian
costs iterations, never accuracy: every step solves its equation with true gradients.

The relative error of β is twice the absolute error of S, so S is controlled absolutely.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from saddles.solvers import ndf
from saddles.solvers.log_scale import LogScale

Force = Callable[[np.ndarray], np.ndarray]
"""β -> g = −∇L(β), shape (coordinate,)."""

Columns = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(β, indices) -> columns of ∇²L, shape (coordinate, index)."""

OVERFLOW = 1e30
"""A trial step to a β beyond this is refused without asking for its gradient."""


@dataclass(eq=False)
class Secant:
    """An estimate of ∇²L from gradients seen and columns asked for."""

    matrix: np.ndarray
    known: np.ndarray
    _beta: np.ndarray | None = None
    _force: np.ndarray | None = None

    @classmethod
    def empty(cls, size: int) -> "Secant":
        """Nothing known yet."""
        return cls(np.zeros((size, size)), np.zeros(size, dtype=bool))

    def see(self, beta: np.ndarray, force: np.ndarray) -> None:
        """Learn from a gradient: symmetric rank-one, skipped where round-off would decide."""
        if self._beta is not None and self._force is not None:
            moved = beta - self._beta
            missing = -(force - self._force) - self.matrix @ moved
            overlap = float(missing @ moved)
            far = np.abs(moved).max() > 1e-7 * max(np.abs(beta).max(), 1e-300)
            if far and abs(overlap) > 1e-6 * np.linalg.norm(missing) * np.linalg.norm(moved):
                self.matrix += np.outer(missing, missing) / overlap
        self._beta, self._force = beta.copy(), force.copy()

    def put(self, chosen: np.ndarray, columns: np.ndarray) -> None:
        """Take exact columns over."""
        self.matrix[:, chosen] = columns
        self.matrix[chosen, :] = columns.T
        self.known[chosen] = True

    @property
    def scale(self) -> float:
        """The largest entry."""
        return float(np.abs(self.matrix).max())


@dataclass(eq=False)
class Stepper:
    """Steps of variable size and order along S' = g(β(S)).

    Args:
        force, columns: the loss's gradient and Hessian columns as functions of β.
        coordinates: how β depends on S.
        shift: S at `time`.
        tolerance: largest error of S a step.
    """

    force: Force
    columns: Columns
    coordinates: LogScale
    shift: np.ndarray
    time: float
    tolerance: float
    hessian: Secant = field(init=False)
    step: float = 0.0
    order: int = 1
    steps: int = 0
    rejected: int = 0
    failures: int = 0
    refreshes: int = 0
    _rate: float = 0.5
    _even: int = 0
    _fresh: bool = False

    def __post_init__(self) -> None:
        self.hessian = Secant.empty(self.coordinates.size)
        self.differences = np.zeros((ndf.ORDERS + 3, self.coordinates.size))
        self.slope = self.evaluate(self.shift)

    def evaluate(self, shift: np.ndarray) -> np.ndarray:
        """G at S, remembered for the Hessian; NaN where a trial step overflows."""
        beta = self.coordinates.beta(shift)
        if not np.abs(beta).max(initial=0.0) < OVERFLOW:
            return np.full_like(beta, np.nan)
        force = self.force(beta)
        if np.isfinite(force).all():
            self.hessian.see(beta, force)
        return force

    def restart(self, time: float, shift: np.ndarray, slope: np.ndarray, step: float) -> None:
        """Begin again at order 1 from a known state and derivative."""
        self.time, self.shift, self.slope, self.step = time, shift.copy(), slope.copy(), step
        self.order, self._even, self._rate = 1, 0, 0.5
        self.differences[:] = 0.0
        self.differences[0], self.differences[1] = shift, step * slope

    def resume(self, time: float, path: Callable[[np.ndarray], np.ndarray], step: float) -> None:
        """Go on from a known path S(t) that ends at `time`, at full order.

        Args:
            path: S at times up to `time`, shape (time, coordinate).
            step: the size of the next step.
        """
        self.order, self._even, self._rate = ndf.ORDERS, 0, 0.5
        self.time, self.step = time, step
        table = path(time - step * np.arange(ndf.ORDERS + 3))
        self.shift = table[0].copy()
        for i in range(ndf.ORDERS + 3):
            self.differences[i] = table[0]
            table = table[:-1] - table[1:]
        self.slope = self.differences[1 : ndf.ORDERS + 1].T @ (1 / np.arange(1, ndf.ORDERS + 1)) / step

    def influence(self, shift: np.ndarray) -> np.ndarray:
        """How much each coordinate's motion moves the forces: max|∇²L| dβ/dS."""
        return max(self.hessian.scale, 1e-300) * self.coordinates.slope(shift)

    def advance(self, limit: float) -> None:
        """Take one accepted step, not beyond the time `limit`."""
        tries = 0
        if self.time + self.step > limit:
            self._change(max(limit - self.time, 1e-300) / self.step)
        while True:
            tries += 1
            if tries > 60 or self.step < 1e-13 * max(abs(self.time), self.step):
                raise ndf.StepError
            solved = self._solve()
            if solved is None:
                self.failures += 1
                if not self._fresh and tries > 1:
                    self._refresh()
                else:
                    self._change(0.3)
                continue
            there, correction, spent = solved
            error = ndf.ERROR[self.order] * np.abs(correction).max() / self.tolerance
            if error > 1:
                self.rejected += 1
                self._change(max(0.2, ndf.safety(spent) * error ** (-1 / (self.order + 1))))
                continue
            break
        self._accept(there, correction, error, spent)

    def _refresh(self) -> None:
        active = np.flatnonzero(
            self.influence(self.shift) > 0.1 * self.tolerance * max(np.abs(self.slope).max(), 1e-300)
        )
        self.hessian.put(active, self.columns(self.coordinates.beta(self.shift), active))
        self._fresh, self.refreshes = True, self.refreshes + 1

    def _change(self, factor: float) -> None:
        order = self.order
        mix = ndf.rescale(order, factor) @ ndf.rescale(order, 1.0)
        self.differences[: order + 1] = mix.T @ self.differences[: order + 1]
        self.step *= factor
        self._even = 0

    def _solve(self) -> tuple[np.ndarray, np.ndarray, int] | None:
        """Solve y = predicted + d, d + ψ = c g(y) by Newton's method; None where it does not converge."""
        order = self.order
        predicted = self.differences[: order + 1].sum(axis=0)
        psi = self.differences[1 : order + 1].T @ ndf.GAMMA[1 : order + 1] / ndf.ALPHA[order]
        c = self.step / ndf.ALPHA[order]
        there, correction, before = predicted.copy(), np.zeros_like(predicted), None
        for count in range(1, ndf.NEWTON_ITERATIONS + 1):
            force = self.evaluate(there)
            if not np.isfinite(force).all():
                return None
            move = self.respond(there, c * force - psi - correction, c)
            size = float(np.abs(move).max()) / self.tolerance
            if not np.isfinite(size) or np.abs(move).max() > 50.0:
                return None
            if before is not None:
                rate = size / before if before > 0 else 0.0
                self._rate = max(0.3 * self._rate, rate)
                if count > 2 and rate > 1.5:
                    return None
            there, correction = there + move, correction + move
            if min(1.0, self._rate) * size < ndf.NEWTON_FRACTION:
                return there, correction, count
            before = size
        return None

    def know(self, there: np.ndarray, chosen: np.ndarray) -> None:
        """Ask for the Hessian columns of chosen coordinates that are not known yet."""
        new = chosen[~self.hessian.known[chosen]]
        if len(new):
            self.hessian.put(new, self.columns(self.coordinates.beta(there), new))

    def respond(self, there: np.ndarray, residual: np.ndarray, c: float, without: int | None = None) -> np.ndarray:
        """(I + c H D)⁻¹ residual, where only coordinates with a slope D couple; `without` counts as none."""
        slopes = self.coordinates.slope(there)
        if without is not None:
            slopes[without] = 0.0
        active = np.flatnonzero(c * max(self.hessian.scale, 1e-300) * slopes > 1e-6)
        self.know(there, active)
        block = self.hessian.matrix[:, active] * slopes[active] * c
        inner = block[active].copy()
        inner[np.diag_indices(len(active))] += 1.0
        try:
            move = np.linalg.solve(inner, residual[active])
        except np.linalg.LinAlgError:
            return np.full_like(residual, np.nan)
        whole = residual - block @ move
        whole[active] = move
        return whole

    def _accept(self, there: np.ndarray, correction: np.ndarray, error: float, spent: int) -> None:
        order, table = self.order, self.differences
        self.time, self.shift = self.time + self.step, there
        ndf.add_instant(table, order, correction)
        self.slope = table[1 : order + 1].T @ (1 / np.arange(1, order + 1)) / self.step
        self.steps, self._fresh, self._even = self.steps + 1, False, self._even + 1
        if self._even <= order:
            return
        sizes = np.array([
            ndf.ERROR[order - 1] * np.abs(table[order]).max() / self.tolerance if order > 1 else np.inf,
            error,
            ndf.ERROR[order + 1] * np.abs(table[order + 2]).max() / self.tolerance if order < ndf.ORDERS else np.inf,
        ])  # fmt: skip
        with np.errstate(divide="ignore"):
            factors = sizes ** (-1 / np.arange(order, order + 3))
        best = int(np.argmax(factors))
        self.order = order + best - 1
        self._change(float(min(10.0, ndf.safety(spent) * factors[best])))

    def between(self, times: Any) -> np.ndarray:
        """S at times inside the last step, from the step's own polynomial; shape (time, coordinate)."""
        order = self.order
        asked = np.atleast_1d(np.asarray(times, dtype=float))
        shifts = self.time - self.step * np.arange(order)
        factors = np.cumprod((asked[:, None] - shifts) / (self.step * (1 + np.arange(order))), axis=1)
        return self.differences[0] + factors @ self.differences[1 : order + 1]
