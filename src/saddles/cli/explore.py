"""The command `explore`: the explorer, on this machine or as a static site."""

from pathlib import Path
from typing import Annotated

import typer

from saddles.cli.terminal import say


def explore(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="folders whose runs are shown; nothing else is read")
    ] = None,
    port: Annotated[int | None, typer.Option(help="port to listen on; default: 8421, or the next free one")] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="open the page")] = True,
    host: Annotated[
        str, typer.Option(help="address to bind to; any but the default lets other machines see the page")
    ] = "127.0.0.1",
    export: Annotated[
        Path | None, typer.Option(help="write the rooms as a static site to this folder instead, and end")
    ] = None,
    docs: Annotated[
        str, typer.Option(help="with --export: address of the documentation as seen from the site, such as ../")
    ] = "",
) -> None:
    """Open the explorer: a web page on this machine that shows learning happen."""
    if export is not None:
        from saddles.explorer.site import export as write

        say(str(write(export, docs=docs, say=say) / "index.html"))
        return
    from saddles.explorer.serve import explore as work

    work(folders or [], port=port, host=host, browser=browser, say=say)
