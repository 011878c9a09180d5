"""Settings that hold for every test: double precision, no silent broadcasting, caches outside the home folder.

Compiled programs and fonts are kept in the repository's .cache; everything else goes to a folder of this session.
"""

import atexit
import contextlib
import os
import signal
import tempfile
from pathlib import Path

import jax
import jaxtyping
import pytest
from typecheck import direct

_CACHES = Path(__file__).parents[1] / ".cache"
_COMPILED = os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHES / "jax"))
# Commands that tests start in processes of their own keep their programs, too, from a fifth of a second on.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
os.environ.setdefault("EQX_ON_ERROR", "nan")  # as in commands: programs of flows are kept, and are the same
os.environ.setdefault("MPLCONFIGDIR", str(_CACHES / "matplotlib"))
if "PYTEST_XDIST_WORKER" not in os.environ:  # workers share the folder of the process that started them
    _OWN = tempfile.TemporaryDirectory(prefix="saddles-tests-")
    atexit.register(_OWN.cleanup)
    os.environ["XDG_CACHE_HOME"] = _OWN.name

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_compilation_cache_dir", _COMPILED)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

jaxtyping.jaxtyped = direct(jaxtyping.jaxtyped)

BROWSER = ("explorer/test_browser.py::", "explorer/test_look.py::")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """One worker for all tests that share the explorer's server and browser; the others go wherever there is room.

    The mark `xdist_group` would say the same, but pytest-xdist 3.8 writes it into node ids, which pytest 9.2 computes.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class OneBrowser(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "browser" if any(file in nodeid for file in BROWSER) else nodeid

    return OneBrowser(config, log)


LONG = frozenset((Path(__file__).parent / "long.txt").read_text().splitlines()[1:])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.nodeid in LONG or item.nodeid.partition("::")[0] in LONG:
            item.add_marker(pytest.mark.long)


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; tests of Ctrl-C need it
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, signal.default_int_handler)
