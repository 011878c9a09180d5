"""What `derive.py` computes of the stored trajectories of lab `networks`."""

from typing import Any

import numpy as np
import xarray as xr

from saddles.core.experiment import find
from saddles.measures.lines import rank_correlation
from saddles.networks.experiments.linearised import PARTED
from saddles.networks.phases import slope_of

WIDE = 1.5
"""γ_w from which on networks count as wide in the tables of lab `networks`."""


def diagram(run: xr.Dataset) -> dict[str, Any]:
    """The border e = ½ of a network's phase diagram by seed, and what lies on its sides."""
    up, last = run["gamma_w"].values, run.isel(time=-1)
    wide = up >= WIDE
    border, e = run["border"].values, last["linearity"]
    found = {
        "slope, each seed": run["slope"],
        "slope of rows of width d^1.5 and more, each seed": [slope_of(row[wide], up[wide]) for row in border],
        "border at the middle row, mean": border[:, len(up) // 2].mean(),
        "rows without a border, each seed": np.isnan(border).sum(1),
        "distance of the border from that of linear networks, mean over rows": np.nanmean(
            border - run["theory_border"].values
        ),
        "e at the largest variance: smallest and largest width, mean": e.isel(gamma_variance=-1, gamma_w=[0, -1]).mean(
            "seed"
        ),
        "test accuracy: highest, lowest": [last["test_accuracy"].max(), last["test_accuracy"].min()],
        "share of cells with a training loss above 0.9 of that of f = 0": (last["loss"] > 0.9).mean(),  # not fitted
        "seconds": run.attrs["wall_time_s"],
    }
    # A row's e falls with the variance except where it has a second rise: its largest gain from a minimum on.
    rise = (e - np.minimum.accumulate(e.transpose("seed", "gamma_w", "gamma_variance").values, -1)).max()
    claims = find("networks/phase-diagram").claims(run, "gpu")
    return (
        found
        | {"largest rise of e with the variance": rise}
        | {one.claim: [one.value, np.nan if one.null is None else one.null] for one in claims}
    )


def borders(run: xr.Dataset) -> dict[str, Any]:
    """Slopes of the border and decades of the fall, of the widest networks, by depth and seed."""
    found: dict[str, Any] = {"seconds": run.attrs["wall_time_s"]}
    for layers in run["layers"].values:
        one = run.sel(layers=layers)
        found[f"{layers} layers, slopes"] = one["slope"]
        found[f"{layers} layers, decades of reach from 0.7 to 0.3"] = one["fall"].isel(width=-1)
        found[f"{layers} layers, smallest e"] = one["linearity"].isel(time=-1).min()
    return found


def merges(run: xr.Dataset) -> dict[str, Any]:
    """What merges keep, by the linearity of the joint change."""
    kept, joint = run["kept"], run["joint_linearity"]
    near = joint < 1
    pairs = zip(kept.transpose("seed", ...).values, joint.transpose("seed", ...).values, strict=True)
    return {
        "seconds": run.attrs["wall_time_s"],
        "Spearman's ρ by seed": [rank_correlation(one.ravel(), other.ravel()) for one, other in pairs],
        "pairs, and those with e of the joint change below 1": [kept.size, near.sum()],
        "e of those: lowest, highest": [joint.where(near).min(), joint.where(near).max()],
        "kept of those: lowest, highest": [kept.where(near).min(), kept.where(near).max()],
        "e of the others: lowest, highest": [joint.where(~near).min(), joint.where(~near).max()],
        "kept of the others: lowest, highest": [kept.where(~near).min(), kept.where(~near).max()],
        "changes, and those with e up to ½": [run["linearity"].size, (run["linearity"] <= 0.5).sum()],
        "e of a change: lowest, highest": [run["linearity"].min(), run["linearity"].max()],
    }


def grid(run: xr.Dataset) -> dict[str, Any]:
    """The border of ViTs over width and scale, and what lies on its sides."""
    last, widths = run.isel(time=-1), run["width"].values
    e = last["linearity"]
    twice = e.sel(scale=2.0, method="nearest")
    found: dict[str, Any] = {
        "seconds": run.attrs["wall_time_s"],
        "slopes of the border, by seed": run["slope"],
        "cells": last["loss"].size,
        "cells whose loss was not reached": (last["loss"] > 1.001 * run.attrs["until"]).sum(),
        "exponent of e in the width at scale 2, by seed": [
            np.polyfit(np.log(widths), np.log(row), 1)[0] for row in twice
        ],
    }
    for width in widths:
        found[f"width {width}: border as a scale, lowest and highest"] = _range(run["border"].sel(width=width))
        found[f"width {width}: test accuracy by scale, mean"] = last["test_accuracy"].sel(width=width).mean("seed")
    for words, place in (("smallest", 0), ("largest", -1)):
        ranks = last["stable_rank"].isel(scale=place)
        found[f"stable rank of ΔKQ at the {words} scale, lowest and highest"] = _range(ranks)
    claims = find("networks/vit-regime").claims(run, "gpu")
    return found | {one.claim: [one.value, np.nan if one.null is None else one.null] for one in claims}


def parting(run: xr.Dataset) -> dict[str, Any]:
    """How far ViTs go from their linearisations, by width; what the claims say of them."""
    apart, widths = run["vit_distance"].transpose("seed", "vit_width", "vit_step"), run["vit_width"].values
    most, late = apart.max("vit_step"), apart > PARTED
    found: dict[str, Any] = {
        "seconds, of perceptrons and ViTs": run.attrs["wall_time_s"],
        "widths": widths,
        "steps": run.sizes["vit_step"] - 1,
        "largest distance by width, median over seeds": most.median("seed"),
        "exponents, by seed": [np.polyfit(np.log(widths), np.log(row), 1)[0] for row in most],
        "exponents between the two widest, by seed": np.diff(np.log(most[:, -2:]))[:, 0]
        / np.log(widths[-1] / widths[-2]),
        "step of parting of the narrowest, by seed": late.argmax("vit_step").isel(vit_width=0),
        "share of steps after which the distance is largest, lowest": apart.argmax("vit_step").min()
        / (apart.sizes["vit_step"] - 1),
    }
    for words in ("loss", "linearised_loss"):
        ends = run[f"vit_{words}"].isel(vit_step=-1)
        found |= {
            f"{words} at the end, width {one}: lowest and highest": _range(ends.sel(vit_width=one)) for one in widths
        }
    claims = [one for one in find("networks/linearised").claims(run, "gpu") if "ViT" in one.claim]
    return found | {one.claim: [one.value, np.nan if one.null is None else one.null] for one in claims}


def _range(values: xr.DataArray) -> list[xr.DataArray]:
    return [values.min(), values.max()]
