"""Models and tokenizers that files describe to transformers: built within bounds, without the network and without code.

A configuration may name other models to download, kernels to fetch and run, modules beside it to import, or more layers
than any file holds. What it may say is kept, and the rest is dropped or refused.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.nn.modules.module import register_module_module_registration_hook

from saddles.errors import SaddlesError, first_line, shown
from saddles.probe.layouts.head_counts import Config

_LAYERS = re.compile(r"^(?!max_window).*(layer|depth|block|expert)", re.I)
"""Settings of a config that say how many modules to build; `max_window_layers` of Qwen is no such number."""
_MODULES_PER_TENSOR = 20
"""Modules of a model for each of its stored tensors, at most: containers, activations and dropout hold none."""
_UNREADABLE = 0.1
"""Share of unreadable letters from which on a file does not count as text."""
_FOREIGN = re.compile(r"backbone(?!_config$)|^auto_map$|(attn|experts)_implementation|^custom_pipelines$|use_kernels")
"""Settings that name other models, code or kernels, which transformers would fetch and run."""


def settings_of(config: Config) -> dict[str, Any]:
    """A configuration without what names models, code or kernels of others."""
    kept = _without_foreign(config)
    return kept if isinstance(kept, dict) else {}


def _without_foreign(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(k): _without_foreign(v) for k, v in value.items() if not _FOREIGN.search(str(k))}
    return [_without_foreign(one) for one in value] if isinstance(value, list) else value


@contextmanager
def guarded(settings: Mapping[str, object], tensors: int) -> Iterator[None]:
    """Build what settings describe: offline, and no more modules than a file of so many tensors can need."""
    most, made = _MODULES_PER_TENSOR * tensors + 1000, 0
    if _counts(settings) > max(tensors, 1):
        raise SaddlesError("its config.json describes a far larger model than the file holds")

    def count(*_: object) -> None:
        nonlocal made
        made += 1
        if made > most:
            raise SaddlesError("its config.json describes a far larger model than the file holds")

    hook = register_module_module_registration_hook(count)
    try:
        with _offline():
            yield
    finally:
        hook.remove()


def _counts(config: object) -> int:
    """The largest number of layers, blocks or experts that a config names."""
    if isinstance(config, Mapping):
        mine = [abs(v) for k, v in config.items() if isinstance(v, int) and _LAYERS.match(str(k))]
        return max([*mine, *(_counts(v) for v in config.values())], default=0)
    return max((_counts(one) for one in config), default=0) if isinstance(config, list) else 0


@contextmanager
def quiet() -> Iterator[None]:
    """Without the bars and remarks of transformers, which would stand above the answer."""
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


@contextmanager
def _offline() -> Iterator[None]:
    """Keep transformers from the network, whatever a config says."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def model_class(config: Config) -> Any:
    """The class of transformers that a configuration names; None where it names none."""
    import transformers

    names = config.get("architectures")
    kind = getattr(transformers, str(names[0]), None) if isinstance(names, list) and names else None
    return kind if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel) else None


def as_text(raw: bytes, data: str) -> str:
    """The text that a file holds; refused where it is none.

    Args:
        data: what the file is called.
    """
    text = raw.decode("utf-8", errors="replace")
    strange = sum(text.count(letter) for letter in ("\ufffd", "\0"))
    if strange > _UNREADABLE * max(len(text), 1):
        raise SaddlesError(f"{data} is not a text: {100 * strange / len(text):.0f} % of it is not readable as UTF-8.")
    return text


def tokens_of_text(folder: str | os.PathLike[str], text: str, vocabulary: int) -> list[int]:
    """Token ids of a text, by the tokenizer in a folder.

    Args:
        vocabulary: how many tokens the model has.
    """
    import transformers

    loader: Any = transformers.AutoTokenizer
    try:
        with _offline():
            tokenizer = loader.from_pretrained(os.fspath(folder), local_files_only=True, trust_remote_code=False)
            ids = [int(one) for one in tokenizer(text)["input_ids"]]
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # what tokenizers, written in Rust, raises in distress is no Exception
        raise SaddlesError(
            f"The tokenizer in {folder} cannot be used ({first_line(error)}). Save it there again."
        ) from error
    wrong = next((one for one in ids if not 0 <= one < vocabulary), None)
    if wrong is not None:
        raise SaddlesError(
            f"The tokenizer in {folder} gives token {shown(wrong)}, and the model has {vocabulary}. Save its own."
        )
    return ids
