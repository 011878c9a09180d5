"""Lazy or active, for two checkpoints of a language model and a file of text: what `saddles regime` computes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from saddles.errors import MissingDataError, SaddlesError, first_line
from saddles.networks.heads import closure, invariants
from saddles.networks.lazy_or_active import regime
from saddles.probe.lora.on_base import open_model
from saddles.probe.lora.running import tokenizer_among
from saddles.probe.weights.checkpoints import FLOATS, Source, Weights
from saddles.probe.weights.described import as_text, guarded, quiet, settings_of, tokens_of_text
from saddles.training.processes import device
from saddles.transformers.text import load_text

LAZY, ACTIVE = 0.1, 0.5
"""Linearity below the first is called lazy, above the second active."""

RESOLVED = 2.0
"""Linearity below this many times what rounding gives is not told from rounding."""

UNITS = {50_257: "bpe", 256: "bytes"}
"""Size of a vocabulary -> how text becomes tokens, where the model brings no tokenizer."""

SAME = 1e-4
"""Relative difference of outputs below which two configurations make the same function."""


def compare_checkpoints(
    base: Source, tuned: Source, data: str, *, samples: int = 4, length: int = 128, probes: int = 4
) -> tuple[xr.Dataset, xr.Dataset]:
    """Linearity, kernel drift and the state of every head of a language model after a fine-tune.

    Args:
        base: a Hugging Face folder, or a .safetensors or torch file with its config.json beside it.
        tuned: the same model later, or a LoRA adapter on it.
        data: a text file, or a text that `saddles.transformers.load_text` knows.
        samples: blocks of text.
        length: tokens of each; fewer where the text or the model has fewer, as the attribute `length` then says.
        probes: for the kernel; 0 leaves it out.

    Returns:
        numbers of the whole model, as `saddles.networks.regime` gives them, and of every head, as `invariants` and
        `closure` do; of a model without heads that can be measured an empty one, whose attribute `reason` says why.
    """
    for name, value in (("samples", samples), ("length", length)):
        if value < 1:
            raise SaddlesError.must_be(name, "at least 1", value)
    before = open_model(base)
    after = open_model(tuned, before)
    for name in sorted(before.shapes.keys() & after.shapes.keys()):  # an adapter may bring a larger vocabulary
        _check_shape(name, before, after, before.shapes[name], after.shapes[name])
    first = _loaded(before)
    batch = _tokens(before, after, first, data, samples, length)
    last = _loaded(after)
    _check_one_function(before, after, first, last, batch)
    whole = regime(first, first, last, {"input_ids": batch}, probes=probes)
    whole.attrs |= {"base": before.place, "tuned": after.place, "data": data, "length": batch.shape[1]}
    try:
        heads = xr.merge([invariants(first, last), closure(first, last)])
    except SaddlesError as problem:
        heads = xr.Dataset(attrs={"reason": str(problem)})
    return whole, heads


def _loaded(weights: Weights) -> nn.Module:
    """The language model that the configuration names, with these weights in float32.

    transformers puts them into it, since it has other names for some tensors than the files it writes.
    """
    import transformers

    kind = weights.config.get("model_type")
    if not kind:
        raise SaddlesError(f"{weights.place} has no config.json that says its model_type. Put it beside the weights.")
    packed = [name for name, type_ in weights.types.items() if type_ not in FLOATS and name.endswith("weight")]
    if packed:
        raise SaddlesError(
            f"{weights.place} is quantised in a way that is not read here ({packed[0]} is {weights.types[packed[0]]}). "
            "Give the model before that."
        )
    left_out = ("model_type", "torch_dtype", "dtype", "quantization_config")
    settings = {key: value for key, value in settings_of(weights.config).items() if key not in left_out}
    try:
        with guarded(settings, len(weights.shapes)), quiet():
            config = transformers.AutoConfig.for_model(str(kind), **settings)
            if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
                raise SaddlesError(f"transformers has no language model for {kind}")
            tensors = {name: weights.read(name) for name in weights.shapes}
            family: Any = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
            model, told = family.from_pretrained(
                None, config=config, state_dict=tensors, output_loading_info=True, dtype=torch.float32
            )
    except Exception as error:  # of settings that make no sense, transformers raises anything
        why = str(error) if isinstance(error, SaddlesError) else first_line(error)
        raise SaddlesError(f"{weights.place} is not a language model that transformers can build ({why}).") from error
    if missing := sorted(told["missing_keys"]):
        raise SaddlesError(
            f"{weights.place} has no {missing[0]}. Both must be checkpoints of the model in its config.json."
        )
    return model.eval().to(device())


def _check_shape(name: str, before: Weights, after: Weights, one: object, other: object) -> None:
    if one != other:
        raise SaddlesError(
            f"BASE and TUNED must be one model at two times; {name} is {one} in {before.place} and {other} in "
            f"{after.place}."
        )


def _check_one_function(before: Weights, after: Weights, first: nn.Module, last: nn.Module, batch: Tensor) -> None:
    """Refuse two models whose settings differ in what they compute: then the weights are not all that changed."""
    one, other = (settings_of(weights.config) for weights in (before, after))
    changed = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
    shapes = [{name: tuple(part.shape) for name, part in model.named_parameters()} for model in (first, last)]
    for name in {**shapes[0], **shapes[1]}:
        _check_shape(name, before, after, shapes[0].get(name), shapes[1].get(name))
    if not changed:
        return
    inputs = {"input_ids": batch[:1].to(device())}
    with torch.no_grad():
        own = last(**inputs).logits
        ours = torch.func.functional_call(first, dict(last.named_parameters()), (), inputs).logits
    if float((own - ours).norm()) > SAME * float(own.norm()):
        listed = ", ".join(f"{name} ({one.get(name)} and {other.get(name)})" for name in changed[:3])
        raise SaddlesError(
            f"The config.json of {after.place} makes another function of the same weights than that of {before.place}. "
            f"They differ in {listed}."
        )


def _tokens(weights: Weights, tuned: Weights, model: nn.Module, data: str, samples: int, length: int) -> Tensor:
    vocabulary = int(model.get_input_embeddings().weight.shape[0])  # pyright: ignore[reportCallIssue]
    raw = _read(data)
    folder = tokenizer_among([weights.place, tuned.place])
    if folder is not None:
        tokens = torch.as_tensor(tokens_of_text(folder, as_text(raw[:1_000_000], data), vocabulary))
    elif UNITS.get(vocabulary) == "bytes":
        tokens = torch.as_tensor(np.frombuffer(raw, np.uint8).astype(np.int64))
    elif UNITS.get(vocabulary) == "bpe":
        as_text(raw, data)
        tokens = torch.as_tensor(_by_gpt2(weights.place, data, 16 * samples * length))
    else:
        raise SaddlesError(
            f"{weights.place} has {vocabulary} tokens, and no tokenizer lies beside it or the tuned model. Put the "
            "tokenizer beside its weights."
        )
    if not len(tokens):
        raise SaddlesError(f"{data} holds no text.")
    length = min(length, len(tokens), int(getattr(model.config, "max_position_embeddings", length) or length))
    rows = min(samples, len(tokens) // length)
    return tokens[: rows * length].reshape(rows, length)


def _read(data: str) -> bytes:
    """All of a text: nothing is trained here, so that no part of it is kept for validation."""
    try:
        text = load_text(data, units="bytes")
    except MissingDataError as error:
        raise MissingDataError(
            f"There is no data set or text file {data!r}. Give the path of a text file with --data."
        ) from error
    return np.concatenate([text.train, text.valid]).astype(np.uint8).tobytes()


def _by_gpt2(place: str, data: str, most: int) -> np.ndarray:
    try:
        return load_text(data, units="bpe", most=most).train
    except MissingDataError as error:
        raise MissingDataError(
            f"{place} has no tokenizer, and GPT-2's vocabulary (gpt2_vocab.json, gpt2_merges.txt) is not in the "
            "folder SADDLES_DATA. Put the tokenizer beside its weights."
        ) from error


def verdict(whole: xr.Dataset) -> str:
    """The result in a sentence that needs no paper."""
    e = float(whole["linearity"])
    if e != e:
        return "On this text the outputs did not change at all."
    if e < RESOLVED * float(whole["linearity_floor"]):
        return (
            f"The outputs changed by {float(whole['output_change']):.1g} of their size, and rounding alone gives such "
            "an e: whether the change is lazy or active cannot be told."
        )
    if e < LAZY:
        kind = "lazy: it acts as one step along fixed directions would, and small multiples of it act in proportion"
    elif e < ACTIVE:
        kind = "in between: a good part of it is not proportional to the change of the weights"
    else:
        kind = "active: the network changed what it computes with, and scaling the change will not scale its effect"
    if e >= 1:
        return f"The linear part explains nothing of the change of the outputs (e = {e:.3g}), so the change is {kind}."
    return f"{100 * e:.2g} % of the change of the outputs is beyond the linear part, so the change is {kind}."


def rows_of(whole: xr.Dataset, heads: xr.Dataset) -> list[tuple[str, str, str]]:
    """Name, number and meaning, for a table."""
    rows = [("linearity e", f"{float(whole['linearity']):.3g}", "0: lazy; about 1: active (not bounded)")]
    if "kernel_drift" in whole:
        rows.append(("kernel drift", _pm(whole), "0: the tangent kernel is the one of the start"))
    rows += [
        ("change of the outputs", f"{float(whole['output_change']):.3g}", "relative to the outputs of the base"),
        ("change of the weights", f"{float(whole['parameter_change']):.3g}", "relative to the weights of the base"),
    ]
    if not heads.data_vars:
        return rows
    lawful = heads.assign(drift=heads["drift"].where(heads["applies"]))
    medians: Mapping[str, str] = {
        name: f"{float(lawful[name].median()):.3g}" for name in ("linearity", "outside", "drift", "balance")
    }
    return [
        *rows,
        ("linearity of heads", medians["linearity"], "median: quadratic share of each head's change"),
        ("outside the spans", medians["outside"], "median: share that a lazy head cannot reach"),
        ("drift of invariants", medians["drift"], "median: 0 under gradient flow; Adam and decay break it"),
        ("balance of heads", medians["balance"], "median: 0 where keys and queries have equal Gram matrices"),
    ]


def _pm(whole: xr.Dataset) -> str:
    error = float(whole["kernel_drift_error"])
    return f"{float(whole['kernel_drift']):.3g}" + (f" ± {error:.1g}" if error == error and error > 0 else "")
