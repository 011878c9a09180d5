"""The check of a built site sees what it is there to see."""

import importlib.util

import pytest
from doc_pages import ROOT

PAGE = "<html><head>{head}</head><body><h1 id='top'>A</h1>{body}</body></html>"


@pytest.fixture(scope="module")
def faults():
    spec = importlib.util.spec_from_file_location("check_site", ROOT / "docs" / "check_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.faults


@pytest.mark.parametrize(
    ("head", "body", "words"),
    [
        ("", "<a href='b.html#top'>b</a> <a href='https://else.where'>out</a> <a href='#top'>up</a>", None),
        ("<script src='https://cdn.example/x.js'></script>", "", "loads https://cdn.example/x.js"),
        ("<link rel='stylesheet' href='//fonts.example/x.css'>", "", "loads //fonts.example/x.css"),
        ("", "<img src='gone.png'>", "links to gone.png, which is not there"),
        ("", "<a href='b.html#bottom'>b</a>", "links to b.html#bottom, which has no such place"),
    ],
)
def test_faults_are_found(faults, tmp_path, head, body, words):
    (tmp_path / "a.html").write_text(PAGE.format(head=head, body=body))
    (tmp_path / "b.html").write_text(PAGE.format(head="", body=""))
    found = faults(tmp_path.resolve())
    assert (found == []) if words is None else (len(found) == 1 and words in found[0])


def test_fonts_from_elsewhere_are_found(faults, tmp_path):
    (tmp_path / "x.css").write_text("@font-face { src: url('https://fonts.example/f.woff2') }")
    assert len(faults(tmp_path.resolve())) == 1


def test_docstrings_become_safe_text():
    import sys

    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    try:
        from docstrings import plain  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    lines = ["A* of |x| and `name_`.", "", "    s = 2 * x", "", "Args:", "    x: the A* one"]
    assert plain(lines) == [
        "A\\* of \\|x\\| and ``name_``.",
        "",
        "::",
        "",
        "    s = 2 * x",
        "",
        "Args:",
        "    x: the A\\* one",
    ]
