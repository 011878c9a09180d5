"""The flow S' = g(β(S)), g = −∇L, for the stiff integrator, paid for in gradients only.

The Jacobian is −∇²L diag(dβ/dS): the slopes dβ/dS are known exactly and are zero for coordinates that are not learned
yet, and ∇²L is learned from the gradients themselves by symmetric rank-one secant updates, with one Hessian column per
newly active coordinate. A wrong Hessian costs iterations, never accuracy: every step solves its equation with true
gradients.

The relative error of β is twice the absolute error of S, so S is controlled absolutely.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int

from saddles.solvers.log_scale import LogScale, Vector
from saddles.solvers.multistep import TINY, Solve, StiffFlow

Chosen = Int[np.ndarray, "chosen"]
"""Indices of coordinates."""

Part = Float[np.ndarray, "chosen"]
"""Numbers of chosen coordinates."""

Force = Callable[[Vector], Vector]
"""β -> g = −∇L(β)."""

Columns = Callable[[Vector, Chosen], Float[np.ndarray, "coordinate chosen"]]
"""(β, indices) -> columns of ∇²L."""

# A trial step to a β beyond this is refused without asking for its gradient.
OVERFLOW = 1e30

# A Newton correction of S beyond this is a failure: it would change β by a factor e^100.
LONGEST_MOVE = 50.0

# A secant update needs a β that moved by this part of the largest: over a shorter move the difference of two gradients
# has lost more than seven digits, and its round-off would be written into the Hessian.
MOVED = 1e-7

# Symmetric rank-one divides by residual·move; below this part of |residual||move| the update is skipped (Nocedal and
# Wright, Numerical Optimization, (6.26), with a larger constant: a skipped update costs little here).
OVERLAP = 1e-6

# Coordinates with c max|∇²L| dβ/dS below this are left out of the Newton matrix, which stays small: I + cHD differs
# from it by 1e-6, so that Newton's method converges as fast. A wrong inverse costs iterations only.
COUPLED = 1e-6

# Eigenvalues below this part of the largest are zero: tied coordinates, along whose difference the loss does not
# change. They are not exactly 0, for columns and secants have round-off.
FLAT = 1e-9


@dataclass(eq=False)
class Secant:
    """An estimate of ∇²L from gradients seen and columns asked for; `known` marks the latter."""

    matrix: Float[np.ndarray, "coordinate coordinate"]
    known: np.ndarray
    _beta: Vector | None = None
    _force: Vector | None = None

    @classmethod
    def empty(cls, size: int) -> "Secant":
        """Nothing known yet."""
        return cls(np.zeros((size, size)), np.zeros(size, dtype=bool))

    def see(self, beta: Vector, force: Vector) -> None:
        """Learn from a gradient: symmetric rank-one, skipped where round-off would decide.

        Not BFGS: the Hessian of the loss may be indefinite, and only rank-one leaves the curvature in directions
        orthogonal to the residual, among them the exact columns, as it is.
        """
        if self._beta is not None and self._force is not None:
            moved = beta - self._beta
            missing = -(force - self._force) - self.matrix @ moved
            overlap = float(missing @ moved)
            far = np.abs(moved).max() > MOVED * max(np.abs(beta).max(), TINY)
            if far and abs(overlap) > OVERLAP * np.linalg.norm(missing) * np.linalg.norm(moved):
                self.matrix += np.outer(missing, missing) / overlap
        self._beta, self._force = beta.copy(), force.copy()

    def put(self, chosen: Chosen, columns: Float[np.ndarray, "coordinate chosen"]) -> None:
        """Take exact columns over."""
        self.matrix[:, chosen] = columns
        self.matrix[chosen, :] = columns.T
        self.known[chosen] = True

    @property
    def scale(self) -> float:
        """The largest entry, never 0."""
        return max(float(np.abs(self.matrix).max()), TINY)


@dataclass(eq=False)
class MirrorFlow(StiffFlow):
    """S' = g(β(S)); the state is S.

    Args:
        force, columns: the loss's gradient and Hessian columns as functions of β.
        coordinates: how β depends on S.
        tolerance: largest error of S per step.
    """

    # The slopes change by e^{2ΔS} within a step and the Hessian learns from every gradient: both are used at once.
    full_newton: ClassVar[bool] = True

    force: Force
    columns: Columns
    coordinates: LogScale
    tolerance: float
    hessian: Secant = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.hessian = Secant.empty(self.coordinates.size)

    def field(self, state: Vector) -> Vector:
        """g at S, remembered for the Hessian; NaN where a trial step overflows."""
        beta = self.coordinates.beta(state)
        # Written with `not … <`, so that NaN is refused as well.
        if not np.abs(beta).max(initial=0.0) < OVERFLOW:
            return np.full_like(beta, np.nan)
        force = self.force(beta)
        if np.isfinite(force).all():
            self.hessian.see(beta, force)
        return force

    def size(self, state: Vector) -> float:
        """1: an absolute error of S is a relative error of β."""
        return 1.0

    def respond(self, state: Vector, c: float) -> Solve:
        """(I + c H D)⁻¹, NaN where it leads too far."""

        def solve(residual: Vector) -> Vector:
            move = self.react(state, residual, c)
            return move if np.abs(move).max() <= LONGEST_MOVE else np.full_like(move, np.nan)

        return solve

    def react(self, state: Vector, residual: Vector, c: float, without: int | None = None) -> Vector:
        """(I + c H D)⁻¹ residual, where only coordinates with a slope D couple; `without` counts as none."""
        slopes = self.coordinates.slope(state)
        if without is not None:
            slopes[without] = 0.0
        active = np.flatnonzero(c * self.hessian.scale * slopes > COUPLED)
        self.know(state, active)
        # Columns of H D vanish where D does, so the equation closes on the active coordinates; the others follow.
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

    def influence(self, state: Vector) -> Vector:
        """How much each coordinate's motion moves the forces: max|∇²L| dβ/dS."""
        return self.hessian.scale * self.coordinates.slope(state)

    def know(self, state: Vector, chosen: Chosen) -> None:
        """Ask for the Hessian columns of chosen coordinates that are not known yet."""
        new = chosen[~self.hessian.known[chosen]]
        if len(new):
            self.ask(state, new)

    def ask(self, state: Vector, chosen: Chosen) -> None:
        """Ask for Hessian columns, known or not."""
        self.hessian.put(chosen, self.columns(self.coordinates.beta(state), chosen))

    def renew(self, state: Vector, slope: Vector) -> bool:
        """Ask for the columns of all coordinates that are felt: a tenth of the tolerance over a time 1/max|g|."""
        felt = self.influence(state) > 0.1 * self.tolerance * max(np.abs(slope).max(), TINY)
        self.ask(state, np.flatnonzero(felt))
        return True

    def to_rest(self, state: Vector, force: Vector, chosen: Chosen, drift: float = np.inf) -> Part | None:
        """The Newton step in S to where the forces on chosen coordinates vanish.

        The Jacobian H D is not symmetric, but similar to M = D^{1/2} H D^{1/2}: its eigenvalues tell whether the rest
        is stable, and along its flat directions (tied coordinates) the step is left at 0.

        Args:
            drift: largest speed of S along flat directions that is allowed.

        None where the Hessian is not known, the rest is not stable, or something pushes along a flat direction.
        """
        if not len(chosen):
            return np.zeros(0)
        if not self.hessian.known[chosen].all():
            return None
        root = np.sqrt(self.coordinates.slope(state)[chosen])
        block = self.hessian.matrix[np.ix_(chosen, chosen)]
        # `eigh` reads one triangle: a block that is symmetric but for round-off is averaged with its transpose first.
        values, vectors = np.linalg.eigh(root[:, None] * (block + block.T) / 2 * root)
        push = vectors.T @ (root * force[chosen])
        flat = np.abs(values) <= FLAT * np.abs(values).max()
        # D^{1/2} S moves along a flat direction at the speed `push`, so S itself at most at push / min D^{1/2}.
        if (values[~flat] < 0).any() or np.abs(push[flat]).max(initial=0.0) > drift * max(root.min(), TINY):
            return None
        return (vectors[:, ~flat] @ (push[~flat] / values[~flat])) / root
