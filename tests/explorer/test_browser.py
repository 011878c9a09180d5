"""The explorer in a real browser: pages, sliders, links, refusals, downloads, two tabs, a live run."""

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from explorer_server import Tab, serving
from shown_runs import row_of

import saddles
from saddles.explorer import site
from saddles.probe.recording.journal import Journal

PAGES = {
    "linear": "Linear networks",
    "diagonal": "Diagonal networks",
    "concepts": "Concepts",
    "margin": "Margin",
    "incontext": "Learning in context",
    "networks": "Real networks",
    "runs?run=0/live": "Runs",
    "runs?run=0/one&other=0/two": "Runs",
}


@pytest.mark.parametrize("path", PAGES)
def test_each_page_opens_without_errors_or_outside_requests(tab, server, path):
    one = tab()
    page = one.drawn(f"/{path}")
    assert page.inner_text("h1") == PAGES[path]
    page.wait_for_function("!document.querySelector('.said').textContent.startsWith('Computing')")
    assert page.locator("[aria-label='settings'] input[type=range]").count() >= 1
    for plot in page.locator(".panel:not(.hidden) .js-plotly-plot").all():
        assert len(plot.get_attribute("aria-label") or "") > 30
    assert one.trouble == []
    assert one.hosts <= {server.removeprefix("http://"), ""}
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize(
    ("name", "slider", "plot", "trace"),
    [("linear", "noise", 1, 0), ("diagonal", "−log₁₀ α", 1, 0), ("concepts", "signal μ₁", 2, 0)],
)
def test_a_slider_moves_the_plot_and_the_link(tab, name, slider, plot, trace):
    one = tab()
    page = one.drawn(f"/{name}")
    place = plot + (name == "linear")  # the map stands first among the elements
    before = one.curve(place, trace)
    handle = page.get_by_role("slider", name=slider)
    handle.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "([plot, trace, before]) => document.querySelectorAll('.js-plotly-plot')[plot]?.data?.[trace]"
        "?.y.some((y, k) => y !== before[k])",
        arg=[place, trace, before],
    )
    page.wait_for_function("location.search.length > 1")
    assert one.trouble == []


def test_a_moving_slider_writes_its_number_and_draws_a_draft(tab):
    """While it moves the number follows in the browser, the plots from the server; the link waits until it rests."""
    one = tab()
    page = one.drawn("/concepts")
    before, words = one.curve(1, 0), page.locator(".js-plotly-plot").nth(1).get_attribute("aria-label")
    move = "(slider) => { slider.value = '1.3'; slider.dispatchEvent(new Event('input', { bubbles: true })); }"
    page.locator("#slide-mu1").evaluate(move)
    assert page.locator("#set-mu1").input_value() == "1.3"
    page.wait_for_function(f"document.querySelectorAll('.js-plotly-plot')[1].data[0].y[60] !== {before[60]}")
    assert page.locator(".js-plotly-plot").nth(1).get_attribute("aria-label") != words
    assert "mu1" not in page.url
    page.locator("#slide-mu1").dispatch_event("change")
    page.wait_for_url("**/concepts?mu1=1.3")
    assert one.trouble == []


def test_a_link_restores_a_view(tab):
    one, other = tab(), tab()
    page = one.drawn("/concepts?mu1=1.3&seed=3&entry=22&depth=2")
    assert page.locator("#set-mu1").input_value() == "1.3"
    assert "w₂₂" in page.inner_text(".panels")
    page.locator("#set-sigma").fill("0.2")
    page.keyboard.press("Enter")
    page.wait_for_function("location.search.includes('sigma=0.2')")
    again = other.drawn(page.url.removeprefix(one.base))
    assert again.locator("#set-sigma").input_value() == "0.2"
    assert other.curve(1, 0) == one.curve(1, 0)


def test_a_bad_value_is_refused_in_place(tab):
    one = tab()
    page = one.drawn("/linear?rank=99&colour=red")
    said = page.locator("[role=alert]:not(:empty)")
    assert any("whole number from 1 to 8" in words for words in said.all_inner_texts())
    assert any("'colour'" in words for words in said.all_inner_texts())
    page.locator("#set-noise").fill("loud")
    page.keyboard.press("Enter")
    page.wait_for_function("document.body.innerText.includes(\"got 'loud'\")")
    page.locator("#set-noise").fill("0.5")
    page.keyboard.press("Enter")
    page.wait_for_function("location.search.includes('noise=0.5')")
    assert "got 'loud'" not in page.inner_text("main")
    assert one.trouble == []


