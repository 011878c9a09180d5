"""Margin, direction and optimality of attention weights, from arrays and trajectories.

The constraints are (left_k)ᵀ W right_k ≥ 1, left and right of shape (constraint, coordinate); of a diagonal
W = diag(β) they read (left_k ⊙ right_k)ᵀ β ≥ 1. A norm is one of "l1" (of β), "nuclear" or "frobenius".
"""

import numpy as np
import numpy.typing as npt
import xarray as xr
from jaxtyping import Float

from saddles.measures.spectra import need

Weights = Float[np.ndarray, "row *column"]
"""W (row, column), or the diagonal β (row,)."""

Constraints = Float[np.ndarray, "constraint coordinate"]

Multipliers = Float[np.ndarray, "constraint"]

DROP = 1e-3
"""Entries (singular values) below this part of the largest count as zero in the subdifferential."""

PRIMAL = {"l1": lambda s: s.sum(), "nuclear": lambda s: s.sum(), "frobenius": lambda s: np.sqrt((s**2).sum())}
DUAL = {"l1": lambda s: s.max(), "nuclear": lambda s: s.max(), "frobenius": lambda s: np.sqrt((s**2).sum())}


def spectrum(weights: Weights, norm: str) -> np.ndarray:
    """What the norm is a function of: |entries| for l1 and of a vector, singular values of a matrix otherwise."""
    if weights.ndim == 1 or norm != "nuclear":
        return np.abs(weights).ravel()
    return np.linalg.svd(weights, compute_uv=False)


def primal_norm(weights: Weights, norm: str) -> float:
    """‖W‖ in the norm; of a vector β, nuclear is l1."""
    return float(PRIMAL[norm](spectrum(weights, norm)))


def dual_norm(weights: Weights, norm: str) -> float:
    """The dual norm: largest entry, largest singular value, or Frobenius."""
    return float(DUAL[norm](spectrum(weights, norm)))


def combine(multipliers: Multipliers, left: Constraints, right: Constraints, diagonal: bool) -> Weights:
    """Σ_k λ_k left_k right_kᵀ, or its diagonal as a vector."""
    weighted = left * multipliers[:, None]
    return (weighted * right).sum(axis=0) if diagonal else weighted.T @ right


def constraint_margins(weights: Weights, left: Constraints, right: Constraints) -> Multipliers:
    """(left_k)ᵀ W right_k, shape (constraint,); `weights` is W or β."""
    return (left * right) @ weights if weights.ndim == 1 else ((left @ weights) * right).sum(axis=1)


def kkt_residuals(
    weights: Weights, left: Constraints, right: Constraints, multipliers: Multipliers, norm: str
) -> tuple[float, float, float]:
    """Feasibility, stationarity and slackness of Ŵ = W/μ(W) with given multipliers (paper, A.5, C1 to C3).

    Feasibility: max(0, 1 − least margin of Ŵ); 1 where μ ≤ 0, for no positive multiple of W does better.
    Stationarity: distance, largest entry (singular value), of Σλ_k left_k right_kᵀ from the subdifferential of the norm
    at Ŵ with entries (singular values) below `DROP` of the largest set to zero. Slackness: max λ_k (margin_k − 1).
    The last two are NaN where μ ≤ 0.
    """
    margins = constraint_margins(weights, left, right)
    least = margins.min()
    if not least > 0:
        return 1.0, np.nan, np.nan
    unit = weights / least
    slack = float((multipliers * (margins / least - 1)).max())
    push = combine(multipliers, left, right, weights.ndim == 1)
    return float(max(0.0, 1 - (margins / least).min())), _stationarity(unit, push, norm), slack


def _stationarity(unit: Weights, push: Weights, norm: str) -> float:
    if norm == "frobenius":
        size = np.linalg.norm(unit)
        return float(np.linalg.norm(push - unit / size))
    if unit.ndim == 1:
        there = np.abs(unit) > DROP * np.abs(unit).max()
        off = np.maximum(np.abs(push) - 1, 0.0)
        return float(np.where(there, np.abs(push - np.sign(unit)), off).max())
    # The subdifferential of the nuclear norm at U S Vᵀ of rank r is UVᵀ + Z with Z orthogonal to both sides and of
    # spectral norm at most 1. In the bases of U and V: identity, 0, 0, and a block that may have norm 1.
    u, s, vt = np.linalg.svd(unit)
    rank = int((s > DROP * s[0]).sum())
    seen = u.T @ push @ vt.T
    seen[:rank, :rank] -= np.eye(rank)
    parts = [seen[:rank, :rank], seen[:rank, rank:], seen[rank:, :rank]]
    sizes = [np.linalg.norm(part, 2) if part.size else 0.0 for part in parts]
    rest = np.linalg.norm(seen[rank:, rank:], 2) - 1 if rank < min(unit.shape) else 0.0
    return float(max(*sizes, rest))


