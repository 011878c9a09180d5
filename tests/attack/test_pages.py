"""Script in what a report shows, and figures that are to have the same bytes."""

import base64
import hashlib
import re
from dataclasses import dataclass, field

import matplotlib as mpl
import toy_experiment
from matplotlib.figure import Figure

from saddles.core.claim import Claim
from saddles.core.drawings import save_drawing
from saddles.core.provenance import describe
from saddles.core.run import run_experiment
from saddles.figures.style import look, sheet
from saddles.report.page import FILTER, Section, write_page

EVIL = "</style></title><script>alert(1)</script><img src=x onerror='alert(2)'>\""


def test_nothing_that_was_read_becomes_markup(tmp_path):
    """Every field of a record and of a claim, whatever its type should be."""
    claim = Claim(EVIL, EVIL, EVIL, 1.0, "<=", 2.0, 0.0, 1, EVIL, "holds", EVIL)
    object.__setattr__(claim, "seeds", EVIL)  # as a reader that does not check would get it
    record = {"size": EVIL, "seed": EVIL, "settings": {EVIL: EVIL}, "wall_time_s": 1.0}
    done, waiting = Section(EVIL, EVIL, record, [claim]), Section(EVIL, EVIL, waiting=EVIL)
    write_page([done, waiting], tmp_path / "report.html", EVIL, {EVIL: EVIL})
    page = (tmp_path / "report.html").read_text()
    assert "&lt;script&gt;" in page
    assert re.findall(r"<(?:script|img)[^>]*>", page) == ["<script>"]  # the page's own
    assert f"<script>{FILTER}</script>" in page
    assert page.count("</style>") == page.count("</title>") == 1
    assert not re.search(r"\"[^\"<>]*'alert", page)


def test_the_page_itself_forbids_other_scripts(tmp_path):
    write_page([], tmp_path / "report.html", "plain", {})
    page = (tmp_path / "report.html").read_text()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert "default-src &#x27;none&#x27;" in policy[1]
    assert "unsafe" not in policy[1]
    digest = base64.b64encode(hashlib.sha256(FILTER.encode()).digest()).decode()
    assert f"script-src &#x27;sha256-{digest}&#x27;;" in policy[1]
    assert "style=" not in page  # the policy allows the one style sheet, by its hash


def test_the_same_figure_has_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = [run_experiment(toy_experiment.ROW, out=name).folder for name in ("a", "b")]
    for name in ("figure.svg", "figure.png"):
        one, other = ((folder / name).read_bytes() for folder in made)
        assert one == other, name
    drawing = Figure()
    drawing.subplots().scatter([1, 2], [3, 4], clip_on=True)
    save_drawing(drawing, tmp_path / "c")
    save_drawing(drawing, tmp_path / "d")
    assert (tmp_path / "c.svg").read_bytes() == (tmp_path / "d.svg").read_bytes()


def test_a_figure_is_saved_as_matplotlib_saves_it(tmp_path):
    def draw() -> Figure:
        with look():
            drawing, axes = sheet(1, 2)
            image = axes[0, 0].pcolormesh([[1.0, 2.0], [3.0, 4.0]], rasterized=True)
            drawing.colorbar(image, ax=axes[0, 0], label=r"$\gamma_w$")
        return drawing

    ours, theirs = draw(), draw()
    canvas, dpi, layout = ours.canvas, ours.dpi, ours.get_layout_engine()
    save_drawing(ours, tmp_path / "ours", dpi=130)
    assert (ours.canvas, ours.dpi, ours.get_layout_engine()) == (canvas, dpi, layout)
    theirs.savefig(tmp_path / "theirs.png", dpi=130)
    theirs.set_layout_engine("none")
    with mpl.rc_context({"svg.hashsalt": "saddles"}):
        theirs.savefig(tmp_path / "theirs.svg", metadata={"Date": None})
    theirs.savefig(tmp_path / "theirs.pdf", metadata={"CreationDate": None})
    for kind in ("png", "svg", "pdf"):
        assert (tmp_path / f"ours.{kind}").read_bytes() == (tmp_path / f"theirs.{kind}").read_bytes(), kind


def test_no_address_is_stored():
    @dataclass(frozen=True)
    class Method:
        rate: object = field(default=len)
        schedule: object = field(default=lambda step: step)
        others: object = (object(),)

    assert " at 0x" not in describe(Method())
    assert " at 0x" not in describe(lambda: None)
