"""Worker processes on this machine: the same bytes, and what survives a kill -9."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grid_experiment
import pytest

from saddles.core.engines import embedded
from saddles.core.engines.embedded import Embedded
from saddles.core.engines.engine import EngineError
from saddles.errors import SaddlesError
from saddles.runtime.workers import Worker
from saddles.sweeps.api import read_sweep, sweep
from saddles.sweeps.cells import Job, Task

ROW = grid_experiment.ROW
DRIVER = """
import sys, grid_experiment
from saddles.core.experiment import register
from saddles.cli import main
register(grid_experiment.ROW)
main()
"""
"""A script without `if __name__ == "__main__"`: workers must not run it again."""


def driver(*words, log):
    Path("driver.py").write_text(DRIVER)
    path = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": path, "GRID_LOG": str(log)}
    return subprocess.Popen(
        [sys.executable, "driver.py", "sweep", *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip


def until(happened, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def lines(file):
    return file.read_text().splitlines() if file.exists() else []


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


def test_a_killed_worker_loses_nothing_and_writes_nothing_twice(tmp_path, monkeypatch):
    log = tmp_path / "log"
    monkeypatch.setenv("GRID_LOG", str(log))
    grid = {"rate": [1.0 + k for k in range(8)], "wait": [0.05]}
    killed = []

    def kill_once(self, task, real=Embedded._compute):
        if len(lines(log)) >= 3 and not killed:
            killed.append(self.pids()[0])
            os.kill(killed[0], signal.SIGKILL)
        return real(self, task)

    monkeypatch.setattr(Embedded, "_compute", kill_once)
    made = sweep(ROW, grid, seeds=2, out="s", workers=2)
    assert killed
    assert (made.failed, made.missing) == ([], 0)
    assert len(lines(tmp_path / "s" / "cells.jsonl")) == 16, "a line for each cell, and one only"
    serial = sweep(ROW, grid, seeds=2, out="t", on="serial")
    assert [made.rows[k]["digest"] for k in range(16)] == [serial.rows[k]["digest"] for k in range(16)]
    assert not any(alive(pid) for pid in {int(row.split()[0]) for row in lines(log)} - {os.getpid()})


def test_a_cell_that_kills_its_worker_fails_alone():
    made = sweep(ROW, {"trouble": ["none", "die"]}, seeds=2, out="s", workers=1)
    assert [row["cell"] for row in made.failed] == [2, 3]
    assert made.failed[0].get("error", "") == "its worker died 3 times, the last time: its process ended with code -9"
    assert made.trajectory["cell_done"].values.tolist() == [[1, 1], [0, 0]]


@pytest.mark.parametrize("how", ["kill", "interrupt"])
def test_a_killed_driver_goes_on_where_it_was(tmp_path, monkeypatch, how):
    log, table = tmp_path / "log", tmp_path / "s" / "cells.jsonl"
    words = ["toy/grid", "--grid", "rate=1:12:12", "--set", "wait=0.15", "--workers", "1", "--out", "s"]
    process = driver(*words, log=log)
    until(lambda: len(lines(table)) >= 2)
    if how == "kill":
        process.kill()
    else:
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    done = len(lines(table))
    assert process.returncode == (-signal.SIGKILL if how == "kill" else 130)
    assert 2 <= done < 12
    if how == "interrupt":
        assert "saddles sweep --resume s" in err
    until(lambda: not any(alive(int(row.split()[0])) for row in lines(log)), 10)
    seen = read_sweep("s").trajectory
    whole = (seen["cell_done"] == 1).values
    assert whole.sum() <= done
    assert seen["value"].notnull().any(["time", "seed"]).values.tolist() == whole.tolist()
    assert seen["rate"].values.tolist() == list(range(1, 13))
    begun = len(lines(log))
    monkeypatch.setenv("GRID_LOG", str(log))
    made = sweep(resume="s", on="serial")
    assert (made.failed, made.missing, made.facts["status"]) == ([], 0, "finished")
    assert sorted(made.rows) == list(range(12))
    assert len(lines(table)) == 12, "nothing twice"
    assert len(lines(log)) - begun == 12 - done, "only what was missing"


def test_a_worker_that_does_not_start_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SaddlesError, match="before it was ready"):
        sweep(ROW, {"rate": [1.0]}, out="s")


def test_a_worker_of_another_version_is_refused():
    engine = Embedded(1)
    try:
        task = Task(ROW, "tiny", (Job(0, ROW.settings("tiny"), 0),), {"saddles": "99.0"})
        with pytest.raises(EngineError, match=r"it has .* and not saddles 99\.0"):
            engine.submit(task).result()
    finally:
        engine.close()


def test_a_worker_that_is_replaced_leaves_its_gpu_to_the_next_one(monkeypatch):
    given = []

    class NoProcess(Worker):
        def __init__(self, *_, environment):
            given.append(environment["CUDA_VISIBLE_DEVICES"])

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(embedded, "Worker", NoProcess)
    engine = Embedded()
    with ThreadPoolExecutor(1) as other:
        other.submit(engine._start).result()
    engine._forget(engine._start())
    engine._start()
    assert given == ["2", "5", "5"]


def test_one_thread_and_one_gpu_for_each_worker(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    engine = Embedded()
    assert engine.slots == 2
    found = [engine._environment(number) for number in range(3)]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == ["2", "5", "2"]
    assert {found[0][name] for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC")} == {"1"}
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert embedded.gpus() == []
    engine.close()
