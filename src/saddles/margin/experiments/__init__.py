"""The experiments of the margin lab: one row here, one module each. The paper has none: these are the first."""

from typing import Any

from saddles.core.experiment import Experiment, Size

PAPER = "sheen2024implicit"

_DATA: dict[str, Any] = {"n": 6, "length": 5, "dim": 20}
_SMALL: dict[str, Any] = {"n": 3, "length": 4, "dim": 12}
_OMEGA: dict[str, Any] = {"scale": 0.5}
_PAIRED: dict[str, Any] = {"n": 4, "length": 5, "dim": 8, "scale": 0.1}
_FULL: dict[str, Any] = {"n": 4, "length": 4, "dim": 6, "scale": 1e-3, "large": [0.3, 1.0]}
_TEXT: dict[str, Any] = {"text": "wikitext2", "words": 300_000, "vocabulary": 1000, "scale": 1e-3, "omega": 0.5}
_SCALES = [1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0]


def _experiment(name: str, title: str, needs: tuple[str, ...] = (), **sizes: Size) -> Experiment:
    module = f"saddles.margin.experiments.{name.replace('-', '_')}"
    return Experiment(f"margin/{name}", title, PAPER, module, sizes, needs=needs)


EXPERIMENTS = [
    _experiment(
        "diagonal",
        "Diagonal attention converges in direction to the ℓ1 max-margin solution",
        tiny=Size(3, _SMALL | _OMEGA | {"instances": 4, "until": 1e5}),
        laptop=Size(25, _DATA | _OMEGA | {"instances": 60, "until": 1e7}),
        gpu=Size(120, _DATA | _OMEGA | {"instances": 200, "until": 1e7}),
        paper=Size(600, _DATA | _OMEGA | {"instances": 1000, "until": 1e7}),
    ),
    _experiment(
        "kkt",
        "The three KKT residuals fall along the path, with the proof's multipliers and with dual feasible ones",
        tiny=Size(3, _SMALL | _OMEGA | {"instances": 2, "until": 1e5}),
        laptop=Size(8, _DATA | _OMEGA | {"instances": 10, "until": 1e9}),
        gpu=Size(60, _DATA | _OMEGA | {"instances": 50, "until": 1e9}),
        paper=Size(240, _DATA | _OMEGA | {"instances": 200, "until": 1e9}),
    ),
    _experiment(
        "aligned",
        "Assumption 4, rotated: alignment is kept, and the limit solves the nuclear norm problem",
        tiny=Size(4, _PAIRED | {"n": 2, "length": 3, "dim": 5, "instances": 2, "until": 1e4}),
        laptop=Size(15, _PAIRED | {"instances": 20, "until": 1e5}),
        gpu=Size(90, _PAIRED | {"n": 8, "length": 7, "dim": 16, "instances": 20, "until": 1e5}),
        paper=Size(240, _PAIRED | {"n": 8, "length": 7, "dim": 16, "instances": 50, "until": 1e5}),
    ),
    _experiment(
        "general",
        "Beyond the theorem: nuclear norm for K and Q apart, Frobenius norm for one matrix, and where it fails",
        tiny=Size(
            5, _FULL | {"n": 2, "length": 3, "dim": 4, "large": [1.0], "instances": 2, "trials": 1, "until": 100.0}
        ),
        laptop=Size(70, _FULL | {"instances": 50, "trials": 5, "until": 3000.0}),
        gpu=Size(300, _FULL | {"n": 8, "length": 6, "dim": 16, "instances": 50, "trials": 16, "until": 3000.0}),
        paper=Size(1800, _FULL | {"n": 16, "length": 8, "dim": 32, "instances": 50, "trials": 10, "until": 3000.0}),
    ),
    _experiment(
        "initialisation",
        "Beyond the theorem: how the initial scale changes the bias at finite norm",
        tiny=Size(3, _SMALL | {"scales": [0.1, 1.0], "instances": 2, "until": 1e5}),
        laptop=Size(30, _DATA | {"scales": _SCALES, "instances": 12, "until": 1e7}),
        gpu=Size(150, _DATA | {"scales": _SCALES, "instances": 50, "until": 1e7}),
        paper=Size(600, _DATA | {"scales": _SCALES, "instances": 200, "until": 1e7}),
    ),
    _experiment(
        "real-tokens",
        "Beyond the theorem: the same on word vectors of real text",
        needs=("wikitext2",),
        tiny=Size(
            5,
            _TEXT | {"words": 30_000, "vocabulary": 300, "n": 2, "length": 4, "dim": 12, "instances": 2, "until": 1e3},
        ),
        laptop=Size(45, _TEXT | {"n": 4, "length": 5, "dim": 24, "instances": 20, "until": 1e4}),
        gpu=Size(150, _TEXT | {"n": 6, "length": 6, "dim": 32, "instances": 50, "until": 1e4}),
        paper=Size(600, _TEXT | {"n": 8, "length": 8, "dim": 48, "instances": 50, "until": 1e4}),
    ),
]
