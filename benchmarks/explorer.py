"""The explorer in a real browser: from a moved slider to the redrawn plot, and to the first paint.

Each step of a slider is one move. The clock runs in the page, from the slider's `input` event to
Plotly's `plotly_afterplot` of the last plot of the page that shows the new numbers, so it holds the event, the
server's computation, the message back and the drawing of all plots.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

MOVES = {"linear": ("slide-gamma_variance", 2), "diagonal": ("slide-decades", 1), "concepts": ("slide-mu1", 3)}
"""The slider that is moved, and the plot that is waited for: the last that a move draws (0: the linear page's map)."""
LIMIT = 150.0
CROWD, HEAVY = 8, "linear?dim=60&steps=512"
"""Pages that compute without a pause while another visitor moves a slider, near the most work that is allowed."""
BUSY = """
(id) => {
  window.saddles.draw = async () => {};
  setInterval(() => {
    const slider = document.getElementById(id);
    slider.value = slider.value === slider.max ? slider.min : slider.max;
    slider.dispatchEvent(new Event('input', { bubbles: true }));
  }, 200);
}
"""
"""Their plots are not drawn: other visitors draw on machines of their own."""
FIRST_COME = "from saddles.explorer import fair_pool; fair_pool.PATIENCE = 0.0; from saddles.cli import main; main()"
"""The explorer with one queue for all pages, to compare with."""

SCRIPT = """
async ([id, place, count]) => {
  const slider = document.getElementById(id), plot = document.querySelectorAll('.js-plotly-plot')[place];
  const spent = [];
  for (let k = 0; k < count; k++) {
    const change = (k % 10 < 5 ? 1 : -1) * Number(slider.step);
    const drawn = new Promise((done) => {
      const before = JSON.stringify(plot.data.map((trace) => trace.z ?? trace.y));
      const look = () => { if (JSON.stringify(plot.data.map((trace) => trace.z ?? trace.y)) !== before) { plot.removeListener('plotly_afterplot', look); done(performance.now()); } };
      plot.on('plotly_afterplot', look);
      setTimeout(() => done(performance.now()), 20000);
    });
    const began = performance.now();
    slider.value = Number(slider.value) + change;
    slider.dispatchEvent(new Event('input', { bubbles: true }));
    spent.push((await drawn) - began);
    await new Promise((rest) => setTimeout(rest, 120));
  }
  return spent;
}
"""  # noqa: E501


def main(full: bool = False) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("no Chromium on this machine: apt-get install chromium")
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        with _server("-m", "saddles") as address:
            _first_paint(browser, address)
            for name, (slider, place) in MOVES.items():
                _drag(browser, f"{address}/{name}", slider, place, 60 if full else 30)
            if full:
                _crowd(browser, address)
        if full:
            print("first come, first served, to compare with:")
            with _server("-c", FIRST_COME) as address:
                _crowd(browser, address)
        browser.close()


@contextmanager
def _server(*program: str) -> Iterator[str]:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    words = [sys.executable, *program, "explore", "--port", str(port), "--no-browser"]
    began = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        while not _answers(address):
            time.sleep(0.02)
        print(f"server up after {time.perf_counter() - began:.2f} s")
        yield address
    finally:
        process.terminate()
        process.wait(20)


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(f"{address}/margin", timeout=10).close()
    except OSError:
        return False
    return True


def _first_paint(browser: Any, address: str) -> None:
    page = browser.new_page()
    page.goto(f"{address}/linear")
    page.wait_for_selector("h1")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    print(f"first contentful paint {paint / 1e3:.2f} s after the request, server just up (under 2 s is asked)")
    page.wait_for_selector(".panel .main-svg", timeout=120_000)
    print(f"first plot {page.evaluate('performance.now()') / 1e3:.2f} s after the request, programs compiling")
    page.close()


def _drag(browser: Any, address: str, slider: str, place: int, count: int) -> None:
    page = browser.new_page()
    page.goto(address)
    page.wait_for_function(f"document.querySelectorAll('.js-plotly-plot')[{place}]?.data?.length", timeout=120_000)
    page.wait_for_function(
        "!document.querySelector('.panels').textContent.includes(' of 13 rows so far')", timeout=240_000
    )
    page.wait_for_timeout(1000)
    page.evaluate(SCRIPT, [slider, place, 10])
    spent = sorted(page.evaluate(SCRIPT, [slider, place, count]))
    load = os.getloadavg()[0]
    print(
        f"{address.rpartition('/')[2]}: slider to redrawn plot, median {median(spent):.0f} ms, fastest {spent[0]:.0f}, "
        f"90 % within {spent[int(0.9 * len(spent))]:.0f} (under {LIMIT:.0f} is asked; load average {load:.1f})"
    )
    page.close()


def _crowd(browser: Any, address: str) -> None:
    """A light page beside pages that never rest, before and after they are opened."""
    slider, place = MOVES["linear"]
    print("alone: ", end="")
    _drag(browser, f"{address}/linear", slider, place, 20)
    pages = [browser.new_page() for _ in range(CROWD)]
    for page in pages:
        page.goto(f"{address}/{HEAVY}")
        page.wait_for_selector(".panel .main-svg", timeout=120_000)
        page.evaluate(BUSY, slider)
    print(f"beside {CROWD} pages of {HEAVY} that never rest: ", end="")
    _drag(browser, f"{address}/linear", slider, place, 20)
    for page in pages:
        page.close()
