"""Vision transformers: on CIFAR with Adam or SGD and at several scales of the initialisation, and ViT-B/16 on ImageNet.

Figures 1, 4 to 7 and 12 to 19 of the paper. The scale multiplies all initial weights but those of the token mapper and
of normalisations. ImageNet is read from a folder of classes, or from the hub, while the model trains; its smallest size
first writes synthetic images into such a folder, so that it takes the same path. Thresholds of the claims are explained
in `verdicts`.
"""

import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from saddles import figures, training, transformers
from saddles.core.experiment import LARGEST, Context, Drawing, Experiment, Size, Within
from saddles.core.trajectory import Trajectory
from saddles.errors import SaddlesError
from saddles.transformers.experiments.runs import PAPER, Prepare, Training, growth_figure, need_torch, train_all
from saddles.transformers.experiments.verdicts import growth_claims, scale_claims
from saddles.transformers.images import made

IMAGENET = "transformers/vit-imagenet"
DIGITS = {"source": "digits", "patch": 2, "epochs": 8.0}
"""What takes the place of CIFAR-10 at size `laptop`: 16 patches too, of 8 × 8 pixels, for fewer epochs."""


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Settings of a vision transformer."""

    patch: Annotated[int, "pixels along the side of a patch"]
    width: Annotated[int, "width of the embedding", Within(2, LARGEST)]
    layers: Annotated[int, "number of blocks"]
    heads: Annotated[int, "heads per block"]
    head_width: Annotated[int, "width of a head", Within(2, LARGEST)]
    hidden: Annotated[int, "width of the feed-forward part"]

    def shape(self, side: int, channels: int, classes: int) -> "transformers.ViTShape":
        """The model's shape for these images."""
        return transformers.ViTShape(
            side, self.patch, channels, self.width, self.layers, self.heads, self.head_width, self.hidden, classes
        )


PAPER_VIT = {"patch": 4, "width": 512, "layers": 6, "heads": 8, "head_width": 128, "hidden": 512}
SMALL_VIT = {"patch": 8, "width": 128, "layers": 4, "heads": 4, "head_width": 32, "hidden": 128}
TINY_VIT = {"patch": 4, "width": 24, "layers": 2, "heads": 2, "head_width": 8, "hidden": 24}


@dataclass(frozen=True, kw_only=True)
class Settings(Training, Blocks):
    """A ViT on images that fit into memory."""

    train: Annotated[int, "training images that are used, 0 for all"] = 0
    test: Annotated[int, "test images that are used, 0 for all"] = 0
    pad: Annotated[int, "pixels by which images are shifted at random"] = 4


@dataclass(frozen=True, kw_only=True)
class ScaleSettings(Settings):
    """The same at several scales of the initialisation."""

    scales: Annotated[
        tuple[float, ...], "factors of the initial weights, one run per factor and seed", Within(1e-6, LARGEST)
    ]  # below, initial products are near what float32 cannot hold


@dataclass(frozen=True, kw_only=True)
class ImageNetSettings(Training, Blocks):
    """A ViT on images that are read while it trains."""

    side: Annotated[int, "pixels along the side of an image, after cropping"]
    test: Annotated[int, "test images that are used, 0 for all", Within(0, LARGEST)]


def run(settings: Settings, context: Context, *, name: str, optimiser: str) -> Trajectory:
    """Train once per seed (and scale)."""
    need_torch()
    scales = settings.scales if isinstance(settings, ScaleSettings) else (1.0,)
    return train_all(name, settings, context, _prepare(settings, optimiser), scales)


def _prepare(settings: Settings, optimiser: str) -> Prepare:
    images = transformers.load_images(settings.source).first(settings.train or None, settings.test or None)
    rows, columns, channels = images.shape
    if rows != columns:
        raise SaddlesError(f"{images.name}: images must be square; got {rows} × {columns} pixels.")
    shape = settings.shape(rows, channels, images.classes)

    def prepare(scale: float, seed: int) -> "transformers.Setup":
        device = training.processes.device()
        feed = transformers.ImageFeed(images, settings.batch, seed, device, settings.pad)
        recipe = settings.recipe(optimiser, "cosine", feed.steps)
        return transformers.Setup(transformers.make_vit(shape, scale, seed).to(device), feed, recipe, images.classes)

    return prepare


