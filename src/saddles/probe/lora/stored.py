"""Stored LoRA adapters, in PEFT's or kohya's names: factors, scales, and whatever else they hold.

A module's change is scale·BA: alpha/r, or alpha/√r with rsLoRA, with PEFT's `rank_pattern` and `alpha_pattern`; in
kohya's files alpha stands beside each module's factors. DoRA rescales W₀ + BA row by row, so that its change is no
product of factors: it is refused, as are convolutions, LoHa and LoKr.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from saddles.errors import SaddlesError
from saddles.probe.lora.patterns import first_match
from saddles.probe.lora.peft_files import CONFIG, WEIGHTS, write_adapter
from saddles.probe.weights.checkpoints import FLOATS
from saddles.probe.weights.folders import read_json
from saddles.runtime.files import explained, new_path

_PEFT = re.compile(r"^(?P<module>.*)\.lora_(?P<side>[AB])\.weight$")
_KOHYA = re.compile(r"^(?P<module>.*)\.lora_(?P<side>down|up)\.weight$")
_REFUSED = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "BD-LoRA",
    "kasa_config": "KaSA",
    "target_parameters": "adapters of parameters",
}
"""Settings of PEFT whose adapters are more than a product of two factors."""
_MOVED = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""How `init_lora_weights` begins where PEFT takes the start of the factors out of the base."""
LARGEST = 1e12
"""Ranks and alphas are below it; a float of 32 bits holds the factors times their ratio."""
_DROPPED = ("use_rslora", "init_lora_weights", "layers_to_transform", "layers_pattern", "exclude_modules")
"""Settings that exact names of modules and a scale of 1 replace."""


@dataclass(frozen=True)
class Pair:
    """Factors of one module, without their scale: lora_A (rank, in) and lora_B (out, rank)."""

    inner: Tensor
    outer: Tensor
    scale: float = 1.0

    @property
    def rank(self) -> int:
        """Number of columns of B."""
        return self.inner.shape[0]

    @property
    def cost(self) -> int:
        """Parameters of one rank."""
        return self.inner.shape[1] + self.outer.shape[0]


@dataclass(frozen=True, eq=False)
class Adapter:
    """A stored adapter.

    Attributes:
        place: its folder or file.
        pairs: module -> factors.
        others: tensors that are kept as they are (biases, saved modules).
        config: adapter_config.json; empty for kohya's files.
        kohya: whether it has kohya's names.
        metadata: of a kohya file.
    """

    place: str
    pairs: dict[str, Pair]
    others: dict[str, Tensor] = field(default_factory=dict)
    config: Mapping[str, object] = field(default_factory=dict)
    kohya: bool = False
    dtype: torch.dtype = torch.float32


def open_adapter(place: str | os.PathLike[str]) -> Adapter:
    """Read a PEFT folder or a kohya file; what is not a plain product of factors is refused."""
    path = Path(place)
    file = path / WEIGHTS if path.is_dir() else path
    if not file.is_file() or file.suffix != ".safetensors":
        raise SaddlesError(
            f"{path} holds no {WEIGHTS}. Give the folder of a PEFT adapter, or a .safetensors file with kohya's names."
        )
    config = read_json(path / CONFIG) if path.is_dir() else {}
    try:
        tensors = load_file(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise SaddlesError(f"{path} cannot be read ({error}). Copy the adapter again.") from error
    return _peft(str(path), tensors, config) if path.is_dir() else _kohya(str(path), tensors)


def _peft(place: str, tensors: dict[str, Tensor], config: dict[str, object]) -> Adapter:
    if config.get("peft_type") != "LORA":
        raise SaddlesError(
            f"{place} is an adapter of type {config.get('peft_type')}; only LORA has factors of this kind."
        )
    for key, word in _REFUSED.items():
        if config.get(key):
            raise SaddlesError(
                f"{place} uses {word}, whose change is not a product of two factors. Merge it into its base."
            )
    if str(start := config.get("init_lora_weights")).lower().startswith(_MOVED):
        raise SaddlesError(
            f"{place} has init_lora_weights='{start}', which changes the base, too, so that its change is not BA. Save "
            "it as a plain LoRA (path_initial_model_for_weight_conversion of PEFT's save_pretrained), or merge it into "
            "its base."
        )
    sides, others = _sides(tensors, _PEFT)
    others = _saved_once(others)
    embeddings = [name for name in others if "lora_embedding" in name or "lora_magnitude" in name]
    if embeddings or not sides:
        what = f"{embeddings[0]}, which is not supported" if embeddings else "no lora_A and lora_B"
        raise SaddlesError(f"{place} holds {what}. Give a LoRA adapter of linear modules.")
    pairs = {}
    for module, (inner, outer) in sides.items():
        name = module.removeprefix("base_model.model.")
        rank = _of_pattern(config, "rank_pattern", name, "r", inner.shape[0])
        alpha = _of_pattern(config, "alpha_pattern", name, "lora_alpha", 8)
        if rank != inner.shape[0]:
            raise SaddlesError(
                f"{place} says rank {rank:g} for {name}; its factors have {inner.shape[0]}. Save it again."
            )
        pairs[module] = Pair(inner, outer, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))
        if f"{module}.lora_B.bias" in others:  # PEFT scales it like the factors; what is written has scale 1
            others[f"{module}.lora_B.bias"] = pairs[module].scale * others[f"{module}.lora_B.bias"]
    return Adapter(place, pairs, others, config, dtype=next(iter(pairs.values())).inner.dtype)


