"""Python's collector of objects that refer to each other in circles, in a process that is ours."""

import atexit
import gc

EVERY = 10_000
"""Objects after which it looks at the young ones. Its default of 700 is met a thousand times while modules load, and
each look at all of them takes longer than the one before: a tenth of a short command."""


def collect_seldom() -> None:
    """Collect less often, and not once more when the process ends.

    The last collection goes through every object of every module, takes longer than half a second after JAX was
    loaded, and frees what the system takes back a moment later. What must happen at the end is done by functions that
    `atexit` knows; they run before.
    """
    gc.set_threshold(EVERY, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)  # what is frozen is not looked at
