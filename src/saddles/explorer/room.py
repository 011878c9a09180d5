"""What a room of the explorer is: a view, how its numbers are made, and how they are drawn."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import xarray as xr


@dataclass(frozen=True)
class Panel:
    """One plot as Plotly takes it, with words for those who do not see it."""

    title: str
    words: str
    """Alternative text: what is seen."""
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    wide: bool = False


@dataclass(frozen=True)
class Room:
    """One page of the explorer. `compute` is pure: the same view gives the same trajectories.

    Args:
        name, title, intro: of the page; the name is its address.
        view: the class of its views.
        check: refuses a view that asks for too much work, with the limit.
        compute: (view, draft) -> trajectories, named; a draft may be coarser, for a slider that is still moving.
        panels: (view, trajectories) -> plots.
        say: (view, trajectories) -> a sentence or two about what is seen.
        code: three lines of Python that make the same trajectories, under the same names.
        hint: what a moving slider leaves out, for the page to say.
    """

    name: str
    title: str
    intro: str
    view: type
    check: Callable[[Any], None]
    compute: Callable[[Any, bool], dict[str, xr.Dataset]]
    panels: Callable[[Any, dict[str, xr.Dataset]], list[Panel]]
    say: Callable[[Any, dict[str, xr.Dataset]], str]
    code: Callable[[Any], str]
    hint: str = ""
    moving: str | None = None
    """The setting that "play" moves, where there is one."""
    steps: int = 0
    """How many steps the moving setting has (0: it is continuous)."""
    fit: Callable[[Any, dict[str, xr.Dataset]], dict[str, Any]] = lambda view, found: {}
    """How fields fit what was found, by name: None hides one, a number ends its slider, words are offered."""
    lists: dict[str, Callable[[], dict[str, str]]] = field(default_factory=dict)
    """Settings that are chosen from a list which is read anew for every page."""
    stamp: Callable[[Any], Any] | None = None
    """Something that changes when what lies behind a view on disk does; the page looks every second."""
