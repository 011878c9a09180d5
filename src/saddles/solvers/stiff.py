"""A stiff integrator for small flows whose Jacobian has structure: y' = f(y), nothing to compile.

Variable-order backward differentiation (`core.ndf`). The flow brings its own linear algebra: `respond(y, c)` prepares
r ↦ (I − cJ(y))⁻¹ r, so that a Jacobian of low rank plus something simple is never written out. SciPy's BDF can only
factorise dense ones; Kvaerno 5 of `core.solve` compiles for half a minute.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from saddles.solvers import ndf

Solve = Callable[[np.ndarray], np.ndarray]
"""r -> (I − cJ)⁻¹ r, both of the state's shape."""


@runtime_checkable
class StiffFlow(Protocol):
    """What the integrator needs of a flow."""

    def field(self, state: np.ndarray) -> np.ndarray:
        """f(y); NaN or infinity where a trial step left the sensible."""
        ...

    def respond(self, state: np.ndarray, c: float) -> Solve:
        """Prepare (I − cJ(y))⁻¹."""
        ...

    def size(self, state: np.ndarray) -> Any:
        """What errors are measured against: one number, or one for each entry of the state."""
        ...


@dataclass(eq=False)
class Implicit:
    """Steps of variable size and order along y' = f(y).

    Args:
        flow: f and its linear algebra.
        state: y at time 0, of any shape.
        rtol: error a step, relative to the flow's `size`.
        atol: the same, absolute.
    """

    flow: StiffFlow
    state: np.ndarray
    rtol: float = 1e-8
    atol: float = 1e-10
    time: float = 0.0
    order: int = 1
    step: float = 0.0
    steps: int = 0
    rejected: int = 0
    evaluations: int = 0
    _rate: float = 0.5
    _even: int = 0

    def __post_init__(self) -> None:
        slope = self._field(self.state)
        if not np.isfinite(slope).all():
            raise ndf.StepError
        speed = float((np.abs(slope) / np.sqrt(self._tolerance())).max())
        self.step = 0.1 / speed if speed > 0 else 1.0
        self.differences = np.zeros((ndf.ORDERS + 3, *self.state.shape))
        self.differences[0], self.differences[1] = self.state, self.step * slope

    def _field(self, state: np.ndarray) -> np.ndarray:
        self.evaluations += 1
        with np.errstate(all="ignore"):
            return self.flow.field(state)

    def _tolerance(self) -> Any:
        return self.rtol * self.flow.size(self.state) + self.atol

    def advance(self, limit: float) -> None:
        """Take one accepted step, not beyond the time `limit`."""
        if self.time + self.step > limit:
            self.change((limit - self.time) / self.step)
        for _ in range(60):
            if self.step < 1e-14 * max(abs(self.time), self.step):
                break
            solved = self._solve()
            if solved is None:
                self.rejected += 1
                self.change(0.3)
                continue
            there, correction, spent = solved
            error = float(ndf.ERROR[self.order] * (np.abs(correction) / self._tolerance()).max())
            if error <= 1:
                return self._accept(there, correction, error, spent)
            self.rejected += 1
            self.change(max(0.2, ndf.safety(spent) * error ** (-1 / (self.order + 1))))
        raise ndf.StepError

    def snapshot(self) -> tuple[object, ...]:
        """What `restore` needs to go back to before the next step."""
        return self.state, self.time, self.order, self.step, self.differences.copy(), self._rate, self._even, self.steps

    def restore(self, saved: tuple[object, ...]) -> None:
        """Go back."""
        self.state, self.time, self.order, self.step, table, self._rate, self._even, self.steps = saved  # type: ignore[assignment]
        self.differences = np.array(table)

    def change(self, factor: float) -> None:
        """Change the step size by a factor, history and all."""
        order = self.order
        mix = ndf.rescale(order, factor) @ ndf.rescale(order, 1.0)
        self.differences[: order + 1] = np.tensordot(mix.T, self.differences[: order + 1], 1)
        self.step *= factor
        self._even = 0

    def _solve(self) -> tuple[np.ndarray, np.ndarray, int] | None:
        """Solve y = predicted + d, d + ψ = c f(y) by a Newton method with one Jacobian; None where it fails."""
        order = self.order
        predicted = self.differences[: order + 1].sum(axis=0)
        psi = np.tensordot(ndf.GAMMA[1 : order + 1], self.differences[1 : order + 1], 1) / ndf.ALPHA[order]
        c = self.step / ndf.ALPHA[order]
        tolerance, there, correction, before = self._tolerance(), predicted, np.zeros_like(predicted), None
        force = self._field(there)
        if not np.isfinite(force).all():
            return None
        try:
            with np.errstate(all="ignore"):
                solve = self.flow.respond(there, c)
        except np.linalg.LinAlgError:
            return None
        for count in range(1, ndf.NEWTON_ITERATIONS + 1):
            move = solve(c * force - psi - correction)
            size = float((np.abs(move) / tolerance).max())
            if not np.isfinite(size):
                return None
            if before is not None:
                rate = size / before if before > 0 else 0.0
                self._rate = max(0.3 * self._rate, rate)
                if count > 2 and rate > 1.5:
                    return None
            there, correction = there + move, correction + move
            if min(1.0, self._rate) * size < ndf.NEWTON_FRACTION:
                return there, correction, count
            before, force = size, self._field(there)
            if not np.isfinite(force).all():
                return None
        return None

    def _accept(self, there: np.ndarray, correction: np.ndarray, error: float, spent: int) -> None:
        order, table = self.order, self.differences
        self.time, self.state = self.time + self.step, there
        ndf.add_instant(table, order, correction)
        self.steps, self._even = self.steps + 1, self._even + 1
        if self._even <= order:
            return
        tolerance = self._tolerance()
        sizes = np.array([
            ndf.ERROR[order - 1] * (np.abs(table[order]) / tolerance).max() if order > 1 else np.inf,
            error,
            ndf.ERROR[order + 1] * (np.abs(table[order + 2]) / tolerance).max() if order < ndf.ORDERS else np.inf,
        ])  # fmt: skip
        factors = np.maximum(sizes, 1e-12) ** (-1 / np.arange(order, order + 3))
        best = int(np.argmax(factors))
        self.order = order + best - 1
        self.change(float(min(10.0, ndf.safety(spent) * factors[best])))