def _saved_once(others: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Saved modules under their plain names: where the vocabulary grew, PEFT stores them under its own, too."""
    kept = {name: tensor for name, tensor in others.items() if ".original_module." not in name}
    return {name.replace(".modules_to_save.", "."): tensor for name, tensor in kept.items()}


def _of_pattern(config: Mapping[str, object], patterns: str, module: str, default: str, otherwise: float) -> float:
    """A module's rank or alpha, as PEFT looks it up."""
    table = config.get(patterns)
    found = first_match(table, module) if isinstance(table, Mapping) else None
    value = config.get(default, otherwise) if found is None else found
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < LARGEST:
        raise SaddlesError.must_be(default, f"a number below {LARGEST:g} in size", value)
    return float(value)


def _kohya(place: str, tensors: dict[str, Tensor]) -> Adapter:
    sides, others = _sides(tensors, _KOHYA)
    pairs = {}
    for module, (inner, outer) in sides.items():
        rank = inner.shape[0]
        alpha = others.pop(f"{module}.alpha", None)
        if alpha is not None and (alpha.numel() != 1 or not abs(float(alpha)) < LARGEST):
            raise SaddlesError(f"{module}.alpha of {place} must be one finite number. Save the adapter again.")
        pairs[module] = Pair(inner, outer, float(alpha) / rank if alpha is not None else 1.0)
    if others or not pairs:
        what = f"{next(iter(others))}, which is not supported" if others else "no lora_down and lora_up"
        raise SaddlesError(f"{place} holds {what}. Give a plain LoRA of linear modules.")
    return Adapter(place, pairs, kohya=True, dtype=next(iter(pairs.values())).inner.dtype)


def _sides(
    tensors: Mapping[str, Tensor], pattern: re.Pattern[str]
) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor]]:
    """Module -> (A, B), and what is neither."""
    halves: dict[str, dict[str, Tensor]] = {}
    others = {}
    for name, tensor in tensors.items():
        hit = pattern.match(name)
        kind = str(tensor.dtype).removeprefix("torch.")
        if hit and kind not in FLOATS:
            raise SaddlesError(f"{name} holds numbers of type {kind}; factors must be one of {', '.join(FLOATS)}.")
        if not bool(torch.isfinite(tensor.float()).all()):
            raise SaddlesError(f"{name} holds numbers that are not finite. Did the training diverge?")
        if hit:
            halves.setdefault(hit["module"], {})["A" if hit["side"] in ("A", "down") else "B"] = tensor
        else:
            others[name] = tensor
    for module, both in halves.items():
        if set(both) != {"A", "B"} or any(t.ndim != 2 for t in both.values()) or len(both["A"]) != both["B"].shape[1]:
            raise SaddlesError(
                f"{module} must have two factors of two axes that fit together. Convolutions are not read."
            )
        if not both["A"].numel() or not both["B"].numel():
            raise SaddlesError(f"{module} has empty factors. Save the adapter again.")
    return {module: (both["A"], both["B"]) for module, both in halves.items()}, others


def store_adapter(like: Adapter, pairs: Mapping[str, Pair], out: Path) -> None:
    """Write factors of scale 1 in the names of another adapter; modules of rank 0 are left out.

    PEFT: `r` is the largest rank, patterns name the others, alpha equals the rank.
    """
    kept = {module: pair for module, pair in pairs.items() if pair.rank}
    if not kept:
        raise SaddlesError("Every module would get rank 0. Ask for more.")
    for module, pair in kept.items():
        if not all(bool(torch.isfinite(one.to(like.dtype)).all()) for one in (pair.inner, pair.outer)):
            kind = str(like.dtype).removeprefix("torch.")
            raise SaddlesError(f"The factors of {module} are too large for {kind}. Is its scale right?")
    if like.kohya:
        tensors = {}
        for module, pair in kept.items():
            tensors[f"{module}.lora_down.weight"] = pair.inner.to(like.dtype).contiguous()
            tensors[f"{module}.lora_up.weight"] = pair.outer.to(like.dtype).contiguous()
            tensors[f"{module}.alpha"] = torch.tensor(float(pair.rank))
        with explained(out), new_path(out) as draft:
            save_file(tensors, draft, metadata={"format": "pt"})
        return
    tensors = dict(like.others)
    for module, pair in kept.items():
        tensors[f"{module}.lora_A.weight"] = pair.inner.to(like.dtype)
        tensors[f"{module}.lora_B.weight"] = pair.outer.to(like.dtype)
    names = {module: module.removeprefix("base_model.model.") for module in kept}
    largest = max(pair.rank for pair in kept.values())
    pattern = {f"^{re.escape(names[m])}": pair.rank for m, pair in kept.items() if pair.rank != largest}
    config = {k: v for k, v in like.config.items() if k not in _DROPPED}
    config |= {
        "r": largest, "lora_alpha": largest, "rank_pattern": pattern, "alpha_pattern": dict(pattern),
        "target_modules": list(names.values()),
    }  # fmt: skip
    write_adapter(out, tensors, config, None)
