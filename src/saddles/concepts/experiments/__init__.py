"""The experiments of the concepts lab: one row here, one module each."""

from dataclasses import replace
from typing import Any

from saddles.core.experiment import Experiment, Size

PAPER = "yang2025concepts"

_HERE = "saddles.concepts.experiments"

_SGD = {"samples": 5000, "batch": 128, "rate": 0.1, "epochs": 40, "loss": "sum", "save_every": 2, "dim": 64}
_SMALL = {"samples": 400, "batch": 32, "rate": 0.05, "epochs": 30, "loss": "sum", "save_every": 2, "dim": 16}
_MEAN = {"samples": 5000, "batch": 128, "epochs": 40, "save_every": 4}


def _orders(number: str, title: str, tiny: int, laptop: int, seeds: int) -> Experiment:
    return Experiment(
        f"concepts/figure-{number}",
        title,
        PAPER,
        f"{_HERE}.figure_{number}",
        {
            "tiny": Size(tiny, {**_SMALL, "seeds": 2}),
            "laptop": Size(laptop, {**_SGD, "seeds": seeds}),
            "paper": Size(laptop * 3, {**_SGD, "seeds": 3 * seeds}),
        },
        together=("rate", "seed"),
    )


def _memorisation(number: str, title: str, tiny: Any, laptop: Any, paper: Any, seconds: int) -> Experiment:
    return Experiment(
        f"concepts/figure-{number}",
        title,
        PAPER,
        f"{_HERE}.figure_{number}",
        {"tiny": Size(3, tiny), "laptop": Size(seconds, laptop), "paper": Size(4 * seconds, paper)},
    )


_HIGH = {**_MEAN, "dim": 64, "rate": 0.1, "rate_low": 0.01, "seeds": 3, "seeds_low": 48}
_HIGH_TINY = {
    **_HIGH,
    "samples": 500,
    "batch": 64,
    "dim": 16,
    "rate": 0.05,
    "rate_low": 0.02,
    "seeds": 1,
    "seeds_low": 16,
}
_LOW = {**_MEAN, "rate": 0.01, "seeds": 64}
_LOW_TINY = {**_LOW, "samples": 500, "batch": 64, "rate": 0.02, "seeds": 24}


def _search(number: str, title: str, starts: int, seconds: int) -> Experiment:
    return Experiment(
        f"concepts/figure-{number}",
        title,
        PAPER,
        f"{_HERE}.figure_{number}",
        {
            "tiny": Size(4, {"starts": 60, "instants": 200}),
            "laptop": Size(seconds, {"starts": starts, "instants": 400}),
            "paper": Size(6 * seconds, {"starts": 10_000, "instants": 600}),
        },
    )


