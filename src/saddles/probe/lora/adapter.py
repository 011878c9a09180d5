"""A PEFT adapter from a base and a tuned model: `lora_extract(base, tuned, plan, out)`."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from saddles.errors import SaddlesError
from saddles.probe.lora.experts import as_matrices, places
from saddles.probe.lora.inputs import Data
from saddles.probe.lora.match import Match, Target
from saddles.probe.lora.on_base import TIMES
from saddles.probe.lora.peft_files import PREFIX, write_adapter
from saddles.probe.lora.plan import LoraPlan, ModuleRank, root
from saddles.probe.lora.planning import finite_norm, workshop_of
from saddles.probe.lora.running import open_pair
from saddles.probe.lora.skeleton import takes_fast_path
from saddles.probe.lora.spectra import Workshop
from saddles.probe.lora.tensor_files import SetAside
from saddles.probe.lora.truncation import Factors, Truncation, requantised
from saddles.probe.weights.checkpoints import Source, Weights
from saddles.probe.weights.weight_change import misfit
from saddles.runtime.files import refuse_existing, scratch_folder
from saddles.runtime.progress import bar

if TYPE_CHECKING:
    import pandas as pd

_FAST_PATH = (
    "In evaluation torch computes its TransformerEncoderLayer past PEFT's adapters. Call merge_and_unload(), or "
    "torch.backends.mha.set_fastpath_enabled(False), before the model is used."
)

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Extraction:
    """A written adapter.

    Attributes:
        folder: where it is.
        plan: the plan that it follows.
        errors: module -> ‖ΔW − BA‖_F of the factors as they were stored; the plan has the predicted ones.
        parameters: numbers in the file, padding and what is saved whole included.
        dropped: what the target's loader rejects and the plan would carry.
        loaded: whether PEFT loaded it back; it cannot where the model's class is not known.
        notes: what whoever loads it must know, one sentence each.
        requantised: ‖Q(W₀ + BA) − W₀ − BA‖_F over its modules, where Q quantised the base; else 0.
    """

    folder: Path
    plan: LoraPlan
    errors: dict[str, float]
    parameters: int = 0
    dropped: tuple[str, ...] = ()
    loaded: bool = False
    requantised: float = 0.0
    notes: tuple[str, ...] = ()

    def table(self) -> "pd.DataFrame":
        """The plan's table for the carried modules, with the measured error beside the predicted one."""
        planned = self.plan.table().loc[list(self.errors)]
        return planned.rename(columns={"error": "predicted_error"}).assign(error=list(self.errors.values()))


def lora_extract(
    base: Source,
    tuned: Source,
    plan: LoraPlan,
    out: str | os.PathLike[str],
    target: str = "peft",
    dtype: str = "float32",
    *,
    data: Data | None = None,
    device: str = "cpu",
    on: str | None = None,
    workers: int | None = None,
    parts: str | os.PathLike[str] | None = None,
) -> Extraction:
    """Write the adapter that a plan describes: the truncated singular value decomposition of each module's ΔW.

    base + adapter has the weights W₀ + BA, where BA is the best approximation of ΔW of the planned rank: each
    module's weights differ by the plan's `error` in norm, and its output for an input x by at most `next`·‖x‖.
    With full ranks everywhere, base + adapter equals the tuned model to rounding, apart from what the plan lists as
    left out.

    Args:
        base, tuned: the models that `lora_plan` was given.
        plan: from `lora_plan` or `LoraPlan.from_json`.
        out: a folder that does not exist or is empty; written whole or not at all, after PEFT has loaded it.
        target: "peft"; "vllm" or "llamacpp" pad to one rank and leave out what those loaders reject.
        dtype: of the stored factors; bfloat16 and float16 add their rounding, which the measured error includes.
        data: what the plan was weighted by; must be given again.
        device: where it is computed.
        on, workers: compute the factors in worker processes or on a Dask cluster, as `lora_plan` does its spectra.
        parts: a folder that keeps each module's factors as they are finished: the same call resumes.
    """
    folder = Path(out)
    refuse_existing(folder)  # before hours of work, not after them
    if dtype not in TYPES:
        raise SaddlesError.must_be("dtype", f"one of {', '.join(TYPES)}", dtype)
    workshop = workshop_of(device, on, workers, parts, data)
    settings = plan.settings(target)
    special = [any(row.embedding for row in plan.modules), any(row.in_proj for row in plan.modules)]
    truncation = open_pair(base, tuned, data, plan.leading, device, *special)
    pairs, early, late = truncation.pairs, truncation.early, truncation.late
    workshop.check(late, early)
    _check_plan(plan, {one.module: one for one in pairs.targets}, late, data is not None)
    place = early.config.get("_name_or_path") if early.model is not None else early.place
    # PEFT cannot load what must be a parameter to it and is written as a module for others.
    model = None if target != "peft" and any(row.by_parameter for row in plan.carried) else pairs.skeleton.model
    with scratch_folder(folder) as scratch:
        tensors, pad = SetAside(scratch), None if target == "peft" else settings["r"]
        workshop = replace(workshop, scratch=scratch)
        errors, again = _factors(plan, truncation, workshop, settings, TYPES[dtype], pad, tensors)
        if target == "peft":
            _whole(plan, pairs, late, tensors)
        write_adapter(folder, tensors, {"base_model_name_or_path": place or None, **settings}, model)
        count = sum(tensor.numel() for tensor in tensors.values())
    notes = [_FAST_PATH] if takes_fast_path(pairs.skeleton.model, list(errors)) else []
    below, _, merged = early.place.partition(TIMES)
    if merged:
        notes.append(
            f"its base is {below} with {merged} merged into it: merge that first (merge_and_unload), then load it"
        )
    return Extraction(folder, plan, errors, count, _dropped(plan, target), model is not None, again, tuple(notes))


