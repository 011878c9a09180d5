"""The experiments of the transformers lab: one row here, one module each."""

from typing import Any

from saddles.core.experiment import Experiment, Size

PAPER = "boix2023rank"

_COMMON: dict[str, Any] = {"accumulate": 1, "tests": 1, "seeds": 1, "store": 60.0}
"""tests: measurements from one test to the next. store: seconds from one checkpoint to the next."""

_VIT: dict[str, Any] = _COMMON | {"train": 0, "test": 0, "pad": 4}
"""train, test: how many images are used, 0 for all. pad: pixels by which images are shifted at random."""

_PAPER_VIT = {"patch": 4, "width": 512, "layers": 6, "heads": 8, "head_width": 128, "hidden": 512}
_SMALL_VIT = {"patch": 8, "width": 128, "layers": 4, "heads": 4, "head_width": 32, "hidden": 128}
_TINY_VIT = {"patch": 4, "width": 24, "layers": 2, "heads": 2, "head_width": 8, "hidden": 24}

_TINY = _VIT | _TINY_VIT | {"source": "made", "epochs": 6.0, "warm_up": 1.0, "batch": 64, "every": 4}
_LAPTOP = (
    _VIT | _SMALL_VIT | {"train": 2000, "test": 500, "pad": 0, "warm_up": 1.0, "batch": 50, "every": 20, "tests": 10}
)
_GPU = _VIT | _PAPER_VIT | {"epochs": 60.0, "warm_up": 15.0, "batch": 512, "every": 97, "tests": 5}
_PAPER = _GPU | {"epochs": 500.0}


def _row(name: str, title: str, **sizes: Size) -> Experiment:
    module = f"saddles.transformers.experiments.{name.replace('-', '_')}"
    return Experiment(f"transformers/{name}", title, PAPER, module, sizes, needs=("source",))


def _vit(name: str, title: str, source: str, rate: float, tiny: float, laptop: float) -> Experiment:
    """One model on one data set with one optimiser: learning rates of the paper, of `tiny` and of `laptop`."""
    return _row(
        name,
        title,
        tiny=Size(10, _TINY | {"rate": tiny}),
        laptop=Size(80, _LAPTOP | {"source": source, "rate": laptop, "epochs": 15.0, "seeds": 2}),
        gpu=Size(270, _GPU | {"source": source, "rate": rate, "seeds": 3}),
        paper=Size(750, _PAPER | {"source": source, "rate": rate}),
    )


_SCALES: dict[str, Any] = {"scales": [1.0, 0.3, 0.1]}

_B16 = {"side": 224, "patch": 16, "width": 768, "layers": 12, "heads": 12, "head_width": 64, "hidden": 3072}
_B16_RUN = _COMMON | _B16 | {"source": "imagenet", "rate": 3e-3, "warm_up": 15.0, "test": 10_000, "tests": 10}

_GPT2 = _COMMON | {"units": "bpe", "most": 0, "warm_up": 0.0, "test": 200, "rate": 3e-4}
_GPT2_SMALL = {"block": 256, "layers": 12, "heads": 12, "width": 768, "batch": 16, "accumulate": 2}

EXPERIMENTS = [
    _vit("vit-cifar10-adam", "A ViT on CIFAR-10 with Adam: its heads change by few ranks, gradually",
         "cifar10", 1e-4, tiny=3e-3, laptop=1e-3),
    _vit("vit-cifar10-sgd", "The same with SGD", "cifar10", 3e-1, tiny=1e-1, laptop=1e-1),
    _vit("vit-cifar100-adam", "A ViT on CIFAR-100 with Adam", "cifar100", 1e-4, tiny=3e-3, laptop=1e-3),
    _vit("vit-cifar100-sgd", "A ViT on CIFAR-100 with SGD", "cifar100", 3e-1, tiny=1e-1, laptop=1e-1),
    _row(
        "vit-init-scale",
        "A ViT on CIFAR-10 from smaller initial weights: the change has lower rank",
        tiny=Size(10, _TINY | _SCALES | {"rate": 3e-3, "scales": [1.0, 0.1], "epochs": 4.0}),
        laptop=Size(80, _LAPTOP | _SCALES | {"source": "cifar10", "rate": 1e-3, "epochs": 10.0}),
        gpu=Size(540, _GPU | _SCALES | {"source": "cifar10", "rate": 1e-4, "epochs": 100.0}),
        paper=Size(2300, _PAPER | _SCALES | {"source": "cifar10", "rate": 1e-4}),
    ),
    _row(
        "vit-imagenet",
        "ViT-B/16 on ImageNet with Adam",
        tiny=Size(10, _COMMON | _TINY_VIT | {"source": "made", "side": 16, "rate": 3e-3, "warm_up": 1.0, "test": 32,
                                             "epochs": 8.0, "batch": 32, "every": 3}),
        laptop=Size(120, _B16_RUN | _SMALL_VIT | {"side": 64, "patch": 16, "rate": 1e-3, "warm_up": 0.01, "test": 200,
                                                  "epochs": 0.05, "batch": 128, "every": 20, "tests": 5}),
        gpu=Size(3600, _B16_RUN | {"rate": 1e-3, "warm_up": 1.0, "epochs": 4.0, "batch": 1024, "every": 50}),
        paper=Size(2e6, _B16_RUN | {"epochs": 360.0, "batch": 4096, "accumulate": 4, "every": 312}),
    ),
    _row(
        "gpt2-wikitext",
        "GPT-2 on WikiText with Adam",
        tiny=Size(10, _GPT2 | {"source": "made", "units": "bytes", "block": 32, "layers": 2, "heads": 2, "width": 24,
                               "most": 20_000, "test": 8, "rate": 3e-3, "epochs": 2.0, "batch": 16, "every": 4}),
        laptop=Size(80, _GPT2 | {"source": "wikitext2", "units": "bytes", "block": 128, "layers": 4, "heads": 4,
                                 "width": 128, "most": 512_000, "test": 20, "rate": 3e-4, "epochs": 1.0, "batch": 8,
                                 "every": 10, "tests": 10}),
        gpu=Size(120, _GPT2 | _GPT2_SMALL | {"source": "wikitext2", "epochs": 3.0, "every": 20, "tests": 5}),
        paper=Size(7200, _GPT2 | _GPT2_SMALL | {"source": "hf:Salesforce/wikitext:wikitext-103-v1", "epochs": 3.0,
                                                "every": 500}),
    ),
]  # fmt: skip
