"""One server and one Chromium for all tests of the explorer, and small runs for it to show."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from shown_runs import begin_recording, small_run

SOURCE = Path(__file__).parents[2] / "src"
WINDOW = {"accept_downloads": True, "viewport": {"width": 1280, "height": 900}}
CHROMIUM = next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None)

# What the web server's own libraries warn of, nothing of ours.
QUIET = (
    "error",
    "ignore:websockets.legacy is deprecated:DeprecationWarning",
    "ignore:websockets.server.WebSocketServerProtocol is deprecated:DeprecationWarning",
)


@pytest.fixture(scope="session")
def shown(tmp_path_factory):
    """A folder with two runs and a recording at work, beside a file that is nobody's business."""
    root = tmp_path_factory.mktemp("shown")
    small_run(root / "one")
    small_run(root / "two", seed=1)
    begin_recording(root / "live", [10, 20])
    (tmp_path_factory.getbasetemp() / "secret.txt").write_text("secret")
    return root


@pytest.fixture(scope="session")
def server(shown, tmp_path_factory, request):
    if hasattr(request.config, "workerinput") and request.config.getvalue("loadgroup"):
        (tmp_path_factory.getbasetemp().parent / "explorer-served").touch(exist_ok=False)  # one server, one worker
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    words = [sys.executable, "-m", "saddles", "explore", str(shown), "--port", str(port), "--no-browser"]
    log = shown.parent / "server.log"
    # Seen from inside a test, NiceGUI would take its own ways of testing.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment = inherited | {"PYTHONPATH": str(SOURCE), "PYTHONWARNINGS": ",".join(QUIET)}
    with open(log, "w") as stream:
        process = subprocess.Popen(words, stdout=stream, stderr=stream, env=environment)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(address, process, log)
        yield address
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        process.wait(20)
    told = log.read_text()
    assert "Traceback" not in told, told
    assert "Warning" not in told, told


def _wait(address: str, process: subprocess.Popen, log: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{address}/margin", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(log.read_text())


@pytest.fixture(scope="session")
def chromium():
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        browser.new_context(**WINDOW)
        yield browser
        browser.close()


class Tab:
    """A page that remembers what went wrong and where it reached out to."""

    def __init__(self, browser, base: str, **options) -> None:
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

    def open(self, path: str):
        self.page.goto(self.base + path)
        return self.page

    def drawn(self, path: str):
        """Open a page and wait until every plot of it shows something."""
        page = self.open(path)
        page.wait_for_function(
            "(all => all.length > 1 && all.every((one) => one.data?.length))"
            "([...document.querySelectorAll('.panel:not(.hidden) .js-plotly-plot')])"
        )
        return page

    def curve(self, plot: int = 0, trace: int = 0) -> list[float]:
        script = "([plot, trace]) => document.querySelectorAll('.js-plotly-plot')[plot].data[trace].y"
        return self.page.evaluate(script, [plot, trace])


@pytest.fixture
def tab(chromium, server):
    made = []

    def make(**options):
        made.append(Tab(chromium, server, **options))
        return made[-1]

    yield make
    for one in made:
        one.page.close()
        if one.context is not chromium.contexts[0]:
            one.context.close()
