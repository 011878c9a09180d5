"""What checksums cost: the time to save and load a trajectory, and its size, with and without, in turns in one run."""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np

import saddles
from saddles.core import store
from saddles.runtime.checksums import NAME


def _seconds(work: Callable[..., object], *given: object) -> float:
    began = time.perf_counter()
    work(*given)
    return time.perf_counter() - began


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main(full: bool) -> None:
    draw = np.random.default_rng(0)
    for rows, columns, times in ((100, 10, 15), (10_000, 100, 9), *([(100_000, 200, 5)] if full else [])):
        data = saddles.trajectory({"value": (("time", "kind"), draw.normal(size=(rows, columns)))}, np.arange(rows))
        with tempfile.TemporaryDirectory() as home:
            place, size, turns = Path(home) / "t.zarr", 0, {"save": [], "load": []}
            for _ in range(times):
                shutil.rmtree(place, ignore_errors=True)
                with mock.patch.object(store, "seal"):
                    plain = _seconds(store.save, data, place)
                reading = _seconds(store.load, place)
                size = _bytes(place)
                shutil.rmtree(place)
                turns["save"].append(_seconds(store.save, data, place) / plain)
                turns["load"].append(_seconds(store.load, place) / reading)
            save, load = (float(np.median(row)) for row in turns.values())
            print(
                f"{rows * columns * 8 / 1e6:8.3f} MB of numbers: save ×{save:.2f}, load ×{load:.2f}, "
                f"size ×{_bytes(place) / size:.5f} ({(place / NAME).stat().st_size} bytes)"
            )


if __name__ == "__main__":
    main(True)
