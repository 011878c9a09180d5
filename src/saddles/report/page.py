"""One self-contained HTML page: no network, readable on a phone, in print and in the dark.

Its one script filters the table of claims; the page works without it, and its policy allows no other.
"""

import base64
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from saddles.core.claim import Claim, compared, null_in_words
from saddles.report.html import Html, join, tag
from saddles.report.look import BASE, DARK, LIGHT, variables
from saddles.runtime.files import write_text

_STYLE = (
    f"""
:root {{ {variables(LIGHT)} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {variables(DARK)} color-scheme: dark; }} }}
{BASE}"""
    + """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 70rem; padding: 1.5rem 1rem 4rem; }
h2 { margin: 2.5rem 0 .2rem; } a { color: inherit; }
.holds { color: var(--holds); font-weight: 600; } .fails { color: var(--fails); font-weight: 600; }
.not_evidence, .not_applicable { color: var(--na); font-weight: 600; }
td.verdict, table.all td:first-child { white-space: nowrap; }
figure { margin: .8rem 0; background: #fff; border: 1px solid var(--line); border-radius: 6px; padding: .5rem; }
img { max-width: 100%; height: auto; display: block; margin: auto; }
@media screen and (max-width: 45rem) {
  table.claims thead { position: absolute; clip-path: inset(50%); width: 1px; height: 1px; overflow: hidden; }
  table.claims tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--line); }
  table.claims td { display: block; border: 0; padding: .05rem 0; text-align: left; white-space: normal; }
  table.claims td[data-name]::before { content: attr(data-name) ": "; color: var(--soft); }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .3rem; }
}
table.all th:nth-child(2) { width: 44%; }
.strip { display: flex; flex-wrap: wrap; gap: .2rem; margin: 1rem 0 .2rem; }
.mark { width: 1.5rem; text-align: center; border: 1px solid var(--line); border-radius: 4px; text-decoration: none; }
.waiting, .skipped { color: var(--soft); } .broken { color: var(--fails); font-weight: 600; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: .8rem; }
.card { font-size: .82rem; text-decoration: none; overflow-wrap: anywhere; }
.card img { width: 100%; height: 7.5rem; object-fit: contain; background: #fff; border: 1px solid var(--line);
  border-radius: 6px; }
.pair { display: grid; grid-template-columns: minmax(0, 3fr) minmax(0, 2fr); gap: 1.2rem; align-items: start; }
.pair td:first-child { white-space: normal; }
@media screen and (max-width: 60rem) { .pair { grid-template-columns: minmax(0, 1fr); } }
@media print {
  body { max-width: none; padding: 0; font-size: 11pt; } figure, tr, dl { break-inside: avoid; }
  h2 { break-after: avoid; } .wide { overflow: visible; } a { text-decoration: none; } table { font-size: 8.5pt; }
  table.claims th:first-child { width: 15%; }
  table.claims td:first-child { white-space: normal; overflow-wrap: anywhere; }
}
"""
)

FILTER = """
const box = document.getElementById("filter"), choice = document.getElementById("verdict");
const rows = Array.from(document.querySelectorAll("table.all tbody tr"));
function filter() {
  const words = box.value.toLowerCase().split(/\\s+/);
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every(word => text.includes(word))
      || (choice.value !== "" && row.dataset.verdict !== choice.value);
  }
}
box.addEventListener("input", filter);
choice.addEventListener("change", filter);
document.getElementById("filters").hidden = false;
"""
"""Shows the claims that have all words that were typed, and the verdict that was chosen."""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _policy(script: str) -> str:
    """Nothing but pictures inside the page, its one style sheet, and its one script if it has any."""
    allowed = f" script-src {_hash(script)};" if script else ""
    return f"default-src 'none'; img-src data:; style-src {_hash(_STYLE)};{allowed} base-uri 'none'; form-action 'none'"


THUMBNAIL = 240
"""Pixels of the longer side of a thumbnail."""

_MARKS = {
    "holds": "✓ holds",
    "fails": "✗ fails",
    "not_evidence": "○ not evidence",
    "not_applicable": "– not applicable",
}

_WITHOUT = {"waiting": "… waits", "skipped": "⊘ skipped", "broken": "! broken off"}
"""Of experiments without a result."""


@dataclass(frozen=True)
class Section:
    """One experiment on the page: finished (a record and claims), or why it is not."""

    name: str
    title: str
    record: Mapping[str, Any] | None = None
    claims: Sequence[Claim] = ()
    figure: Path | None = None
    waiting: str = "not run yet"
    state: Literal["waiting", "skipped", "broken"] = "waiting"
    """Of an experiment without a record; `waiting` is the reason in words."""


