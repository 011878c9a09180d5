"""What a sweep came to, in lines for a terminal, and its figure."""

from collections import Counter
from pathlib import Path

import numpy as np

from saddles.figures.sweep import claims_over_grid
from saddles.sweeps.api import Sweep

SHOWN = 3
"""Errors and claims that are told one by one."""


def summary(made: Sweep) -> list[str]:
    """Cells, time, rate, errors, and where each claim holds."""
    facts, failed = made.facts, made.failed
    done = len(made.rows) - len(failed)
    spent = float(facts["wall_time_s"])
    words = [f"{done} of {facts['cells']} cells finished", *([f"{len(failed)} failed"] if failed else [])]
    words += [f"{made.missing} missing"] if made.missing else []
    pace = f", {len(made.rows) / spent:.3g} cells/s" if spent > 0 else ""
    lines = [f"{facts['experiment']} {facts['size']}: {', '.join(words)}, {spent:.3g} s{pace}"]
    stopped = [row["trajectory_status"] for row in made.rows.values() if "trajectory_status" in row]
    lines += [f"  {count} finished with a note: {note}" for note, count in Counter(stopped).most_common(SHOWN)]
    lines += [f"  {count} × {error}" for error, count in made.errors[:SHOWN]]
    if len(made.errors) > SHOWN:
        lines.append(f"  and {len(made.errors) - SHOWN} other errors, in cells.jsonl")
    if failed:
        lines.append(f"  compute them again with: saddles sweep --resume {made.folder} --retry")
    return lines + (_claims(made) if done else [])


def _claims(made: Sweep) -> list[str]:
    """Each claim and the share of cells in which it holds, where it applies at all."""
    whole = made.trajectory
    if "claim_holds" not in whole:
        return []
    lines = []
    for k in range(whole.sizes["claim"]):
        holds = whole["claim_holds"].isel(claim=k).values
        told = np.isfinite(holds)
        text = str(whole["claim"].values[k]) if "claim" in whole.coords else f"claim {k + 1}"
        share = f"holds in {int(np.nansum(holds))} of {int(told.sum())}" if told.any() else "does not apply"
        lines.append(f"  {share}: {text}")
    return lines


def write_figure(made: Sweep) -> Path | None:
    """Draw the claims' numbers over the grid beside the store; None where there is nothing to draw."""
    if len(made.rows) == len(made.failed) or "claim_value" not in (whole := made.trajectory):
        return None
    drawing = claims_over_grid(whole)
    drawing.savefig(made.folder / "figure.svg", metadata={"Date": None})
    drawing.savefig(made.folder / "figure.png", dpi=160)
    return made.folder / "figure.png"
