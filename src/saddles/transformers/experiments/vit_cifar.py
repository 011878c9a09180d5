"""A ViT on CIFAR with Adam or SGD, and at several scales of the initialisation: Figures 1a, 4 to 7 and 12 to 17.

The scale multiplies all initial weights but those of the token mapper and of normalisations. Thresholds of the claims
are explained in `verdicts`.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from saddles import figures, training, transformers
from saddles.core.experiment import Context, Drawing, Experiment, Size
from saddles.core.trajectory import Trajectory
from saddles.transformers.experiments.runs import (
    PAPER,
    PAPER_VIT,
    SMALL_VIT,
    TINY_VIT,
    Blocks,
    Prepare,
    Training,
    growth_figure,
    need_torch,
    train_all,
)
from saddles.transformers.experiments.verdicts import growth_claims, scale_claims


@dataclass(frozen=True, kw_only=True)
class Settings(Training, Blocks):
    """A ViT on images that fit into memory."""

    train: Annotated[int, "training images that are used, 0 for all"] = 0
    test: Annotated[int, "test images that are used, 0 for all"] = 0
    pad: Annotated[int, "pixels by which images are shifted at random"] = 4


@dataclass(frozen=True, kw_only=True)
class ScaleSettings(Settings):
    """The same at several scales of the initialisation."""

    scales: Annotated[tuple[float, ...], "factors of the initial weights, one run per factor and seed"]


def run(settings: Settings, context: Context, *, name: str, optimiser: str) -> Trajectory:
    """Train once per seed (and scale)."""
    need_torch()
    scales = settings.scales if isinstance(settings, ScaleSettings) else (1.0,)
    return train_all(name, settings, context, _prepare(settings, optimiser), scales)


def _prepare(settings: Settings, optimiser: str) -> Prepare:
    images = transformers.load_images(settings.source).first(settings.train or None, settings.test or None)
    rows, _, channels = images.shape
    shape = settings.shape(rows, channels, images.classes)

    def prepare(scale: float, seed: int) -> "transformers.Setup":
        device = training.processes.device()
        feed = transformers.ImageFeed(images, settings.batch, seed, device, settings.pad)
        recipe = settings.recipe(optimiser, "cosine", feed.steps)
        return transformers.Setup(transformers.make_vit(shape, scale, seed).to(device), feed, recipe, images.classes)

    return prepare


def scale_figure(trajectory: Trajectory) -> Drawing:
    """Singular values at every scale, final ranks by scale."""
    return figures.transformers.by_scale(trajectory)


def _tiny(rate: float, epochs: float = 6.0) -> Settings:
    return Settings(**TINY_VIT, source="made", epochs=epochs, rate=rate, warm_up=1.0, batch=64, every=4)


def _laptop(source: str, rate: float, epochs: float, seeds: int = 1) -> Settings:
    return Settings(
        **SMALL_VIT, source=source, train=2000, test=500, pad=0, epochs=epochs, rate=rate, warm_up=1.0, batch=50,
        every=20, tests=10, seeds=seeds,
    )  # fmt: skip


def _gpu(source: str, rate: float, epochs: float, seeds: int = 1) -> Settings:
    return Settings(
        **PAPER_VIT, source=source, epochs=epochs, rate=rate, warm_up=15.0, batch=512, every=97, tests=5, seeds=seeds
    )


def _scaled(settings: Settings, scales: tuple[float, ...] = (1.0, 0.3, 0.1)) -> ScaleSettings:
    return ScaleSettings(**vars(settings), scales=scales)


def _experiment(
    name: str, title: str, where: str, source: str, optimiser: str, rate: float, tiny: float, laptop: float
) -> Experiment[Settings]:
    """One data set with one optimiser: learning rates of the paper, of `tiny` and of `laptop`."""
    full = f"transformers/{name}"
    return Experiment(
        full,
        title,
        PAPER,
        sizes={
            "tiny": Size(10, _tiny(tiny)),
            "laptop": Size(80, _laptop(source, laptop, epochs=15.0, seeds=2)),
            "gpu": Size(270, _gpu(source, rate, epochs=60.0, seeds=3)),
            "paper": Size(750, _gpu(source, rate, epochs=500.0)),
        },
        needs=("source",),
        run=partial(run, name=full, optimiser=optimiser),
        claims=partial(growth_claims, where=where),
        figure=growth_figure,
    )


EXPERIMENTS = [
    _experiment("vit-cifar10-adam", "A ViT on CIFAR-10 with Adam: its heads change by few ranks, gradually",
                "Figures 4, 5, 14, 15", "cifar10", "adam", 1e-4, tiny=3e-3, laptop=1e-3),
    _experiment("vit-cifar10-sgd", "The same with SGD", "Figure 12", "cifar10", "sgd", 3e-1, tiny=1e-1, laptop=1e-1),
    _experiment("vit-cifar100-adam", "A ViT on CIFAR-100 with Adam", "Figures 4, 16, 17", "cifar100", "adam", 1e-4,
                tiny=3e-3, laptop=1e-3),
    _experiment("vit-cifar100-sgd", "A ViT on CIFAR-100 with SGD", "Figure 13", "cifar100", "sgd", 3e-1, tiny=1e-1,
                laptop=1e-1),
    Experiment(
        "transformers/vit-init-scale",
        "A ViT on CIFAR-10 from smaller initial weights: the change has lower rank",
        PAPER,
        sizes={
            "tiny": Size(10, _scaled(_tiny(3e-3, epochs=4.0), (1.0, 0.1))),
            "laptop": Size(80, _scaled(_laptop("cifar10", 1e-3, epochs=10.0))),
            "gpu": Size(540, _scaled(_gpu("cifar10", 1e-4, epochs=100.0))),
            "paper": Size(2300, _scaled(_gpu("cifar10", 1e-4, epochs=500.0))),
        },
        needs=("source",),
        run=partial(run, name="transformers/vit-init-scale", optimiser="adam"),
        claims=partial(scale_claims, where="Figures 6, 7"),
        figure=scale_figure,
    ),
]  # fmt: skip
