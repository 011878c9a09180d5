"""Lazy or active, for two checkpoints of a language model and a file of text: what `saddles regime` computes."""

import contextlib
import importlib
from collections.abc import Mapping
from pathlib import Path

import torch
import xarray as xr
from torch import Tensor, nn

from saddles.errors import SaddlesError, first_line
from saddles.networks.heads import closure, invariants
from saddles.networks.lazy_or_active import regime
from saddles.probe.weights.checkpoints import Source, Weights, open_weights
from saddles.probe.weights.described import guarded, settings_of, tokens_of_text
from saddles.training.processes import device
from saddles.transformers.text import load_text

LAZY, ACTIVE = 0.1, 0.5
"""Linearity below the first is called lazy, above the second active."""

UNITS = {50_257: "bpe", 256: "bytes"}
"""Size of a vocabulary -> how text becomes tokens, where the model brings no tokenizer."""


def compare_checkpoints(
    base: Source, tuned: Source, data: str, *, samples: int = 4, length: int = 128, probes: int = 4
) -> tuple[xr.Dataset, xr.Dataset]:
    """Linearity, kernel drift and the state of every head of a language model after a fine-tune.

    Args:
        base: a Hugging Face folder, or a .safetensors or torch file with its config.json beside it.
        tuned: the same model later.
        data: a text file, or a text that `saddles.transformers.load_text` knows.
        samples: blocks of text.
        length: tokens of each.
        probes: for the kernel; 0 leaves it out.

    Returns:
        numbers of the whole model, as `saddles.networks.regime` gives them, and of every head, as `invariants` and
        `closure` do.
    """
    for name, value in (("samples", samples), ("length", length)):
        if value < 1:
            raise SaddlesError.must_be(name, "at least 1", value)
    before, after = open_weights(base), open_weights(tuned)
    model = _model(before)
    batch = _tokens(before, model, data, samples, length)
    start, end = (_state(weights, model) for weights in (before, after))
    whole = regime(model, start, end, {"input_ids": batch}, probes=probes)
    heads = xr.merge([invariants(base, tuned, before.config), closure(base, tuned, before.config)])
    whole.attrs |= {"base": before.place, "tuned": after.place, "data": data, "length": length}
    return whole, heads


def _model(weights: Weights) -> nn.Module:
    """The architecture that the configuration names, with weights that do not matter."""
    from transformers import AutoConfig, AutoModelForCausalLM

    kind = weights.config.get("model_type")
    if not kind:
        raise SaddlesError(f"{weights.place} has no config.json that says its model_type. Put it beside the weights.")
    settings = settings_of(weights.config)
    settings = {key: value for key, value in settings.items() if key not in ("model_type", "torch_dtype", "dtype")}
    try:
        with guarded(settings, len(weights.shapes)):
            config = AutoConfig.for_model(str(kind), **settings)
            with torch.device("meta"):  # first without memory: the config may describe something far larger
                empty = AutoModelForCausalLM.from_config(config)
            _check_fits(empty, weights)
            with _not_drawn():
                model = AutoModelForCausalLM.from_config(config)
            model.tie_weights()
    except Exception as error:  # of settings that make no sense, transformers raises anything
        raise SaddlesError(
            f"{weights.place} is not a language model that transformers can build ({first_line(error)})."
        ) from error
    return model.float().eval().to(device())


def _not_drawn() -> contextlib.AbstractContextManager[object]:
    """Leave the weights of a model as memory has them: they are never used, and drawing them can take minutes."""
    for place in ("initialization", "modeling_utils"):  # of transformers 5 and 4
        try:
            return importlib.import_module(f"transformers.{place}").no_init_weights()
        except (ImportError, AttributeError):
            continue
    return contextlib.nullcontext()


def _check_fits(model: nn.Module, weights: Weights) -> None:
    for name, stored in _stored_names(model, weights).items():
        shape = tuple(model.get_parameter(name).shape)
        if weights.shapes[stored] != shape:
            raise SaddlesError(f"{stored} is {weights.shapes[stored]} there, and {shape} by its config.json")


