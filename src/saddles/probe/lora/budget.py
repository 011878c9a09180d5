"""Ranks for a budget of parameters: the allocation that captures the most energy, with a proof that it does.

One more rank of module i costs inputs + outputs parameters and gains its next σ². Gains fall within a module, so
modules of one cost merge into one falling list, and an allocation is how many entries to take from each list:
a knapsack with as many kinds of item as there are different costs (GPT-2 has three, Llama two or three). Taking
entries in the order of gain per parameter would be best if parts of an entry could be bought, which bounds every
allocation from above; branch and bound over the lists, from that relaxed solution outwards, closes the gap.

SciPy's `milp` was tried on the same problem, one binary variable per singular value. On spectra like those of
GPT-2 (48 modules) it took 17 to 19 s against 0.01 s, and at the largest budget it stopped 2e-7 of the energy below
the best, because its tolerance on the objective is absolute; on 224 modules like Llama 7B's it found nothing in two
minutes against 0.1 to 0.3 s. Given only the entries that reduced costs leave open, it took 0.01 to 31 s, and once
found nothing. It is better where many modules have a cost of their own (200 different costs: 1 to 12 s and proved,
against 5 s and a stated gap of up to 8e-5), which real models do not have.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NODES = 20_000
"""Branches that are visited before the best so far is returned with its stated gap: under a second for few costs."""

ROUNDING = 1e-12
"""Differences of captured energy below this share of it are rounding."""


@dataclass(frozen=True)
class Allocation:
    """Ranks, in the order of the modules, and the share of all energy by which they may fall short of the best."""

    ranks: tuple[int, ...]
    gap: float


def allocate(gains: Sequence[np.ndarray], costs: Sequence[int], budget: int) -> Allocation:
    """Choose ranks that capture the most energy within a budget.

    Args:
        gains: for each module its squared singular values, falling; zeros are never bought.
        costs: for each module the parameters of one rank.
        budget: total number of parameters.
    """
    lists = {cost: _merged(gains, costs, cost) for cost in sorted(set(costs), reverse=True)}
    search = _Search(list(lists), [values for values, _ in lists.values()])
    counts = search.run(budget)
    ranks = [0] * len(gains)
    for count, (_, owners) in zip(counts, lists.values(), strict=True):
        for owner, taken in zip(*np.unique(owners[:count], return_counts=True), strict=True):
            ranks[int(owner)] = int(taken)
    total = sum(float(one.sum()) for one in gains)
    return Allocation(tuple(ranks), max(0.0, search.above - search.best) / total if total else 0.0)


def allocate_with_fees(
    gains: Sequence[np.ndarray], costs: Sequence[int], budget: int, fees: Sequence[int], extras: Sequence[float]
) -> Allocation:
    """The same where the first rank of a module also costs a fee (its bias) and also gains something.

    Parts of a module's upper hull of gain over cost are bought in the order of gain per parameter, then single ranks
    with what is left. What no allocation can exceed, and the stated gap, come from buying parts of hull pieces.
    """
    pieces = []
    for owner, (values, cost, fee, extra) in enumerate(zip(gains, costs, fees, extras, strict=True)):
        count = int(np.count_nonzero(values > 0))
        sums = np.concatenate([[0.0], np.cumsum(values[:count]) + extra])
        spent = np.concatenate([[0], cost * np.arange(1, count + 1) + fee])
        at = 0
        while at < count:
            slopes = (sums[at + 1 :] - sums[at]) / (spent[at + 1 :] - spent[at])
            step = int(np.argmax(slopes)) + 1
            pieces.append((float(slopes[step - 1]), owner, at, at + step, int(spent[at + step] - spent[at])))
            at += step
    pieces.sort(key=lambda piece: (-piece[0], piece[1], piece[2]))
    ranks, left, above, room = [0] * len(gains), budget, 0.0, float(budget)
    for slope, owner, first, last, price in pieces:
        above += slope * min(price, room)
        room -= min(price, room)
        # A piece of a hull is of use only behind the pieces before it of the same module.
        if ranks[owner] == first and price <= left:
            ranks[owner], left = last, left - price
    # What is left buys single ranks of modules that already paid their fee.
    order = sorted(((float(v), o, k) for o, one in enumerate(gains) for k, v in enumerate(one) if v > 0), reverse=True)
    for _, owner, place in order:
        if ranks[owner] and ranks[owner] == place and costs[owner] <= left:
            ranks[owner], left = place + 1, left - costs[owner]
    total = sum(float(one.sum()) for one in gains) + sum(extras)
    kept = sum(float(one[:k].sum()) + (e if k else 0.0) for one, k, e in zip(gains, ranks, extras, strict=True))
    return Allocation(tuple(ranks), max(0.0, above - kept) / total if total else 0.0)


def _merged(gains: Sequence[np.ndarray], costs: Sequence[int], cost: int) -> tuple[np.ndarray, np.ndarray]:
    """Gains of all modules of one cost, falling, and the module that each belongs to."""
    mine = [i for i, other in enumerate(costs) if other == cost]
    values = np.concatenate([gains[i] for i in mine])
    owners = np.concatenate([np.full(len(gains[i]), i) for i in mine])
    order = np.argsort(-values, kind="stable")
    kept = order[values[order] > 0]
    return values[kept], owners[kept]


class _Search:
    """Branch and bound over how many entries of each list are bought, the most expensive list first.

    That order leaves the cheapest list for last, where the remaining budget is spent without a choice.

    Attributes:
        best, counts: the largest gain so far, and how many entries of each list give it.
        above: what no allocation can exceed.
    """

    def __init__(self, costs: list[int], lists: list[np.ndarray]) -> None:
        self.costs, self.lists = costs, lists
        self.sums = [np.concatenate([[0.0], np.cumsum(values)]) for values in lists]
        self.tails = [self._tail(first) for first in range(len(lists))]
        self.best, self.counts, self.nodes, self.above = -1.0, [0] * len(lists), 0, 0.0

    def _tail(self, first: int) -> tuple[np.ndarray, np.ndarray]:
        """Spending and gain when the lists from `first` on are bought in the order of gain per parameter."""
        prices = np.concatenate(
            [np.full(len(v), c) for c, v in zip(self.costs[first:], self.lists[first:], strict=True)]
        )
        values = np.concatenate(self.lists[first:])
        order = np.argsort(-values / prices, kind="stable")
        return np.concatenate([[0.0], np.cumsum(prices[order])]), np.concatenate([[0.0], np.cumsum(values[order])])

    def _bound(self, first: int, budget: float) -> float:
        """What the lists from `first` on can gain at most, if parts of an entry may be bought."""
        return float(np.interp(budget, *self.tails[first]))

    def run(self, budget: int) -> list[int]:
        """How many entries of each list to buy."""
        self.above = self._bound(0, budget)
        self._branch(0, budget, 0.0, [])
        if self.nodes < NODES:  # every branch was visited or excluded by its bound
            self.above = self.best
        return self.counts

    def _branch(self, first: int, budget: int, gained: float, taken: list[int]) -> None:
        """Try the counts of list `first`, the most promising ones first."""
        self.nodes += 1
        most = min(len(self.lists[first]), budget // self.costs[first])
        if first == len(self.lists) - 1:
            total = gained + float(self.sums[first][most])
            if total > self.best:
                self.best, self.counts = total, [*taken, most]
            return
        middle = self._relaxed(first, budget, most)
        for counts in (range(middle, -1, -1), range(middle + 1, most + 1)):
            for count in counts:
                mine, rest = gained + float(self.sums[first][count]), budget - count * self.costs[first]
                if mine + self._bound(first + 1, rest) <= self.best * (1 + ROUNDING) or self.nodes >= NODES:
                    break  # the bound is concave in the count: all further ones on this side are worse
                self._branch(first + 1, rest, mine, [*taken, count])

    def _relaxed(self, first: int, budget: int, most: int) -> int:
        """The count that is best if parts of the later lists' entries may be bought.

        Bisection on the sign of the next step, which changes once because the bound is concave in the count.
        """
        low, high = 0, most
        while low < high:
            middle = (low + high) // 2
            here, next_ = (
                self.sums[first][c] + self._bound(first + 1, budget - c * self.costs[first])
                for c in (middle, middle + 1)
            )
            low, high = (middle + 1, high) if next_ >= here else (low, middle)
        return low
