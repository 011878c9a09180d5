"""The flow of one attention layer as something the stiff integrator can follow.

With margins m_il = (x_i,opt − x_il)ᵀ W z_i the gradient is −∇_W L = Σ_il c_il (x_i,opt − x_il) z_iᵀ,

    c_il = (1/n) e^{−γ_i·σ_i} σ_il (γ_i·σ_i − γ_il),   σ_il = e^{−m_il} / (1 + Σ_k e^{−m_ik}),

(29) for any scores. Only p = c/|c| is formed, in log space, so that margins of 1e7 do no harm. The accumulated
coefficients are φ = 2∫c dt (Lemma A.1).

Every Jacobian is built on P = ∂p/∂m (constraint × constraint) and never larger than that:
diagonal   S = ½Bᵀφ, β(S), φ' = 2p(Bβ):          J = P B diag(dβ/dS) Bᵀ;
joint      W = ½Σφ_k d_k z_kᵀ, φ' = 2p:          J = P Γ with the constant Gram matrix Γ of the constraints;
factored   K' = GQ, Q' = GᵀK, G = Σ p_k d_k z_kᵀ:  J = H⊗I + U P Uᵀ with H = [[0, G], [Gᵀ, 0]], solved by Woodbury.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import lu_factor, lu_solve

from saddles.margin.certificate import Multipliers, Weights
from saddles.margin.task import Tokens
from saddles.solvers.log_scale import LogScale, Vector
from saddles.solvers.multistep import Solve, StiffFlow

# Score lost to tokens that are not optimal, above which e^lost − 1 is formed as such. Below it log(e^lost − 1) is
# log lost, whose error is lost/2, and which can be computed where lost itself underflows.
SMALL = 1e-8

# Stands for 0 in a logarithm whose value is not used.
TINY = 1e-300


@dataclass(frozen=True, eq=False)
class Coefficients:
    """c_il as a function of the margins.

    Args:
        scores: γ, the optimal token's first, shape (sequence, token).
    """

    scores: np.ndarray

    @cached_property
    def gaps(self) -> np.ndarray:
        """γ_i,opt − γ_il, shape (sequence, length − 1)."""
        return self.scores[:, :1] - self.scores[:, 1:]

    @cached_property
    def best(self) -> np.ndarray:
        """γ_i,opt, shape (sequence,)."""
        return self.scores[:, 0]

    @cached_property
    def differences(self) -> np.ndarray:
        """γ_ik − γ_il at (i, l, k)."""
        return self.scores[:, None, :] - self.scores[:, :, None]

    def _pairs(self, margins: Multipliers) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """T_ilk = e^{−γ_i·σ_i} σ_il σ_ik (γ_ik − γ_il)/n without its common size, σ, γ·σ, and the log of that size.

        c_il = Σ_k T_ilk: every difference of scores is formed before anything can cancel, so that a sequence
        that has settled on a token, optimal or not, keeps its digits.
        """
        n, others = self.gaps.shape
        # The optimal token has logit 0, the others −m: the softmax in terms of margins. Shifting by the largest logit
        # before exponentiating keeps log σ finite for margins of any size and sign.
        logits = np.concatenate([np.zeros((n, 1)), -margins.reshape(n, others)], axis=1)
        logs = logits - logits.max(axis=1, keepdims=True)
        logs = logs - np.log(np.exp(logs).sum(axis=1, keepdims=True))
        share = np.exp(logs)
        mean = (share * self.scores).sum(axis=1)
        sizes = logs[:, :, None] + logs[:, None, :] - mean[:, None, None]
        # The common size is that of the largest pair that counts. Pairs of equal scores do not, and must not set it: a
        # settled sequence with a tie would push all others below the smallest number.
        top = float(sizes[self.differences != 0].max())
        return np.exp(np.minimum(sizes - top, 0.0)) * self.differences / n, share, mean, top

    def direction(self, margins: Multipliers) -> tuple[Multipliers, float]:
        """The direction p = c/|c|, and log|c|."""
        pairs, _, _, top = self._pairs(margins)
        c = pairs[:, 1:].sum(axis=2).ravel()
        size = float(np.linalg.norm(c))
        return c / size, top + float(np.log(size))

    def jacobian(self, margins: Multipliers) -> np.ndarray:
        """∂p/∂m, shape (constraint, constraint): a block for each sequence and one rank more."""
        pairs, share, mean, _ = self._pairs(margins)
        n, others = self.gaps.shape
        c = pairs[:, 1:].sum(axis=2)
        size = np.linalg.norm(c)
        # ∂log c_il: with ∂σ_ij/∂m_ik = −σ_ij (δ_jk − σ_ik) each of the two factors σ of T and the mean score in its
        # exponent contribute a σ_ik, hence 2 + γ_ik − γ·σ; δ gives the diagonal −c and the pairs −T.
        p, pull = (c / size).ravel(), (share * (2 + self.scores - mean[:, None]))[:, 1:]
        blocks = c[:, :, None] * pull[:, None, :] - pairs[:, 1:, 1:]
        blocks[:, np.arange(others), np.arange(others)] -= c
        blocks /= size
        # p = c/|c| has ∂p = (I − ppᵀ) ∂c/|c|; ∂c is block diagonal, sequence by sequence.
        common = np.einsum("il,ilk->ik", p.reshape(n, others), blocks)
        matrix = -np.outer(p, common.ravel()).reshape(n, others, n, others)
        matrix[np.arange(n), :, np.arange(n), :] += blocks
        return matrix.reshape(n * others, n * others)

    def loss(self, margins: Multipliers) -> tuple[float, float]:
        """The loss, and log(L − L*) (exact where the difference underflows)."""
        # γ·σ = γ_opt − lost, so that L − L* = mean e^{−γ_opt} (e^{lost} − 1). Once lost underflows, log lost is the sum
        # of the logarithms of numerator and denominator, each with its largest term taken out.
        m = margins.reshape(self.gaps.shape)
        least = np.minimum(m.min(axis=1), 0.0)[:, None]
        terms = np.exp(least - m)
        whole = np.exp(least[:, 0]) + terms.sum(axis=1)
        with np.errstate(divide="ignore", under="ignore"):
            lost = (terms * self.gaps).sum(axis=1) / whole
            top = (-m).max(axis=1)
            log_lost = np.log((np.exp(-m - top[:, None]) * self.gaps).sum(axis=1)) + top - np.log(whole) + least[:, 0]
            grown = np.where(lost > SMALL, np.log(np.expm1(np.maximum(lost, TINY))), log_lost)
        logs = grown - self.best
        high = logs.max()
        return float(np.exp(lost - self.best).mean()), float(high + np.log(np.exp(logs - high).mean()))


@dataclass(frozen=True, eq=False)
class AttentionFlow(StiffFlow, ABC):
    """What the three flows share."""

    task: Tokens

    @cached_property
    def coefficients(self) -> Coefficients:
        """Of this task's scores."""
        return Coefficients(np.concatenate([self.task.optimal_scores[:, None], self.task.other_scores], axis=1))

    @abstractmethod
    def weights(self, state: Vector) -> Weights:
        """W, or the β of a diagonal layer."""

    @abstractmethod
    def accumulated(self, state: Vector) -> Multipliers:
        """φ."""

    @abstractmethod
    def margins(self, state: Vector) -> Multipliers:
        """(x_i,opt − x_il)ᵀ W z_i."""

    @abstractmethod
    def respond(self, state: Vector, c: float) -> Solve:
        """(I − cJ)⁻¹."""

    def factors(self, state: Vector) -> dict[str, np.ndarray]:
        """The matrices whose product W is, by name; none by default."""
        return {}

    def unit(self, state: Vector) -> float:
        """How far a state at 0 may move until a margin moves by about 1; at most 1."""
        return 1.0

    def log_rate(self, state: Vector) -> float:
        """log|c|: one unit of this clock is 1/|c| units of gradient time."""
        return self.coefficients.direction(self.margins(state))[1]

    def field(self, state: Vector) -> Vector:
        """φ' = 2p."""
        return 2 * self.coefficients.direction(self.margins(state))[0]

    def _solver(self, jacobian: np.ndarray, c: float) -> Solve:
        matrix = -c * jacobian
        matrix[np.diag_indices(len(matrix))] += 1.0
        # NaN and infinity are not looked for: the integrator reads them in the result as a step that failed.
        factors = lu_factor(matrix, check_finite=False)
        return lambda residual: lu_solve(factors, residual, check_finite=False)


