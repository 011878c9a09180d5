"""What workers of the tests do; they import it in their own process."""

import os
import time

from saddles.errors import SaddlesError


def multiplier(factor):
    def handle(message):
        if message == 0:
            raise ZeroDivisionError("nothing to multiply")
        if message == 10**9:
            raise SaddlesError("must be small")
        return factor * message

    return handle


def printing(_):
    return lambda message: print(os.environ["WORD"], flush=True)


def reading(file):
    return lambda count: os.pread(file, count, 0)


def unwilling(_):
    raise SaddlesError("not today")


def leaving(early):
    if early:
        os._exit(7)
    return lambda message: os._exit(7)


def sleeping(_):
    return time.sleep
