"""Figures as files."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from saddles.core.experiment import Drawing
from saddles.runtime.files import new_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def mark_smoke_test(drawing: Drawing) -> None:
    """Say on the figure that size `tiny` only shows that everything runs."""
    from matplotlib.figure import Figure

    if isinstance(drawing, Figure) and not drawing.get_supxlabel():  # the layout keeps room for this label
        words = "size tiny: a smoke test, not a result"
        drawing.supxlabel(words, x=0.995, ha="right", fontsize=8, color="#b3340a")


def save_drawing(drawing: Drawing, place: Path, dpi: int = 160) -> None:
    """Write a figure as place.png, place.svg and place.pdf; the same figure gives the same bytes."""
    import matplotlib.figure

    files = {kind: place.with_suffix(f".{kind}") for kind in ("png", "svg", "pdf")}
    with contextlib.ExitStack() as drafts:
        new = {kind: drafts.enter_context(new_path(file)) for kind, file in files.items()}
        if isinstance(drawing, matplotlib.figure.Figure):
            _print(drawing, new["png"], new["svg"], new["pdf"], dpi)
        else:
            for draft in new.values():
                drawing.savefig(draft)


def _print(figure: "Figure", png: Path, svg: Path, pdf: Path, dpi: int) -> None:
    """As `savefig` does, less what it does twice: it draws everything once to place it, and once more on the page."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    canvas, layout, before = figure.canvas, figure.get_layout_engine(), figure.dpi
    try:
        figure.dpi = dpi
        FigureCanvasAgg(figure).print_png(png)
        figure.dpi = before  # these methods leave it as they need it
        figure.set_layout_engine("none")  # as it is now: to place everything again takes as long as to draw it
        with mpl.rc_context({"svg.hashsalt": "saddles"}):  # without the salt, every identifier in it is random
            FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None})
        figure.dpi = before
        FigureCanvasPdf(figure).print_pdf(pdf, metadata={"CreationDate": None})
    finally:
        figure.dpi = before
        figure.set_layout_engine(layout)
        figure.set_canvas(canvas)
