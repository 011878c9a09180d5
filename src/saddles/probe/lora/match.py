"""Which tensors of two models belong together, which of them LoRA can carry, and why not the others.

Names are those of the model that PEFT will be given, which is of the tuned model's class. Files are matched to it by
structure: transformers' own renamings, then whatever prefix pairs most names with equal endings and shapes (a base
saved as `BertModel` has no `bert.`, a language model inside a larger one has more).
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from saddles.errors import SaddlesError
from saddles.probe.lora.experts import KINDS, taken_by_peft
from saddles.probe.lora.skeleton import Skeleton, skeleton_of
from saddles.probe.weights.checkpoints import FLOATS, Weights

HEADS = {"SEQ_CLS": ("classifier", "score"), "TOKEN_CLS": ("classifier", "score"), "QUESTION_ANS": ("qa_outputs",)}
"""Modules that PEFT saves whole for a task, and expects in the file."""
EMBEDDING = "an embedding"
"""Why an embedding is not a target."""
IN_PROJ = "queries, keys and values of torch's MultiheadAttention"
"""Why they are not a target where their module is saved whole, or weighted by data."""
CANDIDATES = 8
"""Names of one ending, and changes of prefix, that are tried: keeps the work linear in the number of tensors."""
_LAYER = re.compile(r"\.\d+\.")
"""In the names of a layer's tensors; a vocabulary and a head lie outside."""

STATE_SPACE = ("mamba", "mamba2", "falcon_mamba", "falcon_h1", "nemotron_h")
"""Model types in which PEFT refuses `out_proj`: their kernels read its weight past the module."""


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
        shape: of the matrix, as stored.
        bias: its bias, where it has one.
        experts: how many matrices of that shape one parameter holds; 0: it is a module with one matrix. The name is
            then the parameter's.
        by_parameter: PEFT must be given its weight as a parameter, see `taken_by_peft`.
        in_proj: queries, keys and values of torch's MultiheadAttention; the name is the parameter's.
        embedding: its input is the number of a row, so that `conv1d` holds.
    """

    module: str
    weight: Names
    conv1d: bool
    shape: tuple[int, int]
    bias: Names | None = None
    experts: int = 0
    by_parameter: bool = False
    embedding: bool = False
    in_proj: bool = False

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
    """Pairs of tensors.

    Attributes:
        targets: what LoRA carries.
        others: the other tensors, with the reason why LoRA does not carry their change.
        fresh: modules that the base lacks, or that PEFT saves whole for the task: an adapter must bring them.
        dropped: tensors that the tuned model lacks; they are not part of the change.
        skeleton: the model that the adapter is for.
        by_name: all tensors of the tuned model.
    """

    targets: tuple[Target, ...]
    others: tuple[tuple[Names, str], ...]
    fresh: tuple[str, ...]
    dropped: tuple[str, ...]
    skeleton: Skeleton = field(repr=False)
    by_name: Mapping[str, Names] = field(repr=False)

    @property
    def task(self) -> str | None:
        """PEFT's task type."""
        return self.skeleton.task

    def tensors_of(self, module: str) -> dict[str, Names]:
        """Every tensor under a module, in the names of the model; tied ones point to where they are stored."""
        tied = self.skeleton.tied
        return {name: self.by_name.get(tied.get(name, name), Names(name, None, None)) for name in self.inside[module]}

    @cached_property
    def inside(self) -> dict[str, list[str]]:
        """Module -> names of all tensors in it."""
        found: dict[str, list[str]] = {}
        for name in self.skeleton.shapes:
            for module in ancestors(name):
                found.setdefault(module, []).append(name)
        return found


