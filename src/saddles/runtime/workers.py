"""Worker processes: a fresh Python that answers messages, one at a time.

    worker = Worker(start, setup)        # runs handle = start(setup) in a new process
    answer = worker.call(message)        # runs handle(message) there
    worker.close()

A worker is a new interpreter (`python -m saddles.runtime.workers`), not a fork, which neither JAX nor CUDA survives,
and not a child of `multiprocessing`, which would import the caller's script again. Messages travel through a
`multiprocessing.connection` over a private pair of connected sockets: one end stays here, the other is inherited by
the worker alone. Nothing else can write to it, so the pickles on it come from this program and are safe to open.

Either side notices the death of the other. `call` raises `WorkerLostError`; a worker whose parent is gone ends
within `PARENT_CHECK_S`, even in the middle of a message.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Generic, TypeVar

from saddles.errors import SaddlesError

Setup = TypeVar("Setup")
Message = TypeVar("Message")
Answer = TypeVar("Answer")

PARENT_CHECK_S = 1.0
"""Seconds between a worker's looks at whether its parent is still there."""

EXIT_S = 5.0
"""Seconds for a worker whose channel is closed to end by itself."""

WATCH_S = 0.1
"""Seconds between looks at a worker that is watched."""

_ANSWER, _ERROR = "answer", "error"


class WorkerError(SaddlesError):
    """The worker could not do what it was told; the text says why. It is ready for the next message."""


class WorkerLostError(SaddlesError):
    """The worker's process has ended.

    Attributes:
        code: its exit code, negative for a signal.
        started: whether it had become ready for messages.
    """

    def __init__(self, code: int, started: bool) -> None:
        when = "early" if started else "before it was ready; saddles must be importable in a fresh Python"
        super().__init__(f"The worker process ended {when} (exit code {code}). Its own messages are on stderr.")
        self.code, self.started = code, started


class WorkerStoppedError(SaddlesError):
    """The worker was ended because of what `watch` saw, which is the text."""


class Worker(Generic[Message, Answer]):
    """One worker process. Only one thread may call it at a time.

    The process starts at once and in the background; the first call waits until it is ready.

    Args:
        start: a function of a module (it travels by name); called once in the worker, it returns the function that
            answers messages.
        setup: the argument of `start`.
        environment: variables that differ from this process's.
        files: descriptors that the worker inherits under the same numbers.
    """

    def __init__(
        self,
        start: Callable[[Setup], Callable[[Message], Answer]],
        setup: Setup,
        *,
        environment: Mapping[str, str] | None = None,
        files: Sequence[int] = (),
    ) -> None:
        if os.name == "nt":
            raise SaddlesError("Worker processes need Linux or macOS. Use threads, or one process, on this system.")
        self._channel, other = Pipe()
        self._started = False
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "saddles.runtime.workers", str(other.fileno()), str(os.getpid())],
                pass_fds=[other.fileno(), *files],
                env={**os.environ, "PYTHONPATH": path, "SADDLES_PROGRESS": "off", **(environment or {})},
                start_new_session=True,  # Ctrl-C reaches the parent alone, which decides what ends
            )
        with contextlib.suppress(OSError):  # it ended already: the first call tells
            self._channel.send((start, setup))

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    def ready(self) -> None:
        """Wait until `start` has returned.

        Raises:
            WorkerError: `start` failed.
            WorkerLostError: the process ended.
        """
        if not self._started:
            self._receive()
            self._started = True

    def call(self, message: Message, watch: Callable[[], str] | None = None) -> Answer:
        """Send a message and wait for its answer.

        Args:
            watch: called now and then while the worker computes; the worker is ended where it returns a reason.

        Raises:
            WorkerError: answering failed.
            WorkerLostError: the process ended, now or before.
            WorkerStoppedError: `watch` had it ended.
        """
        self.ready()
        try:
            self._channel.send(message)
            while watch is not None and not self._channel.poll(WATCH_S):
                if why := watch():
                    self.close()
                    raise WorkerStoppedError(why)
        except OSError as error:
            raise self._lost() from error
        return self._receive()

    def _receive(self) -> Answer:
        try:
            kind, content = self._channel.recv()
        except (EOFError, OSError) as error:
            raise self._lost() from error
        if kind == _ERROR:
            raise WorkerError(content)
        return content

    def _lost(self) -> WorkerLostError:
        with contextlib.suppress(subprocess.TimeoutExpired):  # its own exit code says more than that of `kill`
            self._process.wait(EXIT_S)
        self.close()
        return WorkerLostError(self._process.returncode, self._started)

    def close(self) -> None:
        """End the process at once.

        It is killed rather than told: processes that were forked from this one meanwhile (data loaders) hold copies
        of the channel, so that closing it here would not reach the worker.
        """
        self.kill()
        self._channel.close()

    def kill(self) -> None:
        """End the process and keep the channel: a call that another thread has under way raises `WorkerLostError`."""
        self._process.kill()
        self._process.wait()


def _serve(channel: Connection) -> None:
    """In the worker: answer messages until the channel closes."""
    start, setup = channel.recv()
    try:
        handle = start(setup)
    except Exception as error:
        channel.send((_ERROR, _words(error)))
        return
    channel.send((_ANSWER, None))
    while True:
        message = channel.recv()
        try:
            reply = (_ANSWER, handle(message))
        except Exception as error:
            reply = (_ERROR, _words(error))
        channel.send(reply)


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, SaddlesError) else f"{type(error).__name__}: {error}"


def _end_with(parent: int) -> None:
    """End when the parent has ended, even while a message is being answered: nobody waits for the answer.

    The channel alone does not tell, because processes forked from the parent may keep its end open.
    """
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(1)


def main() -> None:
    """Be a worker: `python -m saddles.runtime.workers SOCKET PARENT`."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(descriptor, False)
    os.dup2(2, 1)  # what it prints must not mix with the parent's output
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with contextlib.suppress(EOFError, ConnectionError), Connection(descriptor) as channel:
        _serve(channel)


if __name__ == "__main__":
    main()
