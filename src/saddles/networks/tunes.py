"""A small ViT, its fine-tunes to changed images, and sums and parts of their changes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from saddles.networks import follow
from saddles.networks.differentiable import network_of
from saddles.transformers.feed import Feed, ImageFeed
from saddles.transformers.images import Images, load_images

State = dict[str, Tensor]

CHANGED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "negative": lambda pictures: 255 - pictures,
    "transposed": lambda pictures: np.ascontiguousarray(pictures.transpose(0, 2, 1, 3)),
}
"""Domains of images (sample, row, column, channel)."""

TESTED = 200
"""Test images of each domain on which losses are measured."""


@dataclass(frozen=True, eq=False)
class Tunes:
    """A trained model, what it was at the end of its first training, and the domains it is tuned to."""

    model: nn.Module
    start: State = field(repr=False)
    feeds: dict[str, ImageFeed] = field(repr=False)

    @classmethod
    def of(
        cls, source: str, domains: Sequence[str], *, width: int, layers: int, heads: int, batch: int, steps: int,
        rate: float, seed: int,
    ) -> "Tunes":  # fmt: skip
        """Train a ViT on the images as they are."""
        model, feed = follow.make_model("vit", source, width=width, layers=layers, heads=heads, batch=batch, seed=seed)
        _train(model, feed, rate, steps, ())
        images = load_images(source)
        device = next(model.parameters()).device
        feeds = {name: ImageFeed(_changed(images, name), batch, seed + 1, device, pad=0) for name in domains}
        return cls(model, follow.copied(model), feeds)

    def tuned(self, domain: str, rate: float, lengths: Sequence[int]) -> list[State]:
        """The weights after so many steps on a domain, each time from the start."""
        self._set(self.start)
        return _train(self.model, self.feeds[domain], rate, max(lengths), lengths)

    def sum_of(self, ends: Sequence[State], scale: float = 1.0) -> State:
        """θ₀ + scale · Σ Δ."""
        return {
            name: first + scale * sum((end[name] - first for end in ends), torch.zeros_like(first))
            for name, first in self.start.items()
        }

    def losses(self, state: State) -> list[float]:
        """The loss on unseen images of every domain."""
        self._set(state)
        with torch.no_grad():
            return [feed.evaluate(self.model)["test_loss"] for feed in self.feeds.values()]

    def watched(self, count: int) -> Tensor:
        """Some unseen images of every domain."""
        return torch.cat([(feed.test[:count] / 255.0 - feed.mean) / feed.spread for feed in self.feeds.values()])

    def missed(self, end: State, half: State, batch: Tensor) -> float:
        """How far half a change is from half of the effect, relative to that half."""
        network = network_of(self.model, self.start, batch)
        states = (self.start, end, half)
        first, last, middle = (network.array(network.values(state, slice(None))) for state in states)
        effect = (last - first) / 2
        return float(np.linalg.norm(middle - first - effect) / np.linalg.norm(effect))

    def size(self, end: State) -> float:
        """‖Δ‖."""
        return float(
            torch.stack([(end[name] - first).square().sum() for name, first in self.start.items()]).sum() ** 0.5
        )

    def _set(self, state: State) -> None:
        with torch.no_grad():
            for name, value in self.model.named_parameters():
                value.copy_(state[name])


def _changed(images: Images, domain: str) -> Images:
    change = CHANGED[domain]
    return replace(
        images,
        name=f"{images.name}, {domain}",
        train=change(images.train),
        test=change(images.test[:TESTED]),
        test_labels=images.test_labels[:TESTED],
    )


def _train(model: nn.Module, feed: Feed, rate: float, steps: int, looks: Sequence[int]) -> list[State]:
    found: list[State] = []

    def look(step: int, loss: float) -> None:
        found.append(follow.copied(model))

    follow.follow(model, feed, follow.optimiser_of("adam", model, rate), steps, looks, look, "fine-tune")
    return found