def match(
    base: Weights, tuned: Weights, skeleton: Skeleton | None = None, embeddings: bool = False, in_proj: bool = True
) -> Match:
    """Pair the tensors of two models; models of different shapes are refused.

    Args:
        embeddings: they are targets too, and so is a linear module that is tied to one.
        in_proj: so is `in_proj_weight` of torch's MultiheadAttention.
    """
    skeleton = skeleton or skeleton_of(base, tuned)
    homes = [canonical(weights, skeleton) for weights in (base, tuned)]
    every = [
        Names(name, homes[0].get(name), homes[1].get(name)) for name in sorted({*homes[0], *homes[1]}, key=_natural)
    ]
    dropped = tuple(names.model for names in every if names.tuned is None and names.model not in skeleton.tied)
    every = [names for names in every if names.tuned is not None]
    _check_shapes(base, tuned, every)
    by_name = {names.model: names for names in every}
    fresh = _fresh(every, skeleton)
    brought = frozenset(fresh)
    targets, others = [], []
    taken = taken_by_peft(skeleton.model)
    for names in every:
        if _within(names.model, brought):
            continue
        reason, conv1d = _reason(names, base, tuned, skeleton)
        looked_up = embeddings and reason == EMBEDDING
        conv1d = conv1d or looked_up
        attention = in_proj and reason == IN_PROJ
        if reason is not None and not attention and not looked_up:
            others.append((names, reason))
            continue
        module = names.model.removesuffix(".weight")
        assert names.tuned is not None
        *count, first, second = tuned.shapes[names.tuned]
        bias = by_name.get(f"{module}.bias")
        bias = bias if bias and bias.base and bias.model not in skeleton.tied else None
        targets.append(
            Target(
                module,
                names,
                conv1d,
                (first, second),
                bias,
                sum(count),
                not count and module.endswith(taken),
                looked_up,
                attention,
            )
        )
    targets += _tied(targets, skeleton)
    carried = {target.bias.model for target in targets if target.bias}
    others = [(names, reason) for names, reason in others if names.model not in carried]
    if not targets:
        raise SaddlesError(
            f"{base.place} and {tuned.place} share no linear module. Give a base and a model that was tuned from it."
        )
    return Match(tuple(targets), tuple(others), fresh, dropped, skeleton, by_name)


def _tied(targets: list[Target], skeleton: Skeleton) -> list[Target]:
    """Linear modules that share the matrix of an adapted embedding: PEFT gives them factors of their own."""
    homes = {target.weight.model: target for target in targets if target.embedding}
    modules = {name.removesuffix(".weight"): homes[home] for name, home in skeleton.tied.items() if home in homes}
    return [
        Target(module, one.weight, False, one.shape)
        for module, one in modules.items()
        if skeleton.kinds.get(module) == "linear"
    ]


def _fresh(every: list[Names], skeleton: Skeleton) -> tuple[str, ...]:
    """Modules that the adapter must bring: the task's head, and what the base lacks."""
    heads = {
        names.model.split(".")[0] for names in every if names.model.split(".")[0] in HEADS.get(skeleton.task or "", ())
    }
    new = [n.model for n in every if n.base is None and n.model not in skeleton.tied and not _within(n.model, heads)]
    return tuple(sorted(heads | {name.rpartition(".")[0] for name in new} - {""}, key=_natural))


def _within(name: str, modules: Collection[str]) -> bool:
    return any(ancestor in modules for ancestor in ancestors(name))


def ancestors(name: str) -> list[str]:
    """The modules that a tensor is in, the outermost first."""
    parts = name.split(".")
    return [".".join(parts[:last]) for last in range(1, len(parts))]


def _reason(names: Names, base: Weights, tuned: Weights, skeleton: Skeleton) -> tuple[str | None, bool]:
    """Why LoRA cannot carry a tensor's change (None: it can), and whether it is stored as (in, out)."""
    if names.model in skeleton.tied:
        return f"tied to {skeleton.tied[names.model]}", False
    assert names.tuned is not None
    if names.base is None:
        return "only in the tuned model", False
    shape = tuned.shapes[names.tuned]
    if base.shapes[names.base] != shape:
        return f"shape {base.shapes[names.base]} became {shape} (another vocabulary?)", False
    module, _, last = names.model.rpartition(".")
    kind = skeleton.kinds.get(module, "")
    fused = kind in KINDS and len(shape) == 3 and not skeleton.guessed
    if fused or (last == "weight" and kind in ("linear", "conv1d") and len(shape) == 2):
        for weights, name in ((base, names.base), (tuned, names.tuned)):
            if weights.types[name] not in FLOATS:
                raise SaddlesError(
                    f"{name} of {weights.place} must be stored as floating-point numbers; it is {weights.types[name]}. "
                    "Give the models before quantisation."
                )
        model_type = getattr(getattr(skeleton.model, "config", None), "model_type", None)
        if model_type in STATE_SPACE and module.endswith(".out_proj"):
            return "a module that PEFT does not adapt in state-space models", False
        return None, KINDS[kind] if fused else kind == "conv1d"
    if kind == "in_proj" and last == "in_proj_weight":
        return IN_PROJ, False
    inside = "inside torch's MultiheadAttention"
    words = {"embedding": EMBEDDING, "norm": "a normalisation", "attention": inside, "in_proj": inside}
    if last == "bias" and kind in ("linear", "conv1d"):
        return "a bias of a module that is not carried", False
    if not skeleton.guessed and names.model not in skeleton.shapes:
        return f"not a tensor of {skeleton.architecture} as it runs", False
    return words.get(kind, f"not the weight of a linear module, shape {shape}"), False


