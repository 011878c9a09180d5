"""The explorer as a process of its own, and tabs of a browser that look at it."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[2] / "src"
WINDOW = {"accept_downloads": True, "viewport": {"width": 1280, "height": 900}}

# What the web server's own libraries warn of, nothing of ours.
QUIET = (
    "error",
    "ignore:websockets.legacy is deprecated:DeprecationWarning",
    "ignore:websockets.server.WebSocketServerProtocol is deprecated:DeprecationWarning",
)


@contextmanager
def serving(*words: str, log: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """Run `python WORDS PORT`, yield its address and the process once it answers, and interrupt it afterwards."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    # Seen from inside a test, NiceGUI would take its own ways of testing.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment = inherited | {"PYTHONPATH": str(SOURCE), "PYTHONWARNINGS": ",".join(QUIET)}
    with open(log, "w") as stream:
        process = subprocess.Popen([sys.executable, *words, str(port)], stdout=stream, stderr=stream, env=environment)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(address, process, log)
        yield address, process
        assert process.poll() is None, log.read_text()
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        finally:
            process.kill()


def _wait(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{address}/margin", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(log.read_text())


class Tab:
    """A page that remembers what went wrong and where it reached out to."""

    def __init__(self, browser: Any, base: str, **options: Any) -> None:
        self.base, self.trouble, self.hosts = base, [], set()
        # Tabs share a context, and so the browser's cache, unless they need one of their own.
        self.context = browser.contexts[0] if not options else browser.new_context(**WINDOW, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.page.on("console", lambda m: self.trouble.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on(
            "request", lambda request: self.hosts.add(request.url.split("/")[2] if "//" in request.url else "")
        )

    def open(self, path: str) -> Any:
        """Open a page."""
        self.page.goto(self.base + path)
        return self.page

    def drawn(self, path: str) -> Any:
        """Open a page and wait until every plot of it shows something."""
        page = self.open(path)
        page.wait_for_function(
            "(all => all.length > 1 && all.every((one) => one.data?.length))"
            "([...document.querySelectorAll('.panel:not(.hidden) .js-plotly-plot')])"
        )
        return page

    def curve(self, plot: int = 0, trace: int = 0) -> list[float]:
        """The heights of a curve."""
        script = "([plot, trace]) => document.querySelectorAll('.js-plotly-plot')[plot].data[trace].y"
        return self.page.evaluate(script, [plot, trace])
