"""The look that all pages share: contrast, phone, dark, print, words for figures."""

import pytest

from saddles.core.claim import check
from saddles.report.look import DARK, LIGHT
from saddles.report.page import Section, write_page


def _light(colour):
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((_light(one), _light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["ink", "soft", "holds", "fails", "na", "accent"])
def test_text_is_readable(theme, name):
    for ground in ("paper", "card"):
        assert contrast(theme[name], theme[ground]) >= 4.5


@pytest.fixture
def report(tmp_path):
    claim = check(
        "A long sentence about what was claimed: a number over another", paper="x", where="Figure 1", size="laptop",
        values=[0.5], relation="<=", threshold=1.0,
    )  # fmt: skip
    png = tmp_path / "figure.png"
    png.write_bytes(b"not a picture")
    record = {"wall_time_s": 1.0, "size": "laptop", "seed": 0, "settings": {"dim": 3}}
    sections = [Section("linear/figure-1", "Two dynamics, one curve", record, [claim], png), Section("b/c", "waits")]
    write_page(sections, tmp_path / "report.html", "saddles: a report", {"python": "3"})
    return tmp_path / "report.html"


def test_a_report_describes_its_figures_and_its_tables(report):
    page = report.read_text()
    assert 'alt="Two dynamics, one curve: the figure of experiment linear/figure-1. Claims: A long sentence' in page
    assert "0.5 ≤ 1, holds" in page
    assert page.count('scope="col"') == 7 + 3  # the table of all claims, and the one beside the figure
    assert 'class="wide" tabindex="0" role="region" aria-label="claims"' in page


def test_a_report_on_a_phone_in_the_dark_and_in_print(report, chromium):
    context = chromium.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = context.new_page()
    page.goto(f"file://{report}")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(22, 22, 24)"
    assert page.evaluate("getComputedStyle(document.querySelector('table.claims td')).display") == "block"
    page.emulate_media(media="print")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    for _ in range(20):  # links to the experiments come first; the table must be within reach of the keyboard
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('aria-label')") == "claims":
            break
    else:
        pytest.fail("the table of claims cannot be reached by the keyboard")
    context.close()
