"""Worker processes: answers, errors, and what happens when either side dies."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import worker_handlers

from saddles.errors import SaddlesError
from saddles.runtime.workers import PARENT_CHECK_S, Worker, WorkerError, WorkerLostError


def alive(pid):
    """Whether a process runs; one that ended and waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone_within(pid, seconds):
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


def test_a_worker_answers_in_another_process_and_reports_errors():
    with closing(Worker(worker_handlers.multiplier, 3)) as worker:
        assert worker.call(14) == 42
        assert worker.call("ab") == "ababab"
        with pytest.raises(WorkerError, match="ZeroDivisionError"):
            worker.call(0)
        with pytest.raises(WorkerError, match=r"^must be small$"):
            worker.call(10**9)
        assert worker.call(1) == 3, "an error does not end it"
    assert not alive(worker.pid)


def test_what_a_worker_prints_goes_to_stderr(capfd):
    with closing(Worker(worker_handlers.printing, None, environment={"WORD": "hello"})) as worker:
        worker.call(None)
    told = capfd.readouterr()
    assert (told.out, told.err) == ("", "hello\n")


def test_a_worker_inherits_files():
    file = os.memfd_create("test")
    os.write(file, b"shared")
    with closing(Worker(worker_handlers.reading, file, files=[file])) as worker:
        assert worker.call(6) == b"shared"
    os.close(file)


def test_a_worker_that_cannot_start_says_why():
    with closing(Worker(worker_handlers.unwilling, None)) as worker, pytest.raises(WorkerError, match="not today"):
        worker.ready()


@pytest.mark.parametrize("early", [False, True])
def test_the_death_of_a_worker_is_noticed(early):
    with closing(Worker(worker_handlers.leaving, early)) as worker:
        if not early:
            worker.ready()
        with pytest.raises(WorkerLostError, match="exit code 7") as caught:
            worker.call(None)
        assert (caught.value.code, caught.value.started) == (7, not early)
        with pytest.raises(SaddlesError):
            worker.call(None)


def test_a_killed_worker_tells_its_signal():
    with closing(Worker(worker_handlers.multiplier, 1)) as worker:
        worker.ready()
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerLostError) as caught:
            worker.call(1)
    assert caught.value.code == -signal.SIGKILL


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX warns where another test has loaded it
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # Python does, from 3.12 on
def test_closing_does_not_wait_for_processes_that_were_forked_meanwhile():
    """A data loader's process holds a copy of the channel, and lives on."""
    worker = Worker(worker_handlers.multiplier, 1)
    loader = os.fork()
    if loader == 0:
        time.sleep(60)
        os._exit(0)
    try:
        worker.ready()
        began = time.monotonic()
        worker.close()
        assert time.monotonic() - began < 10
        assert not alive(worker.pid)
    finally:
        os.kill(loader, signal.SIGKILL)
        os.waitpid(loader, 0)


def test_a_worker_ends_with_its_parent_even_in_the_middle_of_an_answer():
    code = f"""
import sys; sys.path[:0] = {sys.path!r}
import threading, worker_handlers
from saddles.runtime.workers import Worker
worker = Worker(worker_handlers.sleeping, None)
worker.ready()
print(worker.pid, flush=True)
threading.Thread(target=worker.call, args=(60,), daemon=True).start()
sys.stdin.read()
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    time.sleep(0.3)  # the message is on its way
    assert alive(pid)
    parent.kill()
    parent.communicate()
    assert gone_within(pid, 10 * PARENT_CHECK_S)