def unit_margin(trajectory: xr.Dataset) -> xr.Dataset:
    """Norms at unit margin: `l1` (diagonal layers only), `nuclear`, `frobenius`; NaN where no margin is positive."""
    need(trajectory, "margin", "nuclear_norm", "frobenius_norm")
    margin = trajectory["margin"].where(trajectory["margin"] > 0)
    norms = {name: trajectory[f"{name}_norm"] / margin for name in ("nuclear", "frobenius")}
    if "beta" in trajectory:
        norms["l1"] = norms["nuclear"]  # the singular values of a diagonal matrix are the sizes of its entries
    return xr.Dataset(norms)


def direction_error(trajectory: xr.Dataset, solution: npt.ArrayLike) -> xr.Dataset:
    """How far W/μ(W) is from a solution: `cosine` distance 1 − cos, and `norm`, the relative Frobenius distance."""
    need(trajectory, "margin")
    name = "beta" if "beta" in trajectory else "weights"
    need(trajectory, name)
    wanted = np.asarray(solution, dtype=float).ravel()
    rows = trajectory[name].values.reshape(trajectory.sizes["time"], -1)
    margin = trajectory["margin"].where(trajectory["margin"] > 0).values
    sizes = np.linalg.norm(rows, axis=1) * np.linalg.norm(wanted)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = 1 - rows @ wanted / sizes
        apart = np.linalg.norm(rows / margin[:, None] - wanted, axis=1) / np.linalg.norm(wanted)
    coords = {"time": trajectory["time"]}
    return xr.Dataset({"cosine": ("time", cosine), "norm": ("time", apart)}, coords=coords)


def effective_rank(weights: xr.DataArray) -> xr.DataArray:
    """exp of the entropy of the singular values (of |β|), normalised to sum 1; 0 for the zero matrix."""
    values = weights.transpose("time", ...).values
    sizes = np.abs(values) if values.ndim == 2 else np.linalg.svd(values, compute_uv=False)
    total = sizes.sum(axis=1, keepdims=True)
    share = np.divide(sizes, total, out=np.zeros_like(sizes), where=total > 0)
    entropy = -np.where(share > 0, share * np.log(np.where(share > 0, share, 1.0)), 0.0).sum(axis=1)
    rank = np.where(total[:, 0] > 0, np.exp(entropy), 0.0)
    return xr.DataArray(rank, dims="time", coords={"time": weights["time"]}, name="effective_rank")


def count_above(weights: xr.DataArray, drop: float = 0.01) -> xr.DataArray:
    """Entries of β, or singular values of W, above `drop` of the largest: sparsity, or rank."""
    values = weights.transpose("time", ...).values
    sizes = np.abs(values) if values.ndim == 2 else np.linalg.svd(values, compute_uv=False)
    most = sizes.max(axis=1, keepdims=True)
    counts = ((sizes > drop * most) & (most > 0)).sum(axis=1)
    return xr.DataArray(counts, dims="time", coords={"time": weights["time"]}, name="count_above")


def alignment_defect(trajectory: xr.Dataset, left: npt.ArrayLike, right: npt.ArrayLike) -> xr.DataArray:
    """Share of W outside the diagonal of U_KᵀWU_Q, ‖off‖_F/‖W‖_F (Lemma 5.1 says 0); 0 for W = 0.

    Args:
        left, right: the orthogonal U_K and U_Q, (coordinate, coordinate).
    """
    need(trajectory, "weights")
    weights = trajectory["weights"].transpose("time", ...).values
    seen = np.einsum("da,tde,eb->tab", np.asarray(left), weights, np.asarray(right))
    whole = np.linalg.norm(seen, axis=(1, 2))
    index = np.arange(seen.shape[1])
    seen[:, index, index] = 0.0
    off = np.linalg.norm(seen, axis=(1, 2))
    share = np.divide(off, whole, out=np.zeros_like(off), where=whole > 0)
    return xr.DataArray(share, dims="time", coords={"time": trajectory["time"]}, name="alignment_defect")
