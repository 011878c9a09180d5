"""The concept classifier: one per distribution of images, kept in the user's cache under a hash of its settings.

A small U-Net, the maximum over pixels, and a 2-layer MLP give the logits of (blue, small). It is trained on all four
classes, with pixel noise of up to 0.1 added: images of a model in its first steps carry the noise e^{γ(0)/2} = 0.08,
and a classifier that never saw noise answers anything there. It must be right on every held-out image.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from saddles.diffusion.images import CLASSES, Circles
from saddles.diffusion.unet import UNetShape, make_unet
from saddles.errors import SaddlesError
from saddles.training.checkpoint import Checkpoint, History, write_checkpoint
from saddles.training.device import generator_of, mixed_precision
from saddles.training.loop import Loop

LAYOUT = 1
"""Raise it when the code below changes what is trained: older files are then ignored."""
ROUNDS = 4
"""Rounds of training after which a classifier that is not perfect is given up."""
ADDED = 0.1
"""Largest pixel noise added in training; a young model's images carry 0.08."""
STEP, HELD_OUT = 42, 43
"""Purposes of random draws: a training step, the held-out images. They are the same for every run."""
CHUNK = 512
"""Held-out images that are classified at once."""


@dataclass(frozen=True)
class ClassifierPlan:
    """How a classifier is trained; the defaults are the paper's, as far as it says.

    Args:
        channels: of the U-Net's levels.
        features: channels that are pooled.
        steps: of a round; another round follows while a held-out image is wrong, up to four in all.
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
        for name in ("steps", "batch", "held_out", "features"):
            if getattr(self, name) < 1:
                raise SaddlesError.must_be(name, "at least 1", getattr(self, name))
        if self.rate <= 0:
            raise SaddlesError.must_be("rate", "positive", self.rate)


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
    circles: Circles,
    plan: ClassifierPlan | None = None,
    *,
    device: torch.device | str = "cpu",
    folder: str | os.PathLike[str] | None = None,
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
        raise SaddlesError(
            f"The classifier must be right on all {4 * plan.held_out} held-out images; it is right on "
            f"{100 * accuracy:.3f} %. Raise the classifier's steps above {plan.steps}."
        )
    return network.eval().requires_grad_(False), accuracy


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "saddles" / "classifiers"


def _keep(state: Mapping[str, object], file: Path) -> None:
    try:
        write_checkpoint(state, file)
    except OSError as error:
        warnings.warn(f"the classifier was not kept: {file} cannot be written ({error.strerror})", stacklevel=3)


def _restore(network: Classifier, file: Path, device: torch.device) -> bool:
    """Load a kept classifier; False, with a warning, where the file is damaged."""
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
    """Train round after round until every held-out image is right."""
    optimiser = torch.optim.AdamW(network.parameters(), lr=plan.rate, weight_decay=0.01)
    network.train()

    def step(number: int) -> Tensor:
        for group in optimiser.param_groups:
            group["lr"] = plan.rate * (1 - (number % plan.steps) / plan.steps)
        optimiser.zero_grad(set_to_none=True)
        loss = _loss(network, circles, plan.batch, generator_of(device, STEP, number))
        loss.backward()
        optimiser.step()
        return loss.detach()

    def observe(steps: int) -> dict[str, float]:
        return {"accuracy": _accuracy(network, circles, plan.held_out, device)}

    history, title = History(), f"classifier, colour {circles.colour:g}"
    for end in range(plan.steps, (ROUNDS + 1) * plan.steps, plan.steps):
        status = Loop(end, step, observe, {end}, Checkpoint(None, {}), title=title).run(history)
        if not status.ok or history.rows[end]["accuracy"] == 1:
            return


def _loss(network: Classifier, circles: Circles, batch: int, generator: torch.Generator) -> Tensor:
    """Cross-entropy of both concepts on a batch with pixel noise."""
    device = generator.device
    classes = torch.randint(0, len(CLASSES), (batch,), generator=generator, device=device)
    images, _ = circles.draw(classes, generator)
    level = ADDED * torch.rand(batch, 1, 1, 1, generator=generator, device=device)
    images = images + level * torch.randn(images.shape, generator=generator, device=device)
    with mixed_precision(device):
        logits = network(images)
    return functional.binary_cross_entropy_with_logits(logits.float(), _bits(classes))


def _bits(classes: Tensor) -> Tensor:
    """(blue, small) of class numbers as 0 or 1."""
    return torch.stack([classes // 2, classes % 2], dim=1).float()


@torch.no_grad()
def _accuracy(network: Classifier, circles: Circles, count: int, device: torch.device) -> float:
    """The share of held-out images with both concepts right."""
    classes = circles.classes(CLASSES, count, device)
    images, _ = circles.draw(classes, generator_of(device, HELD_OUT))
    right = 0
    for some, labels in zip(images.split(CHUNK), classes.split(CHUNK), strict=True):
        right += int((network.concepts(some).round() == _bits(labels)).all(1).sum())
    return right / len(classes)
