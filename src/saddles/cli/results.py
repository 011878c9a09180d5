"""Commands for stored trajectories."""

from pathlib import Path
from typing import Annotated

import typer

from saddles.cli.terminal import out, plain_table, say


def compare(
    measured: Annotated[Path, typer.Argument(help="a run's folder, a .zarr folder or a .nc file")],
    predicted: Annotated[Path, typer.Argument(help="the same, to compare with")],
) -> None:
    """Compare two stored trajectories variable by variable."""
    from saddles.core.compare import compare as work
    from saddles.core.store import load

    errors = work(load(measured), load(predicted))
    kinds = [str(kind) for kind in errors["kind"].values]
    table = plain_table("variable", *kinds, right=kinds)
    for name in errors["variable"].values:
        table.add_row(str(name), *(f"{v:.3e}" for v in errors["error"].sel(variable=name).values))
    out.print(table)
    facts = errors.attrs
    say(f"{facts['instants']} instants, {facts['clock']} {facts['from']:g} to {facts['to']:g}, {facts['alignment']}")


def study(
    measured: Annotated[Path, typer.Argument(help="a run of diffusion/figure-6a, or its .zarr folder")],
    sim: Annotated[Path | None, typer.Argument(help="SIM at the same signals; default: computed now")] = None,
    out_: Annotated[Path | None, typer.Option("--out", help=".zarr folder to write; must not exist")] = None,
) -> None:
    """Compare the order and speed of a diffusion model's concept learning with the SIM task."""
    from saddles.core.store import save
    from saddles.studies import order_against_sim

    result = order_against_sim(measured, sim)
    columns = ("colour separation", "learned first", "SIM", "steps of colour", "steps of size", "agrees")
    table = plain_table(*columns, right=columns)
    for place in range(result.sizes["separation"]):
        row = result.isel(separation=place)
        first = ["colour" if c else "size" for c in (*row["colour_first"].values, row["predicted_colour_first"])]
        times = [
            ", ".join(f"{step:.0f}" for step in row["measured"].sel(coordinate=name)) for name in ("colour", "size")
        ]
        agrees = f"{int(row['agrees'].sum())} of {row.sizes['seed']}"
        table.add_row(f"{float(row['separation']):g}", ", ".join(first[:-1]), first[-1], *times, agrees)
    out.print(table)
    slope, low, high = (float(result[name]) for name in ("slope", "slope_low", "slope_high"))
    say(
        f"order agrees in {100 * float(result['agreement']):.0f} % of runs; log(size/colour) against SIM's: "
        f"slope {slope:.2f} ({low:.2f} to {high:.2f}), ρ {float(result['correlation']):.2f}, "
        f"{int(result['runs'])} runs with both"
    )
    if out_ is not None:
        say(str(save(result, out_)))


def export(
    run_: Annotated[Path, typer.Argument(metavar="RUN", help="a run's folder or a .zarr folder")],
    to: Annotated[str, typer.Option(help="csv or netcdf")],
    out_: Annotated[Path | None, typer.Option("--out", help="file to write; default: beside the trajectory")] = None,
) -> None:
    """Write a stored trajectory as CSV tables or as one NetCDF file."""
    from saddles.core.store import export as work
    from saddles.core.store import load

    trajectory = load(run_)
    ending = {"csv": "csv", "netcdf": "nc"}.get(to, to)
    home = run_ if (run_ / "trajectory.zarr").is_dir() else run_.parent
    for file in work(trajectory, out_ or home / f"trajectory.{ending}", to):
        say(str(file))
