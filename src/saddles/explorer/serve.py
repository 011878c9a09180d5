"""The server of the explorer, on loopback unless told otherwise."""

import importlib
import importlib.util
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

from saddles.core.provenance import versions
from saddles.errors import SaddlesError

try:
    from nicegui import app, ui
except ModuleNotFoundError as missing:
    raise SaddlesError(
        "The explorer needs NiceGUI, which is not installed. Run pip install 'saddles[explorer]'."
    ) from missing

from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from nicegui.events import GenericEventArguments
from starlette.datastructures import MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from saddles.explorer import phase_map
from saddles.explorer.fair_pool import FairPool
from saddles.explorer.open_page import OpenPage, Plot, draw_all, header
from saddles.explorer.page import Page
from saddles.explorer.pages import linear, runs
from saddles.explorer.run_folders import RunFolders
from saddles.explorer.site import PAGES, document, front_body, library

LOOPBACK = ("127.0.0.1", "::1", "localhost")
NO_FRAMES = {"X-Frame-Options": "DENY", "Content-Security-Policy": "frame-ancestors 'none'"}
"""No other page may show this one inside itself, where a click meant for it would land here."""
PORT = 8421
SWITCH = 5e-4
"""Seconds after which a computing thread lets the page's own have its turn."""
PATIENCE = 0.5
"""Seconds for which the settings of a map must rest before it is computed anew."""
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
    say: Callable[[str], None] = print,
) -> None:
    """Serve the explorer until it is interrupted.

    Args:
        folders: whose runs are shown; nothing outside of them is read.
        port: to listen at; None takes 8421, or the next free one.
        host: address to bind; anything but loopback shows the page to others.
        browser: open it.
        say: gets the address.
    """
    stored = RunFolders(folders)
    chosen = free_port(host, port)
    pages: list[Page] = [*PAGES, runs.page(stored)]
    _register(pages)
    if host in LOOPBACK:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", "[::1]"])
    else:
        say(f"warning: {host} is not loopback; everyone who reaches this machine can look at these folders")
    app.add_middleware(NoFrames)
    app.on_startup(lambda: say(f"explorer: {url(host, chosen)} (Ctrl-C ends it)"))
    warm_up = WarmUp(pages[:3], say)
    app.on_startup(warm_up.start)
    app.on_shutdown(warm_up.stop)
    import_for_threads()
    sys.setswitchinterval(SWITCH)
    ui.run(
        host=host, port=chosen, show=browser, reload=False, title="saddles explorer", favicon="🐎", dark=None,
        tailwind=False, reconnect_timeout=PATIENT, show_welcome_message=False, binding_refresh_interval=None,
    )  # fmt: skip


def import_for_threads() -> None:
    """Import, in one thread, what others import at their first use: two at once can meet a half-loaded module."""
    versions()
    if importlib.util.find_spec("dask") is not None:
        importlib.import_module("dask.base")  # where it is installed, xarray asks it about every array


def url(host: str, port: int) -> str:
    """The address of the page; a numeric IPv6 address stands in brackets."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def free_port(host: str, port: int | None) -> int:
    """A port that can be bound; one that is given is used or refused."""
    if port is not None and not 0 <= port <= 65535:
        raise SaddlesError.must_be("port", "between 1 and 65535", port)
    try:
        _bind(host, 0)  # whichever is free: what fails here is not the port
    except (OSError, UnicodeError) as error:
        raise SaddlesError(
            f"The host {host!r} cannot be used ({error}). Give an address of this machine, such as 127.0.0.1."
        ) from error
    last: OSError | None = None
    for candidate in [port] if port is not None else [*range(PORT, PORT + 20), 0]:
        try:
            return _bind(host, candidate)
        except OSError as error:
            last = error
    raise SaddlesError(f"Port {port} at {host} cannot be used ({last}). Choose another --port.")


def _bind(host: str, port: int) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        trial.bind((host, port))
        return int(trial.getsockname()[1])


class NoFrames:
    """Adds `NO_FRAMES` to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""

        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(NO_FRAMES)
            await send(message)

        await self.app(scope, receive, add)


