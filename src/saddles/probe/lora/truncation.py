"""The best approximations of a change: by ΔW alone, weighted by the inputs, or from leading directions only.

**Weighted.** ‖D^½(ΔW − BA)C^½‖_F, with C = E[xxᵀ] of the inputs and the diagonal D of the outputs' sensitivities, is
least for BA = D^-½ U_r U_rᵀ D^½ ΔW, with U_r the leading left singular vectors of M = D^½ ΔW C^½: U_r U_rᵀ M is the
best approximation of M (Eckart and Young), and this gives it without an inverse of C, which may be singular. What is
left is the sum of the discarded σ²(M). U comes from M Mᵀ.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from saddles.errors import SaddlesError
from saddles.probe.lora.inputs import Inputs
from saddles.probe.lora.leading import dense
from saddles.probe.lora.match import Match, Target
from saddles.probe.lora.ranks import Sized, Weighed
from saddles.probe.lora.spectra import Workshop, best_pair, changes_of, factors_piece, one_spectrum, piece_of, sized
from saddles.probe.measuring import Row
from saddles.probe.weights.checkpoints import Weights
from saddles.probe.weights.weight_change import WeightChange, effort
from saddles.runtime.progress import bar

LEAST = 1e-6
"""Of the mean sensitivity of a module's outputs, what each is taken to have at least: D^½ is divided by again."""


@dataclass(frozen=True, eq=False)
class Factors:
    """ΔW, and L (rows, rank) and R (rank, columns) as ΔW is stored."""

    change: WeightChange
    left: Tensor
    right: Tensor


