"""Whether linearity tells which merges of two fine-tunes work.

    python -m benchmarks.merging TOKENS FOLDER OUT.json [--device cuda] [--small]       # of benchmarks.finetunes
    python -m benchmarks.merging --figure FIGURE.png OUT.json [OUT.json of a second base]
    python -m benchmarks.merging --figure FIGURE.png docs/results/networks.json     # the figure of the page

θ₀ + a Δ_python + b Δ_shakespeare. One pair on a grid of scales (a, b); pairs of several learning rates and lengths at
(1, 1) and at the best common scale. For each the loss on both held-out texts, and e of `saddles.networks.linearity` on
blocks of both: of the joint change, and of each change alone. `kept`: what the merged model keeps of both fine-tunes'
gains, Σ (base − merged) / Σ (base − tuned), the sums over the two texts.
"""

import argparse
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.finetunes import LARGE, RATES, SMALL, Scale, measured, text_feed
from saddles import networks
from saddles.figures.style import COLOURS, INK, look, sheet

SCALES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)
COMMON = (0.3, 0.5, 0.7, 0.85)
"""Scales of both changes that are tried beside 1."""
NAMES = ("python", "shakespeare")
BLOCKS = 48
"""Held-out blocks of each text for the losses."""

State = dict[str, Tensor]


class Pair:
    """Two changes of one base."""

    def __init__(
        self, model: torch.nn.Module, base: State, ends: tuple[State, State], feeds: Any, batch: Tensor
    ) -> None:
        self.model, self.base, self.feeds, self.batch = model, base, feeds, batch
        self.changes = [{name: end[name] - base[name] for name in base} for end in ends]

    def at(self, a: float, b: float) -> State:
        """θ₀ + a Δ₁ + b Δ₂."""
        return {name: base + a * self.changes[0][name] + b * self.changes[1][name] for name, base in self.base.items()}

    def losses(self, a: float, b: float) -> list[float]:
        """On both texts."""
        state = self.at(a, b)
        with torch.no_grad():
            for name, value in self.model.named_parameters():
                value.copy_(state[name])
        return [measured(feed, self.model)["test_loss"] for feed in self.feeds]

    def linearity(self, a: float, b: float) -> float:
        """Of the joint change."""
        return networks.linearity(self.model, self.base, self.at(a, b), {"input_ids": self.batch})


def kept(base: list[float], tuned: list[float], merged: list[float]) -> float:
    """Share of both gains."""
    return float((sum(base) - sum(merged)) / (sum(base) - sum(tuned)))


def of_pair(pair: Pair, base: list[float]) -> dict[str, Any]:
    """A pair at (1, 1) and at the best common scale."""
    alone = [pair.losses(1, 0), pair.losses(0, 1)]
    tuned = [alone[0][0], alone[1][1]]
    rows = {scale: pair.losses(scale, scale) for scale in (*COMMON, 1.0)}
    best = min(rows, key=lambda scale: sum(rows[scale]))
    flat = [torch.cat([value.reshape(-1) for value in change.values()]) for change in pair.changes]
    return {
        "alone": alone, "tuned": tuned, "merged": rows[1.0], "kept": kept(base, tuned, rows[1.0]),
        "by_scale": {str(scale): kept(base, tuned, row) for scale, row in rows.items()},
        "best_scale": best, "kept_best": kept(base, tuned, rows[best]),
        "e": [pair.linearity(1, 0), pair.linearity(0, 1)], "e_joint": pair.linearity(1, 1),
        "cosine": float(flat[0] @ flat[1] / (flat[0].norm() * flat[1].norm())),
        "size": [float(one.norm()) for one in flat],
    }  # fmt: skip


