"""Ctrl-C, whatever Python or a library makes of it."""

import contextlib
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
