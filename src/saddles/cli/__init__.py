"""The command line: arguments, output and exit codes; the work is done elsewhere.

Modules that compute are imported inside the commands, so that `saddles --help` and `saddles list` stay fast.
"""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

import saddles
from saddles.cli.explore import explore
from saddles.cli.lora import lora
from saddles.cli.models import inspect, report
from saddles.cli.options import (
    DataOption,
    LabsArgument,
    NameArgument,
    OneNameArgument,
    OutOption,
    SeedOption,
    SetOption,
    SizeOption,
)
from saddles.cli.outcome import show_run, warn_of_nan
from saddles.cli.regime import regime
from saddles.cli.results import compare, export, study
from saddles.cli.terminal import (
    as_words,
    complain,
    duration,
    err,
    interrupted,
    lacking,
    note,
    out,
    plain_table,
    plain_warnings,
    repeated_interrupts,
    report_bug,
    say,
    shortened,
    whole_column,
)
from saddles.errors import SaddlesError
from saddles.runtime.collector import collect_seldom
from saddles.runtime.device import devices
from saddles.runtime.interrupts import plain_interrupts, terminated_like_ctrl_c
from saddles.runtime.programs import compiled_programs, keep_compiled_programs

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="A laboratory for training dynamics: predict, simulate, compare.",
)
app.add_typer(lora, name="lora")


