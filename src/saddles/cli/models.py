"""Commands for real models: their checkpoints, and the LoRA adapters between them."""

import json
import runpy
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from saddles.cli.terminal import err, interrupted, out, say
from saddles.errors import SaddlesError


def inspect(
    checkpoints: Annotated[list[Path], typer.Argument(help="a folder of checkpoints, or several files or folders")],
    reference: Annotated[
        Path | None, typer.Option(help="the model at the start; default: the first checkpoint")
    ] = None,
    modules: Annotated[bool, typer.Option(help="also measure single matrices, which takes longest")] = True,
    only: Annotated[str | None, typer.Option(help="regular expression: only matrices whose names match")] = None,
    config: Annotated[Path | None, typer.Option(help="config.json of the model, where none lies beside it")] = None,
    heads: Annotated[int | None, typer.Option(help="attention heads per layer, where no configuration says")] = None,
    adapter: Annotated[
        Path | None, typer.Option(help="Python file that registers an adapter for the model; it is run")
    ] = None,
    on: Annotated[
        str | None, typer.Option(help="embedded for worker processes, or a Dask scheduler, tcp://HOST:PORT")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="worker processes of --on embedded; default: one per core")
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="time one piece of each shape, say what all would take, and stop")
    ] = False,
    out_: Annotated[Path | None, typer.Option("--out", help="folder to write; the same command resumes in it")] = None,
) -> None:
    """Measure how the rank of each head's change grows over a series of checkpoints."""
    from saddles.probe.inspection import inspect as work
    from saddles.probe.inspection import inspection_cost, planned_folder
    from saddles.report.inspection import growth_sentences, write_inspection

    if adapter is not None:
        run_adapter(adapter)
    stated = _stated(config, heads)
    folder = out_ or planned_folder(checkpoints, reference, modules, only, stated)
    if plan:
        say(str(inspection_cost(checkpoints, reference, modules=modules, only=only, config=stated, out=folder)))
        return
    try:
        tree = work(
            checkpoints, reference, modules=modules, only=only, config=stated, out=folder, on=on, workers=workers
        )
    except KeyboardInterrupt:
        words = ["inspect", *map(str, checkpoints), *(["--reference", str(reference)] if reference else [])]
        given = {"--config": config, "--heads": heads, "--adapter": adapter, "--on": on, "--workers": workers}
        words += [word for name, value in given.items() if value is not None for word in (name, str(value))]
        words += ["--no-modules"] * (not modules) + (["--only", only] if only else []) + ["--out", str(folder)]
        raise interrupted("finished measurements are kept", words) from None
    for note in json.loads(tree.attrs["notes"]):
        err.print(f"[yellow]note:[/yellow] {escape(note)}", highlight=False, soft_wrap=True)
    for line in growth_sentences(tree):
        out.print(escape(line), highlight=False)
    say(f"report: {write_inspection(tree, folder)}")


def report(
    recording: Annotated[Path, typer.Argument(help="folder of a recording or of an inspection")],
    out_: Annotated[Path | None, typer.Option("--out", help="folder to write; default: the recording's own")] = None,
) -> None:
    """Make a page and figures of a recording, finished or at work."""
    import xarray as xr

    from saddles.core.store import load
    from saddles.probe.recording.journal import Journal, recorded
    from saddles.report.inspection import growth_sentences, write_inspection

    inside = recording / "saddles"  # of the output folder of a Trainer, which keeps its recording there
    if Journal(inside).exists() and not (recording / "trajectory.zarr").is_dir() and not Journal(recording).exists():
        recording = inside
    whole = (recording / "trajectory.zarr").is_dir() or not Journal(recording).exists()
    tree = load(recording) if whole else recorded(recording)
    if not isinstance(tree, xr.DataTree) or "heads" not in tree.children:
        raise SaddlesError(f"{recording} holds no recording of heads. Give the folder that the recorder wrote.")
    if not tree["heads"].sizes.get("layer", 1):
        raise SaddlesError(
            f"The network in {recording} has no attention heads, and the page is about them. saddles.plot draws it."
        )
    for line in growth_sentences(tree):
        out.print(escape(line), highlight=False)
    say(f"report: {write_inspection(tree, out_ or recording)}")


def _stated(config: Path | None, heads: int | None) -> dict[str, object]:
    """What the options say about the model."""
    stated: dict[str, object] = {}
    if config is not None:
        try:
            stated = json.loads(config.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise SaddlesError(f"`--config` must be a JSON file such as config.json; {config} is not.") from error
        if not isinstance(stated, dict):
            raise SaddlesError(f"`--config` must hold a JSON object; {config} holds something else.")
    if heads is not None:
        if heads < 1:
            raise SaddlesError.must_be("heads", "at least 1", heads)
        stated |= {"num_attention_heads": heads}
    return stated


def run_adapter(file: Path) -> None:
    """Run a user's own file, which calls `saddles.probe.register`."""
    from saddles.probe.layouts.adapters import adapters

    before = len(adapters())
    try:
        runpy.run_path(str(file))
    except Exception as error:  # whatever the user's file raises
        raise SaddlesError(f"The adapter {file} could not be run: {type(error).__name__}: {error}.") from error
    if len(adapters()) == before:
        raise SaddlesError(f"The adapter {file} registers nothing. Call saddles.probe.register in it.")
