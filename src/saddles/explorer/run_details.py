"""What stands below a run's plots: its figure and other images, its claims, and a table of all runs."""

import base64
import json
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from saddles.core.claim import compared, read_claims
from saddles.errors import SaddlesError
from saddles.explorer.run_folders import RunFolders

MOST_IMAGES = 6
MOST_BYTES = 3_000_000
"""Of an image that is shown."""
LISTED = 200
"""Rows of the table."""


def details(folders: RunFolders, run: str) -> str:
    """HTML: the images and claims of a run, and the runs there are. Everything read is escaped."""
    place = folders.place(run) if run else None
    return (_images(place) + _claims(place) if place is not None and place.is_dir() else "") + _table(folders)


def _images(place: Path) -> str:
    found = sorted(place.glob("*.png"), key=lambda file: (file.name != "figure.png", file.name))
    shown = [file for file in found if not file.is_symlink() and file.is_file() and file.stat().st_size <= MOST_BYTES]
    made = ""
    for file in shown[:MOST_IMAGES]:
        inside = base64.b64encode(file.read_bytes()).decode("ascii")
        words = f"{escape(file.stem, quote=True)} of this run"
        made += f'<figure class="image"><figcaption>{escape(file.name)}</figcaption>'
        made += f'<img alt="{words}" src="data:image/png;base64,{inside}"></figure>'
    return made


def _claims(place: Path) -> str:
    file = place / "claims.json"
    if not file.is_file() or file.is_symlink():
        return ""
    try:
        claims = read_claims(file)
    except SaddlesError as error:
        return f'<p class="refusal">{escape(str(error))}</p>'
    rows = ""
    for one in claims:
        number = f"{one.value:.4g} {compared(one.value, one.relation, one.threshold)} {one.threshold:.4g}"
        rows += f'<tr><td class="{one.verdict}">{one.verdict.replace("_", " ")}</td><td>{escape(one.claim)}</td>'
        rows += f'<td class="number">{number}</td></tr>'
    return f'<h2>Claims</h2><div class="wide"><table class="claims"><tbody>{rows}</tbody></table></div>' if rows else ""


def _table(folders: RunFolders) -> str:
    """Runs with their settings and claims; a click on a heading sorts by it."""
    rows = "".join(
        f'<tr><td><a href="/runs?{urlencode({"run": run.name})}">{escape(run.name)}</a></td>'
        + "".join(f"<td>{escape(text)}</td>" for text in _facts(folders, run.name, run.kind))
        + "</tr>"
        for run in folders.list()[:LISTED]
    )
    if not rows:
        return ""
    heads = "".join(
        f'<th scope="col"><button type="button" class="quiet" onclick="saddles.sort(this)">{name}</button></th>'
        for name in ("run", "experiment", "size", "seed", "status", "claims", "settings")
    )
    table = f'<table class="runs"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<h2>All runs</h2><div class="wide">{table}</div>'


def _facts(folders: RunFolders, name: str, kind: str) -> list[str]:
    """Experiment, size, seed, status, claims that hold, and settings; what cannot be read stays empty."""
    place = folders.place(name)
    record, claims = place / ("sweep.json" if kind == "sweep" else "run.json"), place / "claims.json"
    try:
        facts = json.loads(record.read_text("utf-8")) if not record.is_symlink() else {}
        if kind == "sweep":
            facts = _of_sweep(facts)
        settings = ", ".join(f"{key} {value}" for key, value in facts["settings"].items())
        known = [str(facts[key]) for key in ("experiment", "size", "seed", "status")]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return [kind, "", "", "", "", ""]
    try:
        verdicts = [one.verdict for one in read_claims(claims)] if claims.is_file() and not claims.is_symlink() else []
    except SaddlesError:
        verdicts = []
    judged = len(verdicts) - verdicts.count("not_applicable")
    told = f"{verdicts.count('holds')} of {judged} hold" if judged else "none applies" if verdicts else ""
    return [*known, told, settings]


def _of_sweep(facts: dict[str, Any]) -> dict[str, Any]:
    """What is written of a sweep as if it were of a run: its seeds are counted, and a grid is told by its ends."""
    seeds, grid = facts["seeds"], {key: f"{values[0]} … {values[-1]}" for key, values in facts["grid"].items()}
    seed = str(seeds[0]) if len(seeds) == 1 else f"{len(seeds)} seeds"
    return facts | {"seed": seed, "settings": facts["settings"] | grid}
