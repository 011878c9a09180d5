"""Cells that do not end, cells that take all memory, workers that grow old, and a cluster without workers."""

import _thread
import os
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import grid_experiment
import pytest

from saddles.core import experiment
from saddles.core.engines import cluster, embedded
from saddles.core.engines.cluster import Cluster
from saddles.errors import SaddlesError
from saddles.runtime.workers import Worker
from saddles.sweeps.api import sweep
from saddles.sweeps.plan import plan_from_words

ROW = grid_experiment.ROW


@pytest.fixture(autouse=True)
def registered(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(experiment, "_own", {ROW.name: ROW})


def test_a_cell_that_does_not_end_has_failed_and_the_others_have_not():
    began = time.monotonic()
    made = sweep(ROW, {"trouble": ["none", "hang"]}, out="s", workers=1, timeout=4)
    assert time.monotonic() - began < 60
    assert made.errors == [("it took longer than the timeout of 4 s", 1)]
    assert [row["changes"]["trouble"] for row in made.failed] == ["hang"]
    assert (made.missing, len(made.rows)) == (0, 2)


def test_a_cell_that_takes_all_memory_has_failed_and_the_others_have_not(monkeypatch):
    monkeypatch.setattr("saddles.sweeps.scheduler.DEATHS", 1)
    made = sweep(ROW, {"trouble": ["none", "grow"]}, out="s", workers=1, memory=1.0)
    ((text, _),) = made.errors
    assert text.endswith("the last time: it took more than 1 GB of memory")
    assert [row["changes"]["trouble"] for row in made.failed] == ["grow"]


def test_workers_are_replaced_after_so_many_cells(monkeypatch, tmp_path):
    monkeypatch.setenv("GRID_LOG", str(tmp_path / "log"))
    monkeypatch.setattr(embedded, "MOST_CELLS", 2)
    monkeypatch.setattr("saddles.sweeps.scheduler.BLOCK_SECONDS", 0.0)  # one cell in each block
    made = sweep(ROW, {"rate": [1.0, 2.0, 3.0, 4.0]}, out="s", workers=1)
    assert not made.failed
    pids = [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [2, 2]


def test_a_worker_whose_memory_grows_is_replaced(monkeypatch):
    class Old(Worker):
        pid, closed = 1, False  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

        def __init__(self):
            pass

        def close(self):
            self.closed = True

    sizes, old = iter([0, embedded.MOST_GROWTH, embedded.MOST_GROWTH + 1]), Old()
    monkeypatch.setattr(embedded, "memory_of", lambda pid: next(sizes))
    pool, seen = embedded.Embedded(1), []
    pool._mine.worker = old
    for _ in range(3):
        pool._count(old, 1)
        seen.append((old.closed, hasattr(pool._mine, "worker")))
    assert seen == [(False, True), (False, True), (True, False)]


@pytest.mark.parametrize("limit", [{"timeout": 1.0}, {"memory": 1.0}])
def test_limits_need_a_process_that_can_be_ended(limit):
    with pytest.raises(SaddlesError, match=r"embedded"):
        sweep(ROW, {"rate": [1.0]}, out="s", on="serial", **limit)
    for wrong in (0, -1.0, float("nan")):
        with pytest.raises(SaddlesError, match="must be"):
            sweep(ROW, {"rate": [1.0]}, out="s", **dict.fromkeys(limit, wrong))  # pyright: ignore[reportArgumentType]
    assert not Path("s").exists()


class Deserted(Cluster):
    """A cluster whose workers leave as soon as it has tasks."""

    def __init__(self, address, versions, say, kept):
        self._address, self._say, self._kept, self._resources, self._refused = address, say, kept, {}, set()
        self._looked, self._slots, self._alone_since, self._calls = 0.0, 1, None, 0

    def _workers(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        self._calls += 1
        return {"tcp://there:1": {"nthreads": 1}} if self._calls == 1 else {}

    def submit(self, task):
        return Future()

    def close(self):
        pass


def test_a_cluster_without_workers_is_told_and_given_up(monkeypatch):
    monkeypatch.setattr("saddles.sweeps.api.Cluster", Deserted)
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.1)
    assert cluster.WORKERS_SECONDS == 120
    monkeypatch.setattr(cluster, "WORKERS_SECONDS", 1.0)
    told, began = [], time.monotonic()
    late = threading.Timer(30, _thread.interrupt_main)
    late.start()
    try:
        with pytest.raises(SaddlesError, match=r"tcp://there:1 has had no worker for 1 s: .* Finished cells are kept"):
            sweep(ROW, {"rate": [1.0, 2.0]}, out="s", on="tcp://there:1", say=told.append)
    except KeyboardInterrupt:
        pytest.fail("the sweep waits for ever")
    late.cancel()
    assert time.monotonic() - began < 20
    assert told == ["tcp://there:1 has no worker left; waiting up to 1 s for one."]
    assert os.path.exists("s/sweep.json")
    assert plan_from_words(None, [], False, None, None, {}, Path("s")) is None
