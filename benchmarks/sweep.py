"""What a sweep costs beyond its cells: 10,000 cells of an experiment that computes next to nothing.

    python -m benchmarks sweep [--full]      --full: 10,000 cells and the driver's memory (else 2,000)

Overhead is the time of the whole sweep, from the first task to the last commit, times the number of workers, less the
seconds spent inside `run` and `claims`, for each cell. The plain loop computes the same cells and writes each with
`saddles.save`, one folder per cell.
"""

import os
import resource
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from matplotlib.figure import Figure

from saddles.core.claim import Claim, check
from saddles.core.experiment import Context, Experiment, Size, find
from saddles.core.store import save
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.sweeps.api import sweep
from saddles.sweeps.cells import Job, Task, compute


@dataclass(frozen=True)
class Settings:
    """Next to nothing."""

    rate: Annotated[float, "how fast it decays"] = 1.0
    points: Annotated[int, "instants"] = 16


def run(settings: Settings, context: Context) -> Trajectory:
    times = np.linspace(0, 1, settings.points)
    value = np.exp(-settings.rate * times) * (1 + context.seed)
    return make_trajectory({"value": (("time",), value)}, times, unit="t")


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    fall = float(trajectory["value"][-1] / trajectory["value"][0])
    words: dict[str, Any] = {"paper": "nobody", "where": "here", "size": size, "sizes": ("tiny",)}
    return [check("It decays", values=fall, relation="<=", threshold=0.5, **words)]


def figure(trajectory: Trajectory) -> Figure:
    return Figure()


TRIVIAL = Experiment(
    "bench/trivial", "Next to nothing", "nobody", sizes={"tiny": Size(1, Settings())}, default="tiny", run=run,
    claims=claims, figure=figure,
)  # fmt: skip


def _memory() -> float:
    """MiB that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _sweep(rows: int, columns: int, on: str, workers: int | None, folder: Path) -> None:
    before, used = _memory(), time.process_time()
    rates = list(np.linspace(0.1, 5, rows))
    result = sweep(TRIVIAL, {"rate": rates}, seeds=columns, out=folder, on=on, workers=workers)
    count, spent = rows * columns, result.facts["wall_time_s"]
    inside = sum(row["seconds"] for row in result.rows.values())
    slots = workers or 1
    files = sum(len(names) for _, _, names in os.walk(folder))
    size = sum((Path(home) / name).stat().st_size for home, _, names in os.walk(folder) for name in names)
    print(
        f"{on}, {slots} worker(s), {count} cells: {spent:.1f} s, {1e3 * spent / count:.2f} ms per cell on the clock, "
        f"{1e3 * (spent * slots - inside) / count:.2f} ms of overhead per cell and worker "
        f"({1e3 * inside / count:.2f} ms inside); driver {1e3 * (time.process_time() - used) / count:.2f} processor ms "
        f"per cell, {_memory() - before:+.0f} MiB; {files} files, {size / count:.0f} bytes per cell; "
        f"load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    assert not result.failed


def _plain(count: int, folder: Path) -> None:
    began, used = time.perf_counter(), time.process_time()
    for k in range(count):
        save(run(Settings(), Context(seed=k)), folder / f"{k}.zarr")
    spent = 1e3 * (time.perf_counter() - began) / count
    print(f"plain loop, a Zarr folder each: {spent:.2f} ms per cell, "
          f"{1e3 * (time.process_time() - used) / count:.2f} processor ms", flush=True)  # fmt: skip


def _together(count: int) -> None:
    """Cells of a JAX lab in one program against the same cells one by one in a warm process, in turns."""
    row = find("concepts/figure-2a")
    jobs = [Job(k, row.settings("tiny", {"seeds": 1, "epochs": 4}), k) for k in range(count)]
    ways = {"together": row, "one by one": replace(row, together=())}
    spent: dict[str, list[float]] = {name: [] for name in ways}
    digests = {}
    for _ in range(4):
        for name, way in ways.items():
            began = time.process_time()
            outcomes = compute(Task(way, "tiny", tuple(jobs)))
            assert isinstance(outcomes, list)
            spent[name].append(time.process_time() - began)
            digests[name] = [outcome.digest for outcome in outcomes]
    assert digests["together"] == digests["one by one"]
    best = {name: min(rows[1:]) for name, rows in spent.items()}
    print(
        f"{count} cells of concepts/figure-2a in one program: {best['together']:.3f} processor s against "
        f"{best['one by one']:.3f} one by one, {best['one by one'] / best['together']:.2f} times; same bytes",
        flush=True,
    )


def main(full: bool = False) -> None:
    _together(32)
    with tempfile.TemporaryDirectory() as home:
        _plain(100, Path(home))
        _sweep(10, 100, "serial", None, Path(home) / "serial")
        for rows in (10, 100) if full else (10, 20):
            _sweep(rows, 100, "embedded", 2, Path(home) / f"embedded-{rows}")
    print(f"largest memory of the driver: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
