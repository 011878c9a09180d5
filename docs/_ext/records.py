"""Stored results on the pages.

A number in the text refers to the record it comes from by a link to results/FILE.json#KEY, which is plain Markdown.
In the site the link leads to the page of all records. The directive `claims` shows the verdicts of a lab, `all-claims`
the counts of every lab, `clocks` how long commands take, `records` the page of records. `tests/docs/test_numbers.py`
checks that the numbers agree.
"""

import json
import re
import statistics
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

RESULTS = Path(__file__).parents[1] / "results"
LARGE, CLOCK = "claims-large.json", "commands.json"
LINK = re.compile(r"\[([^\]]+)\]\(results/([\w-]+\.json#[\w./-]+)\)")
_log = logging.getLogger(__name__)


def read(file: str) -> dict[str, Any]:
    """One file of results/."""
    return json.loads((RESULTS / file).read_text("utf-8"))


def anchor(place: str) -> str:
    """The target of a record on the page of records."""
    return "record-" + re.sub(r"[^a-z0-9]+", "-", place.lower()).strip("-")


def safe(text: Any) -> str:
    """Text for a cell of a Markdown table."""
    return re.sub(r"([|*_<\[\]$])", r"\\\1", str(text)).replace("\n", " ")


class Record(SphinxRole):
    """{record}`words <FILE.json#KEY>`: a link to the record."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Refuse a record that is not there."""
        words, place = re.fullmatch(r"(.*) <(.*)>", self.text).groups()  # type: ignore[union-attr]
        file, _, key = place.partition("#")
        if key not in read(file)["records"]:
            _log.warning("there is no stored result %s", place, location=self.get_location())
        page = self.env.app.builder.get_relative_uri(self.env.docname, "records")
        return [nodes.reference(words, words, refuri=f"{page}#{anchor(place)}", classes=["record"], internal=True)], []


class _Markdown(SphinxDirective):
    has_content = False
    option_spec: ClassVar[dict[str, Any]] = {}

    def show(self, lines: list[str]) -> list[nodes.Node]:
        box = nodes.container(classes=["stored"])
        for file in RESULTS.glob("*.json"):
            self.env.note_dependency(str(file))
        self.state.nested_parse(StringList(lines, self.get_source_info()[0]), self.content_offset, box)
        return [box]


