"""Which bugs of `make mutate` a claim would show: `python tests/support/judged_mutations.py [WORD]`.

The record `claims` of docs/results/mutations.json names for every bug experiments that run its line, where there are
any, as LAB/NAME and a size, or a stored trajectory. They are run, one after the other, on a copy of the package without
the bug and with it, seed 0. A claim shows the bug if it holds without and does not with it; an experiment does if it
breaks off or takes more than four times as long. At size `tiny` claims are judged as at `laptop`; those that do not
hold there without the bug show nothing. The first that shows it ends the row, and rows are written as they are done:
`shown`, by what ("" if by none, null if not tried), and `moves`, whether the value of any claim changed.
"""

import argparse
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from mutations import MUTATIONS, RECORD, ROOT, Mutation

HERE = Path(__file__)
LONGER, SPARE = 4, 40
"""How many times as long, and processor seconds more, an experiment may take with a bug."""
SAME = 1e-9
"""Relative difference up to which the value of a claim counts as unchanged."""


def judge(place: str) -> list[dict[str, Any]]:
    """The claims of an experiment at a size, or on a stored trajectory, with the package that is imported."""
    from saddles import load
    from saddles.core.claim import as_row
    from saddles.core.experiment import Context, find

    name, size = place.split()
    row = find(name)
    if size.endswith(".zarr"):
        return [as_row(claim) for claim in row.claims(load(RECORD.parent / size), "gpu")]
    with tempfile.TemporaryDirectory() as folder:
        context = Context(seed=0, size=size, folder=lambda part: Path(folder) / part)
        claims = row.claims(row.run(row.at_hand(size), context), "laptop" if size == "tiny" else size)
    return [as_row(claim) for claim in claims]


def judged_by(source: Path, place: str, limit: int) -> tuple[list[dict[str, Any]], str, float]:
    """The claims with the package in a folder, or how the experiment ended, and its processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, str(HERE), "--judge", place], env=os.environ | {"PYTHONPATH": str(source)},
        capture_output=True, check=False, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)),
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode < 0:
        return [], "does not end", spent
    if done.returncode:
        return [], f"breaks off: {done.stderr.strip().splitlines()[-1][:120]}", spent
    return json.loads(done.stdout.splitlines()[-1]), "", spent


@cache
def clean(place: str) -> tuple[list[dict[str, Any]], float]:
    """The claims without a bug, and the processor seconds."""
    claims, ended, spent = judged_by(ROOT / "src", place, 3600)
    if ended:
        raise RuntimeError(f"{place}: {ended}")
    return claims, spent


def shown_by(mutation: Mutation, place: str) -> tuple[str, bool]:
    """The claim that shows a bug, or how the experiment ended ("" if neither), and whether any value changed."""
    right, spent = clean(place)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        file = source / "saddles" / mutation.file
        file.write_text(file.read_text("utf-8").replace(mutation.old, mutation.new), "utf-8")
        wrong, ended, _ = judged_by(source, place, int(LONGER * spent) + SPARE)
    if ended:
        return ended, True
    pairs = list(zip(right, wrong, strict=True))
    changed = [a["claim"] for a, b in pairs if a["verdict"] == "holds" and b["verdict"] != "holds"]
    moves = any(not math.isclose(a["value"], b["value"], rel_tol=SAME) for a, b in pairs)
    return (changed[0] if changed else ""), moves


def main() -> None:
    """Try all bugs, or those whose file contains a word."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("word", nargs="?", default="", help="only bugs of files whose name contains it")
    arguments.add_argument("--judge", metavar="PLACE", help="print the claims of one experiment and end")
    chosen = arguments.parse_args()
    if chosen.judge:
        print(json.dumps(judge(chosen.judge)))
        return
    known = {(mutation.file, mutation.new): mutation for mutation in MUTATIONS}
    whole = json.loads(RECORD.read_text("utf-8"))
    for row in whole["records"]["claims"]["bugs"]:
        if chosen.word not in row["file"]:
            continue
        row |= {"shown": "", "moves": False}
        for place in row["experiments"]:
            words, moves = shown_by(known[row["file"], row["bug"]], place)
            row["moves"] |= moves
            if words:
                row["shown"] = f"{place.split()[0]}: {words}"
                break
        print(f"{'shown' if row['shown'] else 'unseen':8}{row['file']}: {row['bug']}  {row['shown']}", flush=True)
        RECORD.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
