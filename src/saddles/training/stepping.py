"""What training loops of the torch labs share: draws by number, kind stops, checkpoints that are whole."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from saddles.errors import SaddlesError


def generator_of(device: Any, *words: int) -> torch.Generator:
    """A generator of its own for every place that needs one."""
    value = 1
    for word in words:
        value = (value * 1_000_003 + int(word) + 12_345) % (2**63 - 1)
    return torch.Generator(device=device).manual_seed(value)


def write_checkpoint(state: dict[str, Any], file: Path) -> None:
    """Write tensors and plain values, all or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}-{os.getpid()}")
    try:
        torch.save(state, draft)
        os.replace(draft, file)
    finally:
        draft.unlink(missing_ok=True)


@contextlib.contextmanager
def patient() -> Iterator[list[int]]:
    """Note the first Ctrl-C in the list instead of breaking a step in two; a second one breaks at once."""
    asked: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield asked
        return

    def note(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def within_memory(hint: str) -> Iterator[None]:
    """Say what to lower where the device's memory ran out."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise SaddlesError.about(
            f"the device's memory ran out ({str(error).splitlines()[0]})",
            "model, optimiser and a batch must fit",
            hint,
        ) from error


@contextlib.contextmanager
def fitting(file: Path) -> Iterator[None]:
    """Say that a checkpoint does not fit, whatever breaks while it is read."""
    try:
        yield
    except Exception as error:
        words = (str(error).splitlines() or [type(error).__name__])[0]
        raise SaddlesError.about(
            f"{file} does not fit this model ({words})",
            "a run goes on with the settings it began with",
            "start anew with --fresh",
        ) from error
