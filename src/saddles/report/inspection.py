"""One page and its figures for a recorded or inspected training run."""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from saddles.core.provenance import machine
from saddles.figures import probe as figures
from saddles.measures.growth import rank_growth
from saddles.report.page import fact_list, html_page, picture, scrolled, text
from saddles.runtime.files import write_text

HEADING = "saddles: rank growth over a series of checkpoints"

FIGURES: dict[str, tuple[Callable[[xr.DataTree], Figure], str, str]] = {
    "stable_rank": (
        figures.stable_rank,
        "Stable rank of the change",
        "Mean over the heads of a layer, band of one standard deviation.",
    ),
    "spectra": (
        figures.normalised_spectra,
        "Normalised spectra",
        "The head that moved most in the first, middle and last layer; the initial product in red.",
    ),
    "singular_values": (
        figures.singular_values,
        "Singular values over training",
        "Each line is one singular value of one head's change; what rounding alone could produce is grey.",
    ),
    "heads": (figures.heads_that_moved, "Which heads moved", "Every head's change at the last step."),
    "matrices": (
        figures.matrices,
        "Plain matrices",
        "The rank that holds 90 % of ‖ΔW‖², the matrices that moved most first: what a LoRA would need.",
    ),
}


def write_inspection(tree: xr.DataTree, folder: Path) -> Path:
    """Write folder/report.html and each figure as PNG and SVG; returns the page."""
    parts = [f"<h1>{text(HEADING)}</h1>", f'<p class="soft">{text(_summary(tree))}</p>']
    notes = json.loads(tree.attrs.get("notes", "[]"))
    if notes:
        parts.append(f"<h2>About the series</h2><ul>{''.join(f'<li>{text(note)}</li>' for note in notes)}</ul>")
    parts += ["<h2>One rank at a time?</h2>", *(f"<p>{text(line)}</p>" for line in growth_sentences(tree))]
    parts += ["<h2>Ranks by layer, last step</h2>", _layers(tree)]
    for name, (draw, title, words) in FIGURES.items():
        if name == "matrices" and not tree["modules"].data_vars:
            continue
        parts += [
            f"<h2>{text(title)}</h2>",
            f"<p>{text(words)}</p>",
            _draw(draw(tree), folder / name, f"{title}. {words}"),
        ]
    if tree["modules"].data_vars:
        parts += ["<h2>Matrices, last step</h2>", _modules(tree)]
    parts += ["<h2>Skipped</h2>", _skipped(tree), "<h2>Provenance</h2>", fact_list(_facts(tree))]
    page = folder / "report.html"
    write_text(page, html_page(HEADING, parts))
    return page


def growth_sentences(tree: xr.DataTree) -> list[str]:
    """Sentences on how ranks grew from row to row."""
    heads = tree["heads"].to_dataset()
    lines = []
    for product in heads["product"].values:
        growth = rank_growth(heads.sel(product=[product]))
        share = growth.attrs["share"]
        if not int(growth["rises"]):
            lines.append(f"{product}: no singular value became active.")
            continue
        ends = growth["active"].isel(time=-1)
        lines.append(
            f"{product}: counting singular values above {share:g} of the head's largest and above rounding, the rank "
            f"rose in {int(growth['rises'])} of {growth['gain'].size} head-rows, by one in "
            f"{100 * float(growth['single']):.0f} % of those and by at most {int(growth['largest_gain'])}; it fell in "
            f"{100 * float(growth['falls']):.0f} %. At the end it is {float(ends.mean()):.1f} on average "
            f"({int(ends.min())} to {int(ends.max())})."
        )
    lines.append("Ranks that appear between the same two rows cannot be distinguished: closer checkpoints tell more.")
    return lines


def _summary(tree: xr.DataTree) -> str:
    heads = tree["heads"].to_dataset()
    steps, count = heads["step"].values, heads.sizes["layer"] * heads.sizes["head"]
    against = tree.attrs.get("reference", "the start")
    matrices = tree["modules"].sizes.get("module", 0)
    return (
        f"{len(steps)} checkpoints, steps {int(steps[0])} to {int(steps[-1])}, against {against}; {count} heads in "
        f"{heads.sizes['layer']} layers, {matrices} matrices; {tree.attrs.get('status', '')}."
    )


def _draw(figure: Figure, file: Path, title: str) -> str:
    figure.savefig(file.with_suffix(".svg"), metadata={"Date": None})
    held = io.BytesIO()
    figure.savefig(held, format="png", dpi=130)
    file.with_suffix(".png").write_bytes(held.getvalue())
    return picture(held.getvalue(), title)


def _layers(tree: xr.DataTree) -> str:
    heads = tree["heads"].to_dataset()
    last = heads.isel(time=-1)
    rows = []
    for layer in heads["layer"].values:
        cells = [str(int(layer)), str(last["attention"].sel(layer=layer).values)]
        for product in heads["product"].values:
            ranks = last["stable_rank"].sel(layer=layer, product=product)
            start = float(last["initial_stable_rank"].sel(layer=layer, product=product).mean())
            cells += [f"{float(ranks.mean()):.2f} ± {float(ranks.std()):.2f}", f"{start:.1f}"]
        rows.append(cells)
    names = [
        "layer",
        "attention",
        *(f"{p}, {w}" for p in heads["product"].values for w in ("change", "initial product")),
    ]
    return _table(names, rows, numbers=4)


def _modules(tree: xr.DataTree, count: int = 60) -> str:
    last = tree["modules"].to_dataset().isel(time=-1)
    order = np.argsort(-last["frobenius_norm"].values, kind="stable")
    rows = [
        [
            str(last["module"].values[i]),
            *(f"{float(last[name][i]):.3g}" for name in ("frobenius_norm", "stable_rank", "effective_rank")),
            *(f"{float(last[name][i]):.0f}" for name in ("energy_rank_90", "energy_rank_99")),
            f"{float(last['noise_floor'][i]):.2g}",
        ]
        for i in order[:count]
    ]
    names = ["matrix", "‖ΔW‖", "stable rank", "effective rank", "rank at 90 %", "rank at 99 %", "rounding, σ₁"]
    more = f'<p class="soft">and {len(order) - count} more in trajectory.zarr</p>' if len(order) > count else ""
    return _table(names, rows, numbers=6) + more


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], numbers: int) -> str:
    """A table whose last `numbers` columns are numbers."""
    marks = [""] * (len(names) - numbers) + [' class="number"'] * numbers
    head = "".join(f'<th scope="col"{m}>{text(name)}</th>' for m, name in zip(marks, names, strict=True))
    lines = ["".join(f"<td{m}>{text(cell)}</td>" for m, cell in zip(marks, row, strict=True)) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return scrolled(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>", names[0])


def _skipped(tree: xr.DataTree) -> str:
    reasons: dict[str, list[str]] = {}
    for name, reason in json.loads(tree.attrs.get("skipped", "[]")):
        reasons.setdefault(reason, []).append(name)
    if not reasons:
        return "<p>Nothing.</p>"
    rows = [f"<li>{len(names)}: {text(reason)} ({text(names[0])})</li>" for reason, names in reasons.items()]
    return f"<ul>{''.join(rows)}</ul>"


def _facts(tree: xr.DataTree) -> dict[str, object]:
    kept = ("status", "reference", "checkpoints", "stored_as", "wall_time_s")
    known = {key.replace("_", " "): tree.attrs[key] for key in kept if key in tree.attrs}
    return {**known, **json.loads(tree.attrs.get("versions", "{}")), **machine()}
