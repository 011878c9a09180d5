"""The result of a sweep, in lines for a terminal, and its figure."""

import shlex
from collections import Counter
from pathlib import Path

import numpy as np

from saddles.core.drawings import mark_smoke_test, save_drawing
from saddles.core.status import Status
from saddles.figures.sweep import NO_VERDICT, claim_text, claims_over_grid, measure_over_grid
from saddles.runtime.files import explained
from saddles.sweeps.api import Sweep

SHOWN = 3
"""Errors and notes that are listed one by one."""


def summary(result: Sweep) -> list[str]:
    """Cells, time, rate, errors, and where each claim holds."""
    facts, failed = result.facts, result.failed
    done = len(result.rows) - len(failed)
    spent = float(facts["wall_time_s"])
    counts = [f"{done} of {facts['cells']} cells finished"]
    counts += [f"{count} {name}" for count, name in ((len(failed), "failed"), (result.missing, "missing")) if count]
    pace = f", {len(result.rows) / spent:.3g} cells/s" if spent > 0 else ""
    lines = [f"{facts['experiment']} {facts['size']}: {', '.join(counts)}, {spent:.3g} s{pace}"]
    lines += [f"  {count} finished with a note: {note}" for note, count in _notes(result).most_common(SHOWN)]
    lines += [f"  {count} × {error}" for error, count in result.errors[:SHOWN]]
    if len(result.errors) > SHOWN:
        lines.append(f"  and {len(result.errors) - SHOWN} other errors, in cells.jsonl")
    if failed:
        lines.append(
            f"  compute them again with: {shlex.join(['saddles', 'sweep', '--resume', str(result.folder), '--retry'])}"
        )
    return lines + (_claims(result) if done else [])


def _notes(result: Sweep) -> Counter[str]:
    """Cells that have numbers although something went wrong, by what it was."""
    statuses = [row.get("trajectory_status", "finished") for row in result.rows.values()]
    unjudged = [f"claims not judged: {row['claims_not_judged']}" for row in result.rows.values()
                if "claims_not_judged" in row]  # fmt: skip
    return Counter([status for status in statuses if not Status.parse(status).ok] + unjudged)


def _claims(result: Sweep) -> list[str]:
    """Each claim and in how many cells it holds, of those that have a verdict on it."""
    whole = result.trajectory
    if "claim_holds" not in whole:
        return []
    lines = []
    for k in range(whole.sizes["claim"]):
        holds = whole["claim_holds"].isel(claim=k).values
        judged = np.isfinite(holds)
        share = f"holds in {int(np.nansum(holds))} of {int(judged.sum())}" if judged.any() else NO_VERDICT
        lines.append(f"  {share}: {claim_text(whole, k)}")
    return lines


def write_figure(result: Sweep) -> Path | None:
    """Draw the error or loss over the grid as figure, and the claims' numbers as claims; None with nothing to draw."""
    if len(result.rows) == len(result.failed) or "claim_value" not in (whole := result.trajectory):
        return None
    with explained(result.folder, "The numbers are kept: make room, then resume with --resume"):
        measure, claims = measure_over_grid(whole), claims_over_grid(whole)
        for name, drawing in (("claims" if measure else "figure", claims), ("figure", measure)):
            if drawing is not None:
                if result.facts["size"] == "tiny":
                    mark_smoke_test(drawing)
                save_drawing(drawing, result.folder / name)
    return result.folder / "figure.png"
