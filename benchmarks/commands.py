"""The command of every experiment, as one waits for it: by the clock, from the shell, in a process of its own.

    python -m benchmarks commands [--full]      --full: all labs at their default sizes (else one lab, tiny)

Cold is the first time, with no compiled program kept; warm is the same again, with those of the first. `--full` stores
the seconds in docs/results/commands.json, from which the pages tell them.
"""

import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from saddles.core.data import find_data
from saddles.core.experiment import Experiment, chosen
from saddles.core.provenance import machine, versions

RECORD = Path(__file__).parents[1] / "docs" / "results" / "commands.json"
START = {"--version": ["--version"], "list": ["list"], "show": ["show", "linear/figure-1"]}
"""Commands that compute nothing: what it takes to start."""


def main(full: bool = False) -> None:
    rows = chosen([] if full else ["concepts"])
    size = None if full else "tiny"
    found: dict[str, float | tuple[float, float]] = {}
    for words, arguments in START.items():
        clock = statistics.median(_seconds(arguments, {}) for _ in range(5))
        found[f"saddles {words}"] = round(clock, 2)
        print(f"saddles {words}: {clock:.2f} s, the median of five", flush=True)
    for row in rows:
        here = size or row.default
        if missing := [name for name in row.data(row.at_hand(here)) if not find_data().get(name)]:
            print(f"{row.name}: {', '.join(missing)} not found", flush=True)
            continue
        cold, warm = _both(row, here)
        found[f"{row.name}, {here}"] = round(cold, 1), round(warm, 1)
        print(f"{row.name}, {here}: {cold:.1f} s cold, {warm:.1f} s warm", flush=True)
    if full:
        _store(found)


def _both(row: Experiment, size: str) -> tuple[float, float]:
    """Seconds of the first and of the second time, whose results are not kept."""
    with tempfile.TemporaryDirectory() as folder:
        # Nothing compiled, and no classifier of lab diffusion, which later runs would find.
        place = {"XDG_CACHE_HOME": folder, "JAX_COMPILATION_CACHE_DIR": f"{folder}/jax"}
        arguments = ["run", row.name, "--size", size, "--out"]
        cold, warm = (_seconds([*arguments, f"{folder}/{turn}"], place) for turn in ("cold", "warm"))
    return cold, warm


def _seconds(arguments: list[str], place: dict[str, str]) -> float:
    command, began = [sys.executable, "-m", "saddles", *arguments], time.perf_counter()
    done = subprocess.run(command, env=os.environ | place, capture_output=True, text=True, check=False)
    spent = time.perf_counter() - began
    if done.returncode not in (0, 1):  # 1: a claim fails, which is no matter here
        sys.exit(f"{' '.join(command)} ended with exit code {done.returncode}: {done.stderr[-2000:]}")
    return spent


def _store(found: dict[str, float | tuple[float, float]]) -> None:
    facts = machine()
    RECORD.write_text(json.dumps({
        "origin": "written by python -m benchmarks commands --full",
        "records": {"all": {
            "command": "python -m benchmarks commands --full",
            "machine": f"{facts['cores']} cores of a virtual {facts['processor']}, nothing else running",
            "date": datetime.date.today().isoformat(),
            "versions": versions(),
            "values": found,
        }},
    }, indent=1, ensure_ascii=False) + "\n", "utf-8")  # fmt: skip
