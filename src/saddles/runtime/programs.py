"""Compiled programs that are kept between processes. JAX itself is imported where it is used already."""

import os
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path

LIMIT = 2_000_000_000
"""Bytes of compiled programs above which those not used for longest are removed, until half of it is left."""
DAY = 86_400.0
"""Seconds between two looks at how much there is; file systems keep the time of a file's last use to a day, too."""

SHORTEST = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


def environment_that_keeps_programs() -> dict[str, str]:
    """Variables with which a new process keeps compiled programs in the user's cache folder, as set here already if so.

    Small programs take 0.02 to 0.5 s each, and an experiment has dozens: loading one takes a few ms. The checks that
    diffrax makes of its arguments (`saddles.solvers.ode` gives it sorted times and a step ahead) call back to Python,
    and JAX keeps no program that does: in their place a NaN would end a run as diverged.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    usual = {
        "JAX_COMPILATION_CACHE_DIR": str(Path(home) / "saddles" / "jax"),
        SHORTEST: "0.01",
        "EQX_ON_ERROR": "nan",
    }
    return {name: os.environ.get(name, value) for name, value in usual.items()}


def compiled_programs() -> str:
    """The folder in which compiled programs are kept, and how much is in it."""
    folder = environment_that_keeps_programs()["JAX_COMPILATION_CACHE_DIR"]
    sizes = [size for _, size, _ in _files(folder)]
    return f"{folder} ({f'{len(sizes):,} files, {sum(sizes) / 1e6:.1f} MB' if sizes else 'none yet'})"


def _files(folder: str | Path) -> list[tuple[float, int, str]]:
    """When each file of a folder was last used, its size and its path."""
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # removed meanwhile
                told = entry.stat()
                found.append((max(told.st_atime, told.st_mtime), told.st_size, entry.path))
    return found


def forget_old_programs(folder: Path, limit: int = LIMIT) -> None:
    """Once a day: where there are more bytes of programs than the limit, remove those not used for longest.

    JAX's own limit (`jax_compilation_cache_max_size`) is not used: with it each new program costs a look at all others,
    and one without the file of its last use (from a process without the limit, or a killed one) ends the writing for
    good. A program that another process is about to read may be removed: that process compiles it.
    """
    looked = folder.with_name(f"{folder.name}.looked")
    with suppress(OSError):  # the folder of caches may be read-only, or full
        if looked.exists() and time.time() - looked.stat().st_mtime < DAY:
            return
        looked.parent.mkdir(parents=True, exist_ok=True)
        looked.touch()
        files = sorted(_files(folder))
        left = sum(size for _, size, _ in files)
        if left <= limit:
            return
        for _, size, path in files:
            if left <= limit // 2:
                return
            with suppress(FileNotFoundError):
                os.unlink(path)
            left -= size


def keep_compiled_programs() -> None:
    """Store compiled programs in the user's cache folder, unless JAX was told another place.

    Where JAX is not loaded yet, it reads this from the environment when it is, if ever. Memory of a GPU is taken as it
    is needed, unless the environment says otherwise: to take most of it at once, as JAX does, takes two seconds.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    # JAX writes programs in place: another process may find one half written, or one that a kill left so. It compiles
    # that program itself then, and users need not hear of it; nor, dozens of times, that the disk of the cache is full.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry", UserWarning)
    wanted = environment_that_keeps_programs()
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # a folder of the user's choice is theirs to empty
        forget_old_programs(Path(wanted["JAX_COMPILATION_CACHE_DIR"]))
    if "jax" not in sys.modules:
        os.environ.update(wanted)
        return
    import jax

    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        jax.config.update("jax_compilation_cache_dir", wanted["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", float(wanted[SHORTEST]))
