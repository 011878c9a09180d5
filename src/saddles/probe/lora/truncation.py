"""The best approximations of a change: by ΔW alone, weighted by the inputs, or from leading directions only.

**Weighted.** ‖D^½(ΔW − BA)C^½‖_F, with C = E[xxᵀ] of the inputs and the diagonal D of the outputs' sensitivities, is
least for BA = D^-½ U_r U_rᵀ D^½ ΔW, with U_r the leading left singular vectors of M = D^½ ΔW C^½: U_r U_rᵀ M is the
best approximation of M (Eckart and Young), and this gives it without an inverse of C, which may be singular. What is
left is the sum of the discarded σ²(M). U comes from M Mᵀ.

**Leading.** A randomised range finder with power iterations (Halko, Martinsson and Tropp 2011): Q spans about the
leading directions, BA = Q Qᵀ ΔW cut to a rank. ‖ΔW − BA‖² = ‖ΔW‖² − ‖BA‖² is exact whatever Q is, and the best
approximation of that rank is closer by at most the energy outside Q (Ky Fan).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from saddles.errors import SaddlesError
from saddles.probe.lora.inputs import Inputs
from saddles.probe.lora.match import Match, Target
from saddles.probe.lora.ranks import Sized, Weighed
from saddles.probe.weights.checkpoints import Weights
from saddles.probe.weights.weight_change import (
    WeightChange,
    effort,
    factors,
    rounding_floor,
    spectrum_of,
    weight_change,
)
from saddles.runtime.progress import bar

POWERS = 4
"""Power iterations of the range finder: a value 10 % below its neighbour outside is suppressed to 0.9⁸ < ½ of it."""

SPARE = 32
"""Directions that the range finder takes beyond those wanted."""

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

    def changes(self, target: Target) -> list[WeightChange]:
        """ΔW of a target as it is stored, or of each of its experts."""
        late, early = target.weight.tuned, target.weight.base
        assert late is not None
        if not target.experts:
            return [weight_change(late, self.late, self.early, early, device=self.device)]
        return [
            WeightChange(
                target.module, target.shape,
                partial(_of_expert, self.late, late, k), partial(_of_expert, self.early, early or late, k), self.device,
            )
            for k in range(target.experts)
        ]  # fmt: skip

    def sizes(self) -> list[Sized]:
        """Singular values by module, in the order of the targets."""
        targets = {target.module: target for target in self.pairs.targets}
        found: dict[str, Sized] = {}
        with bar("singular values of ΔW, by module", sum(effort(one.shape) for one in targets.values())) as progress:
            if self.inputs is None:
                for module, target in targets.items():
                    one = self._leading if self.leading else self._whole
                    found[module] = _together(target, [one(change) for change in self.changes(target)])
                    progress.advance(effort(target.shape))
            else:
                rows = self.inputs.sensitivities(list(targets))
                for module, moment in self.inputs.moments(list(targets)):
                    found[module] = self._weighted(targets[module], moment, rows.get(module))
                    progress.advance(effort(targets[module].shape))
        return [found[module] for module in targets]

    def factors(self, ranks: Mapping[str, int]) -> Iterator[tuple[Target, list[Factors]]]:
        """For each module with a rank: it and its factors, of each expert where it has several."""
        targets = {t.module: t for t in self.pairs.targets if ranks.get(t.module)}
        moments = ((module, None) for module in targets) if self.inputs is None else self.inputs.moments(list(targets))
        rows = {} if self.inputs is None else self.inputs.sensitivities(list(targets))
        for module, moment in moments:
            target, found = targets[module], []
            for change in self.changes(target):
                left, right = self._pair(target, change, ranks[module], moment, rows.get(module))
                found.append(Factors(change, left.cpu(), right.cpu()))
            yield target, found

    def _pair(
        self, target: Target, change: WeightChange, rank: int, moment: Tensor | None, rows: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if moment is not None:
            turned = target.conv1d
            left, right = weighted_factors(_dense(change, turned), moment, rank, rows)
            return (right.T, left.T) if turned else (left, right)
        if self.leading:
            return leading_split(_dense(change), self.leading).cut(rank)
        return factors(change, rank)

    def _whole(self, change: WeightChange) -> Sized:
        one = spectrum_of(change, rounding=not self.exact)
        return Sized(one.values, one.rounding, 0, 0)

    def _leading(self, change: WeightChange) -> Sized:
        assert self.leading is not None
        split = leading_split(_dense(change), self.leading)
        floor = 0.0 if self.exact else rounding_floor(change)
        return Sized(split.values, floor, 0, 0, rest=split.rest)

    def _weighted(self, target: Target, moment: Tensor, rows: Tensor | None) -> Sized:
        (change,) = self.changes(target)
        plain = self._whole(change)
        values, kept = weighted_values(_dense(change, target.conv1d), moment, rows)
        count = min(int(np.count_nonzero(plain.squares)), len(values))
        unit = 1.0 if rows is None else float(rows.mean())
        facts = Weighed(kept, plain.norm, float(plain.values[0]), count, unit)
        return Sized(values, plain.floor, target.inputs, target.outputs, weighed=facts)


def _of_expert(weights: Weights, name: str, expert: int, rows: slice) -> Tensor:
    return weights.read(name, slice(expert, expert + 1))[0][rows]


def _together(target: Target, parts: list[Sized]) -> Sized:
    """One module; of experts, which share a rank, the k-th value is the root of the sum of their k-th squares."""
    values = np.sqrt(np.sum([part.values**2 for part in parts], axis=0))
    floor = float(np.linalg.norm([part.floor for part in parts]))
    count, rest = max(target.experts, 1), sum(part.rest for part in parts)
    return Sized(values, floor, count * target.inputs, count * target.outputs, rest=rest)


def check_device(name: str) -> None:
    """Refuse a device that torch does not find here."""
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        here = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
        raise SaddlesError.must_be("device", f"one of this machine's ({', '.join(here)})", name) from error


def _dense(change: WeightChange, turned: bool = False) -> Tensor:
    """ΔW whole, in float64, or its transpose."""
    whole = torch.cat([block for _, block in change.blocks()])
    return whole.T if turned else whole


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


@dataclass(frozen=True, eq=False)
class Split:
    """Leading singular values and vectors (columns of `left`, rows of `right`), and the energy of all others."""

    left: Tensor
    values: np.ndarray
    right: Tensor
    rest: float

    def cut(self, rank: int) -> tuple[Tensor, Tensor]:
        """Factors of a rank, balanced."""
        root = torch.from_numpy(self.values[:rank]).to(self.left.device).sqrt()
        return self.left[:, :rank] * root, root[:, None] * self.right[:rank]


def leading_split(change: Tensor, count: int) -> Split:
    """The leading singular values and vectors of a dense ΔW; the same in every call."""
    rows, columns = change.shape
    size = min(count + SPARE, rows, columns)
    # Drawn on the CPU, so that every device starts from the same numbers.
    draw = torch.randn(columns, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    basis = torch.linalg.qr(change @ draw.to(change.device)).Q
    for _ in range(POWERS):
        basis = torch.linalg.qr(change @ torch.linalg.qr(change.T @ basis).Q).Q
    # B = RᵀPᵀ with P orthonormal: only the small R is decomposed, on the CPU, where small matrices are fast.
    other, small = torch.linalg.qr(change.T @ basis)
    left, values, right = torch.linalg.svd(small.T.cpu(), full_matrices=False)
    found, energy = values[:count].numpy(), float(torch.linalg.vector_norm(change)) ** 2
    return Split(
        basis @ left[:, :count].to(change.device),
        found,
        right[:count].to(change.device) @ other.T,
        max(energy - float(np.sum(found**2)), 0.0),
    )
