"""Collect the claims of all runs in a folder into one stored result.

    python docs/collect.py runs docs/results/claims.json

`saddles reproduce` makes the runs. Experiments without a run in the folder keep the record that the file has; those
that have neither were skipped for want of data, and are listed with their data sets.
"""

import datetime
import json
import sys
from pathlib import Path
from typing import Any

from saddles.core.experiment import registry


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
        records[name] = facts | {"date": day, "claims": claims}
    done = [record for record in records.values() if "claims" in record]
    verdicts = [claim["verdict"] for record in done for claim in record["claims"]]
    first = next(iter(runs.values()))[0]
    records["all"] = {
        "command": "saddles reproduce",
        "experiments": len(records),
        "skipped": len(records) - len(done),
        **{word: verdicts.count(word) for word in ("holds", "fails", "not_evidence", "not_applicable")},
    }
    return {"machine": first["machine"], "versions": first["versions"], "records": records}


if __name__ == "__main__":
    file = Path(sys.argv[2])
    made = collect(Path(sys.argv[1]), json.loads(file.read_text("utf-8")) if file.exists() else {})
    file.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(made["records"]["all"])
