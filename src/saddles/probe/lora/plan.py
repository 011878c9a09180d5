"""Plans: the rank of each module, what is saved whole, what is left out, and what it all carries.

The rank is that of the module's own ΔW (the rank of a head's product is another number). LoRA carries the matrices
of Linear and Conv1D modules, and their biases with PEFT's `lora_bias`; modules that the base lacks, and on demand
embeddings, norms and other tensors, are saved whole (`modules_to_save`); the rest is listed with its norm.
"""

import itertools
import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from saddles.errors import SaddlesError
from saddles.probe.lora.match import HEADS
from saddles.probe.lora.quality import Measured
from saddles.probe.lora.ranks import ENERGY, UniformRank
from saddles.runtime.files import explained, refuse_existing, write_text

if TYPE_CHECKING:
    import pandas as pd
    from peft import LoraConfig

TARGETS = ("peft", "vllm", "llamacpp")
"""Programs that adapters are written for."""


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
        largest, next: σ₁, and the largest singular value left out or a bound on it: for an input x the module's
            output differs by at most next·‖x‖.
        bias: ‖Δbias‖, carried exactly where the rank is not 0.
        floor: the largest singular value that rounding of the stored weights gives.
        above, missed: norms of the part of ΔW above the floor, and of what the rank leaves out of it.
        experts: how many matrices of this shape a fused parameter holds, each of that rank; 0: a module with one.
        by_parameter: PEFT must be given its weight as a parameter.
        embedding: it is an `nn.Embedding`.
        in_proj: it is `in_proj_weight` of torch's MultiheadAttention.
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
    floor: float = 0.0
    above: float = 0.0
    missed: float = 0.0
    experts: int = 0
    by_parameter: bool = False
    embedding: bool = False
    in_proj: bool = False

    @property
    def parameter(self) -> str:
        """The name by which PEFT must be given its weight as a parameter; empty: it is a module."""
        if self.experts or self.in_proj:
            return self.module
        return f"{self.module}.weight" if self.by_parameter else ""

    @property
    def only_peft(self) -> str:
        """What it is, where only PEFT loads its factors; else empty."""
        words = {"fused experts": self.experts, "an embedding": self.embedding, "MultiheadAttention": self.in_proj}
        return next((word for word, holds in words.items() if holds), "")

    @property
    def shape(self) -> str:
        """Outputs × inputs, and before them the experts."""
        return (f"{self.experts}×" if self.experts else "") + f"{self.outputs}×{self.inputs}"

    @property
    def cost(self) -> int:
        """Parameters of one rank."""
        return max(self.experts, 1) * (self.inputs + self.outputs)

    @property
    def energy(self) -> float:
        """Share of ‖ΔW‖²_F that the rank captures; 1 where nothing changed."""
        return 1.0 - (self.error / self.norm) ** 2 if self.norm else 1.0

    @property
    def energy_above(self) -> float:
        """Share of the energy above the floor that the rank captures; 1 where nothing is above it."""
        return 1.0 - (self.missed / self.above) ** 2 if self.above else 1.0


@dataclass(frozen=True)
class LeftOut:
    """A tensor whose change the adapter does not carry: why, and ‖Δ‖."""

    name: str
    reason: str
    norm: float


@dataclass(frozen=True)
class Saved:
    """What the adapter holds whole.

    Attributes:
        name: a module, or a bias where `bias` is true.
        parameters: how many numbers.
        norm: ‖Δ‖ against the base; 0 where the base lacks it.
        fresh: the base lacks it, or PEFT saves it whole for the task.
        bias: a single bias, which PEFT's `bias="all"` carries.
    """

    name: str
    parameters: int
    norm: float = 0.0
    fresh: bool = False
    bias: bool = False