class WarmUp:
    """Compiles what the first views of some pages need, in a thread of its own, so that no slider waits for it.

    Python must not end while that thread is inside JAX, which would abort the whole process: `stop` ends it after the
    computation that it is at, and as it is no daemon, Python waits for it.
    """

    def __init__(self, pages: Sequence[Page], say: Callable[[str], None]) -> None:
        self.pages, self.say, self._stopped = pages, say, threading.Event()
        self._thread = threading.Thread(target=self.run)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Begin no further computation."""
        self._stopped.set()
        if self._thread.is_alive():
            self.say("explorer: ends after the computation at work")

    def run(self) -> None:
        """Compute the first view of each page, as a draft and as a whole."""
        from saddles.runtime.programs import keep_compiled_programs

        keep_compiled_programs()
        for page, draft in product(self.pages, (False, True)):
            if not self._stopped.is_set():
                page.compute(page.view(), draft)


def _register(pages: Sequence[Page]) -> None:
    """Give each page its address."""
    pool = FairPool(WORKERS)
    maps = phase_map.PhaseMaps()
    app.on_shutdown(maps.close)
    app.on_shutdown(pool.close)
    for page in pages:
        ui.page(f"/{page.name}")(partial(_open, page, pages, pool, maps))
    _front(pages)


def _front(pages: Sequence[Page]) -> None:
    """The front page, and the library that draws on it."""

    @app.get("/")
    def front() -> HTMLResponse:
        return HTMLResponse(document("saddles", front_body(pages, lambda name: f"/{name}")))

    @app.get("/plotly.js")
    def plotting() -> Response:
        return Response(library(), media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})


async def _open(page: Page, pages: Sequence[Page], pool: FairPool, maps: phase_map.PhaseMaps, request: Request) -> None:
    header(page, pages)
    opened = OpenPage(page, dict(request.query_params) or page.opening(), pool.share(page.name))
    opened.build()
    if page is linear.PAGE:
        _with_map(opened, maps)
    client = ui.context.client
    await client.connected()
    if client.is_deleted:
        return
    ui.run_javascript("window.saddles.theme(0)")
    await opened.refresh()


def _with_map(page: OpenPage, maps: phase_map.PhaseMaps) -> None:
    """The phase diagram below the plots of the linear page; a click opens the run of a cell."""
    with page.board:
        plot = Plot("saddles-linear-map-3")
        plot.box.style("order: 9").classes("spread apart")  # it has a progress of its own
    since: tuple[phase_map.Key | None, float] = None, 0.0
    drawn: tuple[phase_map.Key, int, str, tuple[float, float]] | None = None

    def key() -> phase_map.Key:
        return phase_map.key(page.view)

    def look() -> None:
        """Ask for the map once its settings rest; draw it where it has grown or this run has another place in it."""
        nonlocal since, drawn
        if key() != since[0]:
            since = key(), time.monotonic()
        if drawn is not None and time.monotonic() - since[1] < PATIENCE:
            return
        known, here = maps.ask(key()), (page.view.gamma_variance, page.view.gamma_w)
        state = (known.key, known.done, known.trouble, here)
        if state != drawn:
            drawn = state
            draw_all(page.client, [plot.fit(phase_map.panel(known, here))])

    async def click(event: GenericEventArguments) -> None:
        point = event.args["points"][0]
        across, up = phase_map.nearest(float(point["x"]), float(point["y"]))
        row = maps.ask(key()).rows[int(abs(phase_map.UP - up).argmin())]
        steps = page.view.steps
        if row is not None:
            best = row[1][int(abs(phase_map.ACROSS - across).argmin())]
            steps = int(min(max(64, 64 * -(-2.2 * best // 64)), page.fields["steps"].setting.high))
        await page.set(gamma_variance=across, gamma_w=up, steps=steps)

    plot.plot.on("plotly_click", click)
    ui.timer(0.3, look)
