"""The structured identity mapping task: one cluster per concept, tested at their combination."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from saddles.core.validation import arguments_explained
from saddles.errors import SaddlesError
from saddles.protocols import ArrayLike

_DATA, _ROTATION, _SHUFFLE = 20, 21, 22
"""Tags that keep the draws of one seed apart."""

Numbers = Sequence[float] | Sequence[int] | np.ndarray


@arguments_explained
@dataclass(frozen=True)
class Identity:
    """Learn the identity on a Gaussian mixture with one cluster per concept.

        cluster p ≤ s: N(μ_p e_p, diag(σ)²),   test point x̂ = Σ_p μ_p e_p,
        L(f) = ½ E‖f(x) − x‖² = ½‖(W − I) A^{1/2}‖²_F for linear f = W x, A = E x xᵀ.

    With infinitely many samples A = diag(a), a_p = σ_p² + μ_p²/c for p ≤ s and 0 beyond, c the
    number of clusters: s, or s + 1 where a cluster is centred at 0.

    Args:
        mu: μ, one per concept, not negative.
        sigma: σ, standard deviations, one per concept or one for all; 0 beyond the concepts.
        dim: d ≥ s; None is s.
        samples: points per cluster; None is the limit of infinitely many.
        rotate: turn everything by one random rotation. Networks then live in the turned frame;
            trajectories always show outputs and Jacobians in the frame of the concepts.
        zero_cluster: one more cluster, centred at 0.
        seed: draws the samples and the rotation. The same seed gives the same standard normal
            numbers whatever μ and σ are.
        variance: σ² instead of `sigma`, for settings stated as a covariance. The authors' public
            code passes its "0.05" as one, which makes a standard deviation of √0.05.

    Ties in a are allowed: the strengths then predict no order between those concepts, and the order comes from W(0)
    alone (see `saddles.concepts.pivots`).

    The paper, section 2.1 and equation 4.1; the hierarchy of test points is appendix B.
    """

    mu: Numbers
    sigma: Numbers | float | None = None
    dim: int | None = None
    samples: int | None = None
    rotate: bool = False
    zero_cluster: bool = False
    seed: int = 0
    variance: Numbers | float | None = None

    def __post_init__(self) -> None:
        mu = _numbers("mu", self.mu)
        if (self.sigma is None) == (self.variance is None):
            raise SaddlesError(
                f"Give exactly one of `sigma` (standard deviations) and `variance` (their squares); "
                f"got sigma={self.sigma!r} and variance={self.variance!r}."
            )
        spread = _numbers("sigma", self.sigma) if self.variance is None else _numbers("variance", self.variance) ** 0.5
        if len(spread) == 1:
            spread = np.repeat(spread, len(mu))
        if len(spread) != len(mu):
            raise SaddlesError(
                f"`sigma` must be one number, or one for each concept; got {len(spread)} for {len(mu)} values of mu."
            )
        if not ((mu > 0) | (spread > 0)).all():
            raise SaddlesError(
                "Each concept needs a signal or a spread; got one with mu = sigma = 0. Leave it out of both lists."
            )
        dim = len(mu) if self.dim is None else self.dim
        if dim < len(mu):
            raise SaddlesError.must_be("dim", f"at least {len(mu)}, one dimension for each concept", dim)
        if self.samples is not None and self.samples < 1:
            raise SaddlesError.must_be(
                "samples", "at least 1 point per cluster", self.samples, "Use None for the limit of many samples"
            )
        object.__setattr__(self, "mu", tuple(float(m) for m in mu))
        object.__setattr__(self, "sigma", tuple(float(v) for v in spread))
        object.__setattr__(self, "variance", None)
        object.__setattr__(self, "dim", int(dim))

    @property
    def size(self) -> int:
        """The dimension d."""
        assert self.dim is not None
        return self.dim

    @property
    def concepts(self) -> int:
        """The number s of concepts."""
        return len(self.mu)

    @property
    def clusters(self) -> int:
        """The number of clusters: s, and one more with the cluster at 0."""
        return self.concepts + int(self.zero_cluster)

    @cached_property
    def strengths(self) -> np.ndarray:
        """The strengths a of the limit of many samples, shape (d,): E x_p², without the rotation."""
        mu, sigma = np.asarray(self.mu), np.asarray(self.sigma)
        return np.concatenate([sigma**2 + mu**2 / self.clusters, np.zeros(self.size - self.concepts)])

    @cached_property
    def rotation(self) -> np.ndarray:
        """R (d × d): x in the frame of the concepts is R x in that of the network."""
        if not self.rotate or self.size == 1:
            return np.eye(self.size)
        normal = np.random.default_rng([self.seed, _ROTATION]).normal(size=(self.size, self.size))
        q, r = np.linalg.qr(normal)
        # With the signs of R's diagonal taken out, Q is uniform over the rotations and reflections (Mezzadri 2007).
        return q * np.sign(np.diag(r))

    @cached_property
    def latent(self) -> np.ndarray:
        """The samples in the frame of the concepts, first s coordinates, shape (point, concept)."""
        if self.samples is None:
            raise SaddlesError("This task has infinitely many samples, and points are needed here. Set samples=5000.")
        noise = np.random.default_rng([self.seed, _DATA]).normal(size=(self.clusters, self.samples, self.concepts))
        centres = np.concatenate([np.diag(self.mu), np.zeros((self.clusters - self.concepts, self.concepts))])
        return (centres[:, None] + noise * np.asarray(self.sigma)).reshape(-1, self.concepts)

    def data(self) -> np.ndarray:
        """The samples as a network sees them, shape (point, d)."""
        return self.latent @ self.rotation[:, : self.concepts].T

    @cached_property
    def moment(self) -> np.ndarray:
        """A in the frame of the concepts, shape (s, s), of the samples or of the limit; 0 beyond."""
        if self.samples is None:
            return np.diag(self.strengths[: self.concepts])
        return self.latent.T @ self.latent / len(self.latent)

    @cached_property
    def second_moment(self) -> np.ndarray:
        """A = E x xᵀ in the network's frame, shape (d, d)."""
        turn = self.rotation[:, : self.concepts]
        return turn @ self.moment @ turn.T

    def limit(self) -> "Identity":
        """The same task with infinitely many samples."""
        return replace(self, samples=None)

    @property
    def target(self) -> np.ndarray:
        """x̂ in the frame of the concepts, shape (d,)."""
        return np.concatenate([np.asarray(self.mu), np.zeros(self.size - self.concepts)])

    @property
    def test_point(self) -> np.ndarray:
        """x̂ as a network sees it, shape (d,)."""
        return self.rotation @ self.target

    def hierarchy(self) -> tuple[list[str], np.ndarray]:
        """All x̂(v) = Σ v_p μ_p e_p, v in {0,1}^s: their names such as "0110", and (2^s, d) in the concepts' frame.

        Equation B.1.
        """
        count = 2**self.concepts
        bits = (np.arange(count)[:, None] >> np.arange(self.concepts)[::-1]) & 1
        points = bits.astype(float) @ np.eye(self.concepts, self.size) * self.target
        return ["".join(map(str, row)) for row in bits], points

    def to_concepts(self, matrix: ArrayLike) -> np.ndarray:
        """Rᵀ M R: a d × d matrix of the network's frame in the frame of the concepts."""
        given = np.asarray(matrix, dtype=float)
        return self.rotation.T @ given @ self.rotation if self.rotate else given

    def shuffles(self, epochs: int, seed: int) -> np.ndarray:
        """The order of the points in each epoch, shape (epoch, point)."""
        draw = np.random.default_rng([seed, _SHUFFLE])
        return np.stack([draw.permutation(len(self.latent)) for _ in range(epochs)])


def _numbers(name: str, given: Numbers | float | None) -> np.ndarray:
    try:
        values = np.atleast_1d(np.asarray(given, dtype=float))
    except (TypeError, ValueError):
        values = np.array([np.nan])
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all() or (values < 0).any():
        raise SaddlesError.must_be(name, "numbers that are not negative, one per concept, such as (1.0, 2.0)", given)
    return values
