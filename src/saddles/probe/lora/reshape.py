"""Adapters made smaller, merged and larger: `lora_compress`, `lora_merge`, `lora_grow`.

The product BA is never formed. With thin QR, B = Q_B R_B and Aᵀ = Q_A R_A, the singular values of BA are those of the
small R_B R_Aᵀ, and its best approximation of a rank is Q_B U_r Σ_r V_rᵀ Q_Aᵀ (Eckart and Young).
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from saddles.core.validation import check_count
from saddles.errors import SaddlesError
from saddles.probe.lora.quality import Evaluation, check_loss, smallest_within
from saddles.probe.lora.ranks import Rule, Sized, choose
from saddles.probe.lora.stored import Adapter, Pair, open_adapter, store_adapter
from saddles.probe.lora.trial import BIAS, Trial
from saddles.probe.weights.checkpoints import Source
from saddles.runtime.files import refuse_existing

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Reshaped:
    """A written adapter.

    Attributes:
        place: where it is.
        ranks: module -> rank before and after.
        errors: module -> ‖change before − change after‖_F, without the rounding of the stored type.
        norms: module -> ‖change before‖_F.
        overlap: of a merge, module -> how much the adapters' changes share: ⟨Δ₁, Δ₂⟩/‖Δ₁‖‖Δ₂‖, the largest in size
            over all pairs.
        parameters: numbers in the factors before and after.
    """

    place: Path
    ranks: dict[str, tuple[int, int]]
    errors: dict[str, float]
    norms: dict[str, float]
    parameters: tuple[int, int]
    overlap: Mapping[str, float] | None = None

    @property
    def error(self) -> float:
        """Relative error of the whole change."""
        total = float(np.linalg.norm(list(self.norms.values())))
        return float(np.linalg.norm(list(self.errors.values()))) / total if total else 0.0

    def table(self) -> "pd.DataFrame":
        """One row per module."""
        import pandas as pd

        rows = [
            {"module": m, "rank": before, "new_rank": after, "norm": self.norms[m], "error": self.errors[m]}
            | ({"overlap": self.overlap[m]} if self.overlap is not None else {})
            for m, (before, after) in self.ranks.items()
        ]
        return pd.DataFrame(rows).set_index("module")


@dataclass(frozen=True, eq=False)
class _Split:
    """The singular value decomposition of scale·BA: columns of `left`, rows of `right`."""

    left: Tensor
    values: np.ndarray
    right: Tensor

    def cut(self, rank: int) -> Pair:
        """The best approximation of a rank, balanced."""
        root = torch.from_numpy(self.values[:rank]).sqrt()
        return Pair(root[:, None] * self.right[:rank], self.left[:, :rank] * root)


def _split(outer: Tensor, inner: Tensor) -> _Split:
    first, small = torch.linalg.qr(outer.double())
    second, other = torch.linalg.qr(inner.double().T)
    core = small @ other.T
    if not bool(torch.isfinite(core).all()):
        raise SaddlesError("A product of factors, scale and weight is too large for a number. Take smaller ones.")
    left, values, right = torch.linalg.svd(core, full_matrices=False)
    return _Split(first @ left, values.numpy(), right @ second.T)


def lora_compress(
    adapter: str | os.PathLike[str],
    out: str | os.PathLike[str],
    energy: float | None = None,
    budget: int | None = None,
    max_rank: int | None = None,
    *,
    energy_per_module: float | None = None,
    round_to: int = 1,
    loss: float | None = None,
    evaluate: Evaluation | None = None,
    base: Source | None = None,
) -> Reshaped:
    """Write an adapter of fewer ranks: the best approximation of each module's change.

    Args:
        adapter: a PEFT folder, or a .safetensors file with kohya's names.
        out: a folder, or for kohya's names a file; must not exist.
        energy, budget, max_rank, energy_per_module, round_to: as in `lora_plan`.
        loss: the fewest ranks, with one threshold on σ, that lose at most this much against the adapter as it is.
        evaluate: what the loss is measured on, as in `lora_plan`.
        base: the adapter's base, on which it runs; default: the folder that its config names.

    Raises:
        SaddlesError: DoRA, convolutions, damaged files.
    """
    rule = Rule(energy, energy_per_module, budget, max_rank, round_to)
    rule.check()
    check_loss(rule, loss, evaluate)
    if loss is None and (evaluate is not None or base is not None):
        raise SaddlesError("`evaluate` and `base` are for `loss`. Give it, or leave them out.")
    place = Path(out)
    refuse_existing(place)
    stored = open_adapter(adapter)
    splits = {module: _split(pair.scale * pair.outer.double(), pair.inner) for module, pair in stored.pairs.items()}
    before = {module: pair.rank for module, pair in stored.pairs.items()}
    if loss is None or evaluate is None:
        return _write(stored, splits, before, choose(_sized(splits), rule).ranks, place)
    trial = Trial(stored, base, evaluate)

    def value(ranks: Sequence[int]) -> float:
        return trial.value({m: split.cut(rank) for (m, split), rank in zip(splits.items(), ranks, strict=True)})

    return _write(stored, splits, before, smallest_within(_sized(splits), value, trial.whole + loss), place)


def _sized(splits: Mapping[str, _Split]) -> list[Sized]:
    return [Sized(one.values, 0.0, one.right.shape[1], len(one.left)) for one in splits.values()]


def lora_merge(
    adapters: Sequence[str | os.PathLike[str]],
    weights: Sequence[float] | None,
    out: str | os.PathLike[str],
    energy: float | None = None,
    budget: int | None = None,
    max_rank: int | None = None,
) -> Reshaped:
    """Write one adapter whose change is Σ wᵢ·(change of adapter i), exactly, or truncated with a stated error.

    Ranks, scales and modules may differ between the adapters; factors are put side by side, then cut.

    Args:
        adapters: two or more, all in PEFT's or all in kohya's names.
        weights: one for each; None: 1 for each.
        out: a folder, or for kohya's names a file; must not exist.
        energy, budget, max_rank: as in `lora_plan`; default keeps everything.
    """
    rule = Rule(energy, None, budget, max_rank)
    rule.check()
    place = Path(out)
    refuse_existing(place)
    opened = [open_adapter(one) for one in adapters]
    shares = [1.0] * len(opened) if weights is None else [float(one) for one in weights]
    _check_merge(opened, shares)
    modules = list(dict.fromkeys(module for one in opened for module in one.pairs))
    splits, before, overlap = {}, {}, {}
    for module in modules:
        parts = [
            (share * one.pairs[module].scale * one.pairs[module].outer.double(), one.pairs[module].inner.double())
            for one, share in zip(opened, shares, strict=True)
            if module in one.pairs
        ]
        splits[module] = _split(torch.cat([b for b, _ in parts], dim=1), torch.cat([a for _, a in parts]))
        before[module] = sum(len(inner) for _, inner in parts)
        overlap[module] = _overlap(parts)
    if energy is None and budget is None and max_rank is None:
        rule = Rule(energy=1.0)
    ranks = choose(_sized(splits), rule).ranks
    return _write(_with_biases(opened, shares, modules), splits, before, ranks, place, overlap)


def _check_merge(opened: list[Adapter], shares: list[float]) -> None:
    if len(opened) < 2:
        raise SaddlesError.must_be("adapters", "two or more", len(opened))
    if len(shares) != len(opened) or not np.isfinite(shares).all():
        raise SaddlesError.must_be("weights", f"{len(opened)} numbers, one for each adapter", shares)
    if len({one.kohya for one in opened}) > 1:
        raise SaddlesError("All adapters must have PEFT's names, or all kohya's. Convert one of them first.")
    for first, one in combinations(opened, 2):
        for module in one.pairs.keys() & first.pairs.keys():
            sizes = [(a.pairs[module].outer.shape[0], a.pairs[module].inner.shape[1]) for a in (first, one)]
            if sizes[0] != sizes[1]:
                where = f"{sizes[0]} in {first.place} and {sizes[1]} in {one.place}"
                raise SaddlesError(f"{module} is {where}. Merge adapters of one base.")
        bases = [a.config.get("base_model_name_or_path") for a in (first, one)]
        # One model may lie in two places, under one name, and two adapters of it may share no module.
        other = all(bases) and Path(str(bases[0])).name != Path(str(bases[1])).name
        if other and not one.pairs.keys() & first.pairs.keys():
            raise SaddlesError(
                f"{first.place} is for {bases[0]} and {one.place} for {bases[1]}, and they share no module. Merge "
                "adapters of one base."
            )
    for one in opened:
        whole = [name for name in one.others if not name.endswith(BIAS)]
        if whole:
            raise SaddlesError(
                f"{one.place} holds {whole[0]}, which cannot be added up like factors. Merge adapters without saved "
                "modules."
            )


def _with_biases(opened: list[Adapter], shares: list[float], modules: list[str]) -> Adapter:
    """The first adapter with the weighted sum of all biases of factors; PEFT wants one for every module or for none."""
    first = opened[0]
    if not any(one.others for one in opened):
        return first
    biases: dict[str, Tensor] = {}
    for module in modules:
        name, home = f"{module}{BIAS}", next(one for one in opened if module in one.pairs)
        total = torch.zeros(len(home.pairs[module].outer), dtype=torch.float64)
        for one, share in zip(opened, shares, strict=True):
            if name in one.others:
                total += share * one.others[name].double()
        biases[name] = total.to(first.dtype)
    return replace(first, others=biases, config={**first.config, "lora_bias": True})


def _overlap(parts: list[tuple[Tensor, Tensor]]) -> float:
    """The cosine between two changes, ⟨B₁A₁, B₂A₂⟩ = tr(A₁A₂ᵀ · B₂ᵀB₁), largest in size over all pairs."""
    found = [0.0]
    norms = [float(((b.T @ b) * (a @ a.T)).sum().clamp_min(0).sqrt()) for b, a in parts]
    for i in range(len(parts)):
        for j in range(i):
            (b, a), (c, d) = parts[i], parts[j]
            inner = float(((b.T @ c) * (a @ d.T)).sum())
            if norms[i] and norms[j]:
                found.append(inner / (norms[i] * norms[j]))
    return max(found, key=abs)


def lora_grow(adapter: str | os.PathLike[str], rank: int, out: str | os.PathLike[str]) -> Reshaped:
    """Write an adapter of higher rank with the same change, to train on: new rows of A are random, new columns of B 0.

    Args:
        adapter: as for `lora_compress`.
        rank: of every module, above that of one at least; those of higher rank keep theirs.
        out: a folder, or for kohya's names a file; must not exist.
    """
    check_count("rank", rank, 1)
    place = Path(out)
    refuse_existing(place)
    stored = open_adapter(adapter)
    full = max(min(pair.inner.shape[1], len(pair.outer)) for pair in stored.pairs.values())
    if rank > full:
        raise SaddlesError.must_be("rank", f"at most {full}, the full rank of the largest module", rank)
    if all(pair.rank >= rank for pair in stored.pairs.values()):
        least = min(pair.rank for pair in stored.pairs.values())
        raise SaddlesError.must_be("rank", f"above {least}, which every module of {adapter} has already", rank)
    draw = torch.Generator().manual_seed(0)
    grown = {}
    for module, pair in stored.pairs.items():
        more = max(rank - pair.rank, 0)
        columns = pair.inner.shape[1]
        # As PEFT starts A (Kaiming's uniform distribution with a = √5), so that the new ranks can learn at once.
        rows = (2 * torch.rand(more, columns, generator=draw, dtype=torch.float64) - 1) / columns**0.5
        outer = pair.scale * pair.outer.double()
        grown[module] = Pair(
            torch.cat([pair.inner.double(), rows]), torch.cat([outer, torch.zeros(len(outer), more).double()], dim=1)
        )
    store_adapter(stored, grown, place)
    ranks = {module: (pair.rank, grown[module].rank) for module, pair in stored.pairs.items()}
    splits = {m: _split(pair.scale * pair.outer.double(), pair.inner) for m, pair in stored.pairs.items()}
    norms = {module: float(np.linalg.norm(split.values)) for module, split in splits.items()}
    sizes = tuple(sum(p.rank * p.cost for p in pairs.values()) for pairs in (stored.pairs, grown))
    return Reshaped(place, ranks, dict.fromkeys(ranks, 0.0), norms, (sizes[0], sizes[1]))


def _write(
    like: Adapter,
    splits: dict[str, _Split],
    before: dict[str, int],
    chosen: Sequence[int],
    place: Path,
    overlap: Mapping[str, float] | None = None,
) -> Reshaped:
    ranks = dict(zip(splits, chosen, strict=True))
    # A module whose bias the adapter carries stays in it.
    ranks = {m: 1 if not rank and f"{m}{BIAS}" in like.others else rank for m, rank in ranks.items()}
    pairs = {module: split.cut(ranks[module]) for module, split in splits.items()}
    store_adapter(like, pairs, place)
    return Reshaped(
        place,
        {module: (before[module], ranks[module]) for module in splits},
        {module: float(np.linalg.norm(split.values[ranks[module] :])) for module, split in splits.items()},
        {module: float(np.linalg.norm(split.values)) for module, split in splits.items()},
        (sum(before[m] * (s.right.shape[1] + len(s.left)) for m, s in splits.items()),
         sum(pair.rank * pair.cost for pair in pairs.values())),
        overlap,
    )  # fmt: skip
