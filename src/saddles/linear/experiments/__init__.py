"""The experiments of the linear lab: one row here, one module each."""

from typing import Any

from saddles.core.experiment import Experiment, Size

PAPER = "tu2024mixed"

_ONE: dict[str, Any] = {"rank": 5, "gamma_w": 2.25, "gamma_variance": -1.85, "c": 50.0}
_TWO: dict[str, Any] = {"rank": 5, "c": 5.0}
_SPECTRUM: dict[str, Any] = {"spectrum": [1.0, 0.7, 0.5], "clock": 1.2}
_CROSS: dict[str, Any] = {"spectrum": [1.0, 0.7, 0.5], "points": 7, "steps": 40, "c": 5.0}
_TRADE: dict[str, Any] = {"rank": 5, "gamma_w": 2.0, "c": 50.0, "limit": 9000}


def _experiment(name: str, title: str, **sizes: Size) -> Experiment:
    module = f"saddles.linear.experiments.{name.replace('-', '_')}"
    return Experiment(f"linear/{name}", title, PAPER, module, sizes)


EXPERIMENTS = [
    _experiment(
        "figure-1",
        "Gradient descent and the self-consistent dynamics, errors and singular values",
        tiny=Size(3, _ONE | {"dim": 40, "rank": 3, "c": 10.0, "steps": 120, "save_every": 2, "seeds": 2}),
        laptop=Size(15, _ONE | {"dim": 200, "c": 25.0, "steps": 300, "save_every": 4, "seeds": 3}),
        gpu=Size(30, _ONE | {"dim": 500, "steps": 600, "save_every": 6, "seeds": 5}),
        paper=Size(300, _ONE | {"dim": 500, "steps": 600, "save_every": 6, "seeds": 3}),
    ),
    _experiment(
        "figure-2",
        "The phase diagram: test error, stable rank, training time and distance to the theory",
        tiny=Size(4, _TWO | {"dim": 30, "rank": 3, "points": 7, "limit": 2000}),
        laptop=Size(25, _TWO | {"dim": 100, "points": 22, "limit": 3000}),
        gpu=Size(10, _TWO | {"dim": 200, "points": 35, "limit": 5000}),
        paper=Size(240, _TWO | {"dim": 200, "points": 35, "limit": 5000}),
    ),
    _experiment(
        "theorem-1",
        "The error of the predicted Gram matrices against its bound, as the width grows",
        tiny=Size(3, {"dim": 12, "rank": 2, "decades": 6, "points": 5, "times": 9, "seeds": 2}),
        laptop=Size(20, {"dim": 40, "rank": 3, "decades": 7, "points": 15, "times": 17, "seeds": 4}),
        gpu=Size(60, {"dim": 100, "rank": 5, "decades": 8, "points": 17, "times": 17, "seeds": 6}),
        paper=Size(120, {"dim": 100, "rank": 5, "decades": 8, "points": 17, "times": 17, "seeds": 6}),
    ),
    _experiment(
        "theorem-2",
        "Recovery in the active regime, failure in the lazy one, as the dimension grows",
        tiny=Size(4, _SPECTRUM | {"dims": [16, 24, 36], "seeds": 2}),
        laptop=Size(40, _SPECTRUM | {"dims": [50, 100, 200, 400], "seeds": 3}),
        gpu=Size(60, _SPECTRUM | {"dims": [50, 100, 200, 400, 800], "seeds": 5}),
        paper=Size(120, _SPECTRUM | {"dims": [50, 100, 200, 400], "seeds": 8}),
    ),
    _experiment(
        "transition",
        "Where lazy becomes active: σ²w ∝ d for a low-rank truth, ∝ √d for a full-rank one",
        tiny=Size(4, _CROSS | {"dims": [12, 24], "points": 5, "seeds": 2}),
        laptop=Size(30, _CROSS | {"dims": [25, 50, 100, 200], "seeds": 4}),
        gpu=Size(60, _CROSS | {"dims": [50, 100, 200, 400], "seeds": 6}),
        paper=Size(200, _CROSS | {"dims": [50, 100, 200, 400], "points": 11, "seeds": 4}),
    ),
    _experiment(
        "trade-off",
        "Training time against test error along the distance to the transition",
        tiny=Size(4, _TRADE | {"dim": 40, "rank": 3, "points": 5, "c": 20.0, "seeds": 2}),
        laptop=Size(40, _TRADE | {"dim": 100, "points": 9, "seeds": 3}),
        gpu=Size(20, _TRADE | {"dim": 200, "points": 13, "seeds": 4}),
        paper=Size(300, _TRADE | {"dim": 200, "points": 13, "seeds": 3}),
    ),
]
