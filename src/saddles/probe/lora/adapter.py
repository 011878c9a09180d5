"""A PEFT adapter from a base and a tuned model: `lora_extract(base, tuned, plan, out)`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from torch import Tensor

from saddles.errors import SaddlesError
from saddles.probe.lora.match import Target, match
from saddles.probe.lora.plan import LoraPlan, ModuleRank, change_of
from saddles.probe.weights.checkpoints import Source, Weights, open_weights
from saddles.probe.weights.weight_change import factors, misfit
from saddles.runtime.files import explained, new_folder, refuse_existing, write_json
from saddles.runtime.progress import bar

if TYPE_CHECKING:
    import pandas as pd

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Extraction:
    """A written adapter.

    Attributes:
        folder: where it is.
        plan: the plan that it follows.
        errors: module -> ‖ΔW − BA‖_F of the factors as they were stored; the plan has the predicted ones.
    """

    folder: Path
    plan: LoraPlan
    errors: dict[str, float]

    def table(self) -> "pd.DataFrame":
        """The plan's table for the carried modules, with the measured error beside the predicted one."""
        planned = self.plan.table().loc[list(self.errors)]
        return planned.rename(columns={"error": "predicted_error"}).assign(error=list(self.errors.values()))


def lora_extract(
    base: Source, tuned: Source, plan: LoraPlan, out: str | os.PathLike[str], dtype: str = "float32"
) -> Extraction:
    """Write the adapter that a plan describes: the truncated singular value decomposition of each module's ΔW.

    base + adapter has the weights W₀ + BA, where BA is the best approximation of ΔW of the planned rank: each
    module's weights differ by the plan's `error` in norm, and its output for an input x by at most `next`·‖x‖.
    With full ranks everywhere, base + adapter equals the tuned model to rounding, apart from what the plan lists as
    left out.

    Args:
        base, tuned: the models that `lora_plan` was given.
        plan: from `lora_plan` or `LoraPlan.from_json`.
        out: a folder that does not exist or is empty; written whole or not at all.
        dtype: of the stored factors; bfloat16 and float16 add their rounding, which the measured error includes.
    """
    folder = Path(out)
    refuse_existing(folder)
    if dtype not in TYPES:
        raise SaddlesError.must_be("dtype", f"one of {', '.join(TYPES)}", dtype)
    settings = plan.settings()
    early, late = open_weights(base), open_weights(tuned)
    targets = {target.module: target for target in match(early, late).targets}
    _check_plan(plan, targets, late)
    tensors: dict[str, Tensor] = {}
    errors: dict[str, float] = {}
    # Gflop of the Gram product and of four passes over ΔW (Lanczos, projection, error): only their ratios matter.
    work = {
        row.module: 2e-9 * row.inputs * row.outputs * (min(row.inputs, row.outputs) + 4 * row.rank)
        for row in plan.carried
    }
    with bar("factors of ΔW, by module", sum(work.values())) as progress:
        for row in plan.carried:
            parts, errors[row.module] = _module(row, targets[row.module], early, late, plan.lora_bias, TYPES[dtype])
            tensors |= {f"base_model.model.{row.module}.{name}": tensor for name, tensor in parts.items()}
            progress.advance(work[row.module])
    with explained(folder), new_folder(folder) as draft:
        save_file(tensors, draft / "adapter_model.safetensors", metadata={"format": "pt"})
        write_json(draft / "adapter_config.json", _config(settings, early))
    return Extraction(folder, plan, errors)


def _check_plan(plan: LoraPlan, targets: dict[str, Target], late: Weights) -> None:
    for row in plan.carried:
        there = targets.get(row.module)
        if there is None or (there.outputs, there.inputs) != (row.outputs, row.inputs):
            size = "absent" if there is None else f"{there.outputs}×{there.inputs}"
            raise SaddlesError(
                f"The plan has {row.module} with shape {row.outputs}×{row.inputs}; in {late.place} it is {size}. "
                "Give the models that the plan was made from."
            )


def _module(
    row: ModuleRank, target: Target, early: Weights, late: Weights, with_bias: bool, dtype: torch.dtype
) -> tuple[dict[str, Tensor], float]:
    """lora_A (rank, in), lora_B (out, rank) and the bias of one module, and ‖ΔW − BA‖_F as stored."""
    change = change_of(target, early, late)
    left, right = (part.to(dtype) for part in factors(change, row.rank))
    error = misfit(change, left, right)
    inner, outer = (left.T, right.T) if target.conv1d else (right, left)
    parts = {"lora_A.weight": inner.contiguous(), "lora_B.weight": outer.contiguous()}
    if with_bias:  # PEFT wants one for every module or for none
        moved = torch.zeros(row.outputs, dtype=torch.float64)
        if target.bias is not None and target.bias.base and target.bias.tuned:
            moved = late.read(target.bias.tuned).double() - early.read(target.bias.base).double()
        parts["lora_B.bias"] = moved.to(dtype)
    return parts, error


def _config(settings: Mapping[str, object], early: Weights) -> dict[str, object]:
    """adapter_config.json with only what differs from PEFT's defaults, so that old and new versions of PEFT read it."""
    place = early.config.get("_name_or_path") if early.model is not None else early.place
    kept = {key: value for key, value in settings.items() if value not in (None, False, {})}
    return {
        "peft_type": "LORA", "base_model_name_or_path": place or None, "inference_mode": True, "lora_dropout": 0.0,
        "bias": "none", **kept,
    }  # fmt: skip