def _unit(jacobian: np.ndarray) -> float:
    """1 over the most that a margin moves where no entry of the state moves by more than 1; at most 1."""
    return 1 / max(1.0, float(np.abs(jacobian).sum(axis=1).max()))


@dataclass(frozen=True, eq=False)
class DiagonalFlow(AttentionFlow):
    """β = ω₀² sinh 2S with S = ½Bᵀφ; the state is φ."""

    coordinates: LogScale

    def weights(self, state: Vector) -> Weights:
        """β."""
        return self.coordinates.beta(0.5 * state @ self.task.diagonal)

    def margins(self, state: Vector) -> Multipliers:
        return self.task.diagonal @ self.weights(state)

    def accumulated(self, state: Vector) -> Multipliers:
        """φ."""
        return state

    def unit(self, state: Vector) -> float:
        """Small for a large start: β moves by 2ω₀² where S moves by 1."""
        b = self.task.diagonal
        return _unit(0.5 * (b * self.coordinates.slope(0.5 * state @ b)) @ b.T)

    def respond(self, state: Vector, c: float) -> Solve:
        """(I − cJ)⁻¹."""
        b = self.task.diagonal
        shift = 0.5 * state @ b
        inner = self.coefficients.jacobian(b @ self.coordinates.beta(shift))
        return self._solver(((inner @ b) * self.coordinates.slope(shift)) @ b.T, c)