def run_imagenet(settings: ImageNetSettings, context: Context) -> Trajectory:
    """Train once per seed."""
    need_torch()
    if settings.source != "made":
        return train_all(IMAGENET, settings, context, _prepare_imagenet(settings))
    with tempfile.TemporaryDirectory() as folder:
        _write_images(Path(folder))
        return train_all(IMAGENET, settings, context, _prepare_imagenet(replace(settings, source=folder)))


def _prepare_imagenet(settings: ImageNetSettings) -> Prepare:
    sets = transformers.load_pictures(settings.source)
    shape = settings.shape(settings.side, 3, sets.classes)

    def prepare(scale: float, seed: int) -> "transformers.Setup":
        device = training.processes.device()
        feed = transformers.FileFeed(sets, settings.batch, seed, device, settings.side, settings.test or None)
        recipe = settings.recipe("adam", "cosine", feed.steps)
        return transformers.Setup(transformers.make_vit(shape, scale, seed).to(device), feed, recipe, sets.classes)

    return prepare


def _write_images(folder: Path) -> None:
    """Synthetic images as a folder of classes."""
    from PIL import Image

    images = made(0, train=96, test=32, side=24)
    parts = ("train", images.train, images.train_labels), ("test", images.test, images.test_labels)
    for split, pictures, labels in parts:
        for number, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
            place = folder / split / f"class-{label}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(place / f"{number:03}.png")


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
            "laptop": Size(30, _laptop(source, laptop, epochs=15.0, seeds=2), DIGITS if source == "cifar10" else {}),
            "gpu": Size(190, _gpu(source, rate, epochs=60.0, seeds=3)),
            "paper": Size(480, _gpu(source, rate, epochs=500.0)),
        },
        needs=("source",),
        run=partial(run, name=full, optimiser=optimiser),
        claims=partial(growth_claims, where=where),
        figure=growth_figure,
    )


_B16 = ImageNetSettings(
    source="imagenet", side=224, patch=16, width=768, layers=12, heads=12, head_width=64, hidden=3072, test=10_000,
    epochs=360.0, batch=4096, accumulate=4, rate=3e-3, warm_up=15.0, every=312, tests=10,
)  # fmt: skip

EXPERIMENTS: list[Experiment[Any]] = [
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
            "laptop": Size(30, _scaled(_laptop("cifar10", 1e-3, epochs=10.0)), DIGITS | {"epochs": 6.0}),
            "gpu": Size(300, _scaled(_gpu("cifar10", 1e-4, epochs=100.0))),
            "paper": Size(1400, _scaled(_gpu("cifar10", 1e-4, epochs=500.0))),
        },
        needs=("source",),
        run=partial(run, name="transformers/vit-init-scale", optimiser="adam"),
        claims=partial(scale_claims, where="Figures 6, 7"),
        figure=scale_figure,
    ),
    Experiment(
        IMAGENET,
        "ViT-B/16 on ImageNet with Adam",
        PAPER,
        sizes={
            "tiny": Size(10, ImageNetSettings(**TINY_VIT, source="made", side=16, test=32, epochs=8.0, batch=32,
                                              rate=3e-3, warm_up=1.0, every=3)),
            "laptop": Size(120, replace(_B16, **SMALL_VIT | {"patch": 16}, side=64, test=200, epochs=0.05, batch=128,
                                        accumulate=1, rate=1e-3, warm_up=0.01, every=20, tests=5)),
            "gpu": Size(3600, replace(_B16, epochs=4.0, batch=1024, accumulate=1, rate=1e-3, warm_up=1.0, every=50)),
            "paper": Size(2e6, _B16),
        },
        needs=("source",),
        run=run_imagenet,
        claims=partial(growth_claims, where="Figures 18, 19"),
        figure=growth_figure,
    ),
]  # fmt: skip
