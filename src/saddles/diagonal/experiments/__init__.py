"""The experiments of the diagonal lab: one row here, one module each."""

from typing import Any

from saddles.core.experiment import Experiment, Size

PAPER = "boix2023rank"

_ALPHAS: dict[str, Any] = {"decades": [1, 2, 4, 8, 16, 32], "tokens": 10}
_CURVES: dict[str, dict[str, Any]] = {
    "tiny": _ALPHAS
    | {"decades": [4, 32], "dim": 5, "samples": 60, "tokens": 5, "stages": 5, "until": 1e9, "points": 201},
    "laptop": _ALPHAS | {"dim": 10, "samples": 200, "stages": 12, "until": 1e9, "points": 401},
    "paper": _ALPHAS | {"dim": 50, "samples": 1000, "stages": 150, "until": 1500.0, "points": 1201},
}
_ORDER: dict[str, dict[str, Any]] = {
    "tiny": {"order_dim": 5, "order_samples": 60, "order_stages": 3, "deep": [32, 1000], "seeds": 1},
    "laptop": {"order_dim": 10, "order_samples": 200, "order_stages": 10, "deep": [32, 180, 1000], "seeds": 3},
    "paper": {"order_dim": 20, "order_samples": 400, "order_stages": 10, "deep": [32, 100, 316, 1000], "seeds": 20},
}
_PERTURB: dict[str, dict[str, Any]] = {
    "tiny": {
        "dim": 5,
        "samples": 60,
        "tokens": 5,
        "stages": 5,
        "decades": 32,
        "epochs": 1000,
        "times": 2,
        "points": 61,
        "seeds": 1,
    },
    "laptop": {
        "dim": 10,
        "samples": 200,
        "tokens": 10,
        "stages": 10,
        "decades": 32,
        "epochs": 1000,
        "times": 5,
        "points": 121,
        "seeds": 2,
    },
    "paper": {
        "dim": 50,
        "samples": 1000,
        "tokens": 10,
        "stages": 40,
        "decades": 32,
        "epochs": 1000,
        "times": 5,
        "points": 201,
        "seeds": 1,
    },
}
_HEADS: dict[str, Any] = {"layers": 2, "heads": 2, "feedforward": 0, "spread": 0.15, "points": 301}


def _experiment(name: str, title: str, gpu: int, **sizes: Size) -> Experiment:
    """A row; size `gpu` is the paper's, in the seconds that one GPU takes."""
    module = f"saddles.diagonal.experiments.{name.replace('-', '_')}"
    tiny, laptop, paper = sizes["tiny"], sizes["laptop"], sizes["paper"]
    rows = {"tiny": tiny, "laptop": laptop, "gpu": Size(gpu, paper.settings), "paper": paper}
    return Experiment(f"diagonal/{name}", title, PAPER, module, rows)


EXPERIMENTS = [
    _experiment(
        "figure-2",
        "An attention head learns one coordinate at a time, at every initial scale, as Algorithm 1 predicts",
        gpu=220,
        tiny=Size(5, _CURVES["tiny"] | _ORDER["tiny"]),
        laptop=Size(50, _CURVES["laptop"] | _ORDER["laptop"]),
        paper=Size(900, _CURVES["paper"] | _ORDER["paper"]),
    ),
    _experiment(
        "figure-8-9",
        "The weights of an attention head, one panel an initial scale",
        gpu=60,
        tiny=Size(4, _CURVES["tiny"]),
        laptop=Size(25, _CURVES["laptop"]),
        paper=Size(240, _CURVES["paper"]),
    ),
    _experiment(
        "linear",
        "The linear diagonal network: Algorithm 1 equals the constrained least-squares path",
        gpu=90,
        tiny=Size(4, {"dim": 8, "samples": 16, "factors": 3, "decades": 100, "points": 201, "seeds": 2}),
        laptop=Size(30, {"dim": 20, "samples": 40, "factors": 5, "decades": 300, "points": 1201, "seeds": 10}),
        paper=Size(120, {"dim": 40, "samples": 80, "factors": 8, "decades": 1000, "points": 2001, "seeds": 20}),
    ),
    _experiment(
        "transformer",
        "Two layers of two heads: tied by symmetry, one head at a time when it is broken",
        gpu=80,
        tiny=Size(
            5, _HEADS | {"dim": 2, "samples": 30, "tokens": 3, "stages": 2, "decades": [30], "seeds": 1, "points": 61}
        ),
        laptop=Size(
            50, _HEADS | {"dim": 4, "samples": 60, "tokens": 5, "stages": 4, "decades": [30, 1300], "seeds": 2}
        ),
        paper=Size(
            600,
            _HEADS | {"dim": 12, "samples": 300, "tokens": 10, "stages": 10, "decades": [30, 170, 1300], "seeds": 5},
        ),
    ),
    _experiment(
        "figure-10",
        "Assumption 4.4: weights perturbed at random times return",
        gpu=10,
        tiny=Size(5, _PERTURB["tiny"]),
        laptop=Size(40, _PERTURB["laptop"]),
        paper=Size(300, _PERTURB["paper"]),
    ),
    _experiment(
        "figure-11",
        "Assumption 4.5: weights perturbed as a stage begins end at the same point",
        gpu=10,
        tiny=Size(5, _PERTURB["tiny"]),
        laptop=Size(40, _PERTURB["laptop"]),
        paper=Size(300, _PERTURB["paper"]),
    ),
    _experiment(
        "full-head",
        "A head with full matrices: singular values rise one at a time",
        gpu=25,
        tiny=Size(5, {"dim": 4, "samples": 40, "tokens": 4, "decades": 2, "until": 60.0, "points": 81, "seeds": 1}),
        laptop=Size(
            45, {"dim": 8, "samples": 200, "tokens": 6, "decades": 5, "until": 150.0, "points": 301, "seeds": 3}
        ),
        paper=Size(
            1800, {"dim": 50, "samples": 1000, "tokens": 10, "decades": 5, "until": 1000.0, "points": 401, "seeds": 1}
        ),
    ),
]
