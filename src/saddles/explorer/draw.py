"""Plotly traces and layouts in one look: measurement solid and coloured, theory dashed and grey.

Grounds are transparent and greys are readable on both, so that one figure serves the light and the dark page;
the page's style sheet colours text.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from saddles.figures.style import COLOURS
from saddles.protocols import ArrayLike

Json = dict[str, Any]
"""A trace, shape or layout of Plotly, which documents what it may hold."""

THEORY = "#767676"
FAINT = "rgba(128,128,128,0.45)"
INK = "#1d1d1f"
HEIGHT = 330


SHADES = (*COLOURS[:-1], "#8B5A2B", "#7B61C9")
"""Okabe and Ito's colours but the yellow, which cannot be read on white, and two more: a page names up to eight."""


def colour(place: int) -> str:
    """A colour that is readable on both grounds."""
    return SHADES[place % len(SHADES)]


def values(given: ArrayLike) -> list[float | None]:
    """Numbers to six digits, more than a screen shows; what is not finite becomes a gap."""
    array = np.asarray(given, dtype=float).ravel()
    fine = np.isfinite(array)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        power = np.clip(5 - np.floor(np.log10(np.abs(array))), -300, 300)
        short = np.where(fine & (array != 0), np.round(array * 10.0**power) / 10.0**power, 0.0)
    return short.tolist() if fine.all() else [x if good else None for x, good in zip(short.tolist(), fine, strict=True)]


def line(x: ArrayLike, y: ArrayLike, name: str = "", shade: str = INK, *, theory: bool = False, **more: Any) -> Json:
    """A curve; without a name it has no legend."""
    # Theory is drawn over the run it describes: thin and broken, so that the run is seen beside and between it.
    look = {"color": shade, "width": 3.0} if not theory else {"color": THEORY, "width": 1.3, "dash": "4px,5px"}
    return {
        "type": "scatter", "mode": "lines", "x": values(x), "y": values(y), "name": name or " ",
        "showlegend": bool(name), "line": look | more.pop("line", {}),
        "hovertemplate": "%{y:.4g} at %{x:.4g}" + (f"<extra>{name}</extra>" if name else "<extra></extra>"),
    } | more  # fmt: skip


def lines(x: ArrayLike, many: ArrayLike, name: str = "", shade: str = INK, **more: Any) -> Json:
    """Curves of one look over the same x, (curve, x), as one trace with gaps: a trace costs more than its points."""
    curves = np.atleast_2d(np.asarray(many, dtype=float))
    gap = np.full((len(curves), 1), np.nan)
    across = np.broadcast_to(np.asarray(x, dtype=float), curves.shape)
    joined = [np.hstack([part, gap]).ravel()[:-1] for part in (across, curves)]
    return line(joined[0], joined[1], name, shade, **more)


def dots(x: ArrayLike, y: ArrayLike, name: str = "", shade: str = INK, **more: Any) -> Json:
    """Points without a curve."""
    look = {"color": shade, "size": 8} | more.pop("marker", {})
    return {
        "type": "scatter", "mode": "markers", "x": values(x), "y": values(y), "name": name or " ",
        "showlegend": bool(name), "marker": look,
    } | more  # fmt: skip


def heat(grid: ArrayLike, across: ArrayLike, up: ArrayLike, **more: Any) -> Json:
    """A map: rows go up, columns across."""
    bar = {"thickness": 10, "len": 0.9, "outlinewidth": 0} | more.pop("colorbar", {})
    return {
        "type": "heatmap", "z": [values(row) for row in np.asarray(grid, dtype=float)],
        "x": np.asarray(across).tolist(), "y": np.asarray(up).tolist(),
        "colorscale": "Viridis", "colorbar": bar, "hoverongaps": False,
    } | more  # fmt: skip


def bars(names: Sequence[str], heights: ArrayLike, shades: Sequence[str], **more: Any) -> Json:
    """One bar for each name."""
    return {
        "type": "bar", "x": list(names), "y": values(heights), "showlegend": False, "marker": {"color": list(shades)},
        "hovertemplate": "%{x}: %{y:.4g}<extra></extra>",
    } | more  # fmt: skip


def upright(x: float, words: str = "", shade: str = FAINT) -> Json:
    """A vertical line through the whole plot, as a shape."""
    shape: Json = {
        "type": "line", "xref": "x", "yref": "paper", "x0": float(x), "x1": float(x), "y0": 0, "y1": 1,
        "line": {"color": shade, "width": 1.5, "dash": "dot"}, "layer": "below",
    }  # fmt: skip
    if words:
        shape["label"] = {"text": words, "textposition": "end", "textangle": 0, "font": {"size": 11}}
        shape["label"] |= {"xanchor": "left", "yanchor": "top", "padding": 5}
    return shape


def level(y: float, words: str = "") -> Json:
    """A horizontal line through the whole plot, as a shape."""
    return {
        "type": "line", "xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": float(y), "y1": float(y),
        "line": {"color": THEORY, "width": 1.2}, "layer": "below",
        "label": {"text": words, "textposition": "end", "font": {"size": 12}, "yanchor": "bottom"},
    }  # fmt: skip


def layout(across: str, up: str, **more: Any) -> Json:
    """Axes with their names; `x` and `y` in `more` are added to the axes."""
    axis = {"zeroline": False, "gridcolor": "rgba(128,128,128,0.18)", "linecolor": THEORY, "showline": True,
            "ticks": "outside", "tickcolor": THEORY, "ticklen": 4, "tickangle": 0,
            "exponentformat": "power", "minexponent": 5, "separatethousands": True}  # fmt: skip
    title = {"font": {"size": 13}, "standoff": 8}
    return {
        "height": HEIGHT,
        "margin": {"l": 62, "r": 14, "t": 8, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": INK},
        "xaxis": axis | {"title": {"text": across} | title} | more.pop("x", {}),
        "yaxis": axis | {"title": {"text": up} | title} | more.pop("y", {}),
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 11}},
        "hovermode": "closest",
        "uirevision": "kept",
        "dragmode": False,
    } | more