_ROWS = [
    _orders("2a", "A larger signal is learned first: one layer, three signals", 2, 10, 5),
    _orders("2b", "More diversity is learned first and reverses the order: one layer, five spreads", 2, 15, 5),
    _memorisation(
        "2c",
        "Transient memorisation in low dimension only: four layers, outputs",
        _HIGH_TINY,
        _HIGH,
        {**_HIGH, "seeds": 10, "seeds_low": 200},
        40,
    ),
    _memorisation(
        "3",
        "Transient memorisation in low dimension only: four layers, test losses",
        _HIGH_TINY,
        _HIGH,
        {**_HIGH, "seeds": 10, "seeds_low": 200},
        40,
    ),
    Experiment(
        "concepts/figure-5",
        "Every fall and rise of the test loss is a growth or a suppression in the Jacobian",
        PAPER,
        f"{_HERE}.figure_5",
        {
            "tiny": Size(4, {"mu": [1.0, 2.0], "sigma": 0.05, "top": 0.2, "until": 8.0, "instants": 401, "seeds": 8}),
            "laptop": Size(
                10, {"mu": [1.0, 2.0], "sigma": 0.05, "top": 0.2, "until": 12.0, "instants": 801, "seeds": 40}
            ),
            "paper": Size(
                60, {"mu": [1.0, 2.0], "sigma": 0.05, "top": 0.2, "until": 12.0, "instants": 801, "seeds": 300}
            ),
        },
    ),
    Experiment(
        "concepts/figure-7",
        "The loss keeps the order of the hierarchy of concepts: two-layer ReLU",
        PAPER,
        f"{_HERE}.figure_7",
        {
            "tiny": Size(3, {"dim": 16, "samples": 1000, "batch": 64, "rate": 0.1, "loss": "mean", "seeds": 2}),
            "laptop": Size(15, {"dim": 64, "samples": 5000, "batch": 128, "rate": 0.1, "loss": "mean", "seeds": 6}),
            "paper": Size(60, {"dim": 64, "samples": 5000, "batch": 128, "rate": 0.1, "loss": "mean", "seeds": 30}),
        },
    ),
    _search("8", "Three descents of the test loss, found by search, and how rare they are", 2000, 20),
    _search("9", "Four descents of the test loss, found by search, and how rare they are", 2000, 40),
    Experiment(
        "concepts/figure-10",
        "A concept that is not learned within the horizon, predicted before the run",
        PAPER,
        f"{_HERE}.figure_10",
        {
            "tiny": Size(3, {"starts": 60, "horizon": 4.0, "until": 200.0}),
            "laptop": Size(10, {"starts": 1000, "horizon": 4.0, "until": 200.0}),
            "paper": Size(60, {"starts": 10_000, "horizon": 4.0, "until": 200.0}),
        },
    ),
    _orders("11", "The orders of figure 2 in a two-layer linear network", 3, 25, 2),
    _orders("12", "The orders of figure 2 in a two-layer ReLU network", 3, 25, 2),
    _memorisation(
        "13",
        "Transient memorisation in three narrow linear layers: outputs",
        _LOW_TINY,
        _LOW,
        {**_LOW, "seeds": 400},
        15,
    ),
    _memorisation(
        "14",
        "Transient memorisation in three narrow linear layers: test losses",
        _LOW_TINY,
        _LOW,
        {**_LOW, "seeds": 400},
        15,
    ),
    Experiment(
        "concepts/theory-vs-sgd",
        "Theorem 4.1 against training: the error falls with the learning rate",
        PAPER,
        f"{_HERE}.theory_vs_sgd",
        {
            "tiny": Size(
                4, {"dim": 8, "samples": 200, "batch": 20, "rates": [0.05, 0.025, 0.0125], "until": 5.0, "seeds": 4}
            ),
            "laptop": Size(
                30,
                {
                    "dim": 64,
                    "samples": 2000,
                    "batch": 64,
                    "rates": [0.05, 0.025, 0.0125, 0.00625],
                    "until": 5.0,
                    "seeds": 12,
                },
            ),
            "paper": Size(
                120,
                {
                    "dim": 64,
                    "samples": 5000,
                    "batch": 128,
                    "rates": [0.05, 0.025, 0.0125, 0.00625],
                    "until": 8.0,
                    "seeds": 30,
                },
            ),
        },
    ),
    Experiment(
        "concepts/breakdown",
        "Transient memorisation fades with the hidden width at fixed scale of W(0)",
        PAPER,
        f"{_HERE}.breakdown",
        {
            "tiny": Size(
                4, {"widths": [2, 8, 32], "scale": 0.02, "starts": 30, "seeds": 2, "until": 20.0, "instants": 200}
            ),
            "laptop": Size(
                15,
                {
                    "widths": [2, 4, 8, 16, 32, 64],
                    "scale": 0.02,
                    "starts": 400,
                    "seeds": 3,
                    "until": 20.0,
                    "instants": 300,
                },
            ),
            "paper": Size(
                90,
                {
                    "widths": [2, 4, 8, 16, 32, 64, 128],
                    "scale": 0.02,
                    "starts": 3000,
                    "seeds": 3,
                    "until": 20.0,
                    "instants": 300,
                },
            ),
        },
    ),
    Experiment(
        "concepts/pivot-law",
        "When each concept grows, and which are lost, from the pivots of W(0)",
        PAPER,
        f"{_HERE}.pivot_law",
        {
            "tiny": Size(5, {"instances": 60, "instants": 200}),
            "laptop": Size(20, {"instances": 999, "instants": 800}),
            "paper": Size(120, {"instances": 9999, "instants": 800}),
        },
    ),
    Experiment(
        "concepts/lemmas",
        "Appendix D where its assumptions hold as printed, and at realistic scales",
        PAPER,
        f"{_HERE}.lemmas",
        {
            "tiny": Size(5, {"instances": 20, "instants": 150, "realistic": 10}),
            "laptop": Size(45, {"instances": 1000, "instants": 300, "realistic": 100}),
            "paper": Size(200, {"instances": 4000, "instants": 600, "realistic": 1000}),
        },
    ),
]
_GPU = {
    "2a": 20, "2b": 30, "2c": 25, "3": 25, "5": 100, "7": 5, "8": 35, "9": 70, "10": 20, "11": 15, "12": 30, "13": 25,
    "14": 25, "theory-vs-sgd": 15, "breakdown": 15, "pivot-law": 10, "lemmas": 50,
}  # fmt: skip
"""Seconds of the paper's settings on one H200, compilation included."""


def _with_gpu(row: Experiment) -> Experiment:
    seconds = _GPU[row.name.partition("/")[2].removeprefix("figure-")]
    sizes = dict(row.sizes)
    paper = sizes.pop("paper")
    return replace(row, sizes={**sizes, "gpu": Size(seconds, paper.settings), "paper": paper})


EXPERIMENTS = [_with_gpu(row) for row in _ROWS]
"""In the order of the paper; the last two are this project's."""
