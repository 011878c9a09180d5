"""Images that do not fit into memory, such as ImageNet's: read batch by batch while the device works on the last one.

What a step sees is a function of its number here too: crops and mirrors are drawn for the whole batch by (seed, step).
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from saddles.errors import MissingDataError
from saddles.transformers.feed import Shuffled, tested
from saddles.transformers.images import INSTEAD, class_files, decoded
from saddles.transformers.sources import HOW, Part, digest_of, load_hub

MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Per channel, of ImageNet's pixels over 255: the numbers that everyone uses."""
AREA, ASPECT = (0.08, 1.0), 4 / 3
"""Share of an image that a random crop covers, and its largest ratio of sides (Inception's augmentation)."""
CROP, TESTED = 3, 5
"""Purposes of random draws, beside the seed: crops of a step, the choice of test images."""
MIDDLE = 7 / 8
"""Part of the shorter side that tests see: 224 of 256 pixels."""


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images that are opened one at a time: uint8 (row, column, 3) by number, and their classes."""

    open: Callable[[int], np.ndarray]
    labels: np.ndarray


@dataclass(frozen=True, eq=False)
class PictureSets:
    """Pictures for training and for testing."""

    name: str
    train: Pictures
    test: Pictures
    classes: int


def load_pictures(source: str) -> PictureSets:
    """Find images without reading them.

    Args:
        source: a folder with train/CLASS/… and test/CLASS/… (or val/), "imagenet" for the one of that name in the data
            folder, or "hf:NAME" for a data set of the Hugging Face hub, which downloads it.
    """
    if source.startswith("hf:"):
        return _hub(source.removeprefix("hf:"))
    place = Path(os.environ.get("SADDLES_DATA") or ".") / "imagenet" if source == "imagenet" else Path(source)
    if not place.is_dir():
        raise MissingDataError(f"There is no folder {place} with images. {HOW}, or {INSTEAD}.")
    names, files = class_files(place)
    train, test = (_from_files(files[split]) for split in ("train", "test"))
    return PictureSets(place.name, train, test, len(names))


def _from_files(files: Sequence[tuple[Path, int]]) -> Pictures:
    return Pictures(lambda i: decoded(files[i][0]), np.array([label for _, label in files]))


def _hub(name: str) -> PictureSets:
    first, last, (image, label) = load_hub(name, (("image", "img"), ("label",)), ("validation", "test"))

    def pictures(part: Part) -> Pictures:
        return Pictures(lambda i: np.asarray(part[i][image].convert("RGB")), np.asarray(part[label]))

    train = pictures(first)
    return PictureSets(name, train, pictures(last), int(train.labels.max()) + 1)


class FileFeed:
    """Random crops of 8 to 100 % of an image, mirrored at random; tests see the middle 7/8 of the shorter side."""

    def __init__(
        self, sets: PictureSets, batch: int, seed: int, device: torch.device | str, side: int, tests: int | None
    ) -> None:
        self.sets, self.seed, self.device, self.side = sets, seed, device, side
        # Of pictures that are read one at a time the labels alone: their number and order tell most mistakes.
        self.data = f"{sets.name}, labels {digest_of(sets.train.labels)}"
        self._rows = Shuffled(len(sets.train.labels), batch, seed, torch.device("cpu"))
        self.steps, self.size = self._rows.steps, self._rows.batch
        self._tested = np.random.default_rng([seed, TESTED]).permutation(len(sets.test.labels))[:tests]
        self._pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4)
        self._ahead: dict[tuple[int, str], list[Future[np.ndarray]]] = {}

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        """Cross-entropy."""
        pictures, labels = batch
        return functional.cross_entropy(model(pictures), labels)

    def batch(self, step: int, share: slice) -> tuple[Tensor, Tensor]:
        """Images and labels of a part of a step's batch; reading the same part of the next step begins."""
        rows = self._rows(step)[share].numpy()
        jobs = self._ahead.pop((step, str(share)), None) or self._begin(step, share)
        pictures = np.stack([job.result() for job in jobs])
        self._ahead[step + 1, str(share)] = self._begin(step + 1, share)
        labels = torch.as_tensor(self.sets.train.labels[rows], device=self.device)
        return self._normal(pictures), labels

    def _begin(self, step: int, share: slice) -> list[Future[np.ndarray]]:
        rows = self._rows(step).numpy()
        draws = np.random.default_rng([self.seed, CROP, step]).random((len(rows), 5))
        return [self._pool.submit(self._crop, int(i), draw) for i, draw in zip(rows[share], draws[share], strict=True)]

    def _crop(self, number: int, draw: np.ndarray) -> np.ndarray:
        whole = self.sets.train.open(number)
        height, width = whole.shape[:2]
        # draw: area, ratio of sides (uniform in its logarithm, so that wide and tall are alike), place, mirror.
        low, high = AREA
        area, ratio = (low + (high - low) * draw[0]) * height * width, np.exp((2 * draw[1] - 1) * np.log(ASPECT))
        across, down = min(np.sqrt(area * ratio), width), min(np.sqrt(area / ratio), height)
        left, top = draw[2] * (width - across), draw[3] * (height - down)
        cut = _resized(whole, self.side, (left, top, left + across, top + down))
        return cut[:, ::-1] if draw[4] < 0.5 else cut

    def _middle(self, number: int) -> np.ndarray:
        whole = self.sets.test.open(number)
        height, width = whole.shape[:2]
        half = min(height, width) * MIDDLE / 2
        return _resized(whole, self.side, (width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half))

    def _normal(self, pictures: np.ndarray) -> Tensor:
        planes = torch.as_tensor(pictures).to(self.device).permute(0, 3, 1, 2).float() / 255.0
        mean, spread = (torch.tensor(row, device=self.device).view(1, 3, 1, 1) for row in (MEAN, SPREAD))
        return (planes - mean) / spread

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Cross-entropy and accuracy on the tested images."""
        cuts = (self._tested[at : at + self.size] for at in range(0, len(self._tested), self.size))
        return tested(model, (self._test_batch(rows) for rows in cuts))

    def _test_batch(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        pictures = np.stack(list(self._pool.map(self._middle, rows.tolist())))
        return self._normal(pictures), torch.as_tensor(self.sets.test.labels[rows], device=self.device)


def _resized(whole: np.ndarray, side: int, box: tuple[float, float, float, float]) -> np.ndarray:
    from PIL import Image

    picture = Image.fromarray(whole).resize((side, side), Image.Resampling.BILINEAR, box=box)
    return np.asarray(picture)