def test_too_much_work_is_refused_with_the_limit_and_the_page_lives_on(tab):
    one = tab()
    page = one.drawn("/linear")
    page.locator("#set-steps").fill("1024")
    page.keyboard.press("Enter")
    page.wait_for_function("location.search.includes('steps=1024')")
    page.locator("#set-dim").fill("120")
    page.keyboard.press("Enter")
    page.wait_for_function("document.body.innerText.includes('up to 2e+09 multiplications')")
    page.locator("#set-dim").fill("30")
    page.locator("#set-rank").fill("4")
    page.keyboard.press("Enter")
    page.wait_for_function("location.search.includes('rank=4')")
    assert "multiplications" not in page.inner_text("main")


def test_downloads_and_code(tab):
    one = tab()
    page = one.drawn("/margin?decades=1.0")
    page.wait_for_function("document.querySelector('pre.code').textContent.includes('margin.Tokens.random')")
    for words, inside in (
        ("data: Zarr", "saddles-margin.zarr/measured/loss/0"),
        ("data: CSV", "saddles-margin-measured-time.csv"),
    ):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=words).click()
        with zipfile.ZipFile(waiting.value.path()) as archive:
            assert inside in archive.namelist()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="SVG").first.click()
    assert waiting.value.suggested_filename.endswith(".svg")
    assert "<svg" in waiting.value.path().read_text()[:200]


def test_two_tabs_do_not_disturb_each_other(tab):
    one, other = tab(), tab()
    first, second = one.drawn("/diagonal?decades=3"), other.drawn("/diagonal?decades=4")
    before = other.curve(1, 0)
    first.locator("#set-seed").fill("7")
    first.keyboard.press("Enter")
    first.wait_for_function("location.search.includes('seed=7')")
    assert second.locator("#set-seed").input_value() == "30"
    assert second.locator("#set-decades").input_value() == "4"
    assert other.curve(1, 0) == before


def test_a_run_at_work_is_redrawn_as_it_grows(tab, shown):
    one = tab()
    shutil.copytree(shown / "live", shown / "growing")
    page = one.drawn("/runs?run=0/growing")
    page.wait_for_function("document.querySelector('.said').textContent.includes('steps 10 to 20')")
    page.wait_for_timeout(1500)
    Journal(shown / "growing").add(30, row_of(30))
    page.wait_for_function("document.querySelector('.said').textContent.includes('steps 10 to 30')")
    assert one.trouble == []


def test_the_map_opens_a_run(tab):
    one = tab()
    page = one.drawn("/linear?dim=10&rank=1")
    page.wait_for_function("document.querySelector('.js-plotly-plot').data?.[0]?.z?.some((row) => row[3] !== null)")
    page.locator(".js-plotly-plot .nsewdrag").first.scroll_into_view_if_needed()
    box = page.locator(".js-plotly-plot .nsewdrag").first.bounding_box()
    assert box
    page.mouse.click(box["x"] + 0.3 * box["width"], box["y"] + 0.35 * box["height"])
    page.wait_for_function("location.search.includes('gamma_variance')")
    assert page.locator("#set-gamma_variance").input_value() == "-2.25"
    assert page.locator("#set-gamma_w").input_value() == "2"


def test_the_mark_of_this_run_moves_on_the_map(tab):
    one = tab()
    page = one.drawn("/linear?dim=10&rank=1")
    mark = "(plot => plot.data?.find((trace) => trace.name === 'this run'))(document.querySelector('.js-plotly-plot'))"
    page.wait_for_function(f"{mark}?.x[0] === -1.8 && {mark}.y[0] === 1.8")
    # A map that grows is drawn anew with the mark in it: only a whole one shows that the mark moves by itself.
    page.wait_for_function("!document.querySelector('.panels').textContent.includes('rows so far')")
    page.locator("#set-gamma_variance").fill("-0.5")
    page.keyboard.press("Enter")
    page.wait_for_function(f"{mark}.x[0] === -0.5 && {mark}.y[0] === 1.8")
    page.wait_for_function("document.querySelector('.js-plotly-plot').ariaLabel.includes('γ_σ² -0.50')")
    assert one.trouble == []