@dataclass(frozen=True, eq=False)
class JointFlow(AttentionFlow):
    """W = ½ Σ φ_k d_k z_kᵀ; the state is φ."""

    @cached_property
    def gram(self) -> np.ndarray:
        """Inner products of the constraints."""
        return (self.task.left @ self.task.left.T) * (self.task.right @ self.task.right.T)

    def weights(self, state: Vector) -> Weights:
        """W."""
        return 0.5 * (self.task.left * state[:, None]).T @ self.task.right

    def margins(self, state: Vector) -> Multipliers:
        return 0.5 * self.gram @ state

    def accumulated(self, state: Vector) -> Multipliers:
        """φ."""
        return state

    def unit(self, state: Vector) -> float:
        """Small for long tokens and queries."""
        return _unit(0.5 * self.gram)

    def respond(self, state: Vector, c: float) -> Solve:
        """(I − cJ)⁻¹."""
        return self._solver(self.coefficients.jacobian(self.margins(state)) @ self.gram, c)


@dataclass(frozen=True, eq=False)
class FactoredFlow(AttentionFlow):
    """K' = GQ, Q' = GᵀK; the state is K, Q and φ, one after the other."""

    rank: int

    def split(self, state: Vector) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """K, Q and φ."""
        dim = self.task.shape[2]
        both = state[: 2 * dim * self.rank].reshape(2, dim, self.rank)
        return both[0], both[1], state[2 * dim * self.rank :]

    def factors(self, state: Vector) -> dict[str, np.ndarray]:
        key, query, _ = self.split(state)
        return {"key": key, "query": query}

    def weights(self, state: Vector) -> Weights:
        """W = KQᵀ."""
        key, query, _ = self.split(state)
        return key @ query.T

    def _seen(self, key: np.ndarray, query: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Kᵀd_k and Qᵀz_k, both (constraint, rank)."""
        return self.task.left @ key, np.repeat(self.task.z @ query, self.task.shape[1] - 1, axis=0)

    def margins(self, state: Vector) -> Multipliers:
        key, query, _ = self.split(state)
        keys, queries = self._seen(key, query)
        return (keys * queries).sum(axis=1)

    def accumulated(self, state: Vector) -> Multipliers:
        """φ."""
        return self.split(state)[2]

    def size(self, state: Vector) -> Vector:
        # K and Q start small and must be resolved there; φ is only read out, starts at 0 and needs no relative error
        # below 1.
        edge = 2 * self.task.shape[2] * self.rank
        sizes = np.empty_like(state)
        sizes[:edge], sizes[edge:] = np.abs(state[:edge]).max(), max(1.0, np.abs(state[edge:]).max())
        return sizes

    def field(self, state: Vector) -> Vector:
        key, query, _ = self.split(state)
        p = self.coefficients.direction(self.margins(state))[0]
        push = (self.task.left * p[:, None]).T @ self.task.right
        return np.concatenate([(push @ query).ravel(), (push.T @ key).ravel(), 2 * p])

    def respond(self, state: Vector, c: float) -> Solve:
        """Woodbury: (A − cUPUᵀ)⁻¹ with A = I − cH acting on the rows, U_k = (d_k (Qᵀz_k)ᵀ, z_k (Kᵀd_k)ᵀ)."""
        key, query, _ = self.split(state)
        left, right = self.task.left, self.task.right
        keys, queries = self._seen(key, query)
        margins = (keys * queries).sum(axis=1)
        p, inner = self.coefficients.direction(margins)[0], self.coefficients.jacobian(margins)
        push = (left * p[:, None]).T @ right
        dim = len(push)
        # A acts on K and Q (2d rows) in the same way for each of the `rank` columns: one inverse of size 2d serves all.
        whole = np.block([[np.eye(dim), -c * push], [-c * push.T, np.eye(dim)]])
        inverse = np.linalg.inv(whole)
        top, side, bottom = inverse[:dim, :dim], inverse[:dim, dim:], inverse[dim:, dim:]
        # UᵀA⁻¹U without U: inner products of rank-one matrices are products of inner products.
        cross = (left @ side @ right.T) * (queries @ keys.T)
        grams = (left @ top @ left.T) * (queries @ queries.T) + (right @ bottom @ right.T) * (keys @ keys.T)
        small = -c * inner @ (grams + cross + cross.T)
        small[np.diag_indices(len(small))] += 1.0
        factors = lu_factor(small, check_finite=False)

        def solve(residual: Vector) -> Vector:
            r_key, r_query, r_sum = self.split(residual)
            first = inverse @ np.concatenate([r_key, r_query])
            moved = (left @ first[:dim] * queries).sum(axis=1) + (right @ first[dim:] * keys).sum(axis=1)
            # `change` is c·∂p along the solution; φ' = 2p has no Jacobian with respect to φ, so φ only receives it.
            change = lu_solve(factors, c * (inner @ moved), check_finite=False)
            more = np.concatenate([(left * change[:, None]).T @ queries, (right * change[:, None]).T @ keys])
            whole_move = first + inverse @ more
            return np.concatenate([whole_move[:dim].ravel(), whole_move[dim:].ravel(), r_sum + 2 * change])

        return solve