def _check_shapes(base: Weights, tuned: Weights, every: list[Names]) -> None:
    """Tensors outside the layers may differ in their first axis (a vocabulary, positions, classes); refuse all else."""
    for names in every:
        if names.base is None or names.tuned is None:
            continue
        one, other = base.shapes[names.base], tuned.shapes[names.tuned]
        if one != other and (one[1:] != other[1:] or _LAYER.search(f".{names.model}.")):
            raise SaddlesError(
                f"{names.model} is {one} in {base.place} and {other} in {tuned.place}. Both models must have the "
                "same shapes (only the vocabulary and the head may differ): is the base the model that was tuned?"
            )


def canonical(weights: Weights, skeleton: Skeleton) -> dict[str, str]:
    """Name in the model -> name in the file."""
    names = {name: name if name in skeleton.shapes else skeleton.run_name(name) for name in weights.shapes}
    lost = {stored: run for stored, run in names.items() if run not in skeleton.shapes}
    taken = {run for run in names.values() if run in skeleton.shapes}
    for before, after in _prefixes({run: weights.shapes[stored] for stored, run in lost.items()}, skeleton.shapes):
        for stored, run in lost.items():
            other = after + run.removeprefix(before) if run.startswith(before) else run
            if other in skeleton.shapes and other not in taken and names[stored] not in skeleton.shapes:
                names[stored] = other
                taken.add(other)
    # Outside the layers: one name is the whole end of the other, as in `lm_head.weight` and `policy.lm_head.weight`.
    free = {
        end: name for name in skeleton.shapes if name not in taken and not _LAYER.search(name) for end in _ends(name)
    }
    for stored, run in lost.items():
        if names[stored] not in skeleton.shapes and not _LAYER.search(run):
            whole = [end for end in _ends(run) if end in skeleton.shapes and end not in taken]
            other = free.get(run) or (whole[0] if whole else None)
            if other is not None and other not in taken:
                names[stored] = other
                taken.add(other)
    return {run: stored for stored, run in names.items()}


def _prefixes(lost: Mapping[str, tuple[int, ...]], known: Mapping[str, tuple[int, ...]]) -> list[tuple[str, str]]:
    """Changes of prefix that turn lost names into known ones of the same shape, the one that fits most names first."""
    by_end: dict[str, list[str]] = {}
    for name in known:
        for end in _ends(name):
            by_end.setdefault(end, []).append(name)
    votes: Counter[tuple[str, str]] = Counter()
    for name, shape in lost.items():
        # Only the longest ending that both share says which prefix was changed, and only one with a layer's number in
        # it: a head's and a pooler's `dense.weight` may have the same shape.
        for end in (end for end in _ends(name) if _LAYER.search(f".{end}")):
            fitting = [other for other in by_end.get(end, ())[:CANDIDATES] if known[other] == shape]
            votes.update((name.removesuffix(end), other.removesuffix(end)) for other in fitting)
            if fitting:
                break
    return [change for change, count in votes.most_common(CANDIDATES) if count > 1]


def _ends(name: str) -> list[str]:
    """Endings of a dotted name of at least two parts, the longest first."""
    parts = name.split(".")
    return [".".join(parts[first:]) for first in range(max(len(parts) - 1, 1))]


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Sort layer 2 before layer 10."""
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in name.split(".")]