def visible(page):
    """The labels of the settings that are shown."""
    return set(page.locator(".field:not(.hidden) label").all_inner_texts())


def test_a_run_from_the_menu_shows_what_its_address_shows(tab):
    one = tab()
    page = one.drawn("/runs?run=0/one")
    assert "layer" not in visible(page)
    page.locator("#set-run").click()
    page.get_by_role("option").filter(has_text="live").click()
    page.wait_for_function("document.querySelector('.said').textContent.includes('rows, steps')")
    chosen = visible(page)
    assert {"instant", "product", "layer", "head", "rank of the heads' change"} <= chosen
    assert chosen == visible(one.drawn("/runs?run=0/live"))
    assert one.trouble == []


def test_a_refused_setting_that_was_hidden_is_shown(tab):
    one = tab()
    page = one.drawn("/runs?run=0/one&layer=5")
    assert page.locator("#set-layer").is_hidden()
    page.locator("#set-run").click()
    page.get_by_role("option").filter(has_text="live").click()
    page.wait_for_function("document.querySelector('.said').textContent.includes('layers 0 to 1; got 5')")
    page.locator("#set-layer").fill("1")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('.said').textContent.includes('rows, steps')")
    assert one.trouble == []


RANGES = (
    "(plot => [plot._fullLayout.xaxis.range, plot._fullLayout.yaxis.range])(document.querySelector('.js-plotly-plot'))"
)


def test_each_run_has_axes_of_its_own(tab):
    one = tab()
    page = one.drawn("/runs?run=0/live")
    assert page.evaluate(RANGES) == [[-0.5, 3.5], [1.5, -0.5]]  # 4 heads of 2 layers, the first layer above
    page.locator("#set-run").click()
    page.get_by_role("option").filter(has_text="one").click()
    page.wait_for_function("document.querySelector('.said').textContent.includes('singular value')")
    page.wait_for_function("document.querySelector('.js-plotly-plot').data[0].type === 'scatter'")
    fresh = tab().drawn("/runs?run=0/one")
    for mine, own in zip(page.evaluate(RANGES), fresh.evaluate(RANGES), strict=True):
        assert mine == pytest.approx(own, rel=0.05, abs=0.5)  # room for the marks depends on the plot's size
    assert one.trouble == []


def test_the_newest_run_is_open_and_the_table_of_runs_sorts(tab):
    one = tab()
    page = one.drawn("/runs")
    page.wait_for_function("location.search.includes('run=0')")
    column = "[...document.querySelectorAll('table.runs tbody tr')].map((row) => row.children[0].textContent)"
    page.wait_for_selector("table.runs")
    assert set(page.evaluate(column)) >= {"0/one", "0/two", "0/live"}
    button = page.locator("table.runs th button").first
    button.click()
    assert page.evaluate(column) == sorted(page.evaluate(column))
    button.click()
    assert page.evaluate(column) == sorted(page.evaluate(column), reverse=True)
    assert one.trouble == []


def test_axes_have_lists_and_runs_are_laid_over_each_other(tab):
    one = tab()
    page = one.drawn("/runs?run=0/one")
    assert "Singular value over" in page.locator(".panel figcaption").first.inner_text()
    page.locator("#set-at-mode").click()
    page.get_by_role("option", name="2", exact=True).click()
    page.wait_for_function("location.search.includes('at=mode')")
    page.locator("#set-over").click()
    page.get_by_role("option").filter(has_text="two").click()
    page.wait_for_function(
        "document.querySelectorAll('.js-plotly-plot')[0]?.data?.map((t) => t.name).join() === 'one,two'", timeout=20_000
    )
    page.keyboard.press("Escape")
    assert "mode 2: 2 runs" in page.locator(".panel figcaption").first.inner_text()
    # The address follows the picture in a message of its own.
    page.wait_for_function("location.search.includes('over=')")
    again = one.drawn(page.evaluate("location.pathname + location.search"))
    assert "mode 2: 2 runs" in again.locator(".panel figcaption").first.inner_text()
    again.locator("#set-run").click()
    again.get_by_role("option").filter(has_text="live").click()
    again.wait_for_function("!location.search.includes('at=')")  # the axes were the other run's
    assert one.trouble == []


