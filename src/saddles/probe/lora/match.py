"""Which tensors of two models belong together, which of them LoRA can carry, and why not the others.

What a module is (Linear, Conv1D, Embedding) is read from the live model, or from the model that config.json
describes, built without memory; for a file without a config, shapes and names decide. Names are converted to
those of the model that PEFT will be given, with or without the prefix of its body (`transformer.` in GPT-2).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from saddles.errors import SaddlesError
from saddles.probe.weights.checkpoints import Weights

FLOATS = ("float64", "float32", "float16", "bfloat16")
_EMBEDDING = re.compile(r"embed|wte|wpe|position|token_type|relative_attention_bias", re.I)
_GPT2 = re.compile(r"(c_attn|c_proj|c_fc|q_attn)$")
"""Modules of GPT-2 that are Conv1D, stored as (in, out)."""
_TASKS = (
    ("ForCausalLM", "CAUSAL_LM"),
    ("LMHeadModel", "CAUSAL_LM"),
    ("ForSequenceClassification", "SEQ_CLS"),
    ("ForTokenClassification", "TOKEN_CLS"),
    ("ForQuestionAnswering", "QUESTION_ANS"),
    ("ForConditionalGeneration", "SEQ_2_SEQ_LM"),
)
"""How the name of an architecture ends -> PEFT's task type."""


@dataclass(frozen=True)
class Names:
    """One tensor: its name in the model, and in the base's and the tuned model's files (None: absent there)."""

    model: str
    base: str | None
    tuned: str | None


@dataclass(frozen=True)
class Target:
    """A module that LoRA can carry.

    Attributes:
        module: its name in the model.
        weight: its matrix; `conv1d` says that it is stored as (in, out).
        bias: its bias, where it has one.
    """

    module: str
    weight: Names
    conv1d: bool
    shape: tuple[int, int]
    bias: Names | None = None

    @property
    def inputs(self) -> int:
        """Number of input features."""
        return self.shape[0] if self.conv1d else self.shape[1]

    @property
    def outputs(self) -> int:
        """Number of output features."""
        return self.shape[1] if self.conv1d else self.shape[0]


@dataclass(frozen=True)
class Match:
    """Targets, the other tensors with the reason why LoRA does not carry their change, and PEFT's task type."""

    targets: tuple[Target, ...]
    others: tuple[tuple[Names, str], ...]
    task: str | None


@dataclass(frozen=True)
class _Skeleton:
    """What is known about the model besides its weights.

    Attributes:
        kinds: module -> linear, conv1d, embedding, norm, attention or other.
        names: all its tensors.
        tied: name of a tensor -> the name under which it is stored.
        prefix: of its body, which files may leave out.
        task: PEFT's task type.
        guessed: from shapes and names alone.
    """

    kinds: Mapping[str, str]
    names: frozenset[str]
    tied: Mapping[str, str]
    prefix: str = ""
    task: str | None = None
    guessed: bool = False


def match(base: Weights, tuned: Weights) -> Match:
    """Pair the tensors of two models; models of different shapes are refused."""
    skeleton = _skeleton(base, tuned)
    homes = [_canonical(weights, skeleton) for weights in (base, tuned)]
    every = [
        Names(name, homes[0].get(name), homes[1].get(name)) for name in sorted({*homes[0], *homes[1]}, key=_natural)
    ]
    _check_shapes(base, tuned, every)
    by_name = {names.model: names for names in every}
    targets, others = [], []
    for names in every:
        reason, conv1d = _reason(names, base, tuned, skeleton)
        if reason is not None:
            others.append((names, reason))
            continue
        module = names.model.removesuffix(".weight")
        assert names.tuned is not None
        first, second = tuned.shapes[names.tuned]
        bias = by_name.get(f"{module}.bias")
        bias = bias if bias and bias.base and bias.tuned and bias.model not in skeleton.tied else None
        targets.append(Target(module, names, conv1d, (first, second), bias))
    carried = {target.bias.model for target in targets if target.bias}
    others = [(names, reason) for names, reason in others if names.model not in carried]
    if not targets:
        raise SaddlesError(
            f"{base.place} and {tuned.place} share no linear module. Give a base and a model that was tuned from it."
        )
    return Match(tuple(targets), tuple(others), skeleton.task)


def _reason(names: Names, base: Weights, tuned: Weights, skeleton: _Skeleton) -> tuple[str | None, bool]:
    """Why LoRA cannot carry a tensor's change (None: it can), and whether it is stored as (in, out)."""
    if names.model in skeleton.tied:
        return f"tied to {skeleton.tied[names.model]}", False
    if names.base is None or names.tuned is None:
        return f"only in the {'tuned model' if names.base is None else 'base'}", False
    shape = tuned.shapes[names.tuned]
    if base.shapes[names.base] != shape:
        return f"shape {base.shapes[names.base]} became {shape} (another vocabulary?)", False
    module, _, last = names.model.rpartition(".")
    kind = skeleton.kinds.get(module, "")
    if last == "weight" and kind in ("linear", "conv1d") and len(shape) == 2:
        for weights, name in ((base, names.base), (tuned, names.tuned)):
            if weights.types[name] not in FLOATS:
                raise SaddlesError(
                    f"{name} of {weights.place} must be stored as floating-point numbers; it is {weights.types[name]}. "
                    "Give the models before quantisation."
                )
        return None, kind == "conv1d"
    words = {"embedding": "an embedding", "norm": "a normalisation", "attention": "inside torch's MultiheadAttention"}
    if last == "bias" and kind in ("linear", "conv1d"):
        return "a bias of a module that is not carried", False
    return words.get(kind, f"not the weight of a linear module, shape {shape}"), False


