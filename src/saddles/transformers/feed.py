"""What a training step sees, as a function of its number alone, so that a run can be resumed anywhere.

The data lie on the device; batches are drawn without replacement, an epoch at a time, by (seed, epoch).
"""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from saddles.errors import SaddlesError
from saddles.training.device import generator_of
from saddles.transformers.images import Images
from saddles.transformers.sources import digest_of
from saddles.transformers.text import Text


@runtime_checkable
class Feed(Protocol):
    """Batches and the loss on them.

    Drawing a batch is apart from the loss on it: the batch of a step depends on its number, and everything after that
    has the same shapes and does the same work in every step. A feed may also have `data`, words that stand for what is
    trained on: a run is resumed on the same data alone, and its result names them.
    """

    steps: int
    """Steps of an epoch."""
    size: int
    """Samples of a batch."""

    def batch(self, step: int, share: slice) -> tuple[Tensor, ...]:
        """Inputs of a part of the batch of a step, on the device."""
        ...

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        """The mean loss on what `batch` gave."""
        ...

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """`test_loss` and `test_accuracy` on what is not trained on."""
        ...


ORDER, SHIFT = 1, 2
"""Purposes of random draws, beside the seed: the order of an epoch, the augmentation of a step."""


class Shuffled:
    """Row numbers of the batch of each step; what does not fill a batch is left out of that epoch."""

    def __init__(self, rows: int, batch: int, seed: int, device: torch.device | str) -> None:
        if batch < 1:
            raise SaddlesError.must_be("batch", "at least 1", batch)
        if rows < 1:
            raise SaddlesError("There is nothing to train on: the training set is empty.")
        self.rows, self.batch, self.seed, self.device = rows, min(batch, rows), seed, device
        self.steps = self.rows // self.batch
        self._epoch, self._order = -1, torch.empty(0)

    def __call__(self, step: int) -> Tensor:
        # The order of an epoch is drawn when its first step is asked for and kept: a resumed run draws the same one.
        epoch, place = divmod(step, self.steps)
        if epoch != self._epoch:
            generator = generator_of(self.device, self.seed, ORDER, epoch)
            self._order = torch.randperm(self.rows, generator=generator, device=self.device)
            self._epoch = epoch
        return self._order[place * self.batch : (place + 1) * self.batch]