def test_a_click_on_the_map_of_networks_opens_the_run_of_the_cell(tab):
    one = tab()
    page = one.drawn("/networks")
    box = page.locator(".panel .js-plotly-plot").first.locator(".nsewdrag").bounding_box()
    page.mouse.click(box["x"] + 0.92 * box["width"], box["y"] + 0.08 * box["height"])
    page.wait_for_function("location.search.includes('gamma_w=2.0') && location.search.includes('gamma_variance=-0.5')")
    assert "400 hidden units" in page.locator(".said").inner_text()
    assert one.trouble == []


def test_an_unreadable_run_says_so_in_the_page(tab, shown):
    (shown / "torn" / "trajectory.zarr").mkdir(parents=True, exist_ok=True)
    one = tab()
    page = one.drawn("/runs?run=0/one")
    page.goto(f"{one.base}/runs?run=0/torn")
    page.wait_for_function("document.querySelector('.said').textContent.includes('cannot be read')")
    assert page.locator(".panel:visible").count() == 0
    shutil.rmtree(shown / "torn")


def test_settings_without_a_meaning_are_hidden(tab):
    one = tab()
    page = one.drawn("/concepts?depth=1")
    assert not {"entry of the Jacobian", "size of the start"} & visible(page)
    page.locator("#set-depth").click()
    page.get_by_role("option").filter(has_text="two layers").click()
    page.wait_for_function("document.querySelector('.panels').textContent.includes('What moves')")
    assert {"entry of the Jacobian", "size of the start"} <= visible(page)


def test_a_story_sets_the_room_and_plays(tab):
    one = tab()
    page = one.drawn("/concepts?sigma=0.3")
    page.get_by_role("button", name="Start the story").click()
    page.wait_for_function("parseFloat(document.querySelector('#set-instant').value) > 0.05")
    assert page.locator("article:visible h2").inner_text() == "1. A detour"
    page.get_by_role("button", name="next").click()
    page.wait_for_function("document.querySelector('#set-mu1').value === '1.8'")
    assert page.locator("#set-sigma").input_value() == "0.1"
    page.wait_for_function("location.search.includes('mu1=1.8')")
    assert one.trouble == []


def test_stages_are_stepped_through(tab):
    one = tab()
    page = one.drawn("/diagonal?dim=3")
    page.get_by_role("button", name="stage after").click()
    page.wait_for_function("document.querySelector('.said').textContent.includes('stage 1 of')")
    page.get_by_role("button", name="stage after").click()
    page.wait_for_function("document.querySelector('.said').textContent.includes('stage 2 of')")
    page.get_by_role("button", name="stage before").click()
    page.wait_for_function("document.querySelector('.said').textContent.includes('stage 1 of')")
    assert one.trouble == []


def test_a_saved_view_and_a_film(tab, chromium, tmp_path):
    page = tab().drawn("/concepts?mu1=1.2")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="save this view").click()
    file = tmp_path / "view.html"
    waiting.value.save_as(file)
    alone = Tab(chromium, f"file://{tmp_path}")
    saved = alone.drawn("/view.html")
    assert alone.curve(1, 0) == pytest.approx(page.evaluate(CURVE), rel=6e-4, abs=1e-9)
    saved.get_by_role("button", name="play").click()
    saved.wait_for_function("Number(document.querySelector('#slide-instant').value) > 3")
    assert (alone.trouble, alone.hosts) == ([], {""})
    saved.close()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="film of this run as gif").click()
    film = waiting.value.path().read_bytes()
    assert film.startswith(b"GIF8")
    assert len(film) < 5e6


CURVE = "document.querySelectorAll('.js-plotly-plot')[1].data[0].y"


def test_the_front_page_has_a_card_for_each_room(tab):
    one = tab()
    page = one.open("/")
    assert page.locator(".card").count() == len(site.PAGES)
    # Every miniature moves at once: none of them is computed here.
    drawn = "document.querySelectorAll('.mini.js-plotly-plot').length"
    page.wait_for_function(f"{drawn} === {len(site.PAGES)}", timeout=20_000)
    page.locator(".card", has_text="start here").click()
    page.wait_for_url("**/linear")
    assert one.trouble == []