class Claims(_Markdown):
    """```{claims} LAB```: each experiment of a lab with its claims."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """A table an experiment."""
        lab = self.arguments[0]
        large = lab_lines(read(LARGE), lab)
        return self.show(
            lab_lines(read("claims.json"), lab)
            + (["On one H200, from stored trajectories:", "", *large] if large else [])
        )


class AllClaims(_Markdown):
    """```{all-claims}```: how many hold, fail and do not apply, lab by lab, and those that fail."""

    def run(self) -> list[nodes.Node]:
        """A table of counts, then a list."""
        large = "At sizes `gpu` and `paper`, on one H200, judged from the stored trajectories:"
        return self.show([*count_lines(read("claims.json")), large, "", *count_lines(read(LARGE))])


class Clocks(_Markdown):
    """```{clocks}```: how long one waits for the commands of each lab."""

    def run(self) -> list[nodes.Node]:
        """A table, one row for a lab."""
        return self.show(clock_lines(read(CLOCK)))


class Bugs(_Markdown):
    """```{bugs}```: the bugs of `make mutate`, the test that notices each, and the experiment whose claims show it."""

    def run(self) -> list[nodes.Node]:
        """A table."""
        lines = ["| file | instead of | the bug | noticed by | shown by claims of |", "|---|---|---|---|---|"]
        found = read("mutations.json")["records"]
        claims = {(row["file"], row["bug"]): row for row in found["claims"]["bugs"]}
        for row in found["table"]["bugs"]:
            code = (f"`` {row[name].replace('|', chr(92) + '|')} ``" for name in ("right", "bug"))
            test = f"`{row['noticed'].rpartition('::')[2]}`" if row["noticed"] else "**none**"
            shown = _shown(claims.get((row["file"], row["bug"]), {}))
            lines.append("| " + " | ".join((f"`{row['file']}`", *code, test, shown)) + " |")
        return self.show([*lines, ""])


def _shown(row: dict[str, Any]) -> str:
    names = ", ".join(dict.fromkeys(f"`{place.split()[0]}`" for place in row.get("experiments", ())))
    if row.get("shown") is None:
        return "not tried"
    if row["shown"]:
        return f"`{row['shown'].partition(':')[0]}`"
    return f"not {names}{'' if row['moves'] else ', whose numbers stay'}" if names else "none runs it"


class Records(_Markdown):
    """```{records}```: every stored result that a page refers to."""

    def run(self) -> list[nodes.Node]:
        """A block a record."""
        lines: list[str] = []
        for file in sorted(RESULTS.glob("*.json")):
            found = read(file.name)
            for key, record in found["records"].items():
                lines += [f"({anchor(f'{file.name}#{key}')})=", f"**`{file.name}#{key}`**", ""]
                lines += _record_lines({**_common(found), **record}), ""
        return self.show([line for part in lines for line in (part if isinstance(part, list) else [part])])


def _common(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key not in ("records", "versions", "origin", "types")}


def _record_lines(record: dict[str, Any]) -> list[str]:
    plain = {key: value for key, value in record.items() if key not in ("values", "claims", "derived", "bugs")}
    lines = [f"{safe(key)}: {_words(value)}  " for key, value in plain.items()]
    rows = [(safe(what), safe(_number(value))) for what, value in record.get("values", {}).items()]
    for name, found in record.get("derived", {}).items():
        rows += [(safe(f"{name}: {what}"), safe(_number(value))) for what, value in found.items()]
    rows += [(safe(claim["claim"]), safe(_number(claim["value"]))) for claim in record.get("claims", [])]
    if rows:
        lines += ["", "| what | value |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows)]
    return lines


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{safe(k)} {safe(v)}" for k, v in value.items())
    return safe(value)


def _number(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_number, value))
    return f"{value:.4g}" if isinstance(value, float) else "not finite" if value is None else str(value)


def _verdict(word: str) -> str:
    return f"[{word.replace('_', ' ')}]{{.verdict .{word}}}"


def lab_lines(found: dict[str, Any], lab: str) -> list[str]:
    """Markdown of a lab's claims."""
    lines: list[str] = []
    for name, record in found["records"].items():
        if not name.startswith(f"{lab}/"):
            continue
        lines += [f"**`{name.partition('@')[0]}`** {safe(record['title'])}", ""]
        if "claims" not in record:
            lines += [f"Not run: {safe(record['skipped'])}.", ""]
            continue
        made = f"`{record['stored']}`" if "stored" in record else f"seed {record['seed']}, {record['date']}"
        lines += [f"Size `{record['size']}`, {made}{_waited(name, record)}.", ""]
        lines += [
            "| verdict | claim | where | value | asked | null | spread | seeds |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for claim in record["claims"]:
            reason = f" *{safe(claim['reason'])}*" if claim["reason"] else ""
            relation = {"<=": "≤", ">=": "≥"}[claim["relation"]]
            asked = f"{relation} {_number(float(claim['threshold']))}"
            null = " ".join((_number(claim["null"]) if "null" in claim else "none:", safe(claim.get("against", ""))))
            numbers = (_number(claim["value"]), asked, null, _number(claim["spread"]), claim["seeds"])
            words = (_verdict(claim["verdict"]), safe(claim["claim"]) + reason, safe(claim["where"]))
            lines.append("| " + " | ".join(map(str, (*words, *numbers))) + " |")
        lines.append("")
    return lines


def _waited(name: str, record: dict[str, Any]) -> str:
    """How long one waits for the command; where that was not measured, how long the run itself took."""
    clock = read(CLOCK)["records"]["all"]["values"].get(f"{name}, {record['size']}")
    if clock is None or "stored" in record:
        return f", {record['wall_time_s']:.0f} s of computing"
    cold, warm = clock
    return f"; its command takes {cold:.0f} s the first time and {warm:.0f} s later"


def clock_lines(found: dict[str, Any]) -> list[str]:
    """Markdown of the clocks of all commands: the longest and the medians of each lab."""
    rows: dict[str, dict[str, list[float]]] = {}
    for name, clock in found["records"]["all"]["values"].items():
        if isinstance(clock, list):
            rows.setdefault(name.partition("/")[0], {})[name.partition(",")[0]] = clock
    lines = ["| lab | the longest | experiments | first time, median | later, median |", "|---|---|---|---|---|"]
    for lab, clocks in rows.items():
        medians = (statistics.median(clock[turn] for clock in clocks.values()) for turn in (0, 1))
        longest, (cold, warm) = max(clocks.items(), key=lambda row: row[1])
        words = f"`{longest}`, {cold:.0f} s the first time, {warm:.0f} s later"
        lines.append(f"| `{lab}` | {words} | {len(clocks)} | {' | '.join(f'{one:.1f} s' for one in medians)} |")
    return [*lines, ""]


def count_lines(found: dict[str, Any]) -> list[str]:
    """Markdown of the counts of all labs, and of the claims that fail."""
    records = {name: record for name, record in found["records"].items() if name != "all"}
    labs = dict.fromkeys(name.partition("/")[0] for name in records)
    lines = [
        "| lab | experiments | not run | hold | fail | no evidence | do not apply |",
        "|---|---|---|---|---|---|---|",
    ]
    fails: list[str] = []
    for lab in labs:
        rows = {name: record for name, record in records.items() if name.startswith(f"{lab}/")}
        claims = [(name, claim) for name, record in rows.items() for claim in record.get("claims", [])]
        words = ("holds", "fails", "not_evidence", "not_applicable")
        counts = [sum(claim["verdict"] == word for _, claim in claims) for word in words]
        missing = sum("claims" not in record for record in rows.values())
        lines.append(f"| [{lab}](#{lab}) | {len(rows)} | {missing} | " + " | ".join(map(str, counts)) + " |")
        fails += [
            f"- `{name.rpartition('@')[2]}`: {safe(claim['claim'])}; {safe(claim['reason'])}."
            for name, claim in claims if claim["verdict"] == "fails"
        ]  # fmt: skip
    return [*lines, "", "Those that fail:", "", *fails, ""]


def family_lines(types: dict[str, dict[str, Any]]) -> list[str]:
    """Markdown of what the self-check said of every type of model, the same outcomes together."""
    rows: dict[tuple[str, str], list[str]] = {}
    for name, row in types.items():
        kinds = dict.fromkeys(row.get("verdict", ()))
        what = " · ".join(kinds) if kinds else "refused" if row.get("refused", "no attention") != "no attention" else ""
        how = row.get("adapter") or row.get("refused") or row["skipped"]
        rows.setdefault((what or ("skipped" if "skipped" in row else "no attention"), how), []).append(f"`{name}`")
    lines = ["| verdict of its blocks | adapter, or reason | types |", "|---|---|---|"]
    last = ("unconfirmed", "refused", "no attention", "skipped")
    order = sorted(rows.items(), key=lambda row: (last.index(row[0][0]) if row[0][0] in last else -1, row[0]))
    return lines + [f"| {safe(what)} | {safe(how)} | {', '.join(names)} |" for (what, how), names in order]


def _links(app: Any, docname: str, source: list[str]) -> None:
    source[0] = LINK.sub(r"{record}`\1 <\2>`", source[0])
    if docname == "claims":  # a section for each lab, also for one that comes tomorrow
        labs = dict.fromkeys(name.partition("/")[0] for name in read("claims.json")["records"] if "/" in name)
        source[0] += "".join(f"\n## {lab}\n\n```{{claims}} {lab}\n```\n" for lab in labs)

    if docname == "families":
        source[0] += "\n" + "\n".join(family_lines(read("families.json")["types"])) + "\n"


def setup(app: Any) -> dict[str, bool]:
    """Offer the role and the directives."""
    app.connect("source-read", _links)
    app.add_role("record", Record())
    directives = {"claims": Claims, "all-claims": AllClaims, "records": Records, "bugs": Bugs, "clocks": Clocks}
    for name, directive in directives.items():
        app.add_directive(name, directive)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
