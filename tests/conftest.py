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

_CACHES = Path(__file__).parents[1] / ".cache"
_COMPILED = os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHES / "jax"))
os.environ.setdefault("MPLCONFIGDIR", str(_CACHES / "matplotlib"))
if "PYTEST_XDIST_WORKER" not in os.environ:  # workers share the folder of the process that started them
    _OWN = tempfile.TemporaryDirectory(prefix="saddles-tests-")
    atexit.register(_OWN.cleanup)
    os.environ["XDG_CACHE_HOME"] = _OWN.name

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_compilation_cache_dir", _COMPILED)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; tests of Ctrl-C need it
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, signal.default_int_handler)