def test_controls_stay_in_sight_on_a_phone(tab):
    one = tab()
    page = one.drawn("/concepts")
    page.set_viewport_size({"width": 390, "height": 800})
    page.mouse.wheel(0, 600)
    page.wait_for_timeout(300)
    box = page.locator(".controls").bounding_box()
    assert box
    assert box["height"] < 0.2 * 800  # the plots have the rest
    assert 300 < box["y"] < 800
    assert page.locator("#slide-instant").bounding_box()["y"] < 800
    assert not page.locator("#slide-mu1").is_visible()
    page.get_by_role("button", name="all settings").click()
    page.wait_for_function("document.querySelector('#slide-mu1').getBoundingClientRect().bottom < 800")
    page.get_by_role("button", name="fewer settings").click()
    page.wait_for_function("document.querySelector('.controls').offsetHeight < 160")


@pytest.mark.parametrize("width", [390, 1280])
def test_the_name_of_a_run_is_not_cut(tab, width):
    page = tab().drawn("/runs")
    page.set_viewport_size({"width": width, "height": 800})
    page.wait_for_timeout(300)
    whole = "(one) => one.scrollWidth <= one.clientWidth && one.scrollHeight <= one.clientHeight + 1"
    assert page.locator(".of-run .q-field__native").evaluate(whole)


def test_a_list_of_many_runs_shows_the_whole_name_and_finds_by_typing(chromium, tmp_path):
    long = "results/of-a-long-study-with-many-parts/of-it"
    for k in range(12):
        grid = xr.Dataset({"loss": (("rate", "width"), np.ones((2, 3)))})
        saddles.save(grid, tmp_path / "runs" / long / f"part-{k}.zarr")
    command = ("-m", "saddles", "explore", str(tmp_path / "runs"), "--no-browser", "--port")
    with serving(*command, log=tmp_path / "log") as (address, _):
        one = Tab(chromium, address)
        page = one.open(f"/runs?run=0/{long}/part-7.zarr")
        page.wait_for_function("document.querySelectorAll('.panel .js-plotly-plot')[0]?.data?.length")
        box = page.locator(".of-run .q-field__control").bounding_box()
        name = page.locator(".of-run .q-field__native span").bounding_box()
        assert box["x"] <= name["x"]
        assert name["x"] + name["width"] <= box["x"] + box["width"]
        assert "part-7.zarr" in page.locator(".of-run .q-field__native span").inner_text()
        assert page.locator("#set-instant").is_hidden()
        assert page.get_by_role("button", name="play").is_hidden()  # nothing moves here
        page.locator("#set-run").click()
        page.keyboard.type("part-11")
        page.get_by_role("option").filter(has_text="part-11").click()
        page.wait_for_function("location.search.includes('part-11')")
        assert "part-11.zarr" in page.locator(".of-run .q-field__native span").inner_text()
        assert one.trouble == []
        page.close()


def test_play_moves_the_instant(tab):
    one = tab()
    page = one.drawn("/concepts?instant=0.0")
    assert len(one.curve(0, 1)) == 1
    page.get_by_role("button", name="play").click()
    page.wait_for_function("parseFloat(document.querySelector('#set-instant').value) > 0.1")
    page.get_by_role("button", name="pause").click()
    page.wait_for_function("document.querySelector('.controls').innerText.includes('play')")
    assert float(page.locator("#slide-instant").input_value()) > 0.1
    page.wait_for_function("document.querySelector('.js-plotly-plot').data[1].y.length > 10")
    before = page.locator("#set-instant").input_value()
    page.wait_for_timeout(300)
    assert page.locator("#set-instant").input_value() == before
    assert page.url.endswith(f"?instant={before}"), "the address is the view"
    page.get_by_role("button", name="play").click()
    page.wait_for_function("document.querySelector('#set-instant').value === '1'")
    page.wait_for_url("**/concepts")


def test_dark_mode_and_the_phone(tab):
    one = tab(color_scheme="dark")
    page = one.drawn("/concepts")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("button", name="colour theme").click()
    page.wait_for_function("document.querySelector('.theme').textContent === 'theme: light'")
    page.wait_for_function(f"getComputedStyle(document.body).backgroundColor !== '{dark}'")
    assert dark == "rgb(22, 22, 24)"


def test_everything_can_be_reached_by_keyboard(tab):
    page = tab().drawn("/margin?decades=1.0")
    seen = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.add(
            page.evaluate(
                "(document.activeElement.getAttribute('aria-label') || document.activeElement.textContent).trim()"
            )
        )
    assert {"Linear", "colour theme", "sequences", "download this figure as SVG", "data: Zarr", "▶ play"} <= seen


