"""Where commands print, and what they say when they are stopped."""

import shlex

import typer
from rich.console import Console

out = Console(emoji=False)  # what a user wrote, such as c=a:b:3, is shown as it came
err = Console(emoji=False, stderr=True)


def interrupted(kept: str, words: list[str]) -> typer.Exit:
    """Tell what is kept and the command that goes on."""
    go_on = shlex.join(["saddles", *words])
    err.print(f"\ninterrupted; {kept}. Go on with:\n  {go_on}", highlight=False, soft_wrap=True)
    return typer.Exit(130)
