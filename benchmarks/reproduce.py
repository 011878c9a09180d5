"""`saddles reproduce` side by side against one after another: the same command twice, each from cold caches.

    python -m benchmarks reproduce [--full]      --full: all labs at their default sizes, no data (else one, tiny)

One after another is `--workers 1`: experiments run in one process, which may use all cores for each of them.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from saddles.runtime.threads import cores

SHORT = ("concepts", "--size", "tiny")


def _seconds(arguments: tuple[str, ...], workers: int) -> tuple[float, float]:
    """On the clock, and of the processor."""
    with tempfile.TemporaryDirectory() as folder:
        # An empty cache of compiled programs, and a folder of data that holds nothing.
        place = {"XDG_CACHE_HOME": folder, "JAX_COMPILATION_CACHE_DIR": f"{folder}/jax", "SADDLES_DATA": folder}
        command = [sys.executable, "-m", "saddles", "reproduce", *arguments, "--workers", str(workers)]
        before, began = os.times(), time.perf_counter()
        done = subprocess.run([*command, "--out", str(Path(folder) / "runs")], env=os.environ | place, check=False)
        spent, after = time.perf_counter() - began, os.times()
    if done.returncode not in (0, 1):  # 1: a claim fails, which is no matter here
        raise SystemExit(f"{' '.join(command)} ended with exit code {done.returncode}.")
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return spent, used


def main(full: bool = False) -> None:
    """Both ways in one run, and their ratio."""
    arguments = () if full else SHORT
    together, used = _seconds(arguments, cores())
    apart, used_apart = _seconds(arguments, 1)
    print(
        f"reproduce {' '.join(arguments)}: {cores()} side by side {together:.0f} s ({used:.0f} processor seconds), one "
        f"after another {apart:.0f} s ({used_apart:.0f}), ratio {apart / together:.2f}; load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main("--full" in sys.argv)
