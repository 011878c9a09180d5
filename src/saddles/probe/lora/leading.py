"""Leading singular values and vectors of a change.

A randomised range finder with power iterations (Halko, Martinsson and Tropp 2011): Q spans about the leading
directions, BA = Q Qᵀ ΔW cut to a rank. ‖ΔW − BA‖² = ‖ΔW‖² − ‖BA‖² is exact whatever Q is, and the best approximation
of that rank is closer by at most the energy outside Q (Ky Fan).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from saddles.probe.weights.weight_change import WeightChange

POWERS = 4
"""Power iterations of the range finder: a value 10 % below its neighbour outside is suppressed to 0.9⁸ < ½ of it."""

SPARE = 32
"""Directions that the range finder takes beyond those wanted."""


def dense(change: WeightChange, turned: bool = False) -> Tensor:
    """ΔW whole, in float64, or its transpose."""
    whole = torch.cat([block for _, block in change.blocks()])
    return whole.T if turned else whole


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
        # Round-off may leave the difference of two nearly equal energies slightly below 0.
        max(energy - float(np.sum(found**2)), 0.0),
    )