def _stored_names(model: nn.Module, weights: Weights) -> dict[str, str]:
    """Parameter -> its name in the file; a folder without the prefix of the whole model is read too."""
    prefix = getattr(model, "base_model_prefix", "")
    found = {}
    for name, _ in model.named_parameters():
        stored = next((key for key in (name, name.removeprefix(f"{prefix}.")) if key in weights.shapes), None)
        if stored is None:
            raise SaddlesError(
                f"{weights.place} has no {name}. Both must be checkpoints of the model in its config.json."
            )
        found[name] = stored
    return found


def _state(weights: Weights, model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters as stored."""
    return {name: weights.read(stored) for name, stored in _stored_names(model, weights).items()}


def _tokens(weights: Weights, model: nn.Module, data: str, samples: int, length: int) -> Tensor:
    vocabulary = int(model.get_input_embeddings().weight.shape[0])  # pyright: ignore[reportCallIssue]
    folder = Path(weights.place) if Path(weights.place).is_dir() else Path(weights.place).parent
    if any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
        raw = load_text(data, units="bytes", most=1_000_000).train.astype("uint8").tobytes()
        tokens = torch.as_tensor(tokens_of_text(folder, raw.decode("utf-8", errors="replace"), vocabulary))
    elif vocabulary in UNITS:
        tokens = torch.as_tensor(load_text(data, units=UNITS[vocabulary], most=16 * samples * length).train)
    else:
        raise SaddlesError(
            f"{weights.place} has {vocabulary} tokens and no tokenizer.json. Put the tokenizer beside its weights."
        )
    if not len(tokens):
        raise SaddlesError(f"{data} holds no text.")
    length = min(length, len(tokens), int(getattr(model.config, "max_position_embeddings", length) or length))
    rows = min(samples, len(tokens) // length)
    return tokens[: rows * length].reshape(rows, length)


def verdict(whole: xr.Dataset) -> str:
    """The result in a sentence that needs no paper."""
    e = float(whole["linearity"])
    if e != e:
        return "On this text the outputs did not change at all."
    if e < LAZY:
        kind = "lazy: it acts as one step along fixed directions would, and small multiples of it act in proportion"
    elif e < ACTIVE:
        kind = "in between: a good part of it is not proportional to the change of the weights"
    else:
        kind = "active: the network changed what it computes with, and scaling the change will not scale its effect"
    return f"{100 * min(e, 1.0):.0f} % of the change of the outputs is beyond the linear part, so the change is {kind}."


def rows_of(whole: xr.Dataset, heads: xr.Dataset) -> list[tuple[str, str, str]]:
    """Name, number and meaning, for a table."""
    kernel = []
    if "kernel_drift" in whole:
        kernel = [("kernel drift", _pm(whole), "0: the tangent kernel is the one of the start")]
    medians: Mapping[str, float] = {
        str(name): float(heads[name].median()) for name in heads.data_vars if name != "applies"
    }
    drift = float(heads["drift"].where(heads["applies"]).median())  # of heads that have such a law
    return [
        ("linearity e", f"{float(whole['linearity']):.3g}", "0: lazy; about 1: active (not bounded)"),
        *kernel,
        ("change of the outputs", f"{float(whole['output_change']):.3g}", "relative to the outputs of the base"),
        ("change of the weights", f"{float(whole['parameter_change']):.3g}", "relative to the weights of the base"),
        ("linearity of heads", f"{medians['linearity']:.3g}", "median: quadratic share of each head's change"),
        ("outside the spans", f"{medians['outside']:.3g}", "median: share that a lazy head cannot reach"),
        ("drift of invariants", f"{drift:.3g}", "median: 0 under gradient flow; Adam and decay break it"),
        ("balance of heads", f"{medians['balance']:.3g}", "median: 0 where keys and queries have equal Gram matrices"),
    ]


def _pm(whole: xr.Dataset) -> str:
    error = float(whole["kernel_drift_error"])
    return f"{float(whole['kernel_drift']):.3g}" + (f" ± {error:.1g}" if error == error and error > 0 else "")
