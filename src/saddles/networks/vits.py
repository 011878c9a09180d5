"""Small vision transformers of one shape, stacked: one draw at several initial scales as one function.

What is trained is what `make_vit` scales: matrices and biases of attention, feed-forward parts and the head. Tokens,
positions and gains of normalisations stay as they are. Positions of size 0.02 stand before a normalisation, so that the
derivative by them is fifty times that by anything else, at every scale: a kernel with them shows nothing else.

The loss sees the outputs less those of the start and less their mean over the training images, as if the bias of each
class were at its best value at all times: L = ‖P(f − f₀) − y‖²/‖y‖², 1 at the start. The mean over images is by far the
largest eigenvector of a ViT's tangent kernel, says nothing about any image, and would set the rate of everything else.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vmap

from saddles.errors import SaddlesError
from saddles.networks.torch_network import forward_mode, plain_attention
from saddles.training import processes
from saddles.transformers.feed import ImageFeed
from saddles.transformers.images import load_images
from saddles.transformers.vit import ViTShape, make_vit, scaled

State = dict[str, Tensor]
"""Parameters by name, of several networks stacked along the first axis."""


@dataclass(frozen=True, eq=False)
class Pictures:
    """Training images on the device, their targets with mean 0, and unseen images."""

    inputs: Tensor
    targets: Tensor
    shares: Tensor
    """How many of the training images are of each class."""
    unseen: Tensor
    labels: Tensor
    shape: tuple[int, int, int]

    @classmethod
    def of(cls, source: str, *, samples: int, tests: int, seed: int) -> "Pictures":
        """Draw some training images; the unseen ones are the first of the test set."""
        images, device = load_images(source), processes.device()
        feed = ImageFeed(images.first(None, tests), samples, seed, device, pad=0)
        inputs, labels = feed.batch(0)
        marks = nn.functional.one_hot(labels, images.classes).float()
        unseen = (feed.test.float() / 255.0 - feed.mean) / feed.spread
        return cls(inputs, marks - marks.mean(0), marks.mean(0), unseen, feed.test_labels, images.shape)


@dataclass(frozen=True, eq=False)
class ViTs:
    """ViTs of one shape and draw at several scales, on some pictures."""

    module: nn.Module
    heads: int
    """In each layer."""
    fixed: State = field(repr=False)
    """What is not trained, the same for all."""
    start: State = field(repr=False)
    pictures: Pictures = field(repr=False)
    first: Tensor = field(repr=False)
    """Outputs on the training images at the start, (network, sample, class)."""

    @classmethod
    def of(
        cls, pictures: Pictures, width: int, scales: np.ndarray, *, layers: int, head: int, patches: int, seed: int
    ) -> "ViTs":
        """One draw at every scale.

        Args:
            head: width of a head; there are width/head of them.
            patches: along a side of an image.
        """
        rows, columns, channels = pictures.shape
        if rows != columns or rows % patches:
            raise SaddlesError.must_be("patches", f"a divisor of the images' side, {rows} × {columns}", patches)
        if width % head:
            raise SaddlesError.must_be("head", f"a divisor of width={width}", head)
        classes = pictures.targets.shape[1]
        shape = ViTShape(rows, rows // patches, channels, width, layers, width // head, head, 2 * width, classes)
        models = [make_vit(shape, float(scale), seed).to(processes.device()) for scale in scales]
        states = [{name: part.detach() for name, part in model.named_parameters()} for model in models]
        trained = scaled(models[0])
        start = {name: torch.stack([state[name] for state in states]) for name in trained}
        fixed = {name: part for name, part in states[0].items() if name not in trained}
        with torch.no_grad():
            first = _outputs(models[0], fixed, start, pictures.inputs)
        return cls(models[0], shape.heads, fixed, start, pictures, first)

    def outputs(self, states: State, inputs: Tensor) -> Tensor:
        """f(x; θ), (network, sample, class)."""
        return _outputs(self.module, self.fixed, states, inputs)

    def along(self, change: State, inputs: Tensor) -> Tensor:
        """J(x; θ₀) v of every network."""
        with forward_mode():
            return jvp(lambda states: self.outputs(states, inputs), (self.start,), (change,))[1].detach()

    def back(self, states: State, weights: Tensor) -> State:
        """Jᵀu of every network on the training images."""
        leaves = _leaves(states)
        values = self.outputs(leaves, self.pictures.inputs)
        return _named(leaves, torch.autograd.grad(values, list(leaves.values()), weights))

    def slopes(self, states: State, first: Tensor) -> tuple[Tensor, State]:
        """P(f − f₀) on the training images, (network, sample, class), and the gradient of every network's loss.

        Args:
            first: outputs of these networks at their start.
        """
        leaves = _leaves(states)
        learned = centred(self.outputs(leaves, self.pictures.inputs) - first)
        # Each loss has parameters of its own, so that the gradient of their sum is the gradient of each.
        slopes = torch.autograd.grad(self.losses(learned).sum(), list(leaves.values()))
        return learned.detach(), _named(leaves, slopes)

    def losses(self, learned: Tensor) -> Tensor:
        """The loss of every network that has learned this."""
        targets = self.pictures.targets
        return (learned - targets).square().sum((1, 2)) / targets.square().sum()


def _outputs(module: nn.Module, fixed: State, states: State, inputs: Tensor) -> Tensor:
    def one(state: State) -> Tensor:
        return functional_call(module, {**fixed, **state}, (inputs,))

    with plain_attention():
        return vmap(one)(states)


def _leaves(states: State) -> State:
    return {name: part.detach().clone().requires_grad_() for name, part in states.items()}


def _named(leaves: State, parts: tuple[Tensor, ...]) -> State:
    return dict(zip(leaves, parts, strict=True))


def centred(values: Tensor) -> Tensor:
    """(network, sample, class) less its mean over samples."""
    return values - values.mean(1, keepdim=True)


def norms(values: Tensor) -> Tensor:
    """Of each network's values."""
    return values.flatten(1).double().norm(dim=1)


def squares(states: State) -> Tensor:
    """‖v‖² of each network."""
    return torch.stack([part.flatten(1).square().sum(1) for part in states.values()]).sum(0)


def plus(states: State, along: State, by: Tensor) -> State:
    """θ + by·v, by another number for each network."""
    return {name: part + _wide(by, part) * along[name] for name, part in states.items()}


def chosen(which: Tensor, one: State, other: State) -> State:
    """The first where `which` says so, else the second."""
    return {name: torch.where(_wide(which, part), part, other[name]) for name, part in one.items()}


def _wide(numbers: Tensor, part: Tensor) -> Tensor:
    return numbers.view(-1, *[1] * (part.ndim - 1))
