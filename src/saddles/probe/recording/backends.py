"""Who measures the copies of a recorder: threads beside the training loop, or a process of its own.

A loop that feeds a GPU lives from the speed of its interpreter, and threads that measure take the interpreter's lock
from it a thousand times a second. A process does not: it shares the memory of the copies, and is only told which of
them to look at. Where the model is on the CPU both would share the same cores, and threads are simpler.
"""

import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, Protocol, runtime_checkable

import numpy as np

from saddles.errors import SaddlesError
from saddles.probe.layouts.layout import Layout
from saddles.probe.measuring import Row, measure_heads, measure_modules
from saddles.probe.recording.snapshot import Buffers, Place


@runtime_checkable
class Meter(Protocol):
    """Measures one copy of the watched weights against the reference."""

    def row(self, copy: Buffers) -> Row:
        """Spectra and ranks, `heads/…` and `modules/…`."""
        ...

    def close(self) -> None:
        """End what it holds."""
        ...


def measured(layout: Layout, now: Mapping[str, Any], start: Mapping[str, Any], modules: bool, each: Any) -> Row:
    """One row, the layers gone through by `each`."""
    found = measure_heads(layout, now.__getitem__, start.__getitem__, each)
    row = {f"heads/{name}": array for name, array in found.items()}
    if modules:
        plain = measure_modules(layout, now.__getitem__, start.__getitem__)
        row |= {f"modules/{name}": array for name, array in plain.items()}
    return row


class Threads:
    """A meter in this process."""

    def __init__(self, layout: Layout, reference: Mapping[str, Any], modules: bool, pool: ThreadPoolExecutor) -> None:
        self._known = (layout, reference, modules, pool)

    def row(self, copy: Buffers) -> Row:
        """Measure with the pool's threads."""
        layout, reference, modules, pool = self._known
        return measured(layout, copy.tensors, reference, modules, pool.map)

    def close(self) -> None:
        """Nothing is held."""


class Process:
    """A meter in a process of its own, which sees no GPU and ends with this one.

    Args:
        layout: the heads.
        places: where tensors lie in a block.
        reference: the start of training, in shared memory.
        copies: all that will ever be measured, in shared memory.
        modules: whether plain matrices are measured too.
        workers: threads that measure.
    """

    def __init__(
        self,
        layout: Layout,
        places: Sequence[Place],
        reference: Buffers,
        copies: Sequence[Buffers],
        modules: bool,
        workers: int,
    ) -> None:
        self._socket, other = socket.socketpair()
        files = [buffers.file for buffers in (reference, *copies) if buffers.file is not None]
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "saddles.probe.recording.worker", str(other.fileno())],
            pass_fds=[other.fileno(), *files],
            env=environment,
            start_new_session=True,
        )
        other.close()
        head = {"layout": layout.to_json(), "modules": modules, "workers": workers, "files": files}
        head |= {"places": [asdict(place) for place in places], "size": reference.block.numel()}
        send_frame(self._socket, json.dumps(head).encode())

    def row(self, copy: Buffers) -> Row:
        """Say which copy, and wait for what was found; other threads go on meanwhile."""
        try:
            send_frame(self._socket, str(copy.file).encode())
            kind, answer = bytes(receive_frame(self._socket)), receive_frame(self._socket)
        except OSError as error:
            raise SaddlesError.about(
                f"the process that measures ended early ({error or type(error).__name__})",
                "it runs as long as the recording",
                "was it out of memory? try process=False",
            ) from error
        if kind == b"error":
            raise SaddlesError(bytes(answer).decode())
        return rows_from(answer)

    def close(self) -> None:
        """Let the process end."""
        self._socket.close()
        self._process.wait()


def send_frame(channel: socket.socket, data: Any) -> None:
    """A length and so many bytes."""
    view = memoryview(data).cast("B")
    channel.sendall(len(view).to_bytes(8, "little"))
    channel.sendall(view)


def receive_frame(channel: socket.socket) -> bytearray:
    """What `send_frame` sent; ConnectionError where the other side has ended."""
    whole = bytearray(int.from_bytes(_exactly(channel, bytearray(8)), "little"))
    return _exactly(channel, whole)


def _exactly(channel: socket.socket, whole: bytearray) -> bytearray:
    view = memoryview(whole)
    while len(view):
        count = channel.recv_into(view)
        if not count:
            raise ConnectionError("the other side has ended")
        view = view[count:]
    return whole


def rows_to(row: Row) -> bytes:
    """A row as bytes."""
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **{name.replace("/", "."): array for name, array in row.items()})
    return stream.getvalue()


def rows_from(data: Any) -> Row:
    """The row that `rows_to` wrote."""
    with np.load(io.BytesIO(bytes(data)), allow_pickle=False) as stored:
        return {name.replace(".", "/"): stored[name] for name in stored.files}
