"""Images of one circle with two concepts, colour and size, drawn on the device.

Of a class only the means are fixed: every image has its own colour, diameter, place, background and pixel noise. The
distributions are those of the public code of park2024emergence, to which the paper refers: a colour moves by an eighth
of the separation, a diameter by three eighths of its own, each way, uniformly; the centre lies in the middle half of
the image each way; the background is nearly white; edges are blurred by one pixel.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from saddles.errors import SaddlesError
from saddles.training.device import generator_of

CLASSES = ("00", "01", "10", "11")
"""(colour, size): red or blue, big or small."""
TRAINED = ("00", "01", "10")
CONCEPTS = ("colour", "size")

SIGNAL, TRAINING = 40, 41
"""Purposes of random draws, beside the seed: class means for the signals, the training set."""
_SIGNAL_IMAGES = 2048
"""Images per class mean: as many as the training set of the paper's size holds."""


@dataclass(frozen=True)
class Circles:
    """The distribution of images.

    Args:
        colour: |blue − red| of the red and of the blue channel, in (0, 1]: the concept signal of colour. Red is
            (½ + c/2, ½ − c/2, ½ − c/2), blue (½ − c/2, ½ − c/2, ½ + c/2).
        size: diameter of big minus diameter of small, as a share of the image's side, about ½.
        side: of the image, in pixels.
        colour_spread, size_spread: how far an image's own colour and diameter lie from their means, as a share of
            the separation.
        background: a background's channels are uniform on [1 − background, 1].
        noise: standard deviation of the pixel noise.

    Colours and diameters beyond [0, 1], spread included, are refused.
    """

    colour: float = 0.7
    size: float = 0.4
    side: int = 32
    colour_spread: float = 0.125
    size_spread: float = 0.375
    background: float = 0.2
    noise: float = 1e-3

    def __post_init__(self) -> None:
        for name, value, spread in (
            ("colour", self.colour, self.colour_spread),
            ("size", self.size, self.size_spread),
        ):
            if not 0 < value <= 1:
                raise SaddlesError.must_be(name, "in (0, 1]", value, "The paper has 0.2 to 0.7")
            if not 0 <= spread < 0.5:
                raise SaddlesError.must_be(f"{name}_spread", "in [0, 0.5), or classes overlap", spread)
            if value * (0.5 + spread) > 0.5:
                raise SaddlesError.must_be(
                    name, f"at most {0.5 / (0.5 + spread):.3g}, or some values lie outside [0, 1]", value
                )
        for name, right, what in (
            ("side", self.side >= 4, "at least 4 pixels"),
            ("background", 0 <= self.background <= 1, "in [0, 1]"),
            ("noise", self.noise >= 0, "at least 0"),
        ):
            if not right:
                raise SaddlesError.must_be(name, what, getattr(self, name))

    def means(self) -> Tensor:
        """(class, 4): diameter, R, G, B of each class; what a prompt for the class asks for."""
        c, s = self.colour / 2, self.size / 2
        hues = ((0.5 + c, 0.5 - c, 0.5 - c), (0.5 - c, 0.5 - c, 0.5 + c))
        return torch.tensor([[0.5 + (s if name[1] == "0" else -s), *hues[int(name[0])]] for name in CLASSES])

    def draw(self, classes: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images of these classes (numbers in the order of CLASSES), on the device of the generator.

        Returns images (image, 3, side, side) and what each was drawn with (image, 4): diameter, R, G, B.
        """
        device = generator.device
        count = len(classes)
        spread = torch.tensor([self.size_spread * self.size, *[self.colour_spread * self.colour] * 3], device=device)
        draw = torch.rand(count, 9, generator=generator, device=device)
        described = self.means().to(device)[classes.to(device)] + (2 * draw[:, :4] - 1) * spread
        centre = 0.25 + 0.5 * draw[:, 4:6]
        back = (1 - self.background * draw[:, 6:9])[:, :, None, None]
        pixel = (torch.arange(self.side, device=device) + 0.5) / self.side
        down, along = pixel[None, :, None] - centre[:, :1, None], pixel[None, None, :] - centre[:, 1:, None]
        outside = (down**2 + along**2).sqrt() - described[:, :1, None] / 2
        # The normal distribution function blurs the edge with a standard deviation of one pixel.
        disc = torch.special.ndtr(-outside * self.side)[:, None]
        images = disc * described[:, 1:, None, None] + (1 - disc) * back
        noise = torch.randn(images.shape, generator=generator, device=device)
        return images + self.noise * noise, described

    def classes(self, names: tuple[str, ...], count: int, device: torch.device | str) -> Tensor:
        """`count` of each class as numbers, one class after the other."""
        numbers = torch.tensor([CLASSES.index(name) for name in names], device=device)
        return numbers.repeat_interleave(count)

    def signals(self, seed: int = 0) -> np.ndarray:
        """Concept signals of (colour, size): root mean square over pixels of the difference of two class means.

        The paper's signal is "the difference of class mean pixel values". Colour compares 10 with 00, size 01 with 00.
        """
        averages = {}
        for name in TRAINED:
            generator = generator_of("cpu", seed, SIGNAL)
            averages[name] = self.draw(self.classes((name,), _SIGNAL_IMAGES, "cpu"), generator)[0].double().mean(0)
        return np.array([float((averages[other] - averages["00"]).pow(2).mean().sqrt()) for other in ("10", "01")])

    def spreads(self) -> np.ndarray:
        """Standard deviations of (colour, size) within a class, in units of their signals.

        A draw that is uniform within ± s has the standard deviation s/√3.
        """
        return self.signals() * np.array([self.colour_spread, self.size_spread]) / np.sqrt(3)


def training_set(circles: Circles, count: int, seed: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """`count` images of each trained class and their descriptions, the same for the same seed on one kind of device."""
    if count < 1:
        raise SaddlesError.must_be("images", "at least 1 per class", count)
    return circles.draw(circles.classes(TRAINED, count, device), generator_of(device, seed, TRAINING))
