"""Arguments that several commands share, and what the shell completes them with."""

from pathlib import Path
from typing import Annotated

import typer


def _names(incomplete: str) -> list[str]:
    """Experiments for the shell to complete."""
    from saddles.core.experiment import registry

    return [name for name in registry() if name.startswith(incomplete)]


def _labs(incomplete: str) -> list[str]:
    from saddles.core.experiment import registry

    return sorted({row.lab for row in registry().values() if row.lab.startswith(incomplete)})


def _sizes(incomplete: str) -> list[str]:
    from saddles.core.experiment import SIZES

    return [size for size in SIZES if size.startswith(incomplete)]


def _settings(ctx: object, incomplete: str) -> list[str]:
    """Settings of the experiment that the command line names already; Typer knows `ctx` by its name."""
    from saddles.core.experiment import registry

    # An option without its value stops the parser, which leaves all other words unread.
    words = [getattr(ctx, "params", {}).get("name"), *getattr(ctx, "args", ())]
    row = next((registry()[word] for word in words if word in registry()), None)
    return [f"{name}=" for name in row.documentation() if name.startswith(incomplete)] if row is not None else []


OneNameArgument = Annotated[
    str, typer.Argument(metavar="LAB/NAME", help="an experiment; see `saddles list`", autocompletion=_names)
]
NameArgument = Annotated[
    str | None, typer.Argument(metavar="LAB/NAME", help="an experiment; see `saddles list`", autocompletion=_names)
]
LabsArgument = Annotated[list[str] | None, typer.Argument(help="labs; default: all", autocompletion=_labs)]
SizeOption = Annotated[
    str | None,
    typer.Option(
        "--size",
        help="tiny (a smoke test), laptop, gpu or paper; default: the experiment's own",
        autocompletion=_sizes,
    ),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="key=value; may be repeated", autocompletion=_settings)
]
SeedOption = Annotated[int, typer.Option(help="all randomness derives from it")]
OutOption = Annotated[Path | None, typer.Option("--out", help="folder to write; it must not exist or be empty")]
DataOption = Annotated[Path | None, typer.Option("--data", help="folder with data sets; default: SADDLES_DATA")]
