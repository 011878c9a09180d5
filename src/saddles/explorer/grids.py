"""Which views the static site computes beforehand: every combination of a few values of a few settings."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

from saddles.explorer.page import Page
from saddles.explorer.view import Value, View


@dataclass(frozen=True)
class Grid:
    """Values of the settings that a static room can change, and others that it fixes apart from the defaults."""

    values: Mapping[str, tuple[Value, ...]]
    fixed: Mapping[str, Value] = field(default_factory=dict)
    miniature: int = 0
    """The panel that moves on the front page."""

    def views(self, page: Page) -> Iterator[tuple[dict[str, Value], View]]:
        """Every combination and its view; the defaults are one of them."""
        for row in product(*self.values.values()):
            at = dict(zip(self.values, row, strict=True))
            yield at, replace(page.view(), **self.fixed, **at)


GRIDS = {
    # A smaller matrix than the live room's: its picture is most of the room's data.
    "linear": Grid(
        {"gamma_w": (0.6, 1.0, 1.4, 1.8, 2.2, 2.6, 3.0),
         "gamma_variance": (-3.0, -2.5, -2.1, -1.8, -1.5, -1.0, -0.5, 0.0), "noise": (0.0, 1.0)}, {"dim": 20}, 2,
    ),
    "diagonal": Grid(
        {"decades": (1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 40.0, 80.0), "seed": (30, 1, 7), "model": ("linear", "head")},
        miniature=2,
    ),
    "concepts": Grid(
        {"mu1": (0.6, 1.0, 1.4, 1.8), "mu2": (0.8, 1.2, 1.6, 2.0), "sigma": (0.0, 0.1, 0.3), "depth": ("2", "1")}
    ),
    "margin": Grid({"model": ("joint", "factored", "diagonal"), "sequences": (2, 3, 5), "seed": (0, 1, 2, 3)}),
    "incontext": Grid(
        {"decades": (1.5, 2.0, 3.0, 4.0, 6.0), "ratio": (0.5, 0.6, 0.7, 0.8), "seed": (0, 1)}, miniature=3
    ),
    "networks": Grid(
        {"activation": ("relu", "tanh", "linear"), "gamma_w": (1.25, 1.5, 1.75, 2.0),
         "gamma_variance": (-3.5, -3.0, -2.5, -2.0, -1.5, -1.0, -0.5)},
    ),
}  # fmt: skip