def _check_shapes(base: Weights, tuned: Weights, every: list[Names]) -> None:
    """Allow tensors that differ in their first axis by one pair of sizes, the vocabulary; refuse all else."""
    pairs = set()
    for names in every:
        if names.base is None or names.tuned is None:
            continue
        one, other = base.shapes[names.base], tuned.shapes[names.tuned]
        if one != other:
            pairs.add((one[:1], other[:1]) if one[1:] == other[1:] else (one, other))
            if len(pairs) > 1 or one[1:] != other[1:]:
                raise SaddlesError(
                    f"{names.model} is {one} in {base.place} and {other} in {tuned.place}. Both models must have the "
                    "same shapes (only the vocabulary may differ): is the base the model that was tuned?"
                )


def _canonical(weights: Weights, skeleton: _Skeleton) -> dict[str, str]:
    """Name in the model -> name in the file, with the body's prefix added or removed where that fits better."""
    prefix = f"{skeleton.prefix}." if skeleton.prefix else ""
    same = {name: name for name in weights.shapes}
    if skeleton.guessed or not prefix:
        return same
    longer = {name if name in skeleton.names else f"{prefix}{name}": name for name in weights.shapes}
    shorter = {name if name in skeleton.names else name.removeprefix(prefix): name for name in weights.shapes}
    return max((same, longer, shorter), key=lambda names: len(skeleton.names & set(names)))


def _skeleton(base: Weights, tuned: Weights) -> _Skeleton:
    for weights in (base, tuned):
        if weights.model is not None:
            return _of_model(weights.model)
    for weights in (base, tuned):
        model = _empty_model(weights.config)
        if model is not None:
            return _of_model(model)
    return _guess(tuned)


def _empty_model(config: Mapping[str, object]) -> torch.nn.Module | None:
    """The model that a config.json describes, without memory; None where transformers does not know it."""
    name = _architecture(config)
    if not name or "model_type" not in config:
        return None
    import transformers

    kind = getattr(transformers, name, None)
    if not isinstance(kind, type) or not issubclass(kind, transformers.PreTrainedModel):
        return None
    try:
        settings = transformers.AutoConfig.for_model(**dict[str, Any](config))
        with torch.device("meta"):
            return kind(settings)
    except Exception:  # a config may do anything to its model's constructor; shapes and names are left
        return None


def _of_model(model: torch.nn.Module) -> _Skeleton:
    modules = dict(model.named_modules())
    kinds = {name: _kind(module) for name, module in modules.items()}
    for name, kind in list(kinds.items()):
        if kind == "attention":  # its parts are called by torch, not as modules: PEFT cannot replace them
            kinds |= {inner: "attention" for inner in kinds if inner.startswith(f"{name}.")}
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            tied[name] = first[id(parameter)]
        first.setdefault(id(parameter), name)
    known = getattr(model, "all_tied_weights_keys", None)  # on the meta device tied parameters are not one object
    if isinstance(known, Mapping):
        tied |= {str(name): str(home) for name, home in known.items() if str(name) not in tied}
    return _Skeleton(
        kinds,
        frozenset(model.state_dict()),
        tied,
        str(getattr(model, "base_model_prefix", "") or ""),
        _task(type(model).__name__),
    )


def _kind(module: torch.nn.Module) -> str:
    if isinstance(module, torch.nn.MultiheadAttention):
        return "attention"
    if type(module).__name__ == "Conv1D":
        return "conv1d"
    if isinstance(module, torch.nn.Linear):
        return "linear"
    if isinstance(module, torch.nn.Embedding):
        return "embedding"
    return "norm" if "norm" in type(module).__name__.lower() else "other"


def _guess(weights: Weights) -> _Skeleton:
    """Without a config: two-axis weights that are not called embeddings are Linear, or Conv1D as GPT-2 stores them."""
    stored_in_out = any(
        name.endswith("attn.c_attn.weight") and shape[1] == 3 * shape[0]
        for name, shape in weights.shapes.items()
        if len(shape) == 2
    )
    kinds = {}
    for name, shape in weights.shapes.items():
        module, _, last = name.rpartition(".")
        if last != "weight":
            continue
        if _EMBEDDING.search(name):
            kinds[module] = "embedding"
        elif len(shape) == 2:
            kinds[module] = "conv1d" if stored_in_out and _GPT2.search(module) else "linear"
        elif len(shape) == 1:
            kinds[module] = "norm"
    return _Skeleton(kinds, frozenset(weights.shapes), {}, task=_task(_architecture(weights.config)), guessed=True)


def _architecture(config: Mapping[str, object]) -> str:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def _task(name: str) -> str | None:
    return next((task for ending, task in _TASKS if name.endswith(ending)), None)


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Sort layer 2 before layer 10."""
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in name.split(".")]
