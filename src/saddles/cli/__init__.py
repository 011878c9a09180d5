"""The command line: arguments, words and exit codes; the work is done elsewhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from saddles.cli.models import inspect, lora
from saddles.cli.terminal import err, interrupted, out
from saddles.errors import SaddlesError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="A laboratory for training dynamics: predict, simulate, compare.",
)
app.add_typer(lora, name="lora")

SizeOption = Annotated[
    str | None, typer.Option("--size", help="tiny, laptop, gpu or paper; default: the experiment's own")
]
DataOption = Annotated[Path | None, typer.Option("--data", help="folder with data sets; default: SADDLES_DATA")]


def main() -> None:
    """Entry point of the `saddles` command."""
    raise SystemExit(_guarded(lambda: app(standalone_mode=False) or 0))


def _guarded(work: Callable[[], Any]) -> int:
    """Turn what went wrong into one sentence and an exit code."""
    try:
        return int(work() or 0)
    except SaddlesError as error:
        err.print(f"[red]saddles:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        return 2
    except typer.Exit as leave:
        return leave.exit_code
    except KeyboardInterrupt:
        err.print("interrupted", highlight=False)
        return 130
    except typer.Abort:
        return 130
    except Exception as error:
        usage = getattr(error, "format_message", None)
        if usage is None:
            raise
        err.print(f"[red]saddles:[/red] {escape(usage())}; try --help", highlight=False, soft_wrap=True)
        return 2


@app.command("list")
def list_() -> None:
    """List the experiments with their sizes and times."""
    from saddles.core.experiment import registry

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("experiment", "what it shows", "sizes and about how long"):
        table.add_column(column)
    for row in registry().values():
        sizes = ", ".join(f"{name} {_duration(size.seconds)}" for name, size in row.sizes.items())
        table.add_row(row.name, row.title, sizes)
    out.print(table)


@app.command()
def run(
    name: Annotated[str | None, typer.Argument(help="LAB/NAME, see `saddles list`")] = None,
    size: SizeOption = None,
    seed: Annotated[int, typer.Option(help="all randomness derives from it")] = 0,
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value, may be repeated")] = None,
    out_: Annotated[Path | None, typer.Option("--out", help="folder to write; must not exist")] = None,
    resume_: Annotated[Path | None, typer.Option("--resume", help="go on with an interrupted run")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="compute again even if the run is there")] = False,
    data: DataOption = None,
) -> None:
    """Run one experiment, judge its claims and draw its figure."""
    from saddles.core.data import use_data
    from saddles.core.run import planned_folder, resume, run_experiment
    from saddles.core.trajectory import DIVERGED

    _cache()
    use_data(data)
    if (name is None) == (resume_ is None):
        raise SaddlesError.about(
            "neither or both of LAB/NAME and --resume came", "one of them is needed", "see `saddles list`"
        )
    if resume_ is not None:
        folder, work = resume_, lambda: resume(resume_)
    else:
        assert name is not None
        options = {"size": size, "seed": seed, "changes": _changes(set_ or []), "out": out_, "fresh": fresh}
        folder = planned_folder(name, **options)
        work = lambda: run_experiment(name, **options | {"out": folder, "planned": True})  # noqa: E731
    try:
        made = work()
    except KeyboardInterrupt:
        raise interrupted("what is finished is kept", ["run", "--resume", str(folder)]) from None
    if not made.record:
        raise typer.Exit(0)
    _show(made)
    status = str(made.record.get("trajectory_status", ""))
    if status.startswith(DIVERGED):
        raise SaddlesError(f"the run {status.removeprefix('stopped: ')}; what it had until then is in {made.folder}")
    raise typer.Exit(1 if made.failed else 0)


@app.command()
def reproduce(
    labs: Annotated[list[str] | None, typer.Argument(help="labs; default: all")] = None,
    size: SizeOption = None,
    seed: Annotated[int, typer.Option(help="all randomness derives from it")] = 0,
    out_: Annotated[Path, typer.Option("--out", help="folder of the runs and of report.html")] = Path("runs"),
    data: DataOption = None,
) -> None:
    """Run all experiments at their default sizes; the HTML page grows as they finish."""
    from saddles.core.data import use_data
    from saddles.report.reproduce import reproduce as work

    _cache()
    use_data(data)
    say = lambda text: err.print(text, highlight=False, soft_wrap=True)  # noqa: E731
    try:
        failed, page = work(labs or [], size=size, seed=seed, root=out_, say=say)
    except KeyboardInterrupt:
        words = ["reproduce", *(labs or []), *(["--size", size] if size else [])]
        words += ["--seed", str(seed), "--out", str(out_)]
        raise interrupted("finished experiments are kept", words) from None
    out.print(f"report: {page}", highlight=False, soft_wrap=True)
    raise typer.Exit(1 if failed else 0)


@app.command()
def sweep(
    name: Annotated[str | None, typer.Argument(help="LAB/NAME, see `saddles list`")] = None,
    grid: Annotated[
        list[str] | None, typer.Option(help="key=from:to:count, key=log:from:to:count or key=a,b,c")
    ] = None,
    zip_: Annotated[bool, typer.Option("--zip", help="grids side by side instead of their product")] = False,
    seeds: Annotated[str | None, typer.Option(help="how many, or a list such as 3,7,11; default: seed 0")] = None,
    size: SizeOption = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value for every cell, may be repeated")] = None,
    out_: Annotated[Path | None, typer.Option("--out", help="folder to write; must not exist")] = None,
    on: Annotated[str, typer.Option(help="embedded, serial, or a Dask scheduler's tcp://HOST:PORT")] = "embedded",
    workers: Annotated[int | None, typer.Option(help="processes; default: one for each core or GPU")] = None,
    resume_: Annotated[Path | None, typer.Option("--resume", help="go on with a sweep; it knows its grid")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="compute failed cells again")] = False,
    accept: Annotated[bool, typer.Option("--accept-changes", help="go on with other versions or settings")] = False,
    data: DataOption = None,
) -> None:
    """Run one experiment at every point of a grid, here or on a cluster; what is finished is kept."""
    from saddles.core.data import use_data
    from saddles.report.sweep import summary, write_figure
    from saddles.sweeps.api import carry_out, planned_folder
    from saddles.sweeps.plan import asked_for

    use_data(data)
    say = lambda text: err.print(escape(text), highlight=False, soft_wrap=True)  # noqa: E731
    asked = asked_for(name, grid or [], zip_, seeds, size, _changes(set_ or []), resume_)
    folder = planned_folder(asked, resume_, out_)
    try:
        made = carry_out(asked, folder=resume_, out=out_, on=on, workers=workers, retry=retry, accept_changes=accept,
                         say=say)  # fmt: skip
    except KeyboardInterrupt:
        words = ["sweep", "--resume", str(folder), *(["--on", on] if on != "embedded" else [])]
        raise interrupted("finished cells are kept", words) from None
    for line in summary(made):
        out.print(escape(line), highlight=False, soft_wrap=True)
    out.print(f"{write_figure(made) or made.folder}", highlight=False, soft_wrap=True)
    raise typer.Exit(1 if made.failed else 0)


app.command()(inspect)


@app.command()
def compare(
    measured: Annotated[Path, typer.Argument(help="a run's folder, a .zarr folder or a .nc file")],
    predicted: Annotated[Path, typer.Argument(help="the same, to compare with")],
) -> None:
    """Compare two stored trajectories variable by variable."""
    from saddles.core.compare import compare as work
    from saddles.core.store import load

    errors = work(load(measured), load(predicted))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("variable")
    for kind in errors["kind"].values:
        table.add_column(str(kind), justify="right")
    for name in errors["variable"].values:
        table.add_row(str(name), *(f"{v:.3e}" for v in errors["error"].sel(variable=name).values))
    out.print(table)
    facts = errors.attrs
    out.print(
        f"{facts['instants']} instants, {facts['clock']} {facts['from']:g} to {facts['to']:g}, {facts['alignment']}",
        highlight=False,
    )


@app.command()
def study(
    measured: Annotated[Path, typer.Argument(help="a run of diffusion/figure-6a, or its .zarr folder")],
    sim: Annotated[Path | None, typer.Argument(help="SIM at the same signals; default: made now")] = None,
    out_: Annotated[Path | None, typer.Option("--out", help=".zarr folder to write; must not exist")] = None,
) -> None:
    """Compare a diffusion model's order and speed of concept learning with the SIM task."""
    from saddles.core.store import save
    from saddles.studies import order_against_sim

    found = order_against_sim(measured, sim)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("colour separation", "learned first", "SIM", "steps of colour", "steps of size", "agrees"):
        table.add_column(column, justify="right")
    for place in range(found.sizes["separation"]):
        row = found.isel(separation=place)
        words = [
            "colour" if first else "size" for first in [*row["colour_first"].values, row["predicted_colour_first"]]
        ]
        times = [
            ", ".join(f"{step:.0f}" for step in row["measured"].sel(coordinate=name)) for name in ("colour", "size")
        ]
        agrees = f"{int(row['agrees'].sum())} of {row.sizes['seed']}"
        table.add_row(f"{float(row['separation']):g}", ", ".join(words[:-1]), words[-1], *times, agrees)
    out.print(table)
    slope = [float(found[name]) for name in ("slope", "slope_low", "slope_high")]
    out.print(
        f"order agrees in {100 * float(found['agreement']):.0f} % of runs; log(size/colour) against SIM's: "
        f"slope {slope[0]:.2f} ({slope[1]:.2f} to {slope[2]:.2f}), ρ {float(found['correlation']):.2f}, "
        f"{int(found['runs'])} runs with both",
        highlight=False,
        soft_wrap=True,
    )
    if out_ is not None:
        out.print(str(save(found, out_)), highlight=False, soft_wrap=True)


