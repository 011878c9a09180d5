"""The concept classifier: one a distribution of images, kept in the user's cache under the hash of what made it.

A small U-Net, the maximum over pixels, and a 2-layer MLP give the logits of (blue, small). It is trained on all four
classes, with pixel noise of up to 0.1 added: images of a model in its first steps carry the noise e^{γ(0)/2} = 0.08,
and a classifier that never saw noise answers anything there. It must be right on every held-out image.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from saddles.diffusion.images import CLASSES, Circles
from saddles.diffusion.unet import UNetShape, make_unet
from saddles.errors import SaddlesError
from saddles.runtime.progress import bar
from saddles.training.stepping import generator_of, write_checkpoint

LAYOUT = 1
"""Raise it where the code below changes what is trained: older files are then not looked at."""
ROUNDS = 4
"""Rounds of training before a classifier that is not perfect is given up."""
ADDED = 0.1


@dataclass(frozen=True)
class ClassifierPlan:
    """How a classifier is trained; the defaults are the paper's, as far as it says.

    Args:
        channels: of the U-Net's levels.
        features: channels that are pooled.
        steps: of a round; another round follows while a held-out image is wrong, up to four.
        batch, rate: of AdamW, the rate falls to 0 linearly in every round.
        held_out: images of each class that must all be right.
    """

    channels: Sequence[int] = (32, 32, 32)
    features: int = 64
    steps: int = 10_000
    batch: int = 128
    rate: float = 1e-3
    held_out: int = 1024

    def __post_init__(self) -> None:
        object.__setattr__(self, "channels", tuple(self.channels))
        if min(self.steps, self.batch, self.held_out, self.features) < 1 or self.rate <= 0:
            raise SaddlesError.about(
                f"{self} came", "steps, batch, held_out and features are at least 1, the rate is positive", "raise them"
            )


class Classifier(nn.Module):
    """Images (image, 3, row, column) to logits of (blue, small)."""

    def __init__(self, side: int, plan: ClassifierPlan, seed: int = 0) -> None:
        super().__init__()
        shape = UNetShape(side, plan.channels, blocks=1, heads=1, described=0, outputs=plan.features)
        self.backbone = make_unet(shape, seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.backbone.leave[2].reset_parameters()  # pyright: ignore[reportCallIssue]
            self.head = nn.Sequential(nn.Linear(plan.features, 64), nn.GELU(), nn.Linear(64, 2))

    def forward(self, images: Tensor) -> Tensor:
        """(image, 2)."""
        return self.head(self.backbone(images).amax((-2, -1)))

    @torch.no_grad()
    def concepts(self, images: Tensor) -> Tensor:
        """Probabilities of blue and of small, (image, 2): the place in concept space."""
        return torch.sigmoid(self(images).float())


def concept_classifier(
    circles: Circles, plan: ClassifierPlan | None = None, *, device: Any = "cpu", folder: str | Path | None = None
) -> tuple[Classifier, float]:
    """A classifier that is right on all held-out images, and its accuracy: from the cache, or trained now.

    Args:
        folder: of the cache; None is the user's, $XDG_CACHE_HOME/saddles/classifiers.
    """
    plan, device = plan or ClassifierPlan(), torch.device(device)
    words = {"layout": LAYOUT, "circles": asdict(circles), "plan": asdict(plan)}
    key = hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:16]
    file = Path(folder or _cache()) / f"{key}.pt"
    network = Classifier(circles.side, plan).to(device)
    if not _restore(network, file, device):
        _train(network, circles, plan, device)
        state = {name: value.cpu() for name, value in network.state_dict().items()}
        _keep({"state": state, "hash": _hash(state), "made_from": json.dumps(words)}, file)
    accuracy = _accuracy(network, circles, plan.held_out, device)
    if accuracy < 1:
        raise SaddlesError.about(
            f"a classifier with {100 * accuracy:.3f} % of {4 * plan.held_out} held-out images right came",
            "concepts are read off by one that is right on all",
            f"raise the classifier's steps above {plan.steps}",
        )
    return network.eval().requires_grad_(False), accuracy


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "saddles" / "classifiers"


def _keep(state: dict[str, Any], file: Path) -> None:
    try:
        write_checkpoint(state, file)
    except OSError as error:
        warnings.warn(f"the classifier was not kept: {file} cannot be written ({error.strerror})", stacklevel=3)


def _restore(network: Classifier, file: Path, device: Any) -> bool:
    """Take a kept classifier; one whose hash does not fit its weights is said and trained anew."""
    if not file.exists():
        return False
    try:
        stored = torch.load(file, map_location="cpu", weights_only=True)
        if stored["hash"] != _hash(stored["state"]):
            raise ValueError("its hash does not fit its weights")
        network.load_state_dict(stored["state"])
    except Exception as error:
        words = str(error).splitlines()[0] if str(error) else type(error).__name__
        warnings.warn(f"{file} is not used ({words}); the classifier is trained anew", stacklevel=3)
        return False
    network.to(device)
    return True


def _hash(state: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(state):
        value = state[name].contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def _train(network: Classifier, circles: Circles, plan: ClassifierPlan, device: torch.device) -> None:
    optimiser = torch.optim.AdamW(network.parameters(), lr=plan.rate, weight_decay=0.01)
    network.train()
    with bar(f"classifier, colour {circles.colour:g}", ROUNDS * plan.steps) as progress:
        for step in range(ROUNDS * plan.steps):
            rest = 1 - (step % plan.steps) / plan.steps
            for group in optimiser.param_groups:
                group["lr"] = plan.rate * rest
            _step(network, optimiser, circles, plan, step, device)
            progress.reach(step + 1)
            if (step + 1) % plan.steps == 0 and _accuracy(network, circles, plan.held_out, device) == 1:
                break


def _step(
    network: Classifier, optimiser: Any, circles: Circles, plan: ClassifierPlan, step: int, device: torch.device
) -> None:
    generator = generator_of(device, 42, step)
    classes = torch.randint(0, len(CLASSES), (plan.batch,), generator=generator, device=device)
    images, _ = circles.draw(classes, generator)
    level = ADDED * torch.rand(plan.batch, 1, 1, 1, generator=generator, device=device)
    images = images + level * torch.randn(images.shape, generator=generator, device=device)
    optimiser.zero_grad(set_to_none=True)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        logits = network(images)
    functional.binary_cross_entropy_with_logits(logits.float(), _bits(classes)).backward()
    optimiser.step()


def _bits(classes: Tensor) -> Tensor:
    """(blue, small) of class numbers as 0 or 1."""
    return torch.stack([classes // 2, classes % 2], dim=1).float()


@torch.no_grad()
def _accuracy(network: Classifier, circles: Circles, count: int, device: torch.device) -> float:
    """The share of held-out images with both concepts right."""
    classes = circles.classes(CLASSES, count, device)
    images, _ = circles.draw(classes, generator_of(device, 43))
    right = 0
    for at in range(0, len(classes), 512):
        found = network.concepts(images[at : at + 512]).round()
        right += int((found == _bits(classes[at : at + 512])).all(1).sum())
    return right / len(classes)
