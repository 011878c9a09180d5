"""Where a model's images lie in concept space.

Every evaluation of a run draws the same noise, so what changes from one to the next is the model, and a film strip
shows the same circles being learned. All classes are drawn in one batch.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saddles.diffusion.classifier import Classifier
from saddles.diffusion.images import CLASSES, Circles
from saddles.diffusion.vdm import VDM
from saddles.training.stepping import generator_of


@dataclass(frozen=True)
class Seen:
    """What one evaluation found.

    concepts: (class, concept), means over images of the probabilities of blue and of small.
    accuracy: (class,), the share of images with both concepts as asked for.
    images: (class, row, column, channel), the first image of each class, 8 bits a channel.
    """

    concepts: np.ndarray
    accuracy: np.ndarray
    images: np.ndarray


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Draws images for the four prompts and looks at them.

    Args:
        shown: images a class.
        sampling: steps of the sampler.
        seed: of the noise.
    """

    circles: Circles
    classifier: Classifier
    shown: int = 32
    sampling: int = 100
    seed: int = 0

    def __call__(self, model: VDM, denoiser: Any = None) -> Seen:
        """Look at a model; `denoiser` is another form of its own, where there is one."""
        images = self.generate(model, denoiser)
        found = self.classifier.concepts(images).view(len(CLASSES), self.shown, 2)
        asked = torch.tensor([[int(bit) for bit in name] for name in CLASSES], device=found.device)
        right = (found.round() == asked[:, None]).all(-1).double().mean(1)
        first = images.view(len(CLASSES), self.shown, *images.shape[1:])[:, 0].clamp(0, 1)
        eight_bits = (255 * first.float()).round().permute(0, 2, 3, 1).to(torch.uint8)
        return Seen(found.double().mean(1).cpu().numpy(), right.cpu().numpy(), eight_bits.cpu().numpy())

    def inputs(self, device: Any) -> tuple[Tensor, Tensor, Tensor]:
        """What the denoiser is given at a step of the sampler: images and levels (zeros here), descriptions."""
        asked = self.circles.means().to(device).repeat_interleave(self.shown, 0)
        side = self.circles.side
        return torch.zeros(len(asked), 3, side, side, device=device), torch.zeros(len(asked), device=device), asked

    def generate(self, model: VDM, denoiser: Any = None) -> Tensor:
        """`shown` images of each class, one class after the other: (image, 3, side, side)."""
        device = model.offset.device
        images, _, asked = self.inputs(device)
        return model.sample(asked, tuple(images.shape), self.sampling, generator_of(device, self.seed, 44), denoiser)