@app.command()
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
    target = out_ or home / f"trajectory.{ending}"
    for file in work(trajectory, target, to):
        out.print(str(file), highlight=False, soft_wrap=True)


@app.command()
def explore(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="folders whose runs are shown; nothing else is read")
    ] = None,
    port: Annotated[int | None, typer.Option(help="port to listen at; default: 8421, or the next free one")] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="open the page")] = True,
    host: Annotated[
        str, typer.Option(help="address to bind; others than loopback show the page to others")
    ] = "127.0.0.1",
) -> None:
    """Open the explorer: a web page on this machine that shows learning happen."""
    from saddles.explorer.serve import explore as work

    say = lambda text: out.print(text, highlight=False, soft_wrap=True)  # noqa: E731
    work(folders or [], port=port, host=host, browser=browser, say=say)


@app.command()
def doctor(data: DataOption = None) -> None:
    """Show versions, devices and the data sets that were found."""
    from saddles.core.data import find_data, use_data
    from saddles.core.provenance import machine, versions
    from saddles.runtime.device import devices

    use_data(data)
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in versions().items():
        table.add_row(name, value)
    for name, value in machine().items():
        table.add_row(name, str(value))
    table.add_row("devices", ", ".join(devices()))
    for name, place in find_data().items():
        table.add_row(f"data: {name}", str(place) if place else "not found (set SADDLES_DATA or use --data)")
    out.print(table)


