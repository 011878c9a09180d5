"""Commands for real models: their checkpoints, and the LoRA adapters between them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from saddles.cli.terminal import err, interrupted, out, say

if TYPE_CHECKING:
    pass


def inspect(
    checkpoints: Annotated[list[Path], typer.Argument(help="a folder of checkpoints, or several files or folders")],
    reference: Annotated[
        Path | None, typer.Option(help="the model at the start; default: the first checkpoint")
    ] = None,
    modules: Annotated[bool, typer.Option(help="also measure single matrices, which takes longest")] = True,
    only: Annotated[str | None, typer.Option(help="regular expression: only matrices whose names match")] = None,
    out_: Annotated[Path | None, typer.Option("--out", help="folder to write; the same command resumes in it")] = None,
) -> None:
    """Measure how the rank of each head's change grows over a series of checkpoints."""
    from saddles.probe.inspection import inspect as work
    from saddles.probe.inspection import planned_folder
    from saddles.report.inspection import growth_sentences, write_inspection

    folder = out_ or planned_folder(checkpoints, reference, modules, only)
    try:
        tree = work(checkpoints, reference, modules=modules, only=only, out=folder)
    except KeyboardInterrupt:
        words = ["inspect", *map(str, checkpoints), *(["--reference", str(reference)] if reference else [])]
        words += ["--no-modules"] * (not modules) + (["--only", only] if only else []) + ["--out", str(folder)]
        raise interrupted("finished measurements are kept", words) from None
    for note in json.loads(tree.attrs["notes"]):
        err.print(f"[yellow]note:[/yellow] {escape(note)}", highlight=False, soft_wrap=True)
    for line in growth_sentences(tree):
        out.print(escape(line), highlight=False)
    say(f"report: {write_inspection(tree, folder)}")
