"""Pairs of models as they are opened, and the tuned one as it runs on a text."""

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saddles.errors import SaddlesError, first_line
from saddles.probe.lora.experts import fused
from saddles.probe.lora.inputs import Data, Inputs
from saddles.probe.lora.match import canonical, match
from saddles.probe.lora.on_base import TIMES, open_model, same_base
from saddles.probe.lora.skeleton import skeleton_of
from saddles.probe.lora.truncation import Truncation, check_device
from saddles.probe.weights.checkpoints import Source, Weights
from saddles.probe.weights.described import as_text, guarded, model_class, quiet, settings_of, tokens_of_text
from saddles.probe.weights.live_model import unwrapped, without_wrappers

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
    """The model itself, in float32; an adapter is merged into its base."""
    if weights.model is not None:
        return without_wrappers(copy.deepcopy(unwrapped(weights.model))).float().eval()
    if weights.quantised:
        raise SaddlesError(f"{weights.place} is quantised and is not run on a text. Leave `data` and `evaluate` out.")
    import transformers

    kind = model_class(weights.config)
    folder, _, adapter = weights.place.partition(TIMES)
    if kind is None or not Path(folder).is_dir():
        raise SaddlesError(
            f"{weights.place} must be a Hugging Face folder with a config.json to run on a text. Or give live models."
        )
    settings = settings_of(weights.config)
    try:
        with guarded(settings, len(weights.shapes)), quiet():
            config = transformers.AutoConfig.for_model(**settings)
            model = kind.from_pretrained(
                folder, config=config, local_files_only=True, trust_remote_code=False, dtype=torch.float32
            ).eval()
    except Exception as error:  # of settings that make no sense, transformers raises anything
        raise SaddlesError(f"{weights.place} cannot be run by transformers ({first_line(error)}).") from error
    if adapter:
        _merge(model, weights)
    return model


def _merge(model: torch.nn.Module, weights: Weights) -> None:
    """Give a base the numbers of itself with an adapter on it."""
    skeleton, parameters = skeleton_of(weights, weights), dict(model.named_parameters())
    for name, stored in canonical(weights, skeleton).items():
        module, _, last = name.rpartition(".")
        if name not in skeleton.shapes:
            raise SaddlesError(
                f"{weights.place} holds {name}, which {skeleton.architecture} does not have, and is not run on a text. "
                "Merge the adapter, and save the model."
            )
        if weights.shapes[stored] != (size := skeleton.shapes[name]):
            raise SaddlesError(
                f"{weights.place} holds {name} of {_by(weights.shapes[stored])}, where its base has {_by(size)}, and "
                "is not run on a text. Merge the adapter, and save the model."
            )
        values = torch.nn.Parameter(weights.read(stored).float(), requires_grad=False)
        if name in skeleton.tied:  # an adapter that holds both has untied them
            setattr(model.get_submodule(module), last, values)
        elif name in parameters:
            parameters[name].data.copy_(values)


def _by(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def inputs_of(data: Data, late: Weights, places: Sequence[str], device: str) -> Inputs:
    """What `data` sends through the tuned model."""
    model = model_of(late).to(device)
    if not isinstance(data, str | os.PathLike | Tensor):
        return Inputs(model, data, data, "a function", device)
    blocks = (
        data.reshape(-1, data.shape[-1]) if isinstance(data, Tensor) else tokens_of(data, places, model, DATA_BLOCKS)
    )
    name = "tokens" if isinstance(data, Tensor) else str(data)

    def run(model: torch.nn.Module, most: int = len(blocks)) -> None:
        for block in blocks[:most]:
            model(block[None].to(device))

    return Inputs(model, run, lambda model: run(model, 1), f"{name} ({blocks.numel()} tokens)", device)


def tokenizer_among(places: Sequence[str]) -> str | None:
    """The first folder with a tokenizer, of those in which models, adapters and their files lie."""
    return next((one for one in _folders(places) if any(Path(one).glob("tokenizer*"))), None)


def _folders(places: Sequence[str]) -> list[str]:
    paths = [Path(part) for place in places for part in place.split(TIMES)]
    found = [path if path.is_dir() else path.parent for path in paths if path.exists()]
    return list(dict.fromkeys(map(str, found)))


def tokens_of(
    file: str | os.PathLike[str], places: Sequence[str], model: torch.nn.Module, most: int = BLOCKS
) -> Tensor:
    """Blocks of tokens of a text, no longer than the model takes, by the tokenizer beside one of the models."""
    try:
        text = as_text(Path(file).read_bytes(), str(file))
    except OSError as error:
        raise SaddlesError(f"{file} cannot be read ({error.strerror}). Give a text file.") from error
    running: Any = model
    place = tokenizer_among(places)
    if place is None:
        folders = _folders(places)
        raise SaddlesError(
            f"No tokenizer lies in {' or '.join(folders)}. Save the model's own there with "
            f"tokenizer.save_pretrained({folders[0]!r}), or give token ids from Python instead of {file}."
            if folders
            else f"Live models bring no tokenizer: give token ids or a function instead of {file}."
        )
    ids = tokens_of_text(place, text, len(running.get_input_embeddings().weight))
    limit = getattr(running.config, "max_position_embeddings", None)
    length = min(LENGTH, limit) if isinstance(limit, int) and limit > 0 else LENGTH
    count = min(len(ids) // length, most)
    if len(ids) < 2:
        raise SaddlesError(f"{file} has too little text.")
    return torch.tensor(ids[: count * length]).reshape(count, length) if count else torch.tensor(ids)[None]