def write_page(sections: Sequence[Section], file: Path, heading: str, facts: Mapping[str, object]) -> None:
    """Write the page again, all or nothing."""
    body = [
        tag("h1", heading),
        tag("p", _summary(sections), class_="soft"),
        _pictures(sections),
        *(_section(section) for section in sections),
        _overview(sections),
        tag("h2", "Machine and versions") + fact_list(facts),
    ]
    write_text(file, html_page(heading, body, FILTER))


def html_page(heading: str, body: Sequence[Html], script: str = "") -> str:
    """A whole page around its parts, in the common look; a browser runs no other script in it and fetches nothing."""
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", heading),
        tag("style", Html(_STYLE)),
    ]
    last = [tag("script", Html(script))] if script else []
    main = tag("body", "\n", tag("main", "\n", join(body, "\n"), "\n"), *last, "\n")
    whole = tag("html", "\n", tag("head", "\n", join(head, "\n"), "\n"), "\n", main, "\n", lang="en")
    return join([Html("<!doctype html>"), whole, ""], "\n")


def picture(png: bytes, description: str) -> Html:
    """A figure inside the page, with a description for those who do not see it."""
    return tag("figure", tag("img", alt=description, src=f"data:image/png;base64,{base64.b64encode(png).decode()}"))


def _summary(sections: Sequence[Section]) -> str:
    done = [section for section in sections if section.record]
    states = [section.state for section in sections if not section.record]
    counts = ((states.count("skipped"), "skipped"), (states.count("broken"), "broken off"))
    missing = "".join(f", {count} {word}" for count, word in counts if count)
    verdicts = [claim.verdict for section in done for claim in section.claims]
    spent = sum(float(section.record["wall_time_s"]) for section in done if section.record)
    return (
        f"{len(done)} of {len(sections)} experiments, {_duration(spent)} added up{missing}: "
        f"{verdicts.count('holds')} claims hold, {verdicts.count('fails')} fail, "
        f"{verdicts.count('not_evidence')} are not evidence, "
        f"{verdicts.count('not_applicable')} do not apply at this size."
    )


_WORST = ("fails", "not_evidence", "holds", "not_applicable")
"""Which of several verdicts stands for an experiment: the first of these that it has."""


def _pictures(sections: Sequence[Section]) -> Html:
    """A strip of verdicts and a thumbnail for each experiment."""
    marks, cards = [], []
    for section in sections:
        there = {claim.verdict for claim in section.claims}
        verdict = next((word for word in _WORST if word in there), section.state)
        sign = (_MARKS | _WITHOUT)[verdict][:1]
        words = f"{section.name}: {_MARKS[verdict][2:] if verdict in _MARKS else section.waiting}"
        target = f"#{_anchor(section)}"
        marks.append(tag("a", sign, href=target, title=words, class_=f"mark {verdict}"))
        if section.figure is None:
            continue
        image = tag("img", alt=section.title, src=f"data:image/png;base64,{_thumbnail(section.figure)}")
        name = tag("span", f"{sign} ", class_=verdict) + tag("span", section.name)
        cards.append(tag("a", image, name, href=target, class_="card"))
    signs = ", ".join((_MARKS | _WITHOUT).values())
    parts = [
        tag("p", *marks, class_="strip"),
        tag("p", f"a square is an experiment and its worst verdict: {signs}", class_="soft"),
        *_reasons(sections),
        tag("div", *cards, class_="cards"),
    ]
    return join(parts, "\n")


def _reasons(sections: Sequence[Section]) -> list[Html]:
    """Which experiments have no result, and why, where the reader begins: a square alone does not say it."""
    rows = [section for section in sections if not section.record and section.state != "waiting"]
    items = [
        tag("li", tag("a", row.name, href=f"#{_anchor(row)}"), f" {_WITHOUT[row.state][2:]}: {row.waiting}")
        for row in rows
    ]
    return [tag("ul", *items, class_="soft")] if items else []


