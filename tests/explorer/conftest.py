"""One server and one Chromium for all tests of the explorer, and small runs for it to show."""

import shutil

import pytest
from explorer_server import WINDOW, Tab, serving
from shown_runs import begin_recording, small_run

CHROMIUM = next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None)


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
    log = shown.parent / "server.log"
    with serving("-m", "saddles", "explore", str(shown), "--no-browser", "--port", log=log) as (address, _):
        yield address
    told = log.read_text()
    assert "Traceback" not in told, told
    assert "Warning" not in told, told


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
