"""What a model is besides its weights: kinds of its modules, names of its tensors, which of them are tied.

Read from the live model, or from the model that config.json describes, built without memory, without the network and
within a bound on its size; for a file without a config, shapes and names decide.
"""

import copy
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from saddles.probe.lora.experts import fused, kind_of
from saddles.probe.weights.checkpoints import Weights
from saddles.probe.weights.described import guarded, model_class, settings_of
from saddles.probe.weights.live_model import unwrapped, without_wrappers

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
_FAST = (torch.nn.TransformerEncoderLayer,)
"""Layers that hand their weights, without their modules, to one compiled function in evaluation."""


@dataclass(frozen=True)
class Skeleton:
    """What is known about the model besides its weights.

    Attributes:
        kinds: module -> linear, conv1d, embedding, norm, attention, in_proj (attention whose `in_proj_weight` PEFT can
            adapt), experts or other.
        shapes: all its tensors.
        tied: name of a tensor -> the name under which it is stored.
        task: PEFT's task type.
        architecture: name of its class.
        guessed: from shapes and names alone.
        model: itself, without memory; None where it is guessed.
        run_name: how a name in a file is spelled while the model runs.
    """

    kinds: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, str]
    task: str | None = None
    architecture: str = ""
    guessed: bool = False
    model: torch.nn.Module | None = field(default=None, repr=False)
    run_name: Callable[[str], str] = field(default=str, repr=False)


def skeleton_of(base: Weights, tuned: Weights) -> Skeleton:
    """The model that an adapter will be given: of the tuned model's class, with the base's weights."""
    if tuned.model is not None:
        return _of_model(_without_memory(tuned.model))
    for weights in (tuned, base):
        if weights.model is not None:
            return _of_model(_without_memory(weights.model))
        model = empty_model(weights.config, len(weights.shapes))
        if model is not None and _fits(model, fused(tuned, model)):
            return _of_model(model)
    return _guess(tuned)


def _fits(model: torch.nn.Module, weights: Weights) -> bool:
    """Whether a model has at least half of the matrices; a config may describe another one."""
    ends = {(".".join(name.split(".")[-2:]), tuple(t.shape)) for name, t in model.state_dict().items()}
    rename = _renaming(model)
    known = [
        (".".join(rename(name).split(".")[-2:]), shape) in ends
        for name, shape in weights.shapes.items()
        if len(shape) >= 2
    ]
    return 2 * sum(known) >= len(known)


def empty_model(config: Mapping[str, object], tensors: int) -> torch.nn.Module | None:
    """The model that a config.json describes, without memory; None where transformers does not know or build it.

    Args:
        tensors: how many the file holds, which bounds what is built.
    """
    kind = model_class(config)
    if kind is None or "model_type" not in config:
        return None
    import transformers

    settings = settings_of(config)
    try:
        with torch.device("meta"), guarded(settings, tensors):
            return kind(transformers.AutoConfig.for_model(**settings))
    except Exception:  # a config may do anything to its model's constructor; shapes and names are left
        return None


def _without_memory(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of a live model whose tensors have no numbers, without compilation and DataParallel around its modules."""
    model = unwrapped(model)  # DistributedDataParallel cannot be copied without its tensors
    memo: dict[int, Any] = {}
    # `deepcopy` takes what the memo holds for a copy already made: no weight is ever copied.
    for parameter in model.parameters():
        empty = torch.empty(
            tuple(getattr(parameter, "ds_shape", parameter.shape)), dtype=parameter.dtype, device="meta"
        )
        memo[id(parameter)] = torch.nn.Parameter(empty, requires_grad=False)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return without_wrappers(copy.deepcopy(model, memo))


def _of_model(model: torch.nn.Module) -> Skeleton:
    kinds = {name: _kind(module) for name, module in model.named_modules()}
    inside = tuple(f"{name}." for name, kind in kinds.items() if kind == "attention")
    # Parts of MultiheadAttention are called by torch, not as modules: PEFT cannot replace them.
    kinds = {name: "attention" if inside and name.startswith(inside) else kind for name, kind in kinds.items()}
    kinds |= dict.fromkeys(_adaptable(model), "in_proj")
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            tied[name] = first[id(parameter)]
        first.setdefault(id(parameter), name)
    known = getattr(model, "all_tied_weights_keys", None)  # on the meta device tied parameters are not one object
    if isinstance(known, Mapping):
        tied |= {str(name): str(home) for name, home in known.items() if str(name) not in tied}
    name = type(model).__name__
    shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    return Skeleton(kinds, shapes, tied, _task_of(model), name, model=model, run_name=_renaming(model))


def _adaptable(model: torch.nn.Module) -> list[str]:
    """MultiheadAttention whose `in_proj_weight` PEFT can wrap as a parameter.

    torch's own layers ask the attention for attributes that PEFT's wrapper does not have.
    """
    modules = dict(model.named_modules())
    return [
        name
        for name, module in modules.items()
        if isinstance(module, torch.nn.MultiheadAttention)
        and name
        and module._qkv_same_embed_dim
        and not isinstance(modules[name.rpartition(".")[0]], (*_FAST, torch.nn.TransformerDecoderLayer))
    ]


def takes_fast_path(model: torch.nn.Module | None, modules: Collection[str]) -> bool:
    """Whether some of a model's modules lie in layers that torch, in evaluation, computes past PEFT's adapters."""
    fast = () if model is None else [f"{name}." for name, one in model.named_modules() if isinstance(one, _FAST)]
    return any(module.startswith(tuple(fast)) for module in modules)


def _renaming(model: torch.nn.Module) -> Callable[[str], str]:
    """transformers 5 stores some models under older names than those of the running model."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightRenaming

        mapping: Any = model
        renamings = [one for one in get_model_conversion_mapping(mapping) if isinstance(one, WeightRenaming)]
    except (ImportError, AttributeError):  # an older transformers, or a model that is not its own
        return str

    def renamed(name: str) -> str:
        for one in renamings:
            name, _ = one.rename_source_key(name)
        return name

    return renamed


def _kind(module: torch.nn.Module) -> str:
    fused_experts = kind_of(module)
    if fused_experts is not None:
        return fused_experts
    if isinstance(module, torch.nn.MultiheadAttention):
        return "attention"
    if type(module).__name__ == "Conv1D":
        return "conv1d"
    if isinstance(module, torch.nn.Linear):
        return "linear"
    if isinstance(module, torch.nn.Embedding):
        return "embedding"
    return "norm" if "norm" in type(module).__name__.lower() else "other"


def _guess(weights: Weights) -> Skeleton:
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
    name = _architecture(weights.config)
    return Skeleton(kinds, dict(weights.shapes), {}, task=_task(name), architecture=name, guessed=True)


def _architecture(config: Mapping[str, object]) -> str:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def _task_of(model: Any) -> str | None:
    """PEFT's task type of a model; none where PEFT's class for it could not call the model.

    PEFT calls models of SEQ_2_SEQ_LM with text for an encoder and a decoder. Models of sound (Whisper) refuse that,
    and of images and text (Llava) only the name ends in the same way. Without a task type the adapter runs in all.
    """
    task = _task(type(model).__name__)
    settings = getattr(model, "config", None)
    reads_text = getattr(model, "main_input_name", None) == "input_ids" and getattr(
        settings, "is_encoder_decoder", False
    )
    return task if task != "SEQ_2_SEQ_LM" or reads_text else None


def _task(name: str) -> str | None:
    return next((task for ending, task in _TASKS if name.endswith(ending)), None)