BROKEN = """
import dataclasses, sys
from saddles.explorer import serve
from saddles.explorer.pages import margin

def compute(view, draft):
    if view.seed == 1:
        return margin.compute(view, draft)
    raise KeyError("a name that nobody knows")

serve.PAGES = [dataclasses.replace(page, compute=compute) if page is margin.PAGE else page for page in serve.PAGES]
serve.explore(port=int(sys.argv[1]), browser=False)
"""


def test_an_unexpected_error_is_one_sentence_and_a_traceback_on_the_terminal(chromium, tmp_path):
    sentence = "This view could not be computed: KeyError, 'a name that nobody knows'; this is a bug."
    with serving("-c", BROKEN, log=tmp_path / "log") as (address, _):
        page = Tab(chromium, address).open("/margin?decades=1.0")
        page.wait_for_function("!document.querySelector('.said').textContent.startsWith('Computing')")
        assert page.inner_text(".said") == sentence
        page.locator("#set-seed").fill("1")
        page.keyboard.press("Enter")
        page.wait_for_function("document.querySelectorAll('.js-plotly-plot')[2]?.data?.length")
        assert page.inner_text(".said") != sentence
        page.locator("#set-seed").fill("2")
        page.keyboard.press("Enter")
        page.wait_for_function(f"document.querySelector('.bounds').textContent === {json.dumps(sentence)}")
        page.close()
    assert "Traceback" in (tmp_path / "log").read_text()


HELD = """
import dataclasses, sys, time
from pathlib import Path
from saddles.explorer import serve
from saddles.explorer.pages import margin

def compute(view, draft):
    while view.seed != 999 and not (Path(sys.argv[1]) / str(view.seed)).exists():
        time.sleep(0.01)
    if view.seed == 3:
        raise KeyError("three")
    return margin.compute(view, draft)

serve.PAGES = [dataclasses.replace(page, compute=compute) if page is margin.PAGE else page for page in serve.PAGES]
serve.explore(port=int(sys.argv[2]), browser=False)
"""


def test_plots_are_marked_as_long_as_they_are_not_those_of_the_settings(chromium, tmp_path):
    with serving("-c", HELD, str(tmp_path), log=tmp_path / "log") as (address, _):
        one = Tab(chromium, address)
        page = one.drawn("/margin?seed=999&decades=1.0")
        board, status = page.locator(".panels"), page.locator(".results [role=status]")
        seen = "(one) => getComputedStyle(one).opacity"

        def ask(seed):
            page.locator("#set-seed").fill(str(seed))
            page.keyboard.press("Enter")

        def rests():
            page.wait_for_function("document.querySelector('.panels').ariaBusy === null")
            assert status.inner_text() == ""
            page.wait_for_function("getComputedStyle(document.querySelector('.panel')).opacity === '1'")

        rests()
        before = one.curve(2, 0)
        ask(1)
        page.wait_for_function("document.querySelector('.results [role=status]').innerText.startsWith('computing…')")
        assert board.get_attribute("aria-busy") == "true"
        page.wait_for_function("getComputedStyle(document.querySelector('.panel')).opacity < 0.6")
        assert float(page.locator(".said").evaluate(seen)) < 0.6
        page.wait_for_function("document.querySelector('.results [role=status]').innerText.endsWith(' 1 s')")
        assert status.aria_snapshot() == "- status: computing…"  # the seconds are not read out

        ask(2)  # the picture of seed 1 that comes first is not the one that was asked for last
        (tmp_path / "1").touch()
        page.wait_for_function(f"document.querySelectorAll('.js-plotly-plot')[2].data[0].y[0] !== {before[0]}")
        assert board.get_attribute("aria-busy") == "true"
        between = one.curve(2, 0)
        (tmp_path / "2").touch()
        rests()
        assert one.curve(2, 0) not in (before, between)

        ask(3)
        page.wait_for_selector(".panels[aria-busy=true]")
        (tmp_path / "3").touch()
        page.wait_for_function("document.querySelector('.bounds').innerText.includes('three')")
        rests()
        assert one.trouble == []
        page.close()


COUNTED = """
import dataclasses, sys
from saddles.explorer import serve
from saddles.explorer.pages import concepts

def compute(view, draft):
    print("computed", view.mu1, draft, flush=True)
    return concepts.compute(view, draft)

serve.PAGES = [dataclasses.replace(page, compute=compute) if page is concepts.PAGE else page for page in serve.PAGES]
serve.explore(port=int(sys.argv[1]), browser=False)
"""


