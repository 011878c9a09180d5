"""Runs side by side on a common clock, the norm of their weights; and the settings that experiments share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from saddles import margin
from saddles.core.experiment import Context
from saddles.core.status import status_of
from saddles.core.trajectory import Trajectory, Variable, make_trajectory
from saddles.errors import SaddlesError
from saddles.runtime.progress import bar

UNIT = "log10 of the norm of the weights"
PAPER = "sheen2024implicit"

Grid = Float[np.ndarray, "time"]
"""log10 of norms."""


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Independent draws of the data, and how far each is trained."""

    n: Annotated[int, "sequences of one instance"]
    length: Annotated[int, "tokens per sequence"]
    dim: Annotated[int, "coordinates of a token"]
    instances: Annotated[int, "independent draws of the data"]
    until: Annotated[float, "norm of the weights at which a flow ends"]

    def tokens(self, assumption: int, seed: int, *, diagonal: bool = False) -> "margin.Tokens":
        """One draw that satisfies an assumption of the paper."""
        return margin.Tokens.random(self.n, self.length, self.dim, assumption, seed, diagonal=diagonal)

    @property
    def method(self) -> "margin.MarginFlow":
        """The flow to the last norm."""
        return margin.MarginFlow(self.until)


@dataclass(frozen=True, kw_only=True)
class ScaledDraws(Draws):
    """The same, trained from one initial scale."""

    scale: Annotated[float, "initial scale: ω₀ of a diagonal layer, or what multiplies aligned K and Q"]


def norm_grid(first: float, last: float, per_decade: int = 4, *, decades: int = 1) -> Grid:
    """log10 of norms, equally spaced, both ends included: at least so many decades of them."""
    least = first * 10**decades
    if last < least:
        raise SaddlesError.must_be("until", f"at least {least:g}: claims look at norms from {first:g} on", last)
    low, high = np.log10(first), np.log10(last)
    return np.linspace(low, high, round(per_decade * (high - low)) + 1)


def on_norms(run: Trajectory, grid: Grid, names: Sequence[str]) -> dict[str, Grid]:
    """Variables of a run, linear in log10 of its norm, where it has grown to each norm of the grid.

    NaN beyond the run's last norm; a norm that dips is read at its last passage.
    """
    norm = np.log10(np.maximum(run["frobenius_norm"].values, 1e-300))  # a run may start at norm 0
    # From the end backwards the smallest norm so far: it rises, as interpolation needs, and meets the last passage.
    climb = np.minimum.accumulate(norm[::-1])[::-1]
    inside = grid <= climb[-1] + 1e-6  # a run ends within 1e-6 of its norm
    return {name: np.where(inside, np.interp(grid, climb, run[name].values), np.nan) for name in names}


def each(context: Context, title: str, pieces: Mapping[str, Callable[[], xr.Dataset]]) -> list[xr.Dataset]:
    """Compute the pieces in turn; those that an interrupted run has finished are not repeated."""
    rows = []
    with bar(title, len(pieces)) as progress:
        for name, make in pieces.items():
            rows.append(context.part(name, make))
            progress.advance()
    return rows


def gather(
    rows: Sequence[xr.Dataset],
    grid: Grid,
    axis: str,
    labels: Sequence[float],
    **provenance: Any,  # as `make_trajectory` takes it
) -> Trajectory:
    """Lay runs side by side along a new axis behind time; what has no time gets the axis alone."""
    variables: dict[str, Variable] = {}
    for name in rows[0].data_vars:
        dims = tuple(map(str, rows[0][name].dims))
        place = 1 if dims[:1] == ("time",) else 0
        stacked = np.stack([row[name].values for row in rows], axis=place)
        variables[str(name)] = ((*dims[:place], axis, *dims[place:]), stacked)
    coords: dict[str, object] = {axis: list(labels)}
    for name, values in rows[0].coords.items():
        if name != "time" and values.dims == (name,):
            coords[str(name)] = values.values
    stopped = sorted({str(status) for status in map(status_of, rows) if not status.ok})
    notes = {"stopped_runs": "; ".join(stopped)} if stopped else {}
    return make_trajectory(
        variables, grid, unit=UNIT, coords=coords, lab="margin", kind="simulated", **notes, **provenance
    )


def piece(values: Mapping[str, Grid], numbers: Mapping[str, float | Variable], grid: Grid) -> xr.Dataset:
    """One run on the grid, with numbers that do not depend on it."""
    fixed: dict[str, Variable] = {
        name: value if isinstance(value, tuple) else ((), value) for name, value in numbers.items()
    }
    return make_trajectory({**values, **fixed}, grid, unit=UNIT)


def at(trajectory: Trajectory, name: str, norm: float) -> np.ndarray:
    """A variable where the norm is closest to `norm`."""
    place = int(np.argmin(np.abs(trajectory["time"].values - np.log10(norm))))
    return trajectory[name].isel(time=place).values


def never_smaller(values: np.ndarray) -> np.ndarray:
    """Norms at unit margin for a null, infinite where a run does not separate: being lost is not being small."""
    return np.where(np.isnan(values), np.inf, values)
