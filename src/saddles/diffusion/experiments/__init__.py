"""The experiments of the diffusion lab: one row here, one module each."""

from typing import Any

from saddles.core.experiment import Experiment, Size

PAPER = "yang2025concepts"

_SWEEP = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
_FOUR = [0.2, 0.4, 0.55, 0.7]
_STRONG = [0.7]

_PAPER: dict[str, Any] = {
    "separations": _STRONG, "size": 0.4, "side": 32, "colour_spread": 0.125, "size_spread": 0.375,
    "channels": [64, 128, 256], "blocks": 2, "heads": 4,
    "steps": 20_000, "batch": 128, "rate": 1e-3, "images": 2048,
    "evaluations": 60, "shown": 32, "sampling": 100, "seeds": 5, "store": 60.0,
    "classifier_channels": [32, 32, 32], "classifier_features": 64, "classifier_steps": 10_000, "classifier_batch": 128,
    "held_out": 1024,
}  # fmt: skip
"""separations: of the colours, one run each and a seed. shown: images a class at an evaluation. sampling: steps of the
sampler. store: seconds from one checkpoint to the next. held_out: images a class that the classifier must get right."""

_GPU = _PAPER | {"steps": 4000, "evaluations": 40, "seeds": 2, "classifier_steps": 600}
_LAPTOP = _PAPER | {
    "side": 16, "size_spread": 0.2, "channels": [16, 32], "blocks": 1, "heads": 1,
    "steps": 500, "batch": 32, "images": 512, "evaluations": 12, "shown": 16, "sampling": 25, "seeds": 1,
    "classifier_channels": [8, 16], "classifier_features": 16, "classifier_steps": 150, "classifier_batch": 64,
    "held_out": 256,
}  # fmt: skip
_TINY = _LAPTOP | {
    "side": 8, "size_spread": 0.1, "channels": [8, 16],
    "steps": 200, "batch": 16, "images": 128, "evaluations": 8, "shown": 4, "sampling": 10,
    "classifier_channels": [8, 8], "classifier_features": 8, "classifier_steps": 120, "classifier_batch": 32,
    "held_out": 64,
}  # fmt: skip


def _row(name: str, title: str, times: tuple[float, ...], separations: tuple[list[float], ...]) -> Experiment:
    """Times and separations of tiny, laptop, gpu and paper."""
    sizes = {"tiny": _TINY, "laptop": _LAPTOP, "gpu": _GPU, "paper": _PAPER}
    rows = {
        size: Size(took, settings | {"separations": chosen})
        for (size, settings), took, chosen in zip(sizes.items(), times, separations, strict=True)
    }
    module = f"saddles.diffusion.experiments.{name.replace('-', '_')}"
    return Experiment(f"diffusion/{name}", title, PAPER, module, rows, default="tiny")


EXPERIMENTS = [
    _row("figure-6a", "A diffusion model learns colour and size in the order of their signals",
         (20, 110, 660, 11_000), ([0.4, 0.7], [0.2, 0.7], _FOUR, _SWEEP)),
    _row("figure-6b", "Transient memorisation in a diffusion model: the concept error rises before it falls",
         (10, 60, 170, 1800), (_STRONG,) * 4),
    _row("figure-6c", "Concept learning in a diffusion model slows down exponentially",
         (10, 60, 170, 1800), (_STRONG,) * 4),
]  # fmt: skip
