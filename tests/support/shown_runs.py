"""Small runs and recordings for the explorer to show, made without torch."""

from pathlib import Path
from typing import Any

import numpy as np


def layout_of() -> Any:
    from saddles.probe import find_layout

    shapes = {f"{k}.qkv.weight": (72, 24) for k in range(2)} | {f"{k}.proj.weight": (24, 24) for k in range(2)}
    return find_layout(shapes, {"num_heads": 4})


def row_of(step: int) -> dict[str, np.ndarray]:
    """A measurement of weights that moved by `step` along a fixed low-rank direction, without torch."""
    from saddles.probe.measuring import measure_heads, measure_initial

    layout, draw = layout_of(), np.random.default_rng(0)
    start = {name: draw.normal(size=layout_shape) for name, layout_shape in _shapes(layout).items()}
    moved = {}
    for name, weights in start.items():
        left, right = draw.normal(size=(weights.shape[0], 2)), draw.normal(size=(2, weights.shape[1]))
        moved[name] = weights + 1e-3 * step * left @ right
    if step == 0:
        return measure_initial(layout, start.__getitem__)
    return {f"heads/{key}": value for key, value in measure_heads(layout, moved.__getitem__, start.__getitem__).items()}


def _shapes(layout: Any) -> dict[str, tuple[int, int]]:
    return {name: (72, 24) if "qkv" in name else (24, 24) for name in layout.head_parameters()}


def begin_recording(folder: Path, steps: list[int]) -> Path:
    from saddles.probe.measuring import write_row
    from saddles.probe.recording.journal import Journal

    (folder / "rows").mkdir(parents=True)
    write_row(folder / "initial.npz", row_of(0))
    (folder / "layout.json").write_text(layout_of().to_json())
    for step in steps:
        Journal(folder).add(step, row_of(step))
    return folder


def small_run(folder: Path, seed: int = 0) -> Path:
    import saddles
    from saddles.linear import Denoising, GradientDescent, TwoLayer

    made = saddles.simulate(TwoLayer(50, 1e-4), Denoising(8, 2, seed=seed), GradientDescent(2.0, 60), keep=())
    saddles.save(made, folder / "trajectory.zarr")
    return folder