def _show(made: Any) -> None:
    record = made.record
    words = "finished" if made.computed else "shown from an earlier identical run (--fresh computes it again)"
    head = f"[bold]{record['experiment']}[/bold] {record['size']}, seed {record['seed']}"
    out.print(f"{head}: {words}, {_duration(record['wall_time_s'])}", highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("verdict", "claim", "value", "", "threshold", "seeds"):
        table.add_column(column)
    colours = {"holds": "green", "fails": "red", "not_applicable": "yellow"}
    for claim in made.claims:
        verdict = f"[{colours[claim.verdict]}]{claim.verdict.replace('_', ' ')}[/]"
        text = escape(claim.claim) + (f"\n[dim]{escape(claim.reason)}[/dim]" if claim.reason else "")
        table.add_row(verdict, text, f"{claim.value:.4g}", claim.relation, f"{claim.threshold:.4g}", str(claim.seeds))
    out.print(table)
    out.print(f"{made.folder}/", highlight=False, soft_wrap=True)


def _changes(pairs: list[str]) -> dict[str, str]:
    changes = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise SaddlesError.about(f"--set {pair!r} came", "key=value is needed", "write --set dim=50")
        changes[key] = value
    return changes


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min"


def _cache() -> None:
    """Keep compiled programs between commands."""
    from saddles.runtime.device import keep_compiled_programs

    keep_compiled_programs()
