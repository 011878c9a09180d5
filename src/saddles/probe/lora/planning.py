"""Which LoRA rank each module of a fine-tuned model needs: `lora_plan(base, tuned, energy=0.9)`."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from saddles.errors import SaddlesError
from saddles.probe.lora.inputs import Data
from saddles.probe.lora.match import Match, Names, Target, ancestors
from saddles.probe.lora.plan import LeftOut, LoraPlan, ModuleRank, Saved, root
from saddles.probe.lora.quality import Evaluation, Judge, Measured, check_loss, measure_of, smallest_within
from saddles.probe.lora.ranks import Choice, Rule, Sized, choose, uniform_curve
from saddles.probe.lora.running import open_pair
from saddles.probe.lora.spectra import Workshop
from saddles.probe.lora.truncation import Truncation
from saddles.probe.weights.checkpoints import Source, Weights
from saddles.probe.weights.weight_change import weight_change


def lora_plan(
    base: Source,
    tuned: Source,
    energy: float | None = None,
    budget: int | None = None,
    max_rank: int | None = None,
    *,
    energy_per_module: float | None = None,
    round_to: int = 1,
    save_modules: bool = False,
    loss: float | None = None,
    evaluate: Evaluation | None = None,
    data: Data | None = None,
    leading: int | None = None,
    device: str = "cpu",
    embeddings: bool = False,
    on: str | None = None,
    workers: int | None = None,
    parts: str | os.PathLike[str] | None = None,
) -> LoraPlan:
    """Plan the ranks of an adapter that turns `base` into `tuned`.

    Only what is above the rounding of the stored weights counts: singular values below it are noise.

    Args:
        base, tuned: live models, Hugging Face folders, or .safetensors or torch files. Of a folder that bitsandbytes
            quantised, the numbers that the model computes with count.
        energy: the fewest ranks, over all modules together, that capture this share of the whole change; default 0.9.
            1 keeps every singular value above rounding.
        budget: total number of parameters; the ranks are those that capture the most energy within it.
        max_rank: no module gets a higher rank; alone, every module gets this rank.
        energy_per_module: each module gets the smallest rank that captures this share of its own change.
        round_to: ranks are multiples of it, for instance 8.
        save_modules: embeddings, norms, heads and biases that LoRA cannot carry are saved whole, so that
            base + adapter can equal the tuned model.
        evaluate: a text file, token ids (block, token), or a function of a model: base, tuned and base + adapter are
            measured at several ranks. The loss of a causal language model, KL(tuned ‖ model) of others.
        loss: the smallest adapter whose measured loss is at most that of the tuned model plus this much.
        data: a text file, token ids (block, token), or a function that runs a model on data: changes are weighted by
            what enters each module of the tuned model there and by how far its prediction depends on what leaves it:
            ranks and factors minimise ‖D^½(ΔW − BA)C^½‖, and shares of energy are shares of ‖D^½ ΔW C^½‖².
        leading: compute this many singular values of each module, no rank is higher, and the energy of the rest.
        device: where it is computed, for instance "cuda".
        embeddings: give `nn.Embedding` factors too, and a head that is tied to one its own.
        on: "embedded" computes spectra in worker processes, one for each core or GPU, an address such as
            "tcp://HOST:8786" on a Dask cluster, whose workers see both models under the same paths.
        workers: how many worker processes.
        parts: a folder that keeps each spectrum as it is finished: the same call resumes, and other rules on the same
            models take no time.

    Raises:
        SaddlesError: models of different shapes, nothing changed, other quantised weights, damaged files.
    """
    rule = Rule(energy, energy_per_module, budget, max_rank, round_to)
    _check(rule, loss, evaluate, data, leading, embeddings)
    workshop = workshop_of(device, on, workers, parts, data)
    truncation = open_pair(base, tuned, data, leading, device, embeddings, in_proj=data is None and not save_modules)
    workshop.check(truncation.late, truncation.early)
    change = _changed(truncation, workshop)
    judge = None if evaluate is None else _Judgement(truncation, change, save_modules, evaluate)
    chosen = choose(change.sized, rule) if loss is None or judge is None else judge.within(loss)
    asked = str(rule) if loss is None else f"loss={loss:g}"
    plan = _planned(truncation, change, chosen, asked, save_modules)
    return plan if judge is None else replace(plan, measured=judge.rows(plan))


@dataclass(frozen=True)
class _Change:
    """What changed: by module, and in tensors that LoRA does not carry."""

    sized: list[Sized]
    left: tuple[LeftOut, ...]


def _changed(truncation: Truncation, workshop: Workshop) -> _Change:
    pairs, early, late = truncation.pairs, truncation.early, truncation.late
    sized = truncation.sizes(workshop)
    biases, lost = _biases(pairs, early, late)
    left = (*_left_out(pairs, early, late), *lost)
    if not any(one.norm for one in sized):
        others = f"; {len(left)} other tensors changed ({left[0].name})" if left else ""
        raise SaddlesError(
            f"No linear module of {late.place} differs from {early.place}{others}. Give the tuned model as it was "
            "saved after training."
        )
    return _Change([replace(one, bias=bias) for one, bias in zip(sized, biases, strict=True)], left)


def _planned(truncation: Truncation, change: _Change, chosen: Choice, asked: str, save_modules: bool) -> LoraPlan:
    """The plan with the chosen ranks, what is saved beside them and what is left out."""
    pairs, late = truncation.pairs, truncation.late
    change = change if chosen.with_biases else _without_biases(change, pairs)
    kept, left = _saved(pairs, change.left, late) if save_modules else ((), change.left)
    quantised, requantising = truncation.quantised()
    return LoraPlan(
        asked, truncation.early.place, late.place,
        tuple(_row(t, rank, one) for t, rank, one in zip(pairs.targets, chosen.ranks, change.sized, strict=True)),
        left, pairs.task, chosen.gap, (*_fresh(pairs, late), *kept), uniform_curve(change.sized),
        pairs.skeleton.architecture, data=truncation.inputs.words if truncation.inputs else "",
        leading=truncation.leading, quantised=quantised, requantising=requantising,
    )  # fmt: skip


def _without_biases(change: _Change, pairs: Match) -> _Change:
    """The same where the budget has no room for biases."""
    lost = tuple(
        LeftOut(target.bias.model, "a bias, for which the budget has no room", one.bias)
        for target, one in zip(pairs.targets, change.sized, strict=True)
        if target.bias and one.bias
    )
    return _Change([replace(one, bias=0.0) for one in change.sized], change.left + lost)


def _check(
    rule: Rule,
    loss: float | None,
    evaluate: Evaluation | None,
    data: Data | None,
    leading: int | None,
    embeddings: bool,
) -> None:
    """Refuse arguments that have no meaning or exclude each other."""
    rule.check()
    if data is not None and leading is not None:
        raise SaddlesError("`leading` and `data` cannot be combined: weighted spectra are computed whole.")
    if data is not None and embeddings:
        raise SaddlesError("`data` and `embeddings` cannot be combined: the input of an embedding is not a vector.")
    if leading is not None and leading < 1:
        raise SaddlesError.must_be("leading", "at least 1", leading)
    if leading is not None and rule.energy == 1:
        raise SaddlesError("`energy=1` needs whole spectra. Leave `leading` out, or ask for less.")
    check_loss(rule, loss, evaluate)


def workshop_of(
    device: str, on: str | None, workers: int | None, parts: str | os.PathLike[str] | None, data: Data | None
) -> Workshop:
    """Where spectra and factors are computed; refuse what has no meaning."""
    if data is not None and (on, parts) != (None, None):
        raise SaddlesError("`on` and `parts` are for plain changes: weighted ones are computed here. Leave `data` out.")
    if on is not None and device != "cpu":
        raise SaddlesError("With `on` each worker takes its own GPU. Leave `device` out.")
    if workers is not None and on is None:
        raise SaddlesError("`workers` counts worker processes. Give it with on='embedded'.")
    return Workshop(device, on, workers, None if parts is None else Path(parts))


class _Judgement:
    """What `evaluate` says of adapters of one pair of models."""

    def __init__(self, truncation: Truncation, change: _Change, save_modules: bool, evaluate: Evaluation) -> None:
        pairs, early, late = truncation.pairs, truncation.early, truncation.late
        sized, (saved, _) = change.sized, _saved(pairs, change.left, late) if save_modules else ((), ())
        keep = {one.name for one in saved if one.bias}
        keep |= {name for one in saved if not one.bias for name in pairs.tensors_of(one.name)}
        if any(one.bias for one in saved):  # PEFT's bias="all" carries every bias
            keep |= {target.bias.model for target in pairs.targets if target.bias}
        self._judge, self._sized = Judge(truncation, sized, keep), sized
        self._biases = all(target.bias for target in pairs.targets)
        causal = pairs.task == "CAUSAL_LM"
        self._measure = measure_of(evaluate, self._judge.tuned, (early.place, late.place), causal)
        self.tuned = self._measure(self._judge.tuned)
        self.base = self.value([0] * len(sized))

    def value(self, ranks: list[int]) -> float:
        """Loss of base + adapter."""
        return self._measure(self._judge.with_ranks(ranks, self._biases))  # biases, where every module has one

    def within(self, loss: float) -> Choice:
        """The smallest adapter that loses at most so much."""
        return Choice(smallest_within(self._sized, self.value, self.tuned + loss))

    def rows(self, plan: LoraPlan) -> tuple[Measured, ...]:
        """Base, tuned, one rank for all modules, and the plan."""
        rows = [Measured("base", 0, self.base), Measured("tuned", 0, self.tuned)]
        for point in plan.curve:
            ranks = [min(point.rank, int(np.count_nonzero(one.squares))) for one in self._sized]
            rows.append(Measured(f"rank {point.rank}", point.parameters, self.value(ranks)))
        self._biases = plan.lora_bias
        rows.append(Measured(plan.asked, plan.parameters, self.value([row.rank for row in plan.modules])))
        return tuple(rows)


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


def _fresh(pairs: Match, late: Weights) -> tuple[Saved, ...]:
    """Modules that the adapter must bring; their numbers are checked, too."""
    saved = []
    for module in pairs.fresh:
        names = pairs.tensors_of(module)
        for one in names.values():
            if one.tuned is not None:
                finite_norm(one.tuned, late)
        saved.append(Saved(module, _size(names.values(), late), fresh=True))
    return tuple(saved)


def _saved(pairs: Match, left: tuple[LeftOut, ...], late: Weights) -> tuple[tuple[Saved, ...], tuple[LeftOut, ...]]:
    """Tensors that can be saved whole, by module, and those that cannot."""
    adapted = {target.module for target in pairs.targets}
    above = {module for target in pairs.targets for module in ancestors(f"{target.module}.weight")}
    norms: dict[str, list[float]] = {}
    biases, rest = [], []
    for row in left:
        module, _, last = row.name.rpartition(".")
        whole = [one for one in ancestors(row.name) if pairs.skeleton.kinds.get(one) in ("attention", "in_proj")]
        module = whole[0] if whole else module  # torch computes MultiheadAttention past modules inside it
        names = pairs.tensors_of(module) if module in pairs.inside else {}
        if module and module not in above and names and all(one.tuned for one in names.values()):
            norms.setdefault(module, []).append(row.norm)
        elif last == "bias" and (module in adapted or row.name in pairs.skeleton.shapes):
            biases.append(Saved(row.name, _size([pairs.by_name[row.name]], late), row.norm, bias=True))
        else:
            rest.append(row)
    # A matrix tied to a saved one is a module of its own to PEFT: it is saved beside it.
    for name, home in pairs.skeleton.tied.items():
        module = name.rpartition(".")[0]
        if home.rpartition(".")[0] in norms and module not in above and module not in norms:
            norms[module] = []
    for module in [*norms]:  # PEFT saves a module with all that is in it, another one to be saved, too
        outer = next((one for one in ancestors(module) if one in norms), None)
        if outer is not None:
            norms[outer] += norms.pop(module)
    saved = [
        Saved(module, _size(pairs.tensors_of(module).values(), late), root(values)) for module, values in norms.items()
    ]
    return (*saved, *biases), tuple(rest)


def _size(names: Iterable[Names], late: Weights) -> int:
    return sum(int(np.prod(late.shapes[one.tuned])) for one in names if one.tuned is not None)


def finite_norm(name: str, weights: Weights, rows: slice = slice(None)) -> float:
    """‖·‖ of a stored tensor; numbers that are not finite are refused."""
    return _finite(name, float(weights.read(name, rows).double().norm()))


def _finite(name: str, value: float) -> float:
    if not np.isfinite(value):
        raise SaddlesError(f"{name} holds numbers that are not finite. Did the training diverge?")
    return value


def _change_norm(names: Names, early: Weights, late: Weights) -> float:
    """‖Δ‖ of any tensor; rows that one side lacks count in full."""
    sides = [(weights, name) for weights, name in ((late, names.tuned), (early, names.base)) if name is not None]
    sizes = [weights.shapes[name] for weights, name in sides]
    if not all(sizes):
        scalars = [float(weights.read(name)) for weights, name in sides]
        return _finite(names.model, abs(scalars[0] - sum(scalars[1:])))
    shared = min(size[0] for size in sizes) if len(sides) == 2 else 0
    norms = [
        finite_norm(name, weights, slice(shared, size[0]))
        for (weights, name), size in zip(sides, sizes, strict=True)
        if size[0] > shared
    ]
    if shared:
        apart = weight_change(names.tuned or "", late, early, names.base, rows=shared)
        norms += [_finite(names.model, float(block.norm())) for _, block in apart.blocks()]
    return root(norms)


def _row(target: Target, rank: int, sized: Sized) -> ModuleRank:
    squares, rest = sized.squares, sized.rest_above
    return ModuleRank(
        target.module, target.inputs, target.outputs, target.conv1d, rank,
        norm=sized.norm, error=sized.error(rank), largest=sized.largest, next=sized.next(rank), bias=sized.bias,
        floor=sized.floor, above=float(np.sqrt(squares.sum() + rest)),
        missed=float(np.sqrt(squares[rank:].sum() + rest)), experts=target.experts,
        by_parameter=target.by_parameter, embedding=target.embedding, in_proj=target.in_proj,
    )  # fmt: skip
