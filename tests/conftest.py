"""Settings that hold for every test: double precision, no silent broadcasting, a compilation cache."""

import contextlib
import os
import signal
from pathlib import Path

import jax

_CACHE = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".cache" / "jax"))

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_compilation_cache_dir", _CACHE)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; tests of Ctrl-C need it
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, signal.default_int_handler)
