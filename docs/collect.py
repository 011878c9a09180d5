"""Collect the claims of all runs in a folder into one stored result.

    python docs/collect.py runs docs/results/claims.json

`saddles reproduce` makes the runs. Experiments without a run in the folder keep the record that the file has, and the
file its machine: a record from another one names its own. Experiments that have neither were skipped for want of data,
and are listed with their data sets.
"""

import datetime
import json
import sys
from pathlib import Path
from typing import Any

from pybtex.database import parse_file

from saddles.core.experiment import registry
from saddles.core.known import FILE as KNOWN

HERE = Path(__file__).parent
PLAIN = str.maketrans("", "", "{}\\`'\"")
"""Takes the marks of TeX out of a name."""


def collect(root: Path, before: dict[str, Any]) -> dict[str, Any]:
    """One record for each experiment, in the order of `saddles list`, and the counts of their verdicts.

    Args:
        before: what the file has already, {} where there is none.
    """
    runs = {}
    for file in sorted(root.glob("*/*/*/run.json")):
        run = json.loads(file.read_text("utf-8"))
        if run["status"] == "finished":
            runs[run["experiment"]] = (run, json.loads((file.parent / "claims.json").read_text("utf-8")), file)
    first = next(iter(runs.values()))[0]
    kept = any("claims" in row and name not in runs for name, row in before.get("records", {}).items())
    common = before if kept else first
    records: dict[str, Any] = {}
    for name, row in registry().items():
        if name not in runs and "claims" in before.get("records", {}).get(name, {}):
            records[name] = before["records"][name]
            continue
        if name not in runs:
            records[name] = {"title": row.title, "skipped": f"needs {', '.join(row.data(row.settings(row.default)))}"}
            continue
        run, claims, file = runs[name]
        day = datetime.date.fromtimestamp(file.stat().st_mtime).isoformat()
        facts = {key: run[key] for key in ("title", "paper", "size", "seed", "wall_time_s")}
        other = {} if run["machine"] == common["machine"] else {"machine": run["machine"]}
        records[name] = facts | other | {"date": day, "claims": claims}
    done = [record for record in records.values() if "claims" in record]
    verdicts = [claim["verdict"] for record in done for claim in record["claims"]]
    records["all"] = {
        "command": "saddles reproduce",
        "experiments": len(records),
        "skipped": len(records) - len(done),
        **{word: verdicts.count(word) for word in ("holds", "fails", "not_evidence", "not_applicable")},
    }
    return {"machine": common["machine"], "versions": common["versions"], "records": records}


def known(records: dict[str, Any]) -> dict[str, Any]:
    """What `saddles show` tells of papers and claims."""
    papers = {}
    for key, entry in parse_file(str(HERE / "references.bib")).entries.items():
        people = [" ".join(person.last_names).translate(PLAIN) for person in entry.persons["author"]]
        names = " and ".join(people) if len(people) < 3 else f"{people[0]} et al."
        there = f", https://arxiv.org/abs/{entry.fields['eprint']}" if "eprint" in entry.fields else ""
        papers[key] = f"{names}, {entry.fields['title']} ({entry.fields['year']}){there}"
    rows = {name: record["claims"] for name, record in records.items() if "claims" in record}
    kept = ("claim", "where", "relation", "threshold")
    return {"papers": papers, "claims": {name: [{k: c[k] for k in kept} for c in row] for name, row in rows.items()}}


if __name__ == "__main__":
    file = Path(sys.argv[2])
    made = collect(Path(sys.argv[1]), json.loads(file.read_text("utf-8")) if file.exists() else {})
    file.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", "utf-8")
    KNOWN.write_text(json.dumps(known(made["records"]), indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(made["records"]["all"])
