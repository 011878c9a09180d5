"""ViT-B/16 on ImageNet with Adam: Figures 1b, 18 and 19 of the paper.

Images are read from a folder of classes, or from the hub, while the model trains. The smallest size writes made
images into such a folder first, so that it goes the same way. Thresholds are explained in `verdicts`.
"""

import tempfile
from pathlib import Path
from typing import Any

from saddles.core.claim import Claim
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory
from saddles.figures.transformers import growth as figure
from saddles.transformers.experiments.common import Prepare, Setup, recipe_for, run_all
from saddles.transformers.experiments.verdicts import growth_claims

__all__ = ["claims", "figure", "run"]

NAME = "transformers/vit-imagenet"


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """Train once a seed."""
    if settings["source"] != "made":
        return run_all(NAME, settings, context, _prepare(settings))
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder))
        return run_all(NAME, settings, context, _prepare(settings | {"source": folder}))


def _prepare(settings: dict[str, Any]) -> Prepare:
    from saddles.training.processes import device
    from saddles.transformers.files import FileFeed, load_pictures
    from saddles.transformers.vit import ViTShape, make_vit

    sets = load_pictures(settings["source"])
    sizes = {name: settings[name] for name in ("side", "patch", "width", "layers", "heads", "head_width", "hidden")}
    shape = ViTShape(classes=sets.classes, **sizes)

    def prepare(scale: float, seed: int) -> Setup:
        place = device()
        feed = FileFeed(sets, settings["batch"], seed, place, settings["side"], settings["test"] or None)
        recipe = recipe_for(settings, "adam", "cosine", feed.steps)
        return Setup(make_vit(shape, scale, seed).to(place), feed, recipe, sets.classes)

    return prepare


def _write(folder: Path) -> None:
    """Made images as a folder of classes."""
    from PIL import Image

    from saddles.transformers.images import made

    images = made(0, train=96, test=32, side=24)
    for split, pictures, labels in (
        ("train", images.train, images.train_labels),
        ("test", images.test, images.test_labels),
    ):
        for number, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
            place = folder / split / f"class-{label}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(place / f"{number:03}.png")


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge rank, growth and learning."""
    return growth_claims(trajectory, size, "Figures 18, 19")