class ImageFeed:
    """Images, shifted by up to `pad` pixels and mirrored, normalised by mean and spread of the training set."""

    def __init__(self, images: Images, batch: int, seed: int, device: torch.device | str, pad: int = 4) -> None:
        self.train = torch.as_tensor(images.train, device=device).permute(0, 3, 1, 2).contiguous()
        self.labels = torch.as_tensor(images.train_labels, device=device, dtype=torch.long)
        self.test = torch.as_tensor(images.test, device=device).permute(0, 3, 1, 2).contiguous()
        self.test_labels = torch.as_tensor(images.test_labels, device=device, dtype=torch.long)
        mean, spread = colours(images.train)
        self.mean = torch.as_tensor(mean, device=device, dtype=torch.float32).view(1, -1, 1, 1)
        self.spread = torch.as_tensor(spread, device=device, dtype=torch.float32).view(1, -1, 1, 1)
        self.pad, self.seed, self.device = pad, seed, device
        self.data = f"{images.name} {digest_of(images.train, images.train_labels)}"
        self._rows = Shuffled(len(self.train), batch, seed, device)
        self.steps, self.size = self._rows.steps, self._rows.batch

    def _normal(self, pictures: Tensor) -> Tensor:
        return (pictures.float() / 255.0 - self.mean) / self.spread

    def batch(self, step: int, share: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Augmented images and labels of a part of a step's batch."""
        rows = self._rows(step)[share]
        pictures = self.train[rows]
        if self.pad:
            pictures = self._moved(pictures, generator_of(self.device, self.seed, SHIFT, step), share)
        return self._normal(pictures), self.labels[rows]

    def _moved(self, pictures: Tensor, generator: torch.Generator, share: slice) -> Tensor:
        """Shifted and mirrored; drawn for the whole batch, so that its parts are those of the batch in one piece."""
        count, _, height, width = pictures.shape
        wide = {"generator": generator, "device": self.device}
        draw = torch.randint(0, 2 * self.pad + 1, (2, self.size), **wide)[:, share]
        mirror = torch.randint(0, 2, (self.size,), **wide)[share].bool()
        # Rows and columns of the padded image that each output pixel is taken from; a mirror runs along the other way.
        down = torch.arange(height, device=self.device)[None, :] + draw[0][:, None]
        along = torch.arange(width, device=self.device)[None, :]
        along = torch.where(mirror[:, None], width - 1 - along, along) + draw[1][:, None]
        # Advanced indexing does shift, mirror and crop of all images in one kernel, instead of one call per image.
        padded = functional.pad(pictures, (self.pad,) * 4)
        which = torch.arange(count, device=self.device)[:, None, None]
        return padded.permute(0, 2, 3, 1)[which, down[:, :, None], along[:, None, :]].permute(0, 3, 1, 2).contiguous()

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        """Cross-entropy."""
        pictures, labels = batch
        return functional.cross_entropy(model(pictures), labels)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Cross-entropy and accuracy on the test set."""
        parts = zip(self.test.split(self.size), self.test_labels.split(self.size), strict=True)
        return tested(model, ((self._normal(pictures), labels) for pictures, labels in parts))


class TextFeed:
    """Blocks of tokens; the loss is that of the next token."""

    def __init__(
        self, text: Text, length: int, batch: int, seed: int, device: torch.device | str, valid: int = 200
    ) -> None:
        cut = text.blocks(length)
        self.train = torch.as_tensor(cut.train, device=device)
        self.valid = torch.as_tensor(cut.valid[:valid], device=device)
        self.seed, self.data = seed, f"{text.name} {digest_of(cut.train)}"
        self._rows = Shuffled(len(self.train), batch, seed, device)
        self.steps, self.size = self._rows.steps, self._rows.batch

    def batch(self, step: int, share: slice = slice(None)) -> tuple[Tensor]:
        """Blocks of a part of a step's batch."""
        return (self.train[self._rows(step)[share]],)

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        """Cross-entropy of the next token."""
        (tokens,) = batch
        logits = model(input_ids=tokens).logits[:, :-1]
        return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), tokens[:, 1:].reshape(-1))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Cross-entropy of the next token on validation text; the device is waited for once, at the end."""
        sums = [self.loss(model, part).double() * len(part) for part in self.valid.split(self.size)]
        return {"test_loss": float(torch.stack(sums).sum()) / len(self.valid), "test_accuracy": float("nan")}


def tested(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Mean cross-entropy and accuracy of a classifier; the device is waited for once, at the end."""
    losses, hits, count = [], [], 0
    for pictures, labels in batches:
        logits = model(pictures).float()
        losses.append(functional.cross_entropy(logits, labels, reduction="sum").double())
        hits.append((logits.argmax(-1) == labels).sum())
        count += len(labels)
    return {
        "test_loss": float(torch.stack(losses).sum()) / count,
        "test_accuracy": float(torch.stack(hits).sum()) / count,
    }


def colours(pictures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of pixel/255 by channel.

    From counts of the 256 levels: all pixels as floats would take eight times the memory of the images.
    """
    levels = np.arange(256) / 255.0
    counts = np.zeros((pictures.shape[-1], 256))
    for part in np.array_split(pictures, 1 + len(pictures) // 1000):
        counts += [np.bincount(part[..., channel].ravel(), minlength=256) for channel in range(len(counts))]
    # A channel that is the same everywhere would be divided by 0; its spread is taken as 1e-6 of the range.
    shares = counts / counts.sum(1, keepdims=True)
    mean = shares @ levels
    return mean, np.sqrt(np.maximum(shares @ levels**2 - mean**2, 1e-6**2))
