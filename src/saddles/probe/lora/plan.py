"""Which LoRA rank each module of a fine-tuned model needs: `lora_plan(base, tuned, energy=0.9)`.

The rank is that of the module's own ΔW (the rank of a head's product is another number). LoRA carries the matrices
of Linear and Conv1D modules, and their biases with PEFT's `lora_bias`; what it cannot carry is listed with its norm.
"""

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from saddles.errors import SaddlesError
from saddles.probe.lora.budget import allocate
from saddles.probe.lora.match import Match, Names, Target, match
from saddles.probe.weights.checkpoints import Source, Weights, open_weights
from saddles.probe.weights.weight_change import WeightChange, effort, resolution, singular_values, weight_change
from saddles.runtime.files import explained, refuse_existing, write_text
from saddles.runtime.progress import bar

if TYPE_CHECKING:
    import pandas as pd
    from peft import LoraConfig

ENERGY = 0.9
"""Share of each module's change that is kept where nothing else is chosen."""

ROUNDING = 1e-14
"""Sums of squares that reach a share to within this much of it reach it: a share such as 13/15 is not a float."""


@dataclass(frozen=True)
class ModuleRank:
    """One module of a plan.

    Attributes:
        module: its name in the model.
        inputs, outputs: its numbers of features.
        conv1d: its matrix is stored as (in, out).
        rank: of the adapter; 0 leaves the module out.
        norm: ‖ΔW‖_F.
        error: ‖ΔW − its best approximation of that rank‖_F.
        largest, next: σ₁, and the largest singular value left out: for an input x the module's output differs
            by at most next·‖x‖.
        bias: ‖Δbias‖, carried exactly where the rank is not 0.
    """

    module: str
    inputs: int
    outputs: int
    conv1d: bool
    rank: int
    norm: float
    error: float
    largest: float
    next: float
    bias: float = 0.0

    @property
    def energy(self) -> float:
        """Share of ‖ΔW‖²_F that the rank captures; 1 where nothing changed."""
        return 1.0 - (self.error / self.norm) ** 2 if self.norm else 1.0


@dataclass(frozen=True)
class LeftOut:
    """A tensor whose change LoRA does not carry: why, and ‖Δ‖ (against zero where the base lacks it)."""

    name: str
    reason: str
    norm: float


