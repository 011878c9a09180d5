"""Small transformers of the transformers lab, trained in plain float32 and looked at on the way."""

from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from saddles.core.status import Status
from saddles.errors import SaddlesError
from saddles.training import processes
from saddles.training.checkpoint import Checkpoint, History
from saddles.training.loop import Loop
from saddles.transformers.feed import Feed, ImageFeed, TextFeed
from saddles.transformers.images import load_images
from saddles.transformers.text import load_text
from saddles.transformers.vit import Block, ViTShape, make_gpt2, make_vit

BLOCK = 64
"""Bytes of text that a language model sees at once."""

MOST = 2_000_000
"""Bytes of text that are used: more than any run here reads."""

State = dict[str, Tensor]


def make_model(
    kind: str,
    source: str,
    *,
    width: int,
    layers: int,
    heads: int,
    batch: int,
    seed: int,
    biases: bool = False,
    scale: float = 1.0,
) -> tuple[nn.Module, Feed]:
    """A model and what it is trained on.

    Args:
        kind: "vit" (images) or "gpt2" (bytes of text; it has biases whatever is asked for).
        source: of images or text.
        biases: give queries, keys and values of the ViT biases.
        scale: of the initial weights.
    """
    device = processes.device()
    if kind == "gpt2":
        sizes = {"n_layer": layers, "n_embd": width, "n_head": heads, "n_positions": BLOCK, "vocab_size": 256}
        model = make_gpt2(sizes, scale, seed)
        return model.to(device), TextFeed(load_text(source, units="bytes", most=MOST), BLOCK, batch, seed, device)
    if kind != "vit":
        raise SaddlesError.must_be("kind", "'vit' or 'gpt2'", kind)
    images = load_images(source)
    side, _, channels = images.shape
    shape = ViTShape(side, side // 4, channels, width, layers, heads, width // heads, 2 * width, images.classes)
    model = make_vit(shape, scale, seed)
    if biases:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 1)
            for block in model.modules():
                if isinstance(block, Block):
                    block.attn.qkv.bias = nn.Parameter(0.1 * torch.randn(block.attn.qkv.out_features))
    return model.to(device), ImageFeed(images, batch, seed, device, pad=0)


def in_double(model: nn.Module) -> nn.Module:
    """The model in float64, whatever its feed gives: rounding of float32 weights drifts by 1e-6 in a hundred steps."""

    def widen(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(part.double() if part.is_floating_point() else part for part in inputs)

    model.register_forward_pre_hook(widen)
    return model.double()


def optimiser_of(name: str, model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """Plain SGD or Adam, without decay."""
    # Fused: one call for all parameters; of small models Adam's own loop over them takes a fifth of a step.
    return {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[name](model.parameters(), lr=rate, fused=True)


def copied(model: nn.Module) -> State:
    """A copy of the parameters, where they are."""
    return {name: part.detach().clone() for name, part in model.named_parameters()}


def state_of(model: nn.Module) -> State:
    """A copy of the parameters, on the CPU."""
    return {name: part.detach().to("cpu", copy=True) for name, part in model.named_parameters()}


def follow(
    model: nn.Module,
    feed: Feed,
    optimiser: torch.optim.Optimizer,
    steps: int,
    looks: Collection[int],
    look: Callable[[int, float], None],
    title: str = "training",
) -> Status:
    """Train for so many steps and call look(step, mean loss since the last look) after some of them."""
    history = History()

    def step(number: int) -> Tensor:
        optimiser.zero_grad(set_to_none=True)
        loss = feed.loss(model, *feed.batch(number, slice(None)))
        loss.backward()
        optimiser.step()
        return loss.detach()

    def observe(number: int) -> dict[str, float]:
        look(number, history.losses[number][0])
        return {}

    checkpoint = Checkpoint(None, {})
    return Loop(steps, step, observe, {*looks, steps}, checkpoint, title=title).run(history)


def first_gradient(model: nn.Module, feed: Feed) -> State:
    """The gradient of the loss on the first batch, by name."""
    model.zero_grad(set_to_none=True)
    feed.loss(model, *feed.batch(0, slice(None))).backward()
    found = {name: part.grad.detach().cpu() for name, part in model.named_parameters() if part.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def spaced(steps: int, count: int) -> list[int]:
    """Step numbers from 1 to the last, about evenly in their logarithm."""
    return sorted({max(1, round(steps ** (at / (count - 1)))) for at in range(count)})
