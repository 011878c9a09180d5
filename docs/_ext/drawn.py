"""Figures of `saddles.figures` in the gallery, which sees only those of pyplot by itself."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst


def _scrape(block: Any, variables: dict[str, Any], gallery: dict[str, Any]) -> str:
    """Save each `Figure` that a block of a tutorial has newly bound to a name."""
    scope, paths = variables["example_globals"], []
    shown = scope.setdefault("__drawn__", set())
    for thing in list(scope.values()):
        if (
            isinstance(thing, Figure) and not hasattr(thing, "number") and id(thing) not in shown
        ):  # pyplot numbers its own
            shown.add(id(thing))
            path = next(variables["image_path_iterator"])
            thing.savefig(path, dpi=160)
            paths.append(str(Path(path)))
    return figure_rst(paths, gallery["src_dir"])


def _get_sg_image_scraper() -> Any:
    return _scrape
