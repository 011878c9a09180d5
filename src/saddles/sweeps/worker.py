"""The process that computes cells for `Embedded`: tasks come in through stdin, outcomes go out through stdout."""

import os
import pickle
import signal
import sys
import threading
import time

PATIENCE = 1.0
"""Seconds between looks at whether the process that asked is still there."""


def main() -> None:
    """Compute tasks until there are none; Ctrl-C is the asking process's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked_by = int(sys.argv[1])
    threading.Thread(target=_leave_with, args=(asked_by,), daemon=True).start()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what experiments print goes to stderr and not between the outcomes
    from saddles.sweeps.cells import compute

    pickle.dump("ready", answers)
    answers.flush()
    while True:
        try:
            task = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(compute(task), answers, protocol=5)
        answers.flush()


def _leave_with(parent: int) -> None:
    """End when the asking process has ended, even in the middle of a cell: nobody waits for it."""
    while os.getppid() == parent:
        time.sleep(PATIENCE)
    os._exit(1)


if __name__ == "__main__":
    main()
