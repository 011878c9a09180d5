"""One page and its figures for a recorded or inspected training run."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from saddles.core.drawings import save_drawing
from saddles.core.provenance import machine
from saddles.figures import probe as figures
from saddles.measures.growth import rank_growth
from saddles.report.html import Html, join, tag
from saddles.report.page import fact_list, html_page, picture, scrolled
from saddles.runtime.files import explained, write_text

HEADING = "saddles: rank growth over {}"

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
    "used_ranks": (
        figures.used_ranks,
        "Ranks that the adapter uses",
        "Mean over the layers for each kind of module, band from the least to the most; grey as given.",
    ),
}
NEEDED = {"matrices": "frobenius_norm", "used_ranks": "used_rank"}
"""What the group `modules` must have for a figure."""


def write_inspection(tree: xr.DataTree, folder: Path) -> Path:
    """Write folder/report.html and each figure as PNG and SVG; returns the page."""
    heading = HEADING.format("a series of checkpoints" if _kind(tree) == "checkpoint" else "a training run")
    parts = [tag("h1", heading), tag("p", _summary(tree), class_="soft")]
    notes = json.loads(tree.attrs.get("notes", "[]"))
    if notes:
        parts += [tag("h2", "About the series"), tag("ul", *(tag("li", note) for note in notes))]
    parts += [tag("h2", "One rank at a time?"), *(tag("p", line) for line in growth_sentences(tree))]
    parts += [tag("h2", "Ranks by layer, last step"), _layers(tree)]
    if "suggestion" in tree.attrs:
        parts += [tag("h2", "Which rank would have done?"), tag("p", tree.attrs["suggestion"])]
    for name, (draw, title, words) in FIGURES.items():
        if name in NEEDED and not _numbers(tree, NEEDED[name]):
            continue
        parts += [tag("h2", title), tag("p", words), _draw(draw(tree), folder / name, f"{title}. {words}")]
    if tree["modules"].data_vars:
        parts += [tag("h2", "Matrices, last step"), _modules(tree)]
    parts += [tag("h2", "Skipped"), _skipped(tree), tag("h2", "Provenance"), fact_list(_facts(tree))]
    page = folder / "report.html"
    write_text(page, html_page(heading, parts))
    return page


def growth_sentences(tree: xr.DataTree) -> list[str]:
    """Sentences on how ranks grew from row to row."""
    heads = tree["heads"].to_dataset()
    lines = []
    for product in heads["product"].values:
        growth = rank_growth(heads.sel(product=[product]))
        share = growth.attrs["share"]
        counted = growth["active"].dropna("time", how="all")
        if not counted.sizes["time"]:
            lines.append(f"{product}: no row has spectra.")
            continue
        ends = counted.isel(time=-1)
        if not int(growth["rises"]):
            lines.append(f"{product}: no singular value became active.")
            continue
        lines.append(
            f"{product}: counting singular values above {share:g} of the head's largest and above rounding, the rank "
            + (
                f"rose in {int(growth['rises'])} of {int(growth['gain'].count())} head-rows, by one in "
                f"{100 * float(growth['single']):.0f} % of those and by at most {int(growth['largest_gain'])}; it fell "
                f"in {100 * float(growth['falls']):.0f} %. At the end it "
                if heads.sizes["time"] > 1
                else "of the change "
            )
            + f"is {float(ends.mean()):.1f} on average ({int(ends.min())} to {int(ends.max())})."
        )
    if heads.sizes["time"] > 1:
        lines.append(
            f"Ranks that appear between the same two rows cannot be distinguished: closer {_kind(tree)}s tell more."
        )
    return lines


def _numbers(tree: xr.DataTree, name: str) -> bool:
    """Whether any matrix has this number in any row."""
    modules = tree["modules"].to_dataset()
    return name in modules and bool(modules[name].notnull().any())


def _kind(tree: xr.DataTree) -> str:
    """What a row is: inspections name their checkpoints."""
    return "checkpoint" if "checkpoints" in tree.attrs else "measurement"


def _summary(tree: xr.DataTree) -> str:
    heads = tree["heads"].to_dataset()
    steps, count = heads["step"].values, int(heads["initial_stable_rank"].isel(product=0).count())
    against = tree.attrs.get("reference", "the start")
    matrices = tree["modules"].sizes.get("module", 0)
    # One pair is no series: its step, 0 where nothing states one, says nothing.
    series = (
        f"{len(steps)} {_kind(tree)}s, steps {int(steps[0])} to {int(steps[-1])},"
        if len(steps) > 1
        else f"One {_kind(tree)}"
    )
    return (
        f"{series} against {against}; {count} heads in "
        f"{heads.sizes['layer']} layers, {matrices} matrices; {tree.attrs.get('status', '')}."
    )


def _draw(figure: Figure, file: Path, title: str) -> Html:
    with explained(file):
        save_drawing(figure, file, dpi=130)
    return picture(file.with_suffix(".png").read_bytes(), title)


def _layers(tree: xr.DataTree) -> Html:
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


def _modules(tree: xr.DataTree, count: int = 60) -> Html:
    last = tree["modules"].to_dataset().isel(time=-1)
    order = np.argsort(-last["frobenius_norm"].values, kind="stable")
    # Of an adapter's BA the ranks in use stand in place of rounding: its factors are not rounded weights.
    ends = {"noise_floor": "rounding, σ₁", "used_rank": "rank used", "given_rank": "rank given"}
    kept = {name: words for name, words in ends.items() if name in last}
    rows = [
        [
            str(last["module"].values[i]),
            *(f"{float(last[name][i]):.3g}" for name in ("frobenius_norm", "stable_rank", "effective_rank")),
            *(f"{float(last[name][i]):.0f}" for name in ("energy_rank_90", "energy_rank_99")),
            *(f"{float(last[name][i]):.2g}" for name in kept),
        ]
        for i in order[:count]
    ]
    names = ["matrix", "‖ΔW‖", "stable rank", "effective rank", "rank at 90 %", "rank at 99 %", *kept.values()]
    more = [tag("p", f"and {len(order) - count} more in trajectory.zarr", class_="soft")] * (len(order) > count)
    return join([_table(names, rows, numbers=len(names) - 1), *more])


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], numbers: int) -> Html:
    """A table whose last `numbers` columns are numbers."""
    marks = [None] * (len(names) - numbers) + ["number"] * numbers
    head = [tag("th", name, scope="col", class_=mark) for mark, name in zip(marks, names, strict=True)]
    lines = [tag("tr", *(tag("td", cell, class_=m) for m, cell in zip(marks, row, strict=True))) for row in rows]
    return scrolled(tag("table", tag("thead", tag("tr", *head)), tag("tbody", *lines)), names[0])


def _skipped(tree: xr.DataTree) -> Html:
    reasons: dict[str, list[str]] = {}
    for name, reason in json.loads(tree.attrs.get("skipped", "[]")):
        reasons.setdefault(reason, []).append(name)
    if not reasons:
        return tag("p", "Nothing.")
    return tag("ul", *(tag("li", f"{len(names)}: {reason} ({names[0]})") for reason, names in reasons.items()))


def _facts(tree: xr.DataTree) -> dict[str, object]:
    kept = ("status", "reference", "checkpoints", "stored_as", "wall_time_s")
    known = {key.replace("_", " "): tree.attrs[key] for key in kept if key in tree.attrs}
    return {**known, **json.loads(tree.attrs.get("versions", "{}")), **machine()}
