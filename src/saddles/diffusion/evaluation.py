"""Where a model's images lie in concept space.

Every evaluation of a run draws the same noise, so what changes from one to the next is the model, and a film strip
shows the same circles being learned. All classes are drawn in one batch.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from saddles.diffusion.classifier import Classifier
from saddles.diffusion.images import CLASSES, Circles
from saddles.diffusion.vdm import VDM, Denoiser
from saddles.training.device import generator_of

SAMPLER = 44
"""Purpose of the random draws, beside the seed."""


@dataclass(frozen=True)
class Seen:
    """The result of one evaluation.

    concepts: (class, concept), means over images of the probabilities of blue and of small.
    accuracy: (class,), the share of images in which both concepts are those of the prompt.
    images: (class, row, column, channel), the first image of each class, 8 bits per channel.
    """

    concepts: np.ndarray
    accuracy: np.ndarray
    images: np.ndarray


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Draws images for the four prompts and looks at them.

    Args:
        shown: images per class.
        sampling: steps of the sampler.
        seed: of the noise.
    """

    circles: Circles
    classifier: Classifier
    shown: int = 32
    sampling: int = 100
    seed: int = 0

    def __call__(self, model: VDM, denoiser: Denoiser | None = None) -> Seen:
        """Look at a model; `denoiser` replaces the model's own, for instance by a faster form of it."""
        images = self.generate(model, denoiser)
        concepts = self.classifier.concepts(images).view(len(CLASSES), self.shown, 2)
        prompted = torch.tensor([[int(bit) for bit in name] for name in CLASSES], device=concepts.device)
        right = (concepts.round() == prompted[:, None]).all(-1).double().mean(1)
        first = images.view(len(CLASSES), self.shown, *images.shape[1:])[:, 0].clamp(0, 1)
        eight_bits = (255 * first.float()).round().permute(0, 2, 3, 1).to(torch.uint8)
        return Seen(concepts.double().mean(1).cpu().numpy(), right.cpu().numpy(), eight_bits.cpu().numpy())

    def inputs(self, device: torch.device | str) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs of the denoiser at a step of the sampler: images and levels (zeros here), descriptions."""
        prompts = self.circles.means().to(device).repeat_interleave(self.shown, 0)
        side = self.circles.side
        return (
            torch.zeros(len(prompts), 3, side, side, device=device),
            torch.zeros(len(prompts), device=device),
            prompts,
        )

    def generate(self, model: VDM, denoiser: Denoiser | None = None) -> Tensor:
        """`shown` images of each class, one class after the other: (image, 3, side, side)."""
        device = model.offset.device
        images, _, prompts = self.inputs(device)
        return model.sample(
            prompts, tuple(images.shape), self.sampling, generator_of(device, self.seed, SAMPLER), denoiser
        )