def run(tokens: Path, folder: Path, out: Path, scale: Scale, device: str) -> None:
    """All pairs, then the grid; what is done is written."""
    import transformers

    library: Any = transformers
    model = library.GPT2LMHeadModel.from_pretrained(folder / "base", dtype=torch.float32).eval().to(device)
    state = {name: value.detach().clone() for name, value in model.named_parameters()}
    feeds = [text_feed(tokens, name, scale, device, BLOCKS) for name in NAMES]
    # Half a block of each text twice: the outputs travel to the host in float64.
    batch = torch.cat([feed.valid[BLOCKS // 2 : BLOCKS // 2 + 2, : scale.length // 2] for feed in feeds])
    base = [measured(feed, model)["test_loss"] for feed in feeds]
    found: dict[str, Any] = {"base": base, "pairs": {}, "grid": []}
    began = time.perf_counter()

    def write() -> None:
        out.write_text(json.dumps(found | {"seconds": time.perf_counter() - began}, indent=1))

    def pair_of(rate: float, steps: int) -> Pair:
        files = [folder / f"merge-{name}-{rate:g}-{steps}.safetensors" for name in NAMES]
        ends = tuple({k: v.to(device) for k, v in load_file(file).items()} for file in files)
        return Pair(model, state, ends, feeds, batch)  # pyright: ignore[reportArgumentType]

    for rate in RATES:
        for steps in scale.merged:
            row = of_pair(pair_of(rate, steps), base)
            found["pairs"][f"{rate:g} {steps}"] = row | {"rate": rate, "steps": steps}
            print(rate, steps, {k: row[k] for k in ("kept", "kept_best", "best_scale", "e", "e_joint")}, flush=True)
            write()
    chosen = pair_of(RATES[1], scale.merged[-1])
    found["grid_pair"] = [RATES[1], scale.merged[-1]]
    for a in SCALES:
        for b in SCALES:
            e = chosen.linearity(a, b) if a or b else 0.0
            found["grid"].append({"python": a, "shakespeare": b, "losses": chosen.losses(a, b), "e": e})
        write()
    print("grid", time.perf_counter() - began, flush=True)


def stored(file: Path) -> list[dict[str, Any]]:
    """What was found with each base: one of a file of `run`, all of the record in docs/results/networks.json."""
    whole = json.loads(file.read_text())
    if "records" not in whole:
        return [whole]
    found = []
    for base in ("first base", "second base"):
        values = whole["records"]["merging"]["values"][base]
        rows = {name.partition(":")[0].partition(" ")[0]: row for name, row in values.items()}
        pairs = [dict(zip(("rate", "steps", "kept", "kept_best"), row[:4], strict=True)) | {"e_joint": row[7]}
                 for row in rows["pairs"]]  # fmt: skip
        grid = [{"python": a, "shakespeare": b, "losses": losses, "e": e} for a, b, *losses, e in rows["grid"]]
        found.append({"pairs": dict(enumerate(pairs)), "grid": grid})
    return found


def draw(found: Sequence[Mapping[str, Any]], place: Path) -> None:
    """Losses and e over the scales of one pair of the first base; what merges keep against e over all pairs."""
    grid = {(row["python"], row["shakespeare"]): row for row in found[0]["grid"]}
    of_first = ", first base" if len(found) > 1 else ""
    panels = {
        f"Mean loss of both texts{of_first}": lambda row: float(np.mean(row["losses"])),
        f"e of the joint change{of_first}": lambda row: row["e"],
    }
    with look():
        figure, (axes,) = sheet(1, 3, 14, 5.2)
        for axis, (title, value) in zip(axes[:2], panels.items(), strict=True):
            table = np.array([[value(grid[a, b]) for b in SCALES] for a in SCALES])
            axis.imshow(table, origin="lower", cmap="viridis" if "loss" in title else "magma", aspect="auto")
            middle = (table.min() + table.max()) / 2
            for i, j in np.ndindex(table.shape):
                axis.text(j, i, f"{table[i, j]:.2f}", ha="center", va="center", fontsize=8,
                          color="white" if table[i, j] < middle else "black")  # fmt: skip
            axis.set(xticks=range(len(SCALES)), xticklabels=SCALES, yticks=range(len(SCALES)), yticklabels=SCALES)
            axis.set(xlabel="share of the change to Shakespeare", ylabel="share of the change to Python", title=title)
            axis.grid(visible=False)
        for number, base in enumerate(found):
            _merges(axes[2], base["pairs"].values(), filled=number == 0)
        axes[2].set(
            xlabel="e of the joint change, 0: linear", ylabel="share of both gains that is kept",
            title="What merges keep", ylim=(0.3, 0.95),
        )  # fmt: skip
        colours = [("o", colour, colour, f"rate {np.format_float_positional(rate, trim='-')}") for colour, rate in
                   zip(COLOURS, sorted({row["rate"] for row in found[0]["pairs"].values()}), strict=False)]  # fmt: skip
        marks = [("o", INK, INK, "added"), ("^", INK, INK, "best common scale")]
        bases = [("s", INK, INK, "first base"), ("s", "none", INK, "second base")][
            : len(found) if len(found) > 1 else 0
        ]
        handles = [Line2D([], [], marker=mark, color=edge, markerfacecolor=face, linestyle="", label=words)
                   for mark, face, edge, words in (*colours, *marks, *bases)]  # fmt: skip
        axes[2].legend(handles=handles, fontsize=8, loc="lower left", ncols=2)
    figure.savefig(place, dpi=150)


def _merges(axis: Axes, rows: Iterable[Mapping[str, Any]], *, filled: bool) -> None:
    rows = list(rows)
    for colour, rate in zip(COLOURS, sorted({row["rate"] for row in rows}), strict=False):
        some = [row for row in rows if row["rate"] == rate]
        for key, marker in (("kept", "o"), ("kept_best", "^")):
            axis.plot([row["e_joint"] for row in some], [row[key] for row in some], marker, ms=7, color=colour,
                      markerfacecolor=colour if filled else "none")  # fmt: skip


def main(full: bool = False) -> None:
    """For `python -m benchmarks`: only says how it is run, because it needs fine-tunes."""
    print("python -m benchmarks.merging TOKENS FOLDER OUT.json")


def command() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="*", help="TOKENS and FOLDER of benchmarks.finetunes")
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--figure", type=Path, default=None, help="only draw OUT.json, one for each base")
    given = parser.parse_args()
    if given.figure is not None:
        draw([base for file in (*given.folders, given.out) for base in stored(file)], given.figure)
    else:
        tokens, folder = given.folders
        run(tokens, folder, given.out, SMALL if given.small else LARGE, given.device)


if __name__ == "__main__":
    command()
