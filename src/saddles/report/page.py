"""One self-contained HTML page: no script, no network, readable on a phone, in print and in the dark."""

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saddles.core.claim import Claim

_STYLE = """
:root { --ink: #1d1d1f; --soft: #5f6368; --paper: #ffffff; --line: #dddddd; --card: #f7f7f8;
  --holds: #00694f; --fails: #b3340a; --na: #6b5900; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececec; --soft: #a8abb0; --paper: #161618; --line: #3a3a3d;
  --card: #202023; --holds: #3fc79a; --fails: #ff8a5c; --na: #e0c34a; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 70rem; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .2rem; }
p { margin: .3rem 0; } .soft { color: var(--soft); } a { color: inherit; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .92rem; margin: .6rem 0; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem .35rem 0; border-bottom: 1px solid var(--line); }
td.number, th.number { font-variant-numeric: tabular-nums; white-space: nowrap; text-align: right; }
.holds { color: var(--holds); font-weight: 600; } .fails { color: var(--fails); font-weight: 600; }
.not_applicable { color: var(--na); font-weight: 600; } td.verdict, td:first-child { white-space: nowrap; }
figure { margin: .8rem 0; background: #fff; border: 1px solid var(--line); border-radius: 6px; padding: .5rem; }
img { max-width: 100%; height: auto; display: block; margin: auto; }
code { font-size: .88rem; } details { margin: .4rem 0; } summary { cursor: pointer; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; font-size: .9rem; margin: .4rem 0; }
dd { margin: 0; overflow-wrap: anywhere; } dt { color: var(--soft); }
@media print { body { max-width: none; } h2 { break-before: page; } details > * { display: block; } }
"""

_SIGNS = {"<=": "≤", ">=": "≥"}
_MARKS = {"holds": "✓ holds", "fails": "✗ fails", "not_applicable": "– not applicable"}


@dataclass(frozen=True)
class Section:
    """One experiment on the page: finished (a record and claims), or why it is not."""

    name: str
    title: str
    record: Mapping[str, Any] | None = None
    claims: Sequence[Claim] = ()
    figure: Path | None = None
    waiting: str = "not run yet"


def write_page(sections: Sequence[Section], file: Path, heading: str, facts: Mapping[str, Any]) -> None:
    """Write the page anew, all or nothing."""
    body = [
        f"<h1>{text(heading)}</h1>",
        f'<p class="soft">{text(_summary(sections))}</p>',
        _overview(sections),
        *(_section(section) for section in sections),
        f"<h2>Machine and versions</h2>{fact_list(facts)}",
    ]
    page = html_page(heading, body)
    draft = file.with_name(f".{file.name}")
    draft.write_text(page, "utf-8")
    draft.replace(file)


def html_page(heading: str, body: Sequence[str]) -> str:
    """A whole page around some parts, in the common look."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(heading)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def picture(png: bytes, words: str) -> str:
    """A figure inside the page, with words for those who do not see it."""
    data = base64.b64encode(png).decode()
    return f'<figure><img alt="{text(words)}" src="data:image/png;base64,{data}"></figure>'


def _summary(sections: Sequence[Section]) -> str:
    done = [section for section in sections if section.record]
    verdicts = [claim.verdict for section in done for claim in section.claims]
    spent = sum(float(section.record["wall_time_s"]) for section in done if section.record)
    return (
        f"{len(done)} of {len(sections)} experiments in {_duration(spent)}: {verdicts.count('holds')} claims hold, "
        f"{verdicts.count('fails')} fail, {verdicts.count('not_applicable')} do not apply at this size."
    )


def _overview(sections: Sequence[Section]) -> str:
    rows = []
    for section in sections:
        link = f'<a href="#{_anchor(section)}">{text(section.name)}</a>'
        if not section.record:
            rows.append(f'<tr><td>{link}</td><td colspan="5" class="soft">{text(section.waiting)}</td></tr>')
        for claim in section.claims:
            reason = f'<br><span class="soft">{text(claim.reason)}</span>' if claim.reason else ""
            rows.append(
                f"<tr><td>{link}</td><td>{text(claim.claim)}{reason}</td><td>{text(claim.where)}</td>"
                f'<td class="number">{claim.value:.4g} {_SIGNS[claim.relation]} {claim.threshold:.4g}</td>'
                f'<td class="number">{claim.spread:.2g}, {claim.seeds}</td>'
                f'<td class="verdict {claim.verdict}">{_MARKS[claim.verdict]}</td></tr>'
            )
    names = ("experiment", "claim", "where", "worst value, threshold", "spread, seeds", "verdict")
    head = f"<tr>{''.join(f'<th>{name}</th>' for name in names)}</tr>"
    return (
        f'<h2>Claims</h2>\n<div class="wide"><table><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _section(section: Section) -> str:
    parts = [f'<h2 id="{_anchor(section)}">{text(section.name)}</h2>', f"<p>{text(section.title)}</p>"]
    if section.record is None:
        return "\n".join([*parts, f'<p class="soft">{text(section.waiting)}</p>'])
    record = section.record
    spent = _duration(float(record["wall_time_s"]))
    parts.append(f'<p class="soft">size {text(record["size"])}, seed {record["seed"]}, {spent}</p>')
    if section.figure is not None:
        alternative = f"{section.title}: the figure of experiment {section.name} at size {record['size']}"
        parts.append(picture(section.figure.read_bytes(), alternative))
    command = f"saddles run {section.name} --size {record['size']} --seed {record['seed']}"
    parts.append(f"<p><code>{text(command)}</code></p>")
    parts.append(f"<details><summary>settings</summary>{fact_list(record['settings'])}</details>")
    return "\n".join(parts)


def fact_list(facts: Mapping[str, Any]) -> str:
    """Names and values in two columns."""
    rows = "".join(f"<dt>{text(key)}</dt><dd>{text(value)}</dd>" for key, value in facts.items())
    return f"<dl>{rows}</dl>"


def _anchor(section: Section) -> str:
    return section.name.replace("/", "-")


def text(value: Any) -> str:
    """A value as text that is safe in HTML."""
    return html.escape(str(value), quote=True)


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