@dataclass(frozen=True, eq=False)
class Truncation:
    """Spectra and factors of all changes of a pair of models.

    Attributes:
        inputs: weigh each ΔW with the second moment of its inputs.
        leading: compute so many singular values of each module, and the energy of the others.
        device: where it is computed.
        exact: the difference has no rounding, because both models share the numbers of a base.
    """

    pairs: Match
    early: Weights
    late: Weights
    inputs: Inputs | None = None
    leading: int | None = None
    device: str = "cpu"
    exact: bool = False

    def sizes(self, workshop: Workshop | None = None) -> list[Sized]:
        """Singular values by module, in the order of the targets; weighted ones are computed here."""
        targets = {target.module: target for target in self.pairs.targets}
        if self.inputs is None:
            pieces = [piece_of(one, self.late, self.early, self.leading, self.exact) for one in targets.values()]
            rows = (workshop or Workshop(self.device)).carry_out(pieces)
            return [sized(one, rows[piece.name]) for one, piece in zip(targets.values(), pieces, strict=True)]
        found: dict[str, Sized] = {}
        with bar("singular values of ΔW, by module", sum(effort(one.shape) for one in targets.values())) as progress:
            rows = self.inputs.sensitivities(list(targets))
            for module, moment in self.inputs.moments(list(targets)):
                found[module] = self._weighted(targets[module], moment, rows.get(module))
                progress.advance(effort(targets[module].shape))
        return [found[module] for module in targets]

    def factors(
        self, ranks: Mapping[str, int], workshop: Workshop | None = None
    ) -> Iterator[tuple[Target, list[Factors]]]:
        """For each module with a rank: it and its factors, of each expert where it has several.

        A workshop makes all of them before the first is given, and keeps them in files; else each is made when it is
        asked for.
        """
        targets = {t.module: t for t in self.pairs.targets if ranks.get(t.module)}
        if workshop is None or not workshop.elsewhere:
            return self._one_by_one(targets, ranks)
        pieces = [
            factors_piece(one, self.late, self.early, self.leading, ranks[one.module]) for one in targets.values()
        ]
        rows = workshop.one_by_one(pieces, "factors")
        return ((target, self._read(target, row)) for target, row in zip(targets.values(), rows, strict=True))

    def _one_by_one(
        self, targets: Mapping[str, Target], ranks: Mapping[str, int]
    ) -> Iterator[tuple[Target, list[Factors]]]:
        moments = ((module, None) for module in targets) if self.inputs is None else self.inputs.moments(list(targets))
        rows = {} if self.inputs is None else self.inputs.sensitivities(list(targets))
        for module, moment in moments:
            target, found = targets[module], []
            for change in changes_of(target, self.late, self.early, self.device):
                left, right = self._pair(target, change, ranks[module], moment, rows.get(module))
                found.append(Factors(change, left.cpu(), right.cpu()))
            yield target, found

    def _read(self, target: Target, row: Row) -> list[Factors]:
        """Factors from a piece of a workshop."""
        parts = {name: torch.from_numpy(array) for name, array in row.items()}
        changes = changes_of(target, self.late, self.early, self.device)
        return [Factors(one, parts[f"left_{k}"], parts[f"right_{k}"]) for k, one in enumerate(changes)]

    def quantised(self) -> tuple[str, float]:
        """How the base is quantised, and ‖Q(W) − W‖ over all modules of the tuned model; nothing and 0: it is not."""
        words, apart = "", []
        for target in self.pairs.targets:
            grid = self.early.quantised.get(target.weight.base or "")
            if grid is not None:
                words, late = grid.words, self.late.read(target.weight.tuned or "").double()
                apart.append(float((grid.again(late).double() - late).norm()))
        return words, float(np.linalg.norm(apart))

    def _pair(
        self, target: Target, change: WeightChange, rank: int, moment: Tensor | None, rows: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if moment is not None:
            turned = target.conv1d
            left, right = weighted_factors(dense(change, turned), moment, rank, rows)
            return (right.T, left.T) if turned else (left, right)
        return best_pair(change, rank, self.leading)

    def _weighted(self, target: Target, moment: Tensor, rows: Tensor | None) -> Sized:
        (change,) = changes_of(target, self.late, self.early, self.device)
        plain = Sized(*one_spectrum(change, None, self.exact)[:2], 0, 0)
        values, kept = weighted_values(dense(change, target.conv1d), moment, rows)
        count = min(int(np.count_nonzero(plain.squares)), len(values))
        unit = 1.0 if rows is None else float(rows.mean())
        facts = Weighed(kept, plain.norm, float(plain.values[0]), count, unit)
        return Sized(values, plain.floor, target.inputs, target.outputs, weighed=facts)


def requantised(target: Target, found: list[Factors], early: Weights) -> float:
    """‖Q(W₀ + BA) − W₀ − BA‖_F where the base is quantised by Q, else 0: what merging into such a model destroys."""
    grid = early.quantised.get(target.weight.base or "")
    if grid is None:
        return 0.0
    (one,) = found
    merged = grid.read().double() + one.left.double() @ one.right.double()
    return float((grid.again(merged).double() - merged).norm())


def check_device(name: str) -> None:
    """Refuse a device that torch does not find here."""
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        here = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
        raise SaddlesError.must_be("device", f"one of this machine's ({', '.join(here)})", name) from error


def _directions(change: Tensor, moment: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values of ΔW C^½, largest first, and its left vectors as columns, for ΔW no taller than wide."""
    product = change @ moment @ change.T
    squares, vectors = torch.linalg.eigh((product + product.T) / 2)
    return squares.flip(0).clamp_min(0).sqrt(), vectors.flip(1)


@dataclass(frozen=True, eq=False)
class _Weighted:
    """σ of D^½ ΔW C^½, and all of ΔW as `left @ right`, in the order of σ."""

    values: Tensor
    left: Tensor
    right: Tensor


def _weighted(change: Tensor, moment: Tensor, rows: Tensor | None) -> _Weighted:
    moment = moment.to(change.device)
    scale = torch.ones(len(change), dtype=change.dtype, device=change.device)
    if rows is not None and not bool(rows.any()):
        moment = torch.zeros_like(moment)  # nothing that the model predicts depends on this module
    elif rows is not None:
        rows = rows.to(change)
        scale = rows.clamp_min(LEAST * float(rows.mean())).sqrt()
    scaled = scale[:, None] * change
    # A tall ΔW has no more left vectors than columns: they are found in the small triangle, and turned back by `basis`.
    basis, small = torch.linalg.qr(scaled) if change.shape[0] > change.shape[1] else (None, scaled)
    values, vectors = _directions(small, moment)
    left = vectors if basis is None else basis @ vectors
    return _Weighted(values, left / scale[:, None], vectors.T @ small)


def weighted_values(change: Tensor, moment: Tensor, rows: Tensor | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Singular values of D^½ ΔW C^½, and by how much each of them brings ‖ΔW − BA‖²_F down.

    Args:
        change: ΔW (outputs, inputs).
        moment: C (inputs, inputs).
        rows: D (outputs); None for 1.
    """
    one = _weighted(change, moment, rows)
    # ‖Σ_{k≥r} l_k r_k‖² is the sum of (l_j·l_k)(r_j·r_k) over j, k ≥ r: sums over lower right corners.
    products = (one.left.T @ one.left) * (one.right @ one.right.T)
    left_over = products.flip(0, 1).cumsum(0).cumsum(1).flip(0, 1).diagonal()
    kept = left_over - torch.cat([left_over[1:], left_over.new_zeros(1)])
    return one.values.cpu().numpy(), kept.cpu().numpy()


def weighted_factors(change: Tensor, moment: Tensor, rank: int, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """B (outputs, rank) and A (rank, inputs) with the least ‖D^½(ΔW − BA)C^½‖_F, balanced; arguments as above."""
    one = _weighted(change, moment, rows)
    outer, inner = one.left[:, :rank], one.right[:rank]
    tiny = torch.finfo(torch.float64).tiny
    norms = (torch.linalg.vector_norm(side, dim=axis).clamp_min(tiny) for side, axis in ((inner, 1), (outer, 0)))
    scale = torch.div(*norms).sqrt()
    return outer * scale, inner / scale[:, None]
