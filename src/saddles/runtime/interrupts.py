"""Ctrl-C, whatever Python or a library makes of it, and SIGTERM."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def plain_interrupts() -> Iterator[None]:
    """Raise a Ctrl-C as `KeyboardInterrupt` where another error was raised from it.

    Before Python 3.12 one that arrives while a class is made becomes a RuntimeError of `__set_name__`; an import makes
    hundreds of classes.
    """
    try:
        yield
    except Exception as error:
        cause = error.__cause__
        while cause is not None and not isinstance(cause, KeyboardInterrupt):
            cause = cause.__cause__
        if cause is None:
            raise
        raise KeyboardInterrupt from error


@contextlib.contextmanager
def terminated_like_ctrl_c() -> Iterator[None]:
    """Treat SIGTERM, with which `timeout` and batch systems warn, like Ctrl-C."""
    before = signal.getsignal(signal.SIGTERM)
    # Signals are handled in the main thread alone; None is a handler of C, which could not be given back.
    # One that is ignored stays so.
    if threading.current_thread() is not threading.main_thread() or before in (None, signal.SIG_IGN):
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