@dataclass(frozen=True)
class LoraPlan:
    """Ranks by module, and what LoRA leaves out.

    Attributes:
        asked: what decides the ranks, `energy=0.9` or `budget=1000000`.
        base, tuned: where the models are.
        modules: one row per module.
        left_out: changed tensors that the adapter does not carry.
        task: PEFT's task type, where the architecture tells it.
        gap: share of energy by which a budget's ranks may fall short of the best; 0 where they are proved best.
        saved: what the adapter holds whole.
        curve: one rank for all modules, against what it carries.
        architecture: class of the model that the adapter is for, where it is known.
        measured: loss of base, tuned and base + adapter, where `evaluate` was given.
        data: what the changes are weighted by, where `data` was given; `above` and `missed` of the modules, and
            shares of energy above rounding, are then those of D^½ ΔW C^½.
        leading: how many singular values of each module were computed; None: all.
        quantised: how the base is quantised; empty where it is not.
        requantising: ‖Q(W) − W‖ over all modules of the tuned model, with Q that quantisation: what is lost where
            base + adapter are merged and quantised again.
    """

    asked: str
    base: str
    tuned: str
    modules: tuple[ModuleRank, ...]
    left_out: tuple[LeftOut, ...]
    task: str | None = None
    gap: float = 0.0
    saved: tuple[Saved, ...] = ()
    curve: tuple[UniformRank, ...] = ()
    architecture: str = ""
    measured: tuple[Measured, ...] = ()
    data: str = ""
    leading: int | None = None
    quantised: str = ""
    requantising: float = 0.0

    @property
    def lora_bias(self) -> bool:
        """Whether changed biases are carried by PEFT's `lora_bias`."""
        return not self.saves_biases and any(row.bias and row.rank for row in self.modules)

    @property
    def saves_biases(self) -> bool:
        """Whether changed biases are carried by PEFT's `bias="all"`."""
        return any(one.bias for one in self.saved)

    @property
    def holds_whole(self) -> bool:
        """Whether tensors that LoRA does not carry are saved whole, as far as PEFT can."""
        return any(not one.fresh for one in self.saved)

    @property
    def parameters(self) -> int:
        """Parameters of the adapter, biases included, without what is saved whole."""
        return sum(r.rank * r.cost + (r.outputs if self.lora_bias else 0) for r in self.carried)

    @property
    def saved_parameters(self) -> int:
        """Parameters that are saved whole."""
        return sum(one.parameters for one in self.saved)

    @property
    def carried(self) -> tuple[ModuleRank, ...]:
        """Modules that get an adapter."""
        return tuple(row for row in self.modules if row.rank)

    @property
    def norm(self) -> float:
        """‖Δ‖ over all tensors that both models have, carried or not."""
        others = [r.norm for r in self.left_out] + [one.norm for one in self.saved]
        return root([r.norm for r in self.modules] + [r.bias for r in self.modules] + others)

    @property
    def error(self) -> float:
        """‖Δ‖ over all tensors that is missing from base + adapter."""
        return root([r.error for r in self.modules] + self._lost)

    @property
    def energy(self) -> float:
        """Share of all ‖Δ‖² that the adapter carries."""
        return 1.0 - (self.error / self.norm) ** 2

    @property
    def energy_above(self) -> float:
        """Share of what LoRA can carry (the matrices' change above rounding) that the ranks carry."""
        above = root(r.above for r in self.modules)
        return 1.0 - (root(r.missed for r in self.modules) / above) ** 2 if above else 1.0

    @property
    def share_left_out(self) -> float:
        """Share of all ‖Δ‖² in tensors that the adapter does not carry at any rank."""
        return (root(self._lost) / self.norm) ** 2

    @property
    def _lost(self) -> list[float]:
        biases = [] if self.saves_biases else [r.bias for r in self.modules if not r.rank]
        return biases + [r.norm for r in self.left_out]

    @property
    def answer(self) -> str:
        """The answer in a sentence: which rank, what it carries, what no rank carries."""
        if not self.curve:
            return "Nothing of the change is above what rounding of the stored weights gives: no rank is needed."
        enough = next((one for one in self.curve if one.energy >= ENERGY), self.curve[-1])
        words = [
            f"Rank {enough.rank} everywhere carries {100 * enough.energy:.3g} % of what LoRA can carry "
            f"({_short(enough.parameters)} parameters)"
        ]
        more = [row.module for row in self.modules if row.rank > enough.rank]
        if more:
            names = ", ".join(more[:3]) + (", …" if len(more) > 3 else "")
            words.append(f"{len(more)} of {len(self.modules)} modules need more: {names}")
        if self.share_left_out > 5e-4:
            kinds = sorted({_plural(row.reason) for row in self.left_out}) or ["biases"]
            words.append(
                f"{100 * self.share_left_out:.2g} % of the change sits in {' and '.join(kinds[:3])}, which no rank "
                f"carries{'' if self.holds_whole else ': use --save-modules'}"
            )
        return "; ".join(words) + "."

    def table(self) -> "pd.DataFrame":
        """One row per module: rank, energy, error, parameters; the last row is the total of all modules."""
        import pandas as pd

        rows = [
            {"module": r.module, "shape": r.shape, "rank": r.rank, "energy": r.energy,
             "energy_above": r.energy_above, "norm": r.norm, "error": r.error, "largest": r.largest, "next": r.next,
             "floor": r.floor, "parameters": r.rank * r.cost}
            for r in self.modules
        ]  # fmt: skip
        norm, error = root([r.norm for r in self.modules]), root([r.error for r in self.modules])
        rows.append(
            {"module": "all modules", "shape": "", "rank": "", "energy": 1 - (error / norm) ** 2,
             "energy_above": self.energy_above, "norm": norm, "error": error,
             "largest": max(r.largest for r in self.modules), "next": max(r.next for r in self.modules),
             "floor": max(r.floor for r in self.modules), "parameters": sum(row["parameters"] for row in rows)}
        )  # fmt: skip
        return pd.DataFrame(rows).set_index("module")

    def settings(self, target: str = "peft") -> dict[str, Any]:
        """Arguments of `LoraConfig`: exact names, alpha equal to the rank so that the scale is 1.

        Args:
            target: "peft" has ranks by pattern; "vllm" and "llamacpp" read `r` and `lora_alpha` alone, so that every
                module is padded to the largest rank, and hold neither biases nor modules that are saved whole.
        """
        if target not in TARGETS:
            raise SaddlesError.must_be(
                "target", f"one of {', '.join(TARGETS)}", target, "It is --for of `lora extract`"
            )
        if not self.carried:
            hint = "Raise the budget" if "budget" in self.asked else "Nothing of the change is above rounding"
            raise SaddlesError(f"The plan ({self.asked}) gives every module rank 0. {hint}.")
        own = target == "peft"
        carried = [row for row in self.carried if own or not row.only_peft]
        if not carried:
            raise SaddlesError(f"Only {self.carried[0].only_peft} changed, whose adapters {target} does not load.")
        largest = max(row.rank for row in carried)
        # PEFT puts (.*\.)? before a pattern and $ behind it; the anchor keeps it from matching longer names.
        parameters = {row.module: row.parameter for row in carried if own and row.parameter}
        names = {row.module: parameters.get(row.module, row.module) for row in carried}
        other = {f"^{re.escape(names[row.module])}": row.rank for row in carried if row.rank != largest}
        heads = HEADS.get(self.task or "", ())  # PEFT adds these by itself
        whole = [one.name for one in self.saved if not one.bias and one.name not in heads]
        return {
            "r": largest,
            "lora_alpha": largest,
            "rank_pattern": other if own else {},
            "alpha_pattern": dict(other) if own else {},
            "target_modules": [row.module for row in carried if row.module not in parameters],
            "target_parameters": list(parameters.values()) or None,
            "fan_in_fan_out": any(row.conv1d and not (row.experts or row.embedding) for row in carried),
            "lora_bias": own and self.lora_bias,
            "bias": "all" if own and self.saves_biases else "none",
            "modules_to_save": whole if own and whole else None,
            # Without its head a task's type would make PEFT wait for one.
            "task_type": self.task if own or self.task not in HEADS else None,
        }

    def to_lora_config(self, **changes: Any) -> "LoraConfig":
        """A ready `peft.LoraConfig`; `changes` are further arguments of it, for instance `lora_dropout=0.05`."""
        from peft import LoraConfig

        return LoraConfig(**self.settings() | changes)

    def to_json(self) -> str:
        """The plan as JSON, with its totals and the LoraConfig settings; `LoraPlan.from_json` reads it back."""
        facts: dict[str, Any] = {"schema": 2, "answer": self.answer, **asdict(self)}
        facts["modules"] = [
            asdict(row) | {"energy": row.energy, "energy_above": row.energy_above} for row in self.modules
        ]
        facts["total"] = {
            "energy": self.energy, "energy_above": self.energy_above, "error": self.error, "norm": self.norm,
            "parameters": self.parameters, "saved_parameters": self.saved_parameters,
            "share_left_out": self.share_left_out,
        }  # fmt: skip
        facts["lora_config"] = self.settings() if self.carried else None
        return json.dumps(facts, indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "LoraPlan":
        """Read what `to_json` wrote."""
        try:
            facts = json.loads(text)
            derived = ("energy", "energy_above")
            rows = tuple(ModuleRank(**{k: v for k, v in r.items() if k not in derived}) for r in facts["modules"])
            left = tuple(LeftOut(**row) for row in facts["left_out"])
            saved = tuple(Saved(**row) for row in facts.get("saved", ()))
            curve = tuple(UniformRank(**row) for row in facts.get("curve", ()))
            measured = tuple(Measured(**row) for row in facts.get("measured", ()))
            known = facts.get("architecture", "")
            return cls(
                facts["asked"], facts["base"], facts["tuned"], rows, left, facts["task"], facts["gap"], saved, curve,
                known, measured, facts.get("data", ""), facts.get("leading"), facts.get("quantised", ""),
                facts.get("requantising", 0.0),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SaddlesError(f"The plan cannot be read ({error}). Make it again with `saddles lora plan`.") from error


def root(values: Iterable[float]) -> float:
    """Square root of the sum of squares."""
    return float(np.linalg.norm(np.fromiter(values, dtype=float)))


def _short(count: int) -> str:
    """4,100,000 as 4.1 M."""
    for size, letter in ((10**9, " G"), (10**6, " M"), (10**3, " k")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return str(count)


def _plural(reason: str) -> str:
    """What a reason is about, in one word."""
    words = {"embedding": "embeddings", "normalisation": "norms", "bias": "biases", "vocabulary": "the vocabulary"}
    return next((word for key, word in words.items() if key in reason), "other tensors")


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
