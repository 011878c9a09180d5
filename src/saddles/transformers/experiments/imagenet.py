"""ViT-B/16 on ImageNet with Adam: Figures 1b, 18 and 19 of the paper.

Images are read from a folder of classes, or from the hub, while the model trains. The smallest size first writes
synthetic images into such a folder, so that it takes the same path. Thresholds are explained in `verdicts`.
"""

import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from saddles import training, transformers
from saddles.core.experiment import Context, Experiment, Size
from saddles.core.trajectory import Trajectory
from saddles.transformers.experiments.runs import (
    PAPER,
    SMALL_VIT,
    TINY_VIT,
    Blocks,
    Prepare,
    Training,
    growth_figure,
    need_torch,
    train_all,
)
from saddles.transformers.experiments.verdicts import growth_claims
from saddles.transformers.images import made

NAME = "transformers/vit-imagenet"


@dataclass(frozen=True, kw_only=True)
class Settings(Training, Blocks):
    """A ViT on images that are read while it trains."""

    side: Annotated[int, "pixels along the side of an image, after cropping"]
    test: Annotated[int, "test images that are used, 0 for all"]


def run(settings: Settings, context: Context) -> Trajectory:
    """Train once per seed."""
    need_torch()
    if settings.source != "made":
        return train_all(NAME, settings, context, _prepare(settings))
    with tempfile.TemporaryDirectory() as folder:
        _write_images(Path(folder))
        return train_all(NAME, settings, context, _prepare(replace(settings, source=folder)))


def _prepare(settings: Settings) -> Prepare:
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
    for split, pictures, labels in (
        ("train", images.train, images.train_labels),
        ("test", images.test, images.test_labels),
    ):
        for number, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
            place = folder / split / f"class-{label}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(place / f"{number:03}.png")


_B16 = Settings(
    source="imagenet", side=224, patch=16, width=768, layers=12, heads=12, head_width=64, hidden=3072, test=10_000,
    epochs=360.0, batch=4096, accumulate=4, rate=3e-3, warm_up=15.0, every=312, tests=10,
)  # fmt: skip

EXPERIMENT = Experiment(
    NAME,
    "ViT-B/16 on ImageNet with Adam",
    PAPER,
    sizes={
        "tiny": Size(10, Settings(**TINY_VIT, source="made", side=16, test=32, epochs=8.0, batch=32, rate=3e-3,
                                  warm_up=1.0, every=3)),
        "laptop": Size(120, replace(_B16, **SMALL_VIT | {"patch": 16}, side=64, test=200, epochs=0.05, batch=128,
                                    accumulate=1, rate=1e-3, warm_up=0.01, every=20, tests=5)),
        "gpu": Size(3600, replace(_B16, epochs=4.0, batch=1024, accumulate=1, rate=1e-3, warm_up=1.0, every=50)),
        "paper": Size(2e6, _B16),
    },
    needs=("source",),
    run=run,
    claims=partial(growth_claims, where="Figures 18, 19"),
    figure=growth_figure,
)  # fmt: skip
