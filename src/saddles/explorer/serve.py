"""The server of the explorer: pages for the rooms, on loopback unless told otherwise."""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from saddles.core.provenance import versions
from saddles.errors import SaddlesError

try:
    from nicegui import app, ui
except ModuleNotFoundError as missing:
    raise SaddlesError.about(
        "the explorer was asked for", "it needs NiceGUI, which is not installed", "run pip install 'saddles[explorer]'"
    ) from missing

from fastapi import Request
from starlette.middleware.trustedhost import TrustedHostMiddleware

from saddles.explorer import phases
from saddles.explorer.page import Desk, Plot, draw_all, frame
from saddles.explorer.room import Room
from saddles.explorer.rooms import concepts, diagonal, linear, margin, runs
from saddles.explorer.shelf import Shelf

LOOPBACK = ("127.0.0.1", "::1", "localhost")
PORT = 8421
SWITCH = 5e-4
"""Seconds after which a computing thread lets the page's own have its turn."""
PATIENCE = 0.5
"""Seconds for which the settings of a map must rest before it is made anew."""
PATIENT = 60.0
"""Seconds for which a page that lost its connection finds its state again."""
WORKERS = 2
"""Computations that run side by side."""


def explore(
    folders: Sequence[str | os.PathLike[str]] = (),
    *,
    port: int | None = None,
    host: str = "127.0.0.1",
    browser: bool = True,
    say: Callable[[str], Any] = print,
) -> None:
    """Serve the explorer until it is interrupted.

    Args:
        folders: whose runs are shown; nothing outside of them is read.
        port: to listen at; None takes 8421, or the next free one.
        host: address to bind; anything but loopback shows the page to others.
        browser: open it.
        say: gets the address.
    """
    shelf = Shelf(folders)
    chosen = free_port(host, port)
    rooms = [linear.ROOM, diagonal.ROOM, concepts.ROOM, margin.ROOM, runs.room(shelf)]
    _pages(rooms)
    if host in LOOPBACK:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", "[::1]"])
    else:
        say(f"warning: {host} is not loopback; everyone who reaches this machine can look at these folders")
    app.on_startup(lambda: say(f"explorer: http://{host}:{chosen}/ (Ctrl-C ends it)"))
    app.on_startup(lambda: threading.Thread(target=warm, args=(rooms,), daemon=True).start())
    versions()  # imported here, by one thread: two that do it at once can meet a half-loaded module
    sys.setswitchinterval(SWITCH)
    ui.run(
        host=host, port=chosen, show=browser, reload=False, title="saddles explorer", favicon="🐎", dark=None,
        tailwind=False, reconnect_timeout=PATIENT, show_welcome_message=False, binding_refresh_interval=None,
    )  # fmt: skip


def free_port(host: str, port: int | None) -> int:
    """A port that can be bound; one that was asked for is used or refused."""
    if port is not None and not 0 <= port <= 65535:
        raise SaddlesError.about(f"port {port} came", "it lies between 1 and 65535", f"try {PORT}")
    last: Exception | None = None
    for candidate in [port] if port is not None else [*range(PORT, PORT + 20), 0]:
        try:
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind((host, candidate))
                return int(trial.getsockname()[1])
        except (OSError, OverflowError) as error:
            last = error
    raise SaddlesError.about(f"port {port} at {host} came", f"it cannot be used ({last})", "choose another --port")


def warm(rooms: Sequence[Room]) -> None:
    """Compile what the rooms' first views need, so that no slider waits for it."""
    from saddles.runtime.device import keep_compiled_programs

    keep_compiled_programs()
    for room in rooms[:3]:
        for draft in (True, False):
            room.compute(room.view(), draft)


def _pages(rooms: Sequence[Room]) -> None:
    pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="explorer")
    maps = phases.Maps()
    app.on_shutdown(maps.close)
    for room in rooms:
        _page(room, rooms, pool, maps)

    @ui.page("/")
    async def home(request: Request) -> None:
        await _open(rooms[0], rooms, pool, maps, request)


def _page(room: Room, rooms: Sequence[Room], pool: Any, maps: phases.Maps) -> None:
    @ui.page(f"/{room.name}")
    async def show(request: Request) -> None:
        await _open(room, rooms, pool, maps, request)


async def _open(room: Room, rooms: Sequence[Room], pool: Any, maps: phases.Maps, request: Request) -> None:
    frame(room, rooms)
    desk = Desk(room, dict(request.query_params), pool)
    desk.build()
    if room is linear.ROOM:
        _with_map(desk, maps)
    client = ui.context.client
    await client.connected()
    if client.is_deleted:
        return
    ui.run_javascript("window.saddles.theme(0)")
    await desk.refresh()


def _with_map(desk: Desk, maps: phases.Maps) -> None:
    """The phase diagram below the plots of the linear room; a click opens the run of a cell."""
    with desk.board:
        plot = Plot("linear-map", 2)
        plot.box.style("order: 9").classes("spread")
    state: dict[str, Any] = {"asked": None, "since": 0.0, "drawn": None, "here": None}

    def key() -> phases.Key:
        return (min(desk.view.dim, phases.LARGEST), desk.view.rank, desk.view.noise, desk.view.seed)

    def look() -> None:
        """Ask for the map once its settings rest; draw what is new of it, and move the mark of this run."""
        if key() != state["asked"]:
            state["asked"], state["since"] = key(), time.monotonic()
        if state["drawn"] is not None and time.monotonic() - state["since"] < PATIENCE:
            return
        made, here = maps.ask(key()), (desk.view.gamma_variance, desk.view.gamma_w)
        if (made.key, made.done, made.trouble) != state["drawn"]:
            state["drawn"] = (made.key, made.done, made.trouble)
            draw_all(desk.client, [plot.fit(phases.panel(made, here))])
        elif here != state["here"]:
            plot.plot.run_plot_method("restyle", {"x": [[here[0]]], "y": [[here[1]]]}, [-1])
        state["here"] = here

    async def click(event: Any) -> None:
        point = event.args["points"][0]
        across, up = phases.nearest(float(point["x"]), float(point["y"]))
        made = maps.ask(key())
        row = made.rows[int(abs(phases.UP - up).argmin())]
        most = desk.fields["steps"].setting.high
        steps = desk.view.steps
        if row is not None:
            best = row[1][int(abs(phases.ACROSS - across).argmin())]
            steps = int(min(max(64, 64 * -(-2.2 * best // 64)), most))
        await desk.set(gamma_variance=across, gamma_w=up, steps=steps)

    plot.plot.on("plotly_click", click)
    ui.timer(0.3, look)
