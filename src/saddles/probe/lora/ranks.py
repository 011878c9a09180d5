"""Rules that turn spectra of changes into ranks.

Only singular values above what rounding gives (`Rounding`) count: a change stored in bfloat16 has hundreds of others,
none of which says anything about the training.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from saddles.core.validation import check_count, is_whole
from saddles.errors import SaddlesError
from saddles.probe.lora.budget import allocate, allocate_with_fees
from saddles.probe.weights.weight_change import resolution

ENERGY = 0.9
"""Share of the whole change that is kept where nothing else is chosen."""

ROUNDING = 1e-14
"""Sums of squares that reach a share to within this much of it reach it: a share such as 13/15 is not a float."""


@dataclass(frozen=True)
class Rule:
    """What decides the ranks; at most one of `energy`, `energy_per_module` and `budget`.

    Attributes:
        energy: share of the whole change, over all modules, with one threshold on σ.
        energy_per_module: share of each module's own change.
        budget: total number of parameters.
        max_rank: no module gets more; alone, every module gets it.
        round_to: ranks are multiples of it, upwards (within a budget: downwards).
    """

    energy: float | None = None
    energy_per_module: float | None = None
    budget: int | None = None
    max_rank: int | None = None
    round_to: int = 1

    def check(self) -> None:
        """Refuse what has no meaning."""
        chosen = [self.energy, self.energy_per_module, self.budget]
        if sum(one is not None for one in chosen) > 1:
            raise SaddlesError("Give either `energy` or `budget` or `energy_per_module`, not several of them.")
        for name in ("energy", "energy_per_module"):
            share = getattr(self, name)
            if share is not None and not (isinstance(share, int | float | np.number) and 0 < share <= 1):
                raise SaddlesError.must_be(name, "above 0 and at most 1", share)
        whole = is_whole(self.budget) or (isinstance(self.budget, float) and self.budget.is_integer())  # 1e6
        if self.budget is not None and not (whole and self.budget > 0):
            raise SaddlesError.must_be("budget", "a positive whole number of parameters", self.budget)
        for name in ("max_rank", "round_to"):
            count = getattr(self, name)
            if count is not None:
                check_count(name, count, 1)

    def __str__(self) -> str:
        words = [
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
            for name in ("energy", "energy_per_module", "budget", "max_rank")
            if (value := getattr(self, name)) is not None
        ]
        words = words or [f"energy={ENERGY:g}"]
        return ", ".join([*words, *([f"round_to={self.round_to}"] if self.round_to > 1 else [])])


@dataclass(frozen=True)
class Weighed:
    """What a weighted spectrum does not tell of ΔW itself.

    Attributes:
        kept: by how much each value brings ‖ΔW − BA‖²_F down; weighted outputs may bring it up.
        norm, largest: ‖ΔW‖_F and σ₁(ΔW).
        count: singular values of ΔW above rounding, which no rank exceeds.
        unit: mean sensitivity of the module's outputs, which turns the square of a bias into the unit of σ².
    """

    kept: np.ndarray
    norm: float
    largest: float
    count: int
    unit: float = 1.0


@dataclass(frozen=True)
class Sized:
    """What a rule needs to know of one module.

    Attributes:
        values: singular values of its change, or of D^½ ΔW C^½ where `weighed` says so.
        floor: the largest that rounding gives to ΔW.
        inputs, outputs: its numbers of features.
        bias: ‖Δbias‖.
        rest: energy beyond `values`, where only leading ones were computed.
    """

    values: np.ndarray
    floor: float
    inputs: int
    outputs: int
    bias: float = 0.0
    rest: float = 0.0
    weighed: Weighed | None = None

    @property
    def cost(self) -> int:
        """Parameters of one rank."""
        return self.inputs + self.outputs

    @property
    def squares(self) -> np.ndarray:
        """σ² where it is above the floor, else 0."""
        if self.weighed is None:
            return squares_above(self.values, self.floor)
        return np.where(np.arange(len(self.values)) < self.weighed.count, squares_above(self.values), 0.0)

    @property
    def rest_above(self) -> float:
        """Energy beyond `values` that may be above the floor: none where the last value is below it."""
        return self.rest if len(self.values) and self.values[-1] > self.floor else 0.0

    @property
    def norm(self) -> float:
        """‖ΔW‖_F."""
        return self.weighed.norm if self.weighed else math.sqrt(float(np.sum(self.values**2)) + self.rest)

    @property
    def largest(self) -> float:
        """σ₁ of ΔW."""
        return self.weighed.largest if self.weighed else float(self.values[0])

    def error(self, rank: int) -> float:
        """‖ΔW − BA‖_F of a rank."""
        if self.weighed is None:
            return math.sqrt(float(np.sum(self.values[rank:] ** 2)) + self.rest)
        return math.sqrt(max(self.weighed.norm**2 - float(np.sum(self.weighed.kept[:rank])), 0.0))

    def next(self, rank: int) -> float:
        """σ₁ of ΔW − BA, or where it is not known a bound on it."""
        if self.weighed is None and rank < len(self.values):
            return float(self.values[rank])
        return min(self.largest, self.error(rank))


def squares_above(values: np.ndarray, floor: float = 0.0) -> np.ndarray:
    """σ² of the values above the floor and above what can be distinguished from zero; 0 for the others."""
    return np.where(values > max(floor, resolution(values)), values, 0.0) ** 2


@dataclass(frozen=True)
class Choice:
    """Ranks, by how much of all energy a budget's may fall short of the best, and whether biases are carried."""

    ranks: list[int]
    gap: float = 0.0
    with_biases: bool = True


