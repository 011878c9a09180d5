"""One self-contained HTML page: no script, no network, readable on a phone, in print and in the dark."""

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saddles.core.claim import Claim
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
td.verdict, td:first-child { white-space: nowrap; }
figure { margin: .8rem 0; background: #fff; border: 1px solid var(--line); border-radius: 6px; padding: .5rem; }
img { max-width: 100%; height: auto; display: block; margin: auto; }
@media screen and (max-width: 45rem) {
  table.claims thead { position: absolute; clip-path: inset(50%); width: 1px; height: 1px; overflow: hidden; }
  table.claims tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--line); }
  table.claims td { display: block; border: 0; padding: .05rem 0; text-align: left; white-space: normal; }
  table.claims td[data-name]::before { content: attr(data-name) ": "; color: var(--soft); }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .3rem; }
}
table.claims th:nth-child(2) { width: 44%; }
@media print {
  body { max-width: none; padding: 0; font-size: 11pt; } figure, tr, dl { break-inside: avoid; }
  h2 { break-after: avoid; } .wide { overflow: visible; } a { text-decoration: none; } table { font-size: 8.5pt; }
  table.claims th:first-child { width: 15%; }
  table.claims td:first-child { white-space: normal; overflow-wrap: anywhere; }
}
"""
)

_SIGNS = {"<=": "≤", ">=": "≥"}
_MARKS = {
    "holds": "✓ holds",
    "fails": "✗ fails",
    "not_evidence": "○ not evidence",
    "not_applicable": "– not applicable",
}


@dataclass(frozen=True)
class Section:
    """One experiment on the page: finished (a record and claims), or why it is not."""

    name: str
    title: str
    record: Mapping[str, Any] | None = None
    claims: Sequence[Claim] = ()
    figure: Path | None = None
    waiting: str = "not run yet"


def write_page(sections: Sequence[Section], file: Path, heading: str, facts: Mapping[str, object]) -> None:
    """Write the page again, all or nothing."""
    body = [
        f"<h1>{text(heading)}</h1>",
        f'<p class="soft">{text(_summary(sections))}</p>',
        _overview(sections),
        *(_section(section) for section in sections),
        f"<h2>Machine and versions</h2>{fact_list(facts)}",
    ]
    write_text(file, html_page(heading, body))


def html_page(heading: str, body: Sequence[str]) -> str:
    """A whole page around its parts, in the common look."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(heading)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def picture(png: bytes, description: str) -> str:
    """A figure inside the page, with a description for those who do not see it."""
    data = base64.b64encode(png).decode()
    return f'<figure><img alt="{text(description)}" src="data:image/png;base64,{data}"></figure>'


def _summary(sections: Sequence[Section]) -> str:
    done = [section for section in sections if section.record]
    verdicts = [claim.verdict for section in done for claim in section.claims]
    spent = sum(float(section.record["wall_time_s"]) for section in done if section.record)
    return (
        f"{len(done)} of {len(sections)} experiments in {_duration(spent)}: {verdicts.count('holds')} claims hold, "
        f"{verdicts.count('fails')} fail, {verdicts.count('not_evidence')} are not evidence, "
        f"{verdicts.count('not_applicable')} do not apply at this size."
    )


def _overview(sections: Sequence[Section]) -> str:
    rows = []
    for section in sections:
        link = f'<a href="#{_anchor(section)}">{text(section.name)}</a>'
        if not section.record:
            rows.append(f'<tr><td>{link}</td><td colspan="6" class="soft">{text(section.waiting)}</td></tr>')
        for claim in section.claims:
            reason = f'<br><span class="soft">{text(claim.reason)}</span>' if claim.reason else ""
            rows.append(
                f'<tr><td>{link}</td><td>{text(claim.claim)}{reason}</td><td data-name="where">{text(claim.where)}</td>'
                f'<td class="number" data-name="worst value">{_compared(claim)}</td>'
                f'<td class="number" data-name="null">{"" if claim.null is None else f"{claim.null:.4g}"}</td>'
                f'<td class="number" data-name="spread, seeds">{claim.spread:.2g}, {claim.seeds}</td>'
                f'<td class="verdict {claim.verdict}">{_MARKS[claim.verdict]}</td></tr>'
            )
    names = ("experiment", "claim", "where", "worst value, threshold", "null", "spread, seeds", "verdict")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    table = f'<table class="claims"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    return f"<h2>Claims</h2>\n{scrolled(table, 'claims')}"


def scrolled(table: str, label: str) -> str:
    """A table that scrolls inside the page, by keyboard too."""
    return f'<div class="wide" tabindex="0" role="region" aria-label="{text(label)}">{table}</div>'


def _compared(claim: Claim) -> str:
    return f"{claim.value:.4g} {_SIGNS[claim.relation]} {claim.threshold:.4g}"


def _described(section: Section) -> str:
    """The figure in words: what it shows, and the verdicts on it."""
    verdicts = "; ".join(f"{claim.claim}: {_compared(claim)}, {_MARKS[claim.verdict][2:]}" for claim in section.claims)
    return f"{section.title}: the figure of experiment {section.name}." + (f" Claims: {verdicts}." if verdicts else "")


def _section(section: Section) -> str:
    parts = [f'<h2 id="{_anchor(section)}">{text(section.name)}</h2>', f"<p>{text(section.title)}</p>"]
    if section.record is None:
        return "\n".join([*parts, f'<p class="soft">{text(section.waiting)}</p>'])
    record = section.record
    spent = _duration(float(record["wall_time_s"]))
    parts.append(f'<p class="soft">size {text(record["size"])}, seed {record["seed"]}, {spent}</p>')
    if section.figure is not None:
        parts.append(picture(section.figure.read_bytes(), _described(section)))
    command = f"saddles run {section.name} --size {record['size']} --seed {record['seed']}"
    parts.append(f"<p><code>{text(command)}</code></p>")
    parts.append(f"<details><summary>settings</summary>{fact_list(record['settings'])}</details>")
    return "\n".join(parts)


def fact_list(facts: Mapping[str, object]) -> str:
    """Names and values in two columns."""
    rows = "".join(f"<dt>{text(key)}</dt><dd>{text(value)}</dd>" for key, value in facts.items())
    return f"<dl>{rows}</dl>"


def _anchor(section: Section) -> str:
    return section.name.replace("/", "-")


def text(value: object) -> str:
    """A value as text that is safe in HTML."""
    return html.escape(str(value), quote=True)


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
