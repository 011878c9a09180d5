"""The phase diagram of linear networks as a coarse map, computed beside the page by a process of low priority.

`python -m saddles.explorer.phase_map DIM RANK NOISE SEED` prints each row of equal γ_w as a line of JSON
as soon as it is computed.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from saddles.explorer import draw
from saddles.explorer.page import Panel

if TYPE_CHECKING:
    from saddles.explorer.pages.linear import Linear

POINTS = 13
ACROSS = np.linspace(-3.0, 0.0, POINTS)
UP = np.linspace(0.0, 3.0, POINTS)
LIMIT = 1500
"""Most steps of a cell."""
LARGEST = 60
"""Dimension above which the map is that of this one."""
NICE = 10
KEPT = 8
"""Maps that a server remembers."""

Key = tuple[int, int, float, int]
"""Dimension, rank, noise and seed: what a map depends on."""


def key(view: "Linear") -> Key:
    """What the map of a view depends on."""
    return min(view.dim, LARGEST), view.rank, view.noise, view.seed


def row(key: Key, gamma_w: float) -> list[list[float]]:
    """Best test error over that of A = 0, and the step it comes at, for each γ_σ² at one γ_w."""
    from saddles.explorer.pages.linear import C
    from saddles.linear import Denoising
    from saddles.linear.diagram import follow_cells
    from saddles.linear.experiments.scaling import rate, width

    dim, rank, noise, seed = key
    task = Denoising(dim, rank, noise=noise, seed=seed)
    cells = [(0, dim**g, rate(dim, gamma_w, float(g), task.observed, C)) for g in ACROSS]
    best = follow_cells(task, [width(dim, gamma_w)], cells, seed=seed, limit=LIMIT, follow=0)
    zero = float(np.mean(task.target**2))
    return [(best["best_test_error"] / zero).tolist(), best["best_step"].astype(float).tolist()]


@dataclass(eq=False)
class PhaseMap:
    """A map on its way: rows of equal γ_w, None where one is not computed yet."""

    key: Key
    rows: list[list[list[float]] | None] = field(default_factory=lambda: [None] * POINTS)
    trouble: str = ""

    @property
    def done(self) -> int:
        """Rows that are there."""
        return sum(part is not None for part in self.rows)


class PhaseMaps:
    """The maps of one server: each is computed once, one at a time, the one asked for last first."""

    def __init__(self) -> None:
        self._known: dict[Key, PhaseMap] = {}
        self._wanted: list[Key] = []
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._busy = self._closed = False

    def ask(self, key: Key) -> PhaseMap:
        """The map as far as it is computed; what is missing is begun."""
        with self._lock:
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = PhaseMap(key)
                self._wanted.append(key)
                self._forget()
            if self._wanted and not self._busy and not self._closed:
                self._busy = True
                threading.Thread(target=self._work).start()
            return known

    def _forget(self) -> None:
        """Keep the newest maps; one that is still waiting is asked for again when it is looked at."""
        for old in list(self._known)[:-KEPT]:
            del self._known[old]
        self._wanted = [key for key in self._wanted if key in self._known]

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._wanted or self._closed:
                    self._busy = False
                    return
                wanted = self._known[self._wanted.pop()]
            self._compute(wanted)

    def _compute(self, wanted: PhaseMap) -> None:
        command = [sys.executable, "-m", "saddles.explorer.phase_map", *(str(part) for part in wanted.key)]
        with self._lock:
            if self._closed:
                return
            process = self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
                env={**os.environ, "SADDLES_PROGRESS": "off"},
            )
        with process:
            for line in process.stdout or ():
                place, cells = json.loads(line)
                wanted.rows[place] = cells
        if wanted.done < POINTS:
            wanted.trouble = "the map could not be finished"

    def close(self) -> None:
        """End the process that is at work."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.terminate()


def panel(known: PhaseMap, here: tuple[float, float]) -> Panel:
    """The map as a plot, with the regimes' borders and the view's own place (γ_σ², γ_w)."""
    errors = [part[0] if part else [np.nan] * POINTS for part in known.rows]
    told = "γ_σ² %{x:.2f}, γ_w %{y:.2f}: best error %{z:.2f}<extra></extra>"
    data = [
        draw.heat(errors, ACROSS, UP, zmin=0, zmax=1, reversescale=True, hovertemplate=told,
                  colorbar={"title": {"text": "error", "side": "right"}}),
        *_borders(),
        draw.dots([here[0]], [here[1]], "this run", "#D55E00",
                  marker={"symbol": "cross", "size": 13, "line": {"color": "white", "width": 2}}, hoverinfo="skip"),
    ]  # fmt: skip
    cells = np.array([error for part in known.rows if part for error in part[0]])
    share = (
        f"{100 * float(np.mean(cells < 0.5)):.0f} % of its cells recover more than half" if len(cells) else "empty yet"
    )
    words = (
        f"Map of the best test error, relative to that of A = 0, over variance and width exponents; {share}. "
        f"This run is at γ_σ² {here[0]:.2f}, γ_w {here[1]:.2f}. Click a cell to open its run."
    )
    x, y = {"range": [-3.12, 0.12], "showgrid": False}, {"range": [-0.12, 3.12], "showgrid": False}
    layout = draw.layout("variance exponent γ_σ²", "width exponent γ_w", x=x, y=y)
    left = known.trouble or ("" if known.done == POINTS else f"{known.done} of {POINTS} rows so far")
    title = "Phase diagram: click a cell to open its run" + (f" ({left})" if left else "")
    return Panel(title, words, data, layout, wide=True, map=True)


def _borders() -> list[draw.Json]:
    """The regimes of section 2.1: their borders, and their names inside."""
    traces = []
    for x, y in _BORDERS:
        for shade, width in (("white", 3.4), ("#222222", 1.6)):
            line = {"width": width, "dash": "solid"}
            traces.append(draw.line(x, y, "", shade, line=line, hoverinfo="skip"))
    for x, y, words, shade in _REGIMES:
        font = {"color": shade, "size": 13}
        traces.append({"type": "scatter", "mode": "text", "x": [x], "y": [y], "text": [words], "textfont": font,
                      "hoverinfo": "skip", "showlegend": False})  # fmt: skip
    return traces


_BORDERS = [([-2.0, 0.0], [3.0, 1.0]), ([-1.5, -0.5], [3.0, 1.0]), ([-3.0, 0.0], [1.0, 1.0])]
_REGIMES = [
    (-2.5, 1.75, "active", "#222222"),
    (-1.74, 2.82, "lazy", "white"),
    (-0.5, 2.5, "noisy", "white"),
    (-1.8, 0.5, "too narrow", "#222222"),
]


def nearest(x: float, y: float) -> tuple[float, float]:
    """The cell at a place of the map, as exponents."""
    across, up = ACROSS[np.abs(ACROSS - x).argmin()], UP[np.abs(UP - y).argmin()]
    return float(across), float(up)


def main(arguments: list[str], say: Callable[[str], None] = lambda text: print(text, flush=True)) -> None:
    """Compute a map and print it row by row, the middle of the diagram first."""
    if hasattr(os, "nice"):
        os.nice(NICE)
    from saddles.runtime.programs import keep_compiled_programs

    keep_compiled_programs()
    key = (int(arguments[0]), int(arguments[1]), float(arguments[2]), int(arguments[3]))
    for place in sorted(range(POINTS), key=lambda k: abs(k - 2 * POINTS // 3)):
        say(json.dumps([place, row(key, float(UP[place]))]))


if __name__ == "__main__":
    main(sys.argv[1:])
