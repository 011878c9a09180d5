"""Pairs of models as they are opened, and the tuned one as it runs on a text."""

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saddles.errors import SaddlesError
from saddles.probe.lora.experts import fused
from saddles.probe.lora.inputs import Data, Inputs
from saddles.probe.lora.match import match
from saddles.probe.lora.on_base import open_model, same_base
from saddles.probe.lora.skeleton import skeleton_of
from saddles.probe.lora.truncation import Truncation, check_device
from saddles.probe.weights.checkpoints import Source, Weights

LENGTH, BLOCKS = 256, 32
"""Tokens in a block, and blocks of a text that are used."""

DATA_BLOCKS = 128
"""Blocks of `data`: 32,768 tokens, a few times the width of a 7B model, so that C is not much too flat."""


def open_pair(
    base: Source,
    tuned: Source,
    data: Data | None = None,
    leading: int | None = None,
    device: str = "cpu",
    embeddings: bool = False,
    in_proj: bool = True,
) -> Truncation:
    """Open and match two models; the arguments are those of `lora_plan` and of `match`."""
    check_device(device)
    early = open_model(base)
    late = open_model(tuned, early)
    skeleton = skeleton_of(early, late)
    early, late = fused(early, skeleton.model), fused(late, skeleton.model)
    pairs = match(early, late, skeleton, embeddings, in_proj)
    experts = [target.module for target in pairs.targets if target.experts]
    if data is not None and experts:
        raise SaddlesError(f"`data` cannot see what enters single experts of {experts[0]}. Leave it out.")
    inputs = None if data is None else inputs_of(data, late, (early.place, late.place), device)
    return Truncation(pairs, early, late, inputs, leading, device, same_base(early, late))


def model_of(weights: Weights) -> torch.nn.Module:
    """The model itself, in float32."""
    if weights.model is not None:
        return copy.deepcopy(weights.model).float().eval()
    if weights.quantised:
        raise SaddlesError(f"{weights.place} is quantised and is not run on a text. Leave `data` and `evaluate` out.")
    import transformers

    names = weights.config.get("architectures")
    kind = getattr(transformers, str(names[0]), None) if isinstance(names, list) and names else None
    if kind is None or not Path(weights.place).is_dir():
        raise SaddlesError(
            f"{weights.place} must be a Hugging Face folder with a config.json to run on a text. Or give live models."
        )
    loader: Any = kind
    with _without_bar():  # it takes a moment, and its bar would stand above the answer
        return loader.from_pretrained(weights.place, local_files_only=True, dtype=torch.float32).eval()


@contextmanager
def _without_bar() -> Iterator[None]:
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def inputs_of(data: Data, late: Weights, places: Sequence[str], device: str) -> Inputs:
    """What `data` sends through the tuned model."""
    model = model_of(late).to(device)
    if not isinstance(data, str | os.PathLike | Tensor):
        return Inputs(model, data, data, "a function", device)
    blocks = data.reshape(-1, data.shape[-1]) if isinstance(data, Tensor) else tokens_of(data, places, DATA_BLOCKS)
    name = "tokens" if isinstance(data, Tensor) else str(data)

    def run(model: torch.nn.Module, most: int = len(blocks)) -> None:
        for block in blocks[:most]:
            model(block[None].to(device))

    return Inputs(model, run, lambda model: run(model, 1), f"{name} ({blocks.numel()} tokens)", device)


def tokens_of(file: str | os.PathLike[str], places: Sequence[str], most: int = BLOCKS) -> Tensor:
    """Blocks of tokens of a text, by the tokenizer beside one of the models."""
    import transformers

    try:
        text = Path(file).read_text("utf-8", errors="replace")
    except OSError as error:
        raise SaddlesError(f"{file} cannot be read ({error.strerror}). Give a text file.") from error
    loader: Any = transformers.AutoTokenizer
    for place in places:
        if Path(place).is_dir() and any(Path(place).glob("token*")):
            ids = loader.from_pretrained(place, local_files_only=True)(text)["input_ids"]
            break
    else:
        raise SaddlesError(
            f"No tokenizer lies beside {places[-1]}. Save it there, or give token ids or a function instead of a text."
        )
    count = min(len(ids) // LENGTH, most)
    if len(ids) < 2:
        raise SaddlesError(f"{file} has too little text.")
    return torch.tensor(ids[: count * LENGTH]).reshape(count, LENGTH) if count else torch.tensor(ids)[None]
