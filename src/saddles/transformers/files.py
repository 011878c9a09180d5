"""Images that do not fit into memory, as ImageNet's: read batch by batch while the device works on the one before.

What a step sees is a function of its number here too: crops and mirrors are drawn for the whole batch by (seed, step).
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from saddles.errors import MissingDataError, SaddlesError
from saddles.transformers.feed import Shuffled
from saddles.transformers.images import HOW, class_files, decoded, hub_set

MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's pixels over 255, the usual numbers."""


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
        raise MissingDataError.about(f"the images {source!r} came", "there is no such folder", HOW)
    names, files = class_files(place)
    train, test = (_from_files(files[split]) for split in ("train", "test"))
    return PictureSets(place.name, train, test, len(names))


def _from_files(files: Sequence[tuple[Path, int]]) -> Pictures:
    return Pictures(lambda i: decoded(files[i][0]), np.array([label for _, label in files]))


def _hub(name: str) -> PictureSets:
    try:
        from datasets import load_dataset  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise SaddlesError.about(f"hf:{name} came", "the package datasets loads it", "pip install datasets") from error
    found = hub_set(load_dataset, name)
    last = next((split for split in ("validation", "test") if split in found), "")
    if not last or not {"image", "label"} <= set(found["train"].column_names):
        raise SaddlesError.about(
            f"hf:{name} has other columns or parts", "train, validation, image and label are needed", "use another"
        )

    def pictures(part: Any) -> Pictures:
        return Pictures(lambda i: np.asarray(part[i]["image"].convert("RGB")), np.asarray(part["label"]))

    train = pictures(found["train"])
    return PictureSets(name, train, pictures(found[last]), int(train.labels.max()) + 1)


class FileFeed:
    """Random crops of 8 to 100 % of an image, mirrored at random; tests see the middle 7/8 of the shorter side."""

    def __init__(self, sets: PictureSets, batch: int, seed: int, device: Any, side: int, tests: int | None) -> None:
        self.sets, self.seed, self.device, self.side = sets, seed, device, side
        self._rows = Shuffled(len(sets.train.labels), batch, seed, torch.device("cpu"))
        self.steps, self.size = self._rows.steps, self._rows.batch
        self._tested = np.random.default_rng([seed, 5]).permutation(len(sets.test.labels))[:tests]
        self._pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4)
        self._next: tuple[Any, list[Future[np.ndarray]]] | None = None

    def loss(self, model: Any, step: int, share: slice) -> Tensor:
        """Cross-entropy on a part of the batch."""
        pictures, labels = self.batch(step, share)
        return functional.cross_entropy(model(pictures), labels)

    def batch(self, step: int, share: slice) -> tuple[Tensor, Tensor]:
        """Images and labels of a part of a step's batch; the same part of the next step is begun."""
        rows, jobs = self._rows(step)[share].numpy(), self._take(step, share)
        pictures = np.stack([job.result() for job in jobs])
        self._next = ((step + 1, str(share)), self._begin(step + 1, share))
        labels = torch.as_tensor(self.sets.train.labels[rows], device=self.device)
        return self._normal(pictures), labels

    def _take(self, step: int, share: slice) -> list[Future[np.ndarray]]:
        if self._next is not None and self._next[0] == (step, str(share)):
            return self._next[1]
        return self._begin(step, share)

    def _begin(self, step: int, share: slice) -> list[Future[np.ndarray]]:
        rows = self._rows(step).numpy()
        draws = np.random.default_rng([self.seed, 3, step]).random((len(rows), 5))
        return [self._pool.submit(self._crop, int(i), draw) for i, draw in zip(rows[share], draws[share], strict=True)]

    def _crop(self, number: int, draw: np.ndarray) -> np.ndarray:
        whole = self.sets.train.open(number)
        height, width = whole.shape[:2]
        area, ratio = (0.08 + 0.92 * draw[0]) * height * width, np.exp((2 * draw[1] - 1) * np.log(4 / 3))
        across, down = min(np.sqrt(area * ratio), width), min(np.sqrt(area / ratio), height)
        left, top = draw[2] * (width - across), draw[3] * (height - down)
        cut = _resized(whole, self.side, (left, top, left + across, top + down))
        return cut[:, ::-1] if draw[4] < 0.5 else cut

    def _middle(self, number: int) -> np.ndarray:
        whole = self.sets.test.open(number)
        height, width = whole.shape[:2]
        half = min(height, width) * 7 / 16
        return _resized(whole, self.side, (width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half))

    def _normal(self, pictures: np.ndarray) -> Tensor:
        planes = torch.as_tensor(pictures).to(self.device).permute(0, 3, 1, 2).float() / 255.0
        mean, spread = (torch.tensor(row, device=self.device).view(1, 3, 1, 1) for row in (MEAN, SPREAD))
        return (planes - mean) / spread

    def evaluate(self, model: Any) -> dict[str, float]:
        """Cross-entropy and accuracy on the tested images."""
        loss, right = 0.0, 0
        for at in range(0, len(self._tested), self.size):
            rows = self._tested[at : at + self.size]
            logits = model(self._normal(np.stack(list(self._pool.map(self._middle, rows.tolist()))))).float()
            labels = torch.as_tensor(self.sets.test.labels[rows], device=self.device)
            loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
            right += int((logits.argmax(-1) == labels).sum())
        return {"test_loss": loss / len(self._tested), "test_accuracy": right / len(self._tested)}


def _resized(whole: np.ndarray, side: int, box: tuple[float, float, float, float]) -> np.ndarray:
    from PIL import Image

    picture = Image.fromarray(whole).resize((side, side), Image.Resampling.BILINEAR, box=box)
    return np.asarray(picture)