def _show_version(wanted: bool) -> bool:
    if wanted:
        say(f"saddles {saddles.__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def start(
    version: Annotated[
        bool, typer.Option("--version", help="show the version", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """A laboratory for training dynamics: predict, simulate, compare."""


def main() -> None:
    """Entry point of the `saddles` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name on disk may hold bytes that are no text
            stream.reconfigure(errors="backslashreplace")
    collect_seldom()
    with repeated_interrupts(), plain_warnings():
        code = _guarded(lambda: app(standalone_mode=False, prog_name="saddles") or 0)
    # An interrupt that passed through the `exec` of a text (a dataclass, a traced function) is remembered by Python as
    # not handled: `python -m saddles` would end by a signal instead of with 130. The next `exec` forgets it.
    exec("")
    raise SystemExit(code)


SIGNS = {"<=": "≤", ">=": "≥"}


def _guarded(work: Callable[[], int]) -> int:
    """Turn an error into one line and an exit code."""
    try:
        with plain_interrupts():
            return int(work() or 0)
    except SaddlesError as error:
        complain(str(error))
        return 2
    except typer.Exit as leave:
        return leave.exit_code
    except KeyboardInterrupt:
        err.print("interrupted", highlight=False)
        return 130
    except typer.Abort:
        return 130
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        complain(
            f"{shortened(where)}{error.strerror or error}. Check the name, the permissions and the room on the disk."
        )
        return 2
    except ModuleNotFoundError as error:
        return lacking(error)
    except MemoryError:
        complain("There is not enough memory. Take a smaller size, or fewer workers.")
        return 2
    except SystemExit:
        raise
    except BaseException as error:  # libraries raise what is no Exception, too
        usage = getattr(error, "format_message", None)  # click's errors about arguments have it
        if usage is not None and type(error).__name__ == "NoArgsIsHelpError":  # Typer keeps the class to itself
            print(usage())
            return 0
        if usage is None:
            report_bug(error)
            return 3
        words = usage()
        complain(f"{words}{'' if words.endswith(('.', '?')) else '.'} Try --help.")
        return 2


@app.command("list")
def list_(
    labs: LabsArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="as JSON, for programs")] = False,
) -> None:
    """List the experiments with their sizes and times."""
    from saddles.core.experiment import as_dict, chosen, left_out

    rows = chosen(labs or [])
    for sentence in left_out():
        note(sentence)
    if as_json:
        facts = [
            {
                "name": row.name, "title": row.title, "paper": row.paper, "default": row.default,
                "sizes": {size: {"seconds": one.seconds, "settings": as_dict(one.settings)} for size, one in
                          row.sizes.items()},
            }
            for row in rows
        ]  # fmt: skip
        print(json.dumps(facts, indent=1, ensure_ascii=False))
        return
    table = plain_table("experiment", "what it shows", "sizes and approximate times")
    whole_column(table, 0, (row.name for row in rows))
    for row in rows:
        sizes = ", ".join(f"{name} {duration(size.seconds)}" for name, size in row.sizes.items())
        table.add_row(row.name, escape(row.title), sizes)
    out.print(table)


@app.command()
def show(
    name: OneNameArgument,
) -> None:
    """Show an experiment: title, paper, data, times, picture, claims, and every setting at each size."""
    from saddles.core.data import find_data
    from saddles.core.experiment import as_dict, find
    from saddles.core.known import known_claims, paper_title

    row = find(name)
    claims = known_claims(row.name)
    out.print(f"[bold]{row.name}[/bold]: {escape(row.title)}", highlight=False, soft_wrap=True)
    where = "; ".join(dict.fromkeys(claim["where"] for claim in claims))
    say(f"paper: {paper_title(row.paper)}{f', {where}' if where else ''}")
    for data in row.data(row.sizes[row.default].settings):
        instead = row.instead(row.default, row.at_hand(row.default)) or "not found, and nothing takes its place"
        say(f"data: {data}, {'found' if find_data().get(data) else instead}")
    picture = next(iter(sorted(Path("runs", row.name).glob("*/figure.png"))), None)
    say(f"picture: {picture or f'`saddles run {row.name}` draws it'}")
    times = [f"{size} {duration(row.sizes[size].seconds)}{' (default)' * (size == row.default)}" for size in row.sizes]
    say(f"sizes and approximate times: {', '.join(times)}\n")
    documentation = row.documentation()
    values = {size: as_dict(row.sizes[size].settings) for size in row.sizes}
    table = plain_table("setting", "what it is", *values)
    for setting in values[row.default]:
        cells = (escape(_shown(settings[setting])) for settings in values.values())
        table.add_row(setting, escape(documentation.get(setting, "")), *cells)
    whole_column(table, 0, values[row.default])
    out.print(table)
    if claims:
        table = plain_table("claim", "holds if", right=("holds if",))
        for claim in claims:
            table.add_row(escape(claim["claim"]), f"{SIGNS[claim['relation']]} {claim['threshold']:.4g}")
        say("")
        out.print(table)


@app.command()
def run(
    name: NameArgument = None,
    size: SizeOption = None,
    seed: SeedOption = 0,
    set_: SetOption = None,
    out_: OutOption = None,
    resume_: Annotated[Path | None, typer.Option("--resume", help="folder of an interrupted run to resume")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="compute again even if the identical run exists")] = False,
    data: DataOption = None,
) -> None:
    """Run one experiment, judge its claims and draw its figure."""
    from saddles.core.data import use_data
    from saddles.core.experiment import find
    from saddles.core.run import planned_folder, resume, run_experiment
    from saddles.core.status import Ending, Status

    keep_compiled_programs()
    use_data(data)
    if (name is None) == (resume_ is None):
        raise SaddlesError("Give either LAB/NAME (`saddles list` shows them) or --resume.")
    if resume_ is not None:
        if size or seed or set_ or out_ or fresh:
            raise SaddlesError("A resumed run has its own size, seed, settings and folder. Give --resume without them.")
        folder, work = resume_, lambda: resume(resume_)
    else:
        assert name is not None
        options = {"size": size, "seed": seed, "changes": _changes(set_ or []), "out": out_, "fresh": fresh}
        folder = planned_folder(name, **options)
        row, here = find(name), size or find(name).default
        smoke = "; a smoke test, whose figures show nothing" if here == "tiny" else ""
        note(f"{row.name}, {here}, about {duration(row.sizes[here].seconds)}{smoke}")
        instead = row.instead(here, row.at_hand(here, options["changes"]))
        if instead:
            note(f"data: {instead}")
        work = lambda: run_experiment(name, **options | {"out": folder, "planned": True})  # noqa: E731
    try:
        with terminated_like_ctrl_c():
            result = work()
    except KeyboardInterrupt:
        raise interrupted("finished parts are kept", ["run", *as_words(resume=folder, data=data)]) from None
    if not result.record:  # another process of a launcher, which writes nothing
        raise typer.Exit(0)
    show_run(result)
    status = Status.parse(result.record.get("trajectory_status", Ending.FINISHED))
    if status.ending == Ending.DIVERGED:
        raise SaddlesError(f"The run {status}. What it computed until then is in {result.folder}.")
    if status.ok:
        warn_of_nan(result)
    raise typer.Exit(1 if result.failed else 0)


@app.command()
def reproduce(
    labs: LabsArgument = None,
    size: SizeOption = None,
    seed: SeedOption = 0,
    out_: Annotated[Path, typer.Option("--out", help="folder of the runs and of report.html")] = Path("runs"),
    workers: Annotated[
        int | None, typer.Option(help="experiments side by side; default: one for each core or GPU")
    ] = None,
    data: DataOption = None,
) -> None:
    """Run all experiments at their default sizes; the HTML report grows as they finish."""
    from saddles.core.data import use_data
    from saddles.core.experiment import left_out
    from saddles.report.reproduce import reproduce as work

    keep_compiled_programs()
    use_data(data)
    for sentence in left_out():
        note(sentence)
    try:
        failed, page = work(labs or [], size=size, seed=seed, root=out_, workers=workers, say=note)
    except KeyboardInterrupt:
        words = as_words(size=size, seed=str(seed), out=out_, workers=workers, data=data)
        raise interrupted("finished experiments are kept", ["reproduce", *(labs or []), *words]) from None
    say(f"report: {page}")
    raise typer.Exit(1 if failed else 0)


@app.command()
def sweep(
    name: NameArgument = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(help="key=from:to:count, key=log:from:to:count or key=a,b,c; may be repeated"),
    ] = None,
    zip_: Annotated[bool, typer.Option("--zip", help="take grids side by side instead of their product")] = False,
    seeds: Annotated[str | None, typer.Option(help="how many, or a list such as 3,7,11; default: seed 0")] = None,
    size: SizeOption = None,
    set_: SetOption = None,
    out_: OutOption = None,
    on: Annotated[str, typer.Option(help="embedded, serial, or a Dask scheduler's tcp://HOST:PORT")] = "embedded",
    workers: Annotated[int | None, typer.Option(help="processes; default: one for each core or GPU")] = None,
    timeout: Annotated[float | None, typer.Option(help="seconds after which a cell has failed")] = None,
    memory: Annotated[float | None, typer.Option(help="gigabytes that a worker process may take")] = None,
    resume_: Annotated[
        Path | None, typer.Option("--resume", help="folder of a sweep to resume; it has its own grid")
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="compute failed cells again")] = False,
    accept: Annotated[
        bool, typer.Option("--accept-changes", help="resume although versions or settings have changed")
    ] = False,
    data: DataOption = None,
) -> None:
    """Run one experiment at every point of a grid, here or on a cluster; finished cells are kept."""
    from saddles.core.data import use_data
    from saddles.core.engines.engine import Limits
    from saddles.report.sweep import summary, write_figure
    from saddles.sweeps.api import planned_folder, run_plan
    from saddles.sweeps.plan import plan_from_words

    use_data(data)
    plan = plan_from_words(name, grid or [], zip_, seeds, size, _changes(set_ or []), resume_)
    folder = planned_folder(plan, resume_, out_)
    try:
        result = run_plan(plan, folder=resume_, out=out_, on=on, workers=workers, limits=Limits(timeout, memory),
                          retry=retry, accept_changes=accept, say=note)  # fmt: skip
    except KeyboardInterrupt:
        elsewhere = on if on != "embedded" else None
        words = as_words(resume=folder, on=elsewhere, workers=workers, timeout=timeout, memory=memory, data=data)
        raise interrupted("finished cells are kept", ["sweep", *words]) from None
    for line in summary(result):
        say(line)
    say(str(write_figure(result) or result.folder))
    raise typer.Exit(1 if result.failed else 0)


for work in (inspect, report, regime, compare, study, export, explore):
    app.command()(work)


@app.command()
def doctor(data: DataOption = None) -> None:
    """Show versions, devices, kept programs and the data sets that were found."""
    from saddles.core.data import find_data, use_data
    from saddles.core.embedded import EMBEDDED, digest
    from saddles.core.provenance import machine, versions

    use_data(data)
    table = Table("name", Column("value", overflow="fold"), box=None, pad_edge=False, show_header=False)
    for name, value in {**versions(), **machine(), "devices": ", ".join(devices()) or "JAX is not installed"}.items():
        table.add_row(name, str(value))
    table.add_row("compiled programs", escape(compiled_programs()))
    for name, words in EMBEDDED.items():
        table.add_row(f"data: {name}", f"{words} (sha256 {digest(name)[:12]}…)")
    for name, place in find_data().items():
        table.add_row(f"data: {name}", str(place) if place else "not found (set SADDLES_DATA or use --data)")
    out.print(table)


def _changes(pairs: list[str]) -> dict[str, str]:
    changes = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise SaddlesError.must_be("--set", "key=value, for instance dim=50", pair)
        if key in changes:
            raise SaddlesError(f"--set {key} is given twice. Give each setting once.")
        changes[key] = value
    return changes


def _shown(value: object) -> str:
    """A setting as `--set` takes it."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