def test_a_run_that_was_played_is_not_computed_again(chromium, tmp_path):
    log = tmp_path / "log"
    with serving("-c", COUNTED, log=log) as (address, _):
        page = Tab(chromium, address).drawn("/concepts?mu1=1.3&instant=0.9")
        page.get_by_role("button", name="play").click()
        page.wait_for_url("**/concepts?mu1=1.3")
        page.locator("#set-instant").fill("0.5")
        page.keyboard.press("Enter")
        page.wait_for_url("**/concepts?mu1=1.3&instant=0.5")
        page.close()
    assert [line for line in log.read_text().splitlines() if "computed 1.3" in line] == ["computed 1.3 False"]


SLOW = """
import dataclasses, sys, time
from saddles.explorer import serve

def compute(view, draft):
    print("begun", flush=True)
    time.sleep(2)
    print("ended", flush=True)

serve.PAGES = [dataclasses.replace(page, compute=compute) for page in serve.PAGES]
serve.explore(port=int(sys.argv[1]), browser=False)
"""


def test_ctrl_c_waits_for_the_computation_at_work_and_begins_no_other(tmp_path):
    """Were a thread still inside JAX while Python ends, the process would be aborted."""
    log = tmp_path / "log"
    with serving("-c", SLOW, log=log) as (_, process):
        deadline = time.monotonic() + 60
        while "begun" not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
    told = log.read_text()
    assert told.count("begun") == told.count("ended") == 1
    assert "ends after the computation at work" in told
    assert process.returncode in (0, 130, -signal.SIGINT)


def test_no_other_page_can_frame_it(server):
    host = server.removeprefix("http://")
    for path, name in (("/margin", host), ("/nothing", host), ("/margin", "evil.example")):
        link = http.client.HTTPConnection(host, timeout=30)
        link.request("GET", path, headers={"Host": name})
        answer = link.getresponse()
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
        link.close()


def test_only_this_machine_is_answered(server):
    """A page of another name that resolves to this machine gets nothing (DNS rebinding)."""
    host = server.removeprefix("http://")
    for name, status in (("evil.example", 400), (host, 200)):
        link = http.client.HTTPConnection(host, timeout=30)
        link.request("GET", "/margin", headers={"Host": name})
        assert link.getresponse().status == status
        link.close()


def test_nothing_is_served_beside_the_pages(server):
    host = server.removeprefix("http://")
    for path in (
        "/secret.txt",
        "/../secret.txt",
        "/runs/../../secret.txt",
        "/_nicegui/../secret.txt",
        "/docs",
        "/openapi.json",
    ):
        link = http.client.HTTPConnection(host, timeout=30)
        link.request("GET", path)
        answer = link.getresponse()
        body = answer.read().decode(errors="replace")
        assert answer.status in (400, 404), path
        assert "secret\n" not in body
        assert body != "secret"
        link.close()


def test_it_binds_to_loopback_only(server):
    port = int(server.rpartition(":")[2])
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            pytest.skip("this system has no /proc/net/tcp")
        for row in rows:
            local, state = row.split()[1], row.split()[3]
            if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                assert local.startswith("0100007F")


def test_a_port_in_use_is_refused(server):
    from saddles.explorer.serve import free_port

    with pytest.raises(saddles.SaddlesError, match="cannot be used"):
        free_port("127.0.0.1", int(server.rpartition(":")[2]))
    with pytest.raises(saddles.SaddlesError, match="between 1 and 65535"):
        free_port("127.0.0.1", 70_000)
    for host in ("999.1.1.1", "192.0.2.1", "::2::", "x" * 80):
        with pytest.raises(saddles.SaddlesError, match=f"host '{host}' cannot be used"):
            free_port(host, None)
    assert free_port("127.0.0.1", None) > 0


def test_the_address_is_one_that_a_browser_reads():
    from saddles.explorer.serve import url

    assert url("127.0.0.1", 8421) == "http://127.0.0.1:8421/"
    assert url("::1", 8421) == "http://[::1]:8421/"


def test_a_missing_folder_is_one_sentence(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    command = [sys.executable, "-m", "saddles", "explore", "--no-browser", str(tmp_path / "no")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert "must be a folder that exists" in done.stderr
    assert "Traceback" not in done.stderr
