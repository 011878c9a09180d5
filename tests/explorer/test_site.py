"""The static site in a real browser, opened from files: no server, no request, stories, sliders, playback."""

from contextlib import closing

import pytest
from explorer_server import Tab

import saddles
from saddles.explorer import site
from saddles.explorer.grids import GRIDS, Grid
from saddles.explorer.pages import concepts, margin
from saddles.runtime import progress

SMALL = {
    "concepts": Grid({"mu1": (1.0, 1.8), "mu2": (1.2, 1.6), "depth": ("2", "1")}),
    "margin": Grid({"model": ("joint", "diagonal"), "sequences": (3,)}, {"decades": 1.0}),
}
LARGEST, LARGEST_ROOM = 20e6, 3e6


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> str:
    place = tmp_path_factory.mktemp("static") / "site"
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name, grid in SMALL.items():
            patch.setitem(GRIDS, name, grid)
        site.export(place, docs="../", say=told.append, pages=(concepts.PAGE, margin.PAGE))
        with pytest.raises(saddles.SaddlesError, match="already exists"):
            site.export(place, pages=())
    assert [line.split(",")[0] for line in told] == ["concepts: 8 views", "margin: 2 views"]
    return f"file://{place}"


def test_the_export_tells_how_far_it_is(tmp_path, monkeypatch):
    monkeypatch.setitem(GRIDS, "margin", SMALL["margin"])
    bars = []
    monkeypatch.setattr(site, "bar", lambda title, total: bars.append(progress.Bar(title, total)) or closing(bars[-1]))
    site.export(tmp_path / "site", say=lambda text: None, pages=(margin.PAGE,))
    assert [(bar.state.title, bar.state.amount) for bar in bars] == [("explorer, views", "2/2")]


@pytest.fixture
def opened(chromium, written):
    tab = Tab(chromium, written)
    yield tab
    assert tab.trouble == []
    assert tab.hosts <= {""}  # files, and data inside the page
    tab.page.close()


def drawn(tab, path):
    page = tab.open(path)
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot').length > 1")
    return page


def test_a_room_without_a_server(opened):
    page = drawn(opened, "/concepts.html")
    assert page.inner_text("h1") == "Concepts"
    assert "two layers" in page.inner_text("#slide-depth")
    inside = "(one) => one.querySelector('.main-svg').clientWidth <= one.clientWidth"
    assert page.evaluate(f"[...document.querySelectorAll('.panel')].every({inside})")
    before = opened.curve(1, 0)
    page.locator("#slide-mu1").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(f"document.querySelectorAll('.js-plotly-plot')[1].data[0].y[60] !== {before[60]}")
    assert page.locator("#set-mu1").inner_text() == "1.8"
    assert page.url.endswith("#mu1=1.8")
    assert "1.8" in page.inner_text("pre.code")
    page.select_option("#slide-depth", "1")
    page.wait_for_function("document.querySelectorAll('.panel:not(.hidden)').length === 3")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_numbers_are_those_of_the_live_room(opened):
    page = drawn(opened, "/concepts.html#mu1=1.8")
    page.wait_for_function("document.querySelector('#set-mu1').textContent === '1.8'")
    entry = concepts.compute(concepts.Concepts(mu1=1.8))["measured"]["jacobian"].values[:, 0, 0]
    assert opened.curve(1, 0) == pytest.approx(entry.tolist(), rel=6e-4, abs=1e-9)
    assert page.locator(".js-plotly-plot").first.get_attribute("aria-label").startswith("The network's output")


def test_a_story_sets_the_room_and_plays(opened):
    page = drawn(opened, "/concepts.html")
    page.get_by_role("button", name="Start the story").click()
    assert page.locator("article:visible h2").inner_text() == "1. A detour"
    assert page.locator("article:visible math").count() == 1
    page.wait_for_function("Number(document.querySelector('#slide-instant').value) > 3")
    page.get_by_role("button", name="next").click()
    page.wait_for_function("document.querySelector('#set-mu1').textContent === '1.8'")
    assert page.locator("#set-mu2").inner_text() == "1.2"
    page.get_by_role("button", name="pause").click()
    still = page.locator("#slide-instant").input_value()
    page.wait_for_timeout(300)
    assert page.locator("#slide-instant").input_value() == still


def test_the_front_page_moves(opened):
    page = drawn(opened, "/index.html")
    assert page.locator(".card").count() == 2
    assert page.locator(".start").count() == 1
    state = "JSON.stringify(document.querySelector('[data-miniature=margin]').data[0].marker)"
    page.wait_for_function(f"(window.before ??= {state}) !== {state}")
    page.locator(".card").last.click()
    page.wait_for_url("**/margin.html")


def test_themes_and_the_phone(opened):
    page = drawn(opened, "/margin.html")
    page.set_viewport_size({"width": 390, "height": 800})
    page.get_by_role("button", name="colour theme").click()
    page.get_by_role("button", name="colour theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 22, 24)"
    page.get_by_role("button", name="colour theme").click()
    page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
def test_the_whole_site_is_small(tmp_path):
    place = site.export(tmp_path / "site")
    sizes = {file.name: file.stat().st_size for file in place.iterdir()}
    assert sum(sizes.values()) <= LARGEST
    assert all(size <= LARGEST_ROOM for name, size in sizes.items() if name != "plotly.js")
    assert len(sizes) == len(site.PAGES) + 2
