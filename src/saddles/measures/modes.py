"""Lazy and active modes of a two-layer linear network, against the threshold σ²w."""

import numpy as np
import xarray as xr

from saddles.measures.spectra import need

SLACK = 3.0
"""A mode within this factor of the threshold is crossing."""


def mode_state(trajectory: xr.Dataset, slack: float = SLACK) -> xr.DataArray:
    """`lazy` (s < σ²w/slack), `active` (s > σ²w·slack) or `crossing`, for each mode and time."""
    need(trajectory, "singular_value", "threshold")
    ratio = abs(trajectory["singular_value"]) / trajectory["threshold"]  # those of `Aligned` have a sign
    words = np.where(ratio > slack, "active", np.where(ratio < 1 / slack, "lazy", "crossing"))
    return xr.DataArray(words, dims=ratio.dims, coords=ratio.coords, name="mode_state")


def crossing_time(trajectory: xr.Dataset) -> xr.DataArray:
    """The first saved time at which each mode is above σ²w; NaN for a mode that never is."""
    need(trajectory, "singular_value", "threshold")
    above = abs(trajectory["singular_value"]) > trajectory["threshold"]  # those of `Aligned` have a sign
    first = trajectory["time"].isel(time=above.argmax("time"))
    return first.where(above.any("time")).drop_vars(["time", "step"], errors="ignore").rename("crossing_time")


def alignment(trajectory: xr.Dataset) -> xr.DataArray:
    """s/√(s²+σ⁴w²): the cosine between W1 v_i and W2ᵀ u_i that the theory predicts (section 2, remark)."""
    need(trajectory, "singular_value", "threshold")
    values = trajectory["singular_value"]
    return (values / np.hypot(values, trajectory["threshold"])).rename("alignment")


def gram_error(trajectory: xr.Dataset) -> xr.Dataset:
    """Theorem 1: ‖C1−Ĉ1‖_op and ‖C2−Ĉ2‖_op beside min{σ²w, √(d/w)‖C1‖_op}, d the larger dimension.

    Needs `matrix` and `gram`. The bound for C2 has ‖C2‖_op in the place of ‖C1‖_op.

    Returns:
        `error`, `norm`, `weak` (σ²w), `strong` (√(d/w)‖C‖_op), `ratio` = error/min(weak, strong),
        each (time, side) with side "in" and "out".
    """
    need(trajectory, "matrix", "gram_in", "gram_out", "threshold", "hidden_units")
    matrix = trajectory["matrix"].transpose("time", "row", "column").values
    threshold, width = float(trajectory["threshold"]), float(trajectory["hidden_units"])
    left, values, right = np.linalg.svd(matrix, full_matrices=True)
    errors, norms = [], []
    for vectors, gram in ((right.transpose(0, 2, 1), "gram_in"), (left, "gram_out")):
        # Directions beyond the modes of A have s = 0, and √(0 + σ⁴w²) = σ²w.
        height = np.full((len(values), vectors.shape[-1]), threshold)
        height[:, : values.shape[1]] = np.hypot(values, threshold)
        predicted = np.einsum("tik,tk,tjk->tij", vectors, height, vectors)
        measured = trajectory[gram].values
        errors.append(np.linalg.norm(measured - predicted, 2, axis=(1, 2)))
        norms.append(np.linalg.norm(measured, 2, axis=(1, 2)))
    error, norm = np.stack(errors, axis=1), np.stack(norms, axis=1)
    strong = np.sqrt(max(matrix.shape[1:]) / width) * norm
    dims = ("time", "side")
    return xr.Dataset(
        {
            "error": (dims, error),
            "norm": (dims, norm),
            "weak": (dims, np.full_like(error, threshold)),
            "strong": (dims, strong),
            "ratio": (dims, error / np.minimum(threshold, strong)),
        },
        coords={"time": trajectory["time"], "side": ["in", "out"]},
    )


def invariant_drift(trajectory: xr.Dataset) -> xr.DataArray:
    """‖Λ(t) − Λ(0)‖_F / ‖Λ(0)‖_F for Λ = W1W1ᵀ − W2ᵀW2, which gradient flow conserves (Lemma B.2).

    Needs `factor`. The reduced factor has the same Λ up to a rotation of the hidden units that
    does not change in time. NaN for a balanced start, whose Λ(0) is 0 up to rounding.
    """
    need(trajectory, "factor_in", "factor_out")
    inner, outer = trajectory["factor_in"].values, trajectory["factor_out"].values
    balance = np.einsum("tik,til->tkl", inner, inner) - np.einsum("tok,tol->tkl", outer, outer)
    first = np.linalg.norm(balance[0])
    # Of sums over so many rows: a balanced start lies below it, a drawn one far above.
    rows = inner.shape[1] + outer.shape[1]
    rounding = rows * np.finfo(balance.dtype).eps * (np.sum(inner[0] ** 2) + np.sum(outer[0] ** 2))
    drift = np.linalg.norm(balance - balance[0], axis=(1, 2)) / (first if first > rounding else np.nan)
    return xr.DataArray(drift, dims="time", coords={"time": trajectory["time"]}, name="invariant_drift")


def balance_drift(trajectory: xr.Dataset) -> xr.DataArray:
    """Largest |(u²−v²)(t) − (u²−v²)(0)| over coordinates, over the largest u²+v² at t.

    Gradient flow of u ⊙ v conserves u²−v²; a step of descent multiplies it by 1 − η²g², so over a fixed time
    the drift of gradient descent is of first order in η. Needs `weights` (u and v).
    """
    need(trajectory, "u", "v")
    u, v = trajectory["u"], trajectory["v"]
    balance = u**2 - v**2
    drift = abs(balance - balance.isel(time=0)).max("coordinate") / (u**2 + v**2).max("coordinate")
    return drift.rename("balance_drift")