def _check_plan(plan: LoraPlan, targets: dict[str, Target], late: Weights, weighted: bool) -> None:
    if weighted != bool(plan.data):
        words = f"is weighted by {plan.data}: give that as `data`" if plan.data else "has no `data`: leave it out"
        raise SaddlesError(f"The plan {words}.")
    for row in plan.carried:
        there = targets.get(row.module)
        if there is None or (there.outputs, there.inputs) != (row.outputs, row.inputs):
            size = "absent" if there is None else f"{there.outputs}×{there.inputs}"
            raise SaddlesError(
                f"The plan has {row.module} with shape {row.outputs}×{row.inputs}; in {late.place} it is {size}. "
                "Give the models that the plan was made from."
            )


def _factors(
    plan: LoraPlan,
    truncation: Truncation,
    workshop: Workshop,
    settings: dict[str, Any],
    dtype: torch.dtype,
    pad: int | None,
    aside: SetAside,
) -> tuple[dict[str, float], float]:
    """Set the factors of all modules aside; returns ‖ΔW − BA‖_F as stored by module, and `requantised`."""
    # Gflop of the Gram product and of four passes over ΔW (Lanczos, projection, error): only their ratios matter.
    work = {
        row.module: 2e-9
        * max(row.experts, 1)
        * row.inputs
        * row.outputs
        * (min(row.inputs, row.outputs) + 4 * row.rank)
        for row in plan.carried
    }
    rows = {row.module: row for row in plan.carried if pad is None or not row.only_peft}
    homes = places([m for m, row in rows.items() if row.experts or row.in_proj], truncation.pairs.skeleton.shapes)
    errors, again = {}, []
    made = truncation.factors({module: row.rank for module, row in rows.items()}, workshop)
    what = "errors of the factors as stored" if workshop.elsewhere else "factors of ΔW"
    with bar(f"{what}, by module", float(sum(work.values()))) as progress:
        for one, found in made:
            stored = [Factors(part.change, part.left.to(dtype), part.right.to(dtype)) for part in found]
            errors[one.module] = root(misfit(part.change, part.left, part.right) for part in stored)
            again.append(requantised(one, stored, truncation.early))
            parts = _parts(one, stored, pad or rows[one.module].rank)
            if settings["lora_bias"]:  # PEFT wants one for every module or for none
                bias = _bias(rows[one.module], one, truncation.early, truncation.late)
                parts["lora_B.bias"] = bias.to(dtype)
            home = homes.get(one.module, one.module)
            aside.add({f"{PREFIX}{home}.{name}": tensor for name, tensor in parts.items()})
            progress.advance(work[one.module])
    return {module: errors[module] for module in rows}, root(again)


def _parts(target: Target, found: list[Factors], rank: int) -> dict[str, Tensor]:
    """lora_A (rank, in) and lora_B (out, rank) of one module, zeros up to the rank; of experts see `as_matrices`."""
    pairs = [(one.left.T, one.right.T) if target.conv1d else (one.right, one.left) for one in found]
    more = rank - len(pairs[0][0])
    inners = [torch.nn.functional.pad(inner, (0, 0, 0, more)) for inner, _ in pairs]
    outers = [torch.nn.functional.pad(outer, (0, more)) for _, outer in pairs]
    inner, outer = as_matrices(inners, outers) if target.experts else (inners[0], outers[0])
    names = ("lora_embedding_A", "lora_embedding_B") if target.embedding else ("lora_A.weight", "lora_B.weight")
    return {names[0]: inner.contiguous(), names[1]: outer.contiguous()}


def _bias(row: ModuleRank, target: Target, early: Weights, late: Weights) -> Tensor:
    if target.bias is None or not target.bias.base or not target.bias.tuned:
        return torch.zeros(row.outputs, dtype=torch.float64)
    finite_norm(target.bias.tuned, late)
    return late.read(target.bias.tuned).double() - early.read(target.bias.base).double()


def _whole(plan: LoraPlan, pairs: Match, late: Weights, aside: SetAside) -> None:
    """Set tensors aside that are saved whole, under the names that PEFT gives them; tied ones are two tensors."""
    adapted = {row.module for row in plan.carried}
    for one in plan.saved:
        if not one.bias:
            for name, names in pairs.tensors_of(one.name).items():
                if names.tuned is not None:
                    aside.add({f"{PREFIX}{name}": late.read(names.tuned)})
    if plan.saves_biases:
        rows = {row.module: row for row in plan.modules}
        biases = [one.name for one in plan.saved if one.bias]
        biases += [f"{module}.bias" for module, row in rows.items() if row.bias]
        for name in dict.fromkeys(biases):
            module = name.removesuffix(".bias")
            place = f"{module}.base_layer.bias" if module in adapted else name
            aside.add({f"{PREFIX}{place}": late.read(str(pairs.by_name[name].tuned))})


def _dropped(plan: LoraPlan, target: str) -> tuple[str, ...]:
    """What a loader rejects, in words."""
    if target == "peft":
        return ()
    biases = sum(1 for row in plan.carried if row.bias)
    lost = [f"{biases} biases"] if biases else []
    lost += [f"{row.module} ({row.only_peft})" for row in plan.carried if row.only_peft]
    return (*lost, *(f"{one.name} ({one.parameters:,} parameters)" for one in plan.saved))