def choose(modules: Sequence[Sized], rule: Rule) -> Choice:
    """The ranks of a rule."""
    if rule.budget is not None:
        return _within_budget(modules, rule, rule.budget)
    squares = [one.squares for one in modules]
    if rule.energy_per_module is not None:
        ranks = [rank_of(one.squares, _reachable([one], rule.energy_per_module)) for one in modules]
    elif rule.energy is None and rule.max_rank is not None:
        ranks = [int(np.count_nonzero(one)) for one in squares]
    else:
        share = ENERGY if rule.energy is None else rule.energy
        ranks = one_threshold(squares, _reachable(modules, share))
    return Choice([_rounded(rank, one, rule) for rank, one in zip(ranks, modules, strict=True)])


def _reachable(modules: Sequence[Sized], share: float) -> float:
    """The share of the energy in the values that were computed, where the whole has more; refused where it has not."""
    rest = sum(one.rest_above for one in modules)
    known = sum(float(one.squares.sum()) for one in modules)
    wanted = share * (known + rest) / known if known else share
    if rest and wanted > 1:
        raise SaddlesError(
            f"The leading {max(len(one.values) for one in modules)} singular values of each module carry "
            f"{100 * known / (known + rest):.3g} % of the change. Raise `leading`, or ask for less than {share:g}."
        )
    return wanted


def _rounded(rank: int, module: Sized, rule: Rule) -> int:
    most = min(len(module.values), rule.max_rank or len(module.values))
    if not rank:
        return 0
    return min(math.ceil(min(rank, most) / rule.round_to) * rule.round_to, len(module.values))


def one_threshold(squares: Sequence[np.ndarray], share: float) -> list[int]:
    """The fewest ranks, over all modules together, that reach a share of all energy: one threshold on σ."""
    every = np.sort(np.concatenate(squares))[::-1]
    count = rank_of(every, share)
    if not count:
        return [0] * len(squares)
    least = every[count - 1]
    ranks = [int(np.count_nonzero(one >= least)) for one in squares]
    spare = sum(ranks) - count  # values that equal the threshold; as many as needed are kept
    for place in range(len(squares) - 1, -1, -1):
        equal = int(np.count_nonzero(squares[place] == least))
        fewer = min(spare, equal)
        ranks[place], spare = ranks[place] - fewer, spare - fewer
    return ranks


def rank_of(squares: np.ndarray, share: float) -> int:
    """The smallest rank whose energy reaches a share of all; at share 1, how many values differ from zero."""
    nonzero = int(np.count_nonzero(squares))
    if share >= 1 or not nonzero:
        return nonzero
    kept = np.cumsum(squares)
    return min(int(np.searchsorted(kept, share * kept[-1] * (1 - ROUNDING))) + 1, nonzero)


def _within_budget(modules: Sequence[Sized], rule: Rule, budget: int) -> Choice:
    """The best ranks within a budget, with changed biases or without them, whichever carries more.

    PEFT gives every adapted module a bias or none, so that a bias is paid with a module's first rank.
    """
    gains = [_grouped(one.squares[: rule.max_rank], rule.round_to) for one in modules]
    costs = [one.cost * rule.round_to for one in modules]
    extras = [one.bias**2 * (one.weighed.unit if one.weighed else 1.0) for one in modules]
    plain = allocate(gains, costs, budget)
    kept = sum(float(one[:k].sum()) for one, k in zip(gains, plain.ranks, strict=True))
    total, best = sum(float(one.sum()) for one in gains), plain
    with_biases = any(extras)
    if with_biases:
        fees = [one.outputs for one in modules]
        paid = allocate_with_fees(gains, costs, budget, fees, extras)
        more = sum(float(g[:k].sum()) + (e if k else 0) for g, k, e in zip(gains, paid.ranks, extras, strict=True))
        whole = total + sum(extras)
        above = max(more + paid.gap * whole, kept + plain.gap * total)
        with_biases = more > kept
        best = paid if with_biases else plain
        best = type(best)(best.ranks, (above - max(more, kept)) / whole if whole else 0.0)
    if not any(best.ranks):
        least = min(costs)
        raise SaddlesError.must_be("budget", f"at least {least}, what one rank of the smallest module takes", budget)
    ranks = [min(k * rule.round_to, len(one.values)) for k, one in zip(best.ranks, modules, strict=True)]
    return Choice(ranks, best.gap, with_biases)


def _grouped(squares: np.ndarray, size: int) -> np.ndarray:
    """Sums of so many neighbours: what a step of `round_to` ranks gains."""
    if size == 1:
        return squares
    padded = np.concatenate([squares, np.zeros(-len(squares) % size)])
    return padded.reshape(-1, size).sum(axis=1)


@dataclass(frozen=True)
class UniformRank:
    """One point of the curve: a rank that every module gets, its parameters, its share of what LoRA can carry."""

    rank: int
    parameters: int
    energy: float


def uniform_curve(modules: Sequence[Sized]) -> tuple[UniformRank, ...]:
    """Rank 1, 2, 4, … for every module, up to the rank that carries everything above the floor.

    Parameters are those of `max_rank`: no module gets ranks for what is not above the floor.
    """
    squares = [one.squares for one in modules]
    total = sum(float(one.sum()) for one in squares) + sum(one.rest_above for one in modules)
    counts = [int(np.count_nonzero(one)) for one in squares]
    full = max(counts, default=0)
    if not total:
        return ()
    ranks = [2**k for k in range(full.bit_length()) if 2**k < full] + [full]
    return tuple(
        UniformRank(
            rank,
            sum(min(rank, count) * one.cost for one, count in zip(modules, counts, strict=True)),
            sum(float(one[:rank].sum()) for one in squares) / total,
        )
        for rank in ranks
    )
