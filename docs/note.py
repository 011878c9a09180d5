"""Note measured numbers of a page in the records that the page refers to.

    python docs/note.py docs/linear.md --command "saddles run linear/transition" --machine "two cores of a Xeon"

Write the text first, with a link [record](results/FILE.json#KEY) in each paragraph that tells measured numbers. What
its record lacks is added under the words around it, and a record that is not there is begun with the command and the
machine given. Numbers that a record holds are left alone: where text and record differ, decide which one is right.
"""

import argparse
import datetime
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from measured import NUMBER, RESULTS, Passage, agrees, numbers_in, passages, value  # noqa: E402


def note(page: Path, command: str, machine: str) -> list[str]:
    """Add what is missing; returns the places that changed."""
    changed: dict[str, dict[str, Any]] = {}
    for passage in passages(page):
        if passage.settings or not passage.records or passage.records[0].startswith("claims"):
            continue
        known = tuple(n for place in passage.records for n in numbers_in(_record(place, changed)))
        if all(agrees(word, known) for word in passage.numbers()):
            continue
        place = passage.records[0]
        record = _record(place, changed)
        if not record:
            record |= {"command": command, "machine": machine, "date": datetime.date.today().isoformat(), "values": {}}
        changed[place] = record
        for words in re.split(r"[.;:] (?=\D)|\n", passage.text):
            missing = [word for word in Passage(0, words, (), False).numbers() if not agrees(word, known)]
            if missing:
                record["values"][NUMBER.sub("…", words).strip(" .:()")[:200]] = [value(word) for word in missing]
        left = [word for word in passage.numbers() if not agrees(word, (*known, *numbers_in(record)))]
        if left:
            record["values"][f"also, {passage.text[:60]}"] = [value(word) for word in left]
    for place, record in changed.items():
        _write(place, record)
    return list(changed)


def _record(place: str, changed: dict[str, dict[str, Any]]) -> dict[str, Any]:
    file, _, key = place.partition("#")
    stored = RESULTS / file
    found = json.loads(stored.read_text("utf-8")) if stored.exists() else {"records": {}}
    return changed.get(place) or found["records"].get(key, {})


def _write(place: str, record: dict[str, Any]) -> None:
    file, _, key = place.partition("#")
    stored = RESULTS / file
    whole = {"origin": "written down from the output of the commands named", "records": {}}
    whole = json.loads(stored.read_text("utf-8")) if stored.exists() else whole
    whole["records"][key] = record
    stored.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("page", type=Path)
    words.add_argument("--command", required=True)
    words.add_argument("--machine", required=True)
    asked = words.parse_args()
    print("\n".join(note(asked.page, asked.command, asked.machine)) or "nothing is missing")