def _thumbnail(figure: Path) -> str:
    return _made_small(figure, figure.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _made_small(figure: Path, changed: int) -> str:
    """Kept: the page is written again after every experiment, and small pictures were most of the work."""
    from PIL import Image

    try:
        with Image.open(figure) as whole, io.BytesIO() as file:
            small = whole.convert("RGB")
            small.thumbnail((THUMBNAIL, THUMBNAIL))
            small.quantize(64).save(file, "PNG")
            return base64.b64encode(file.getvalue()).decode()
    except OSError:  # a damaged picture is shown as one, and does not cost the page
        return base64.b64encode(figure.read_bytes()).decode()


def _overview(sections: Sequence[Section]) -> Html:
    rows = []
    for section in sections:
        name = tag("td", tag("a", section.name, href=f"#{_anchor(section)}"))
        if not section.record:
            rows.append(tag("tr", name, tag("td", section.waiting, colspan=6, class_="soft")))
        for claim in section.claims:
            reason = tag("br") + tag("span", claim.reason, class_="soft") if claim.reason else ""
            null = null_in_words(claim) or "none"
            against = tag("br") + tag("span", claim.against, class_="soft") if claim.against else ""
            cells = [
                name,
                tag("td", claim.claim, reason),
                tag("td", claim.where, data_name="where"),
                tag("td", _compared(claim), class_="number", data_name="worst value"),
                tag("td", null, against, class_="number", data_name="null"),
                tag("td", f"{claim.spread:.2g}, {claim.seeds}", class_="number", data_name="spread, runs"),
                tag("td", _MARKS[claim.verdict], class_=f"verdict {claim.verdict}"),
            ]
            rows.append(tag("tr", *cells, data_verdict=claim.verdict))
    names = ("experiment", "claim", "where", "worst value, threshold", "null", "spread, runs", "verdict")
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in names)))
    table = tag("table", head, tag("tbody", *rows), class_="claims all")
    options = [tag("option", "every verdict", value=""), *(tag("option", m[2:], value=v) for v, m in _MARKS.items())]
    controls = tag(
        "p",
        tag("label", "show claims with ", tag("input", id="filter", type="search")),
        tag("label", " and ", tag("select", *options, id="verdict")),
        id="filters",
        hidden="",
    )
    return join([tag("h2", "All claims", id="claims"), controls, scrolled(table, "claims")], "\n")


def scrolled(table: Html, label: str) -> Html:
    """A table that scrolls inside the page, by keyboard too."""
    return tag("div", table, class_="wide", tabindex=0, role="region", aria_label=label)


def _compared(claim: Claim) -> str:
    """Value and threshold with the sign that is true between them."""
    return f"{claim.value:.4g} {compared(claim.value, claim.relation, claim.threshold)} {claim.threshold:.4g}"


def _described(section: Section) -> str:
    """The figure in words: what it shows, and the verdicts on it."""
    verdicts = "; ".join(f"{claim.claim}: {_compared(claim)}, {_MARKS[claim.verdict][2:]}" for claim in section.claims)
    return f"{section.title}: the figure of experiment {section.name}." + (f" Claims: {verdicts}." if verdicts else "")


def _section(section: Section) -> Html:
    parts = [tag("h2", section.name, id=_anchor(section)), tag("p", section.title)]
    if section.record is None:
        return join([*parts, tag("p", section.waiting, class_="soft")], "\n")
    record = section.record
    spent = _duration(float(record["wall_time_s"]))
    parts.append(tag("p", f"size {record['size']}, seed {record['seed']}, {spent}", class_="soft"))
    if record.get("data_note"):
        parts.append(tag("p", f"data: {record['data_note']}"))
    shown = [_beside(section.claims)] if section.claims else []
    if section.figure is not None:
        shown = [picture(section.figure.read_bytes(), _described(section)), *shown]
    parts.append(tag("div", *shown, class_="pair"))
    command = f"saddles run {section.name} --size {record['size']} --seed {record['seed']}"
    parts.append(tag("p", tag("code", command)))
    parts.append(tag("details", tag("summary", "settings"), fact_list(record["settings"])))
    return join(parts, "\n")


def _beside(claims: Sequence[Claim]) -> Html:
    """When each claim holds and what was measured, next to the figure."""
    rows = []
    for claim in claims:
        sign = {"<=": "≤", ">=": "≥"}[claim.relation]
        reason = tag("br") + tag("span", claim.reason, class_="soft") if claim.reason else ""
        null = tag("br") + tag("span", words, class_="soft") if (words := _of_null(claim)) else ""
        rows.append(
            tag(
                "tr",
                tag(
                    "td", claim.claim, tag("br"), tag("span", _MARKS[claim.verdict], class_=claim.verdict), reason, null
                ),
                tag("td", f"{sign} {claim.threshold:.3g}", class_="number", data_name="holds if"),
                tag("td", f"{claim.value:.3g}", class_="number", data_name="measured"),
            )
        )
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in ("claim", "holds if", "measured"))))
    return tag("div", tag("table", head, tag("tbody", *rows), class_="claims"))


def _of_null(claim: Claim) -> str:
    """What the null gives, and what it is: without it a reader cannot tell how near the measured number is."""
    null, against = null_in_words(claim, 3), f": {claim.against}" if claim.against else ""
    return f"null {null}{against}" if null else f"no null{against}" if against else ""


def fact_list(facts: Mapping[str, object]) -> Html:
    """Names and values in two columns."""
    return tag("dl", *(tag("dt", key) + tag("dd", value) for key, value in facts.items()))


def _anchor(section: Section) -> str:
    return section.name.replace("/", "-")


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
