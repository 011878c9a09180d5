"""What a page of the explorer is: a view, how its numbers are computed, and how they are drawn."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import xarray as xr

from saddles.explorer.draw import Json
from saddles.explorer.view import View

V = TypeVar("V", bound=View)
Results = dict[str, xr.Dataset]
"""The trajectories that a page shows, by name."""
Fit = int | list[str] | dict[str, list[str]] | None
"""How a field fits the results: None hides it, a number ends its slider, texts are offered, or labels of each axis."""


@dataclass(frozen=True)
class Panel:
    """One plot as Plotly takes it, with words for those who do not see it."""

    title: str
    words: str
    """Alternative text: what is seen."""
    data: list[Json]
    layout: Json
    wide: bool = False
    waits: bool = False
    """It is left as it is while a slider moves, so that the others are drawn sooner; such panels come last."""
    map: bool = False
    """A click on its heat map sets the two settings that the page's `click` names."""


def spread(panels: list[Panel]) -> list[Panel]:
    """The panels in rows of two, the last one wide where it would stand alone in its row."""
    alone = len(panels) > 1 and sum(1 + panel.wide for panel in panels) % 2 == 1
    return [*panels[:-1], replace(panels[-1], wide=True)] if alone else panels


@dataclass(frozen=True)
class Page(Generic[V]):
    """One page of the explorer. `compute` is pure: the same view gives the same trajectories.

    Args:
        name, title, intro: of the page; the name is its address.
        view: the class of its views.
        check: refuses a view that would take too much work, with the limit.
        compute: (view, draft) -> trajectories, named; a draft may be coarser, for a slider that is still moving.
        panels: (view, trajectories) -> plots.
        say: (view, trajectories) -> a sentence or two about what is seen.
        code: three lines of Python that compute the same trajectories, under the same names.
        hint: what a moving slider leaves out, for the page to say.
    """

    name: str
    title: str
    intro: str
    view: type[V]
    check: Callable[[V], None]
    compute: Callable[[V, bool], Results]
    panels: Callable[[V, Results], list[Panel]]
    say: Callable[[V, Results], str]
    code: Callable[[V], str]
    hint: str = ""
    moving: str | None = None
    """The setting that "play" moves, where there is one."""
    marks: Callable[[V, Results], list[float]] | None = None
    """Values of the moving setting at which something happens, which two buttons jump to."""
    short: str = ""
    """The name in the menu, where the title is too long for it."""
    fit: Callable[[V, Results], dict[str, Fit]] = lambda view, results: {}
    """How fields fit the results, by name."""
    lists: dict[str, Callable[[], dict[str, str]]] = field(default_factory=dict)
    """Settings that are chosen from a list, which is read anew whenever the page is opened."""
    resets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Settings that go back to their defaults when another changes, because they belong to it."""
    opening: Callable[[], dict[str, str]] = dict
    """Settings of the page where its address names none."""
    details: Callable[[V], str] | None = None
    """HTML below the plots, about what was computed."""
    click: tuple[str, str] | None = None
    """The settings that x and y of a map mean, for a click on it."""
    stamp: Callable[[V], object] | None = None
    """Something that changes when the files behind a view do; the page checks every second."""

    @property
    def menu(self) -> str:
        """The page's name in the menu."""
        return self.short or self.title.split()[0]
