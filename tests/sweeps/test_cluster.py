"""A Dask cluster of two workers: the same bytes, lost workers, refused workers, silent schedulers, GPUs."""

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import grid_experiment
import pytest
from dask_cluster import dask_cluster

import saddles
from saddles.core import provenance
from saddles.core.engines import cluster
from saddles.core.engines.cluster import Cluster
from saddles.core.engines.engine import Refusal
from saddles.errors import SaddlesError
from saddles.sweeps.api import sweep
from saddles.sweeps.cells import Job, Outcome, Task, compute

distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install saddles[sweep]")

ROW = grid_experiment.ROW
JAX = "linear/trade-off"
SMALL = {"dim": 12, "points": 2, "limit": 60, "rank": 2}


@pytest.fixture(scope="module")
def dask(tmp_path_factory):
    """A scheduler and two workers as a user starts them; returns the address and a way to start more."""
    home = tmp_path_factory.mktemp("dask")
    with dask_cluster(home, GRID_LOG=str(home / "log")) as (address, worker, _):
        yield address, worker, home / "log"


def digests(made):
    assert not made.failed
    return [made.rows[k]["digest"] for k in range(len(made.rows))]


@pytest.fixture(scope="module")
def by_dask(dask, tmp_path_factory):
    """A sweep of a JAX lab on both workers."""
    out = tmp_path_factory.mktemp("sweep") / "dask"
    return sweep(JAX, {"c": [5.0, 20.0]}, seeds=2, size="tiny", changes=SMALL | {"seeds": 1}, out=out, on=dask[0])


@pytest.mark.slow
def test_three_engines_give_the_same_bytes(by_dask, tmp_path):
    """Of a JAX lab; serial in a process of its own, because this one may run XLA with more threads already."""
    options = ["--size", "tiny", "--grid", "c=5,20", "--seeds", "2", "--set", "seeds=1"]
    options += [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    path = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "saddles", "sweep", JAX, *options, "--out", "serial", "--on", "serial"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    embedded = sweep(JAX, {"c": [5.0, 20.0]}, seeds=2, size="tiny", changes=SMALL | {"seeds": 1}, out="e", workers=2)
    serial = sweep(resume="serial", on="serial")
    assert digests(serial) == digests(embedded) == digests(by_dask)
    assert len(set(digests(serial))) == 4
    for name in ("best_test_error", "best_time", "stable_rank", "claim_value"):
        values = [made.trajectory[name].values.tobytes() for made in (serial, embedded, by_dask)]
        assert values[0] == values[1] == values[2]


def test_a_killed_worker_loses_nothing_and_writes_nothing_twice(dask, tmp_path, by_dask):
    address, worker, log = dask
    doomed = worker("--name", "doomed")
    killed = []

    def send(self, task, real=Cluster._send):
        if not killed and f"{doomed.pid} " in log.read_text()[len(before) :]:
            killed.append(doomed.pid)
            os.kill(doomed.pid, signal.SIGKILL)
        return real(self, task)

    grid = {"rate": [1.0 + k for k in range(12)], "wait": [0.1]}
    with distributed.Client(address, set_as_default=False) as client:
        client.wait_for_workers(3, timeout=60)
        warm = Task(ROW, "tiny", (Job(0, ROW.settings("tiny"), 0),))
        client.submit(compute, warm, workers=["doomed"], pure=False).result(60)
    before = log.read_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cluster, "_send", send)
        made = sweep(ROW, grid, seeds=2, out="s", on=address)
    assert killed
    assert (made.failed, made.missing) == ([], 0)
    assert len((tmp_path / "s" / "cells.jsonl").read_text().splitlines()) == 24
    assert digests(made) == digests(sweep(ROW, grid, seeds=2, out="t", on="serial"))


def test_a_scheduler_that_does_not_answer_is_named(monkeypatch):
    assert cluster.ANSWER_SECONDS == 10
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 1.0)
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        address = f"tcp://127.0.0.1:{mute.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(SaddlesError, match=rf"{address} did not answer within 1 s.*dask scheduler"):
            sweep(ROW, {"rate": [1.0]}, out="s", on=address)
        assert time.monotonic() - began < 8
    assert not Path("s").exists()


def test_a_worker_with_another_version_is_refused_and_named(dask, monkeypatch):
    real = provenance.versions()
    with pytest.raises(SaddlesError, match=r"Worker tcp://.* has saddles .*has saddles 99\.0"):
        Cluster(dask[0], real | {"saddles": "99.0"}, print, "")
    monkeypatch.setattr(saddles, "__version__", "99.0")
    with pytest.raises(SaddlesError, match="Install the same versions there"):
        sweep(ROW, {"rate": [1.0]}, out="s", on=dask[0])
    assert not Path("s").exists()
    assert sweep(ROW, {"rate": [1.0]}, out="s", on=dask[0], accept_changes=True).missing == 0


def test_a_worker_without_saddles_is_refused_and_named():
    with pytest.raises(SaddlesError, match=r"tcp://there:1 cannot import saddles"):
        cluster._refuse_versions({"tcp://there:1": ModuleNotFoundError("saddles")}, {})


def test_a_wrong_worker_that_comes_late_is_left_out(dask, monkeypatch):
    """It answers with a refusal; its task goes to the others."""
    said = []
    engine = Cluster(dask[0], None, said.append, "")
    bad = next(iter(engine._workers()))
    real = engine._client.submit

    def submit(function, task, **options):
        if options.get("workers") is None:
            return real(Refusal, bad, "it has saddles 0.0", pure=False)
        assert bad not in options["workers"]
        return real(function, task, **options)

    monkeypatch.setattr(engine._client, "submit", submit)
    try:
        made = engine.submit(Task(ROW, "tiny", (Job(0, ROW.settings("tiny"), 0),))).result(30)
    finally:
        engine.close()
    assert isinstance(made[0], Outcome)
    assert said == [f"Worker {bad} is left out: it has saddles 0.0."]


def test_one_cell_at_a_time_for_each_gpu(dask, monkeypatch):
    """A worker with four threads and one GPU; the others, without, get nothing."""
    address, worker, _ = dask
    extra = worker("--nthreads", "4", "--resources", "GPU=1", "--name", "gpu")
    monkeypatch.setattr(cluster, "_compute_there", grid_experiment.who_and_when)
    try:
        with distributed.Client(address, set_as_default=False) as client:
            while "gpu" not in {row["name"] for row in client.scheduler_info(n_workers=-1)["workers"].values()}:
                time.sleep(0.1)
        engine = Cluster(address, provenance.versions(), print, "")
        try:
            assert engine.slots == 1
            task = Task(ROW, "tiny", (Job(0, ROW.settings("tiny"), 0),))
            rows: list = [future.result(30) for future in [engine.submit(task) for _ in range(4)]]
        finally:
            engine.close()
    finally:
        extra.kill()
        extra.wait()
    assert {row[0] for row in rows} == {"gpu"}
    spans = sorted(row[1:] for row in rows)
    assert all(later[0] >= earlier[1] for earlier, later in itertools.pairwise(spans)), spans


def test_without_dask_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(SaddlesError, match=r"saddles\[sweep\]"):
        sweep(ROW, {"rate": [1.0]}, out="s", on="tcp://127.0.0.1:1")


def test_a_scheduler_without_workers_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(cluster, "WORKERS_SECONDS", 0.5)
    said = []
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=":0", processes=False) as empty,
        pytest.raises(SaddlesError, match="dask worker"),
    ):
        Cluster(empty.scheduler_address, None, said.append, "")
    assert "no worker yet" in said[0]