@dataclass(frozen=True)
class LoraPlan:
    """Ranks by module, and what LoRA leaves out.

    Attributes:
        asked: what decides the ranks, `energy=0.9` or `budget=1000000`.
        base, tuned: where the models are.
        modules: one row per module.
        left_out: changed tensors that LoRA does not carry.
        task: PEFT's task type, where the architecture tells it.
        gap: share of energy by which a budget's ranks may fall short of the best; 0 where they are proved best.
    """

    asked: str
    base: str
    tuned: str
    modules: tuple[ModuleRank, ...]
    left_out: tuple[LeftOut, ...]
    task: str | None = None
    gap: float = 0.0

    @property
    def lora_bias(self) -> bool:
        """Whether changed biases are carried."""
        return any(row.bias and row.rank for row in self.modules)

    @property
    def parameters(self) -> int:
        """Parameters of the adapter, biases included."""
        return sum(r.rank * (r.inputs + r.outputs) + (r.outputs if self.lora_bias else 0) for r in self.carried)

    @property
    def carried(self) -> tuple[ModuleRank, ...]:
        """Modules that get an adapter."""
        return tuple(row for row in self.modules if row.rank)

    @property
    def norm(self) -> float:
        """‖Δ‖ over all tensors, carried or not."""
        return _root([r.norm for r in self.modules] + [r.bias for r in self.modules] + [r.norm for r in self.left_out])

    @property
    def error(self) -> float:
        """‖Δ‖ over all tensors that is missing from base + adapter."""
        lost = [r.bias for r in self.modules if not r.rank]
        return _root([r.error for r in self.modules] + lost + [r.norm for r in self.left_out])

    @property
    def energy(self) -> float:
        """Share of all ‖Δ‖² that the adapter carries."""
        return 1.0 - (self.error / self.norm) ** 2

    @property
    def share_left_out(self) -> float:
        """Share of all ‖Δ‖² in tensors that LoRA does not carry."""
        lost = [r.bias for r in self.modules if not r.rank] + [r.norm for r in self.left_out]
        return (_root(lost) / self.norm) ** 2

    def table(self) -> "pd.DataFrame":
        """One row per module: rank, energy, error, parameters; the last row is the total of all modules."""
        import pandas as pd

        rows = [
            {"module": r.module, "shape": f"{r.outputs}×{r.inputs}", "rank": r.rank, "energy": r.energy, "norm": r.norm,
             "error": r.error, "largest": r.largest, "next": r.next, "parameters": r.rank * (r.inputs + r.outputs)}
            for r in self.modules
        ]  # fmt: skip
        norm, error = _root([r.norm for r in self.modules]), _root([r.error for r in self.modules])
        rows.append(
            {"module": "all modules", "shape": "", "rank": sum(r.rank for r in self.modules),
             "energy": 1 - (error / norm) ** 2, "norm": norm, "error": error,
             "largest": max(r.largest for r in self.modules), "next": max(r.next for r in self.modules),
             "parameters": sum(row["parameters"] for row in rows)}
        )  # fmt: skip
        return pd.DataFrame(rows).set_index("module")

    def settings(self) -> dict[str, Any]:
        """Arguments of `LoraConfig`: exact names, ranks by pattern, alpha equal to the rank so that the scale is 1."""
        if not self.carried:
            raise SaddlesError(f"The plan ({self.asked}) gives every module rank 0. Raise the budget.")
        usual = Counter(row.rank for row in self.carried).most_common(1)[0][0]
        # PEFT puts (.*\.)? before a pattern and $ behind it; the anchor keeps it from matching longer names.
        other = {f"^{re.escape(row.module)}": row.rank for row in self.carried if row.rank != usual}
        return {
            "r": usual,
            "lora_alpha": usual,
            "rank_pattern": other,
            "alpha_pattern": dict(other),
            "target_modules": [row.module for row in self.carried],
            "fan_in_fan_out": any(row.conv1d for row in self.carried),
            "lora_bias": self.lora_bias,
            "task_type": self.task,
        }

    def to_lora_config(self, **changes: Any) -> "LoraConfig":
        """A ready `peft.LoraConfig`; `changes` are further arguments of it, for instance `lora_dropout=0.05`."""
        from peft import LoraConfig

        return LoraConfig(**self.settings() | changes)

    def to_json(self) -> str:
        """The plan as JSON, with its totals and the LoraConfig settings; `LoraPlan.from_json` reads it back."""
        facts: dict[str, Any] = {"schema": 1, **asdict(self)}
        facts["modules"] = [asdict(row) | {"energy": row.energy} for row in self.modules]
        facts["total"] = {
            "energy": self.energy, "error": self.error, "norm": self.norm, "parameters": self.parameters,
            "share_left_out": self.share_left_out,
        }  # fmt: skip
        facts["lora_config"] = self.settings() if self.carried else None
        return json.dumps(facts, indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "LoraPlan":
        """Read what `to_json` wrote."""
        try:
            facts = json.loads(text)
            rows = tuple(ModuleRank(**{k: v for k, v in row.items() if k != "energy"}) for row in facts["modules"])
            left = tuple(LeftOut(**row) for row in facts["left_out"])
            return cls(facts["asked"], facts["base"], facts["tuned"], rows, left, facts["task"], facts["gap"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SaddlesError(f"The plan cannot be read ({error}). Make it again with `saddles lora plan`.") from error


def lora_plan(base: Source, tuned: Source, energy: float | None = None, budget: int | None = None) -> LoraPlan:
    """Plan the ranks of an adapter that turns `base` into `tuned`.

    Args:
        base, tuned: live models, Hugging Face folders, or .safetensors or torch files.
        energy: each module gets the smallest rank that captures this share of its ‖ΔW‖²_F; default 0.9. 1 keeps
            every singular value that can be distinguished from zero.
        budget: total number of parameters; the ranks are those that capture the most energy within it.

    Raises:
        SaddlesError: models of different shapes, nothing changed, quantised weights, damaged files.
    """
    _check(energy, budget)
    early, late = open_weights(base), open_weights(tuned)
    pairs = match(early, late)
    values = _spectra(pairs, early, late)
    biases, lost = _biases(pairs, early, late)
    left = (*_left_out(pairs, early, late), *lost)
    if not any(one[0] for one in values):
        others = f"; {len(left)} other tensors changed ({left[0].name})" if left else ""
        raise SaddlesError(
            f"No linear module of {late.place} differs from {early.place}{others}. Give the tuned model as it was "
            "saved after training."
        )
    ranks, asked, gap = _ranks(pairs, values, biases, energy, budget)
    modules = tuple(
        _row(target, rank, one, bias)
        for target, rank, one, bias in zip(pairs.targets, ranks, values, biases, strict=True)
    )
    return LoraPlan(asked, early.place, late.place, modules, left, pairs.task, gap)


def _check(energy: float | None, budget: int | None) -> None:
    if energy is not None and budget is not None:
        raise SaddlesError("Give either `energy` or `budget`, not both.")
    if energy is not None and not 0 < energy <= 1:
        raise SaddlesError.must_be("energy", "above 0 and at most 1", energy)
    if budget is not None and budget < 1:
        raise SaddlesError.must_be("budget", "a positive number of parameters", budget)


def _spectra(pairs: Match, early: Weights, late: Weights) -> list[np.ndarray]:
    work = [effort(target.shape) for target in pairs.targets]
    spectra = []
    with bar("singular values of ΔW, by module", sum(work)) as progress:
        for target, amount in zip(pairs.targets, work, strict=True):
            spectra.append(singular_values(change_of(target, early, late)))
            progress.advance(amount)
    return spectra


def change_of(target: Target, early: Weights, late: Weights) -> WeightChange:
    """ΔW of a target, as it is stored."""
    assert target.weight.tuned is not None
    return weight_change(target.weight.tuned, late, early, target.weight.base)


def _biases(pairs: Match, early: Weights, late: Weights) -> tuple[list[float], tuple[LeftOut, ...]]:
    """‖Δbias‖ by module; all are left out where some module has none, because PEFT could not merge such an adapter."""
    norms = [_change_norm(target.bias, early, late) if target.bias else 0.0 for target in pairs.targets]
    if all(target.bias for target in pairs.targets):
        return norms, ()
    reason = "a bias, while other adapted modules have none"
    lost = [
        LeftOut(target.bias.model, reason, norm)
        for target, norm in zip(pairs.targets, norms, strict=True)
        if target.bias and norm
    ]
    return [0.0] * len(norms), tuple(lost)


def _left_out(pairs: Match, early: Weights, late: Weights) -> tuple[LeftOut, ...]:
    rows = [
        LeftOut(names.model, reason, 0.0 if reason.startswith("tied") else _change_norm(names, early, late))
        for names, reason in pairs.others
    ]
    return tuple(row for row in rows if row.norm)


def _change_norm(names: Names, early: Weights, late: Weights) -> float:
    """‖Δ‖ of any tensor; rows that one side lacks count in full, and so does a tensor that one side lacks."""
    sides = [(weights, name) for weights, name in ((late, names.tuned), (early, names.base)) if name is not None]
    sizes = [weights.shapes[name] for weights, name in sides]
    if not all(sizes):
        scalars = [float(weights.read(name)) for weights, name in sides]
        return abs(scalars[0] - sum(scalars[1:]))
    shared = min(size[0] for size in sizes) if len(sides) == 2 else 0
    norms = [
        float(weights.read(name, slice(shared, size[0])).double().norm())
        for (weights, name), size in zip(sides, sizes, strict=True)
        if size[0] > shared
    ]
    if shared:
        apart = weight_change(names.tuned or "", late, early, names.base, rows=shared)
        norms += [float(block.norm()) for _, block in apart.blocks()]
    return _root(norms)


def _ranks(
    pairs: Match, values: list[np.ndarray], biases: list[float], energy: float | None, budget: int | None
) -> tuple[list[int], str, float]:
    if budget is None:
        share = ENERGY if energy is None else energy
        return [rank_of(one, share) for one in values], f"energy={share:g}", 0.0
    costs = [target.inputs + target.outputs for target in pairs.targets]
    left = budget - (sum(target.outputs for target in pairs.targets) if any(biases) else 0)
    best = allocate([np.where(one > resolution(one), one, 0.0) ** 2 for one in values], costs, max(left, 0))
    if not any(best.ranks):
        least = min(costs) + budget - left
        raise SaddlesError.must_be("budget", f"at least {least}, what one rank of the smallest module takes", budget)
    return list(best.ranks), f"budget={budget}", best.gap


def rank_of(values: np.ndarray, share: float) -> int:
    """The smallest rank whose energy reaches a share of all; at share 1, how many values differ from zero."""
    squares = np.where(values > resolution(values), values, 0.0) ** 2
    nonzero = int(np.count_nonzero(squares))
    if share >= 1 or not nonzero:
        return nonzero
    kept = np.cumsum(squares)
    return min(int(np.searchsorted(kept, share * kept[-1] * (1 - ROUNDING))) + 1, nonzero)


def _row(target: Target, rank: int, values: np.ndarray, bias: float) -> ModuleRank:
    tail = values[rank:]
    return ModuleRank(
        target.module, target.inputs, target.outputs, target.conv1d, rank,
        norm=_root(values), error=_root(tail), largest=float(values[0]),
        next=float(tail[0]) if len(tail) else 0.0, bias=bias,
    )  # fmt: skip


def _root(values: Iterable[float]) -> float:
    """Square root of the sum of squares."""
    return float(np.linalg.norm(np.fromiter(values, dtype=float)))


def write_plan(plan: LoraPlan, file: str | os.PathLike[str]) -> Path:
    """Write a plan as JSON to a file that does not exist yet."""
    target = Path(file)
    refuse_existing(target)
    with explained(target):
        write_text(target, plan.to_json() + "\n")
    return target


def read_plan(file: str | os.PathLike[str]) -> LoraPlan:
    """Read a plan from its JSON file."""
    try:
        return LoraPlan.from_json(Path(file).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SaddlesError(f"{file} cannot be read. Make a plan with `saddles lora plan --out`.") from error


def adapter_folder(tuned: str | os.PathLike[str]) -> Path:
    """The default folder of an adapter: runs/lora/TUNED, or the first such name that is free."""
    name = Path(tuned).resolve().name.split(".")[0] or "adapter"
    first = Path("runs") / "lora" / name
    names = (first if k == 1 else first.with_name(f"{name}-{k}") for k in itertools.count(1))
    return next(place for place in names if not place.exists())
