"""The spectrum of one matrix' change ΔW = W − W₀, without a singular value decomposition.

The eigenvalues of the smaller Gram matrix, ΔWᵀΔW or ΔWΔWᵀ, are the squared singular values. Both it and the
difference are formed in float64 from blocks of rows, so the difference of stored numbers is exact and neither
tensor need be whole in memory twice. Cost: mn·min(m, n) multiplications and (4/3)·min(m, n)³ for the
eigenvalues, of which most is matrix product; a dense decomposition spends several times as many, slowly.

Accuracy: an eigenvalue is wrong by at most about √n·ε·σ₁², ε = 2.2e-16, so a singular value σ by √n·ε·σ₁²/2σ:
1e-8 of itself at σ = 1e-3·σ₁. Below `resolution` = σ₁·(n ε)^½ (1e-6·σ₁ at n = 4096) a value is not told from zero;
float32 weights carry rounding noise above that.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse.linalg as sparse
import torch
from torch import Tensor

from saddles.core.errors import SaddlesError
from saddles.probe.checkpoints import ALL, Weights

BLOCK = 2**22
"""Numbers of ΔW that are in memory in float64 at once: 32 MiB."""

FEW = 20
"""Where fewer than 1/FEW of all singular vectors are wanted, Lanczos finds them without the others."""

EPSILON = float(np.finfo(np.float64).eps)

Rows = Callable[[slice], Tensor]


@dataclass(frozen=True, eq=False)
class Delta:
    """ΔW of one matrix, read by blocks.

    Attributes:
        name: of the tensor.
        shape: (rows, columns); a tensor of more axes is seen as (first, all others).
        now, start: some rows of W and W₀, as stored.
    """

    name: str
    shape: tuple[int, int]
    now: Rows = field(repr=False)
    start: Rows = field(repr=False)

    def block(self, rows: slice = ALL) -> Tensor:
        """Some rows of ΔW in float64: exact for weights stored in 32 bits or fewer."""
        late, early = self.now(rows), self.start(rows)
        if torch.equal(late, early):
            return torch.zeros(late.shape, dtype=torch.float64).reshape(len(late), -1)
        return (late.to(torch.float64) - early.to(torch.float64)).reshape(len(late), -1)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """All rows in order, some at a time."""
        height = max(1, BLOCK // self.shape[1])
        for first in range(0, self.shape[0], height):
            rows = slice(first, min(first + height, self.shape[0]))
            yield rows, self.block(rows)


def delta(name: str, now: Weights, start: Weights, start_name: str | None = None, rows: int | None = None) -> Delta:
    """The change of one tensor, or of its first rows, between two sets of weights."""
    shape, other = now.shapes[name], start_name or name
    size = (shape[0] if rows is None else rows, int(np.prod(shape[1:])))
    return Delta(name, size, lambda part: now.read(name, part), lambda part: start.read(other, part))


@dataclass(frozen=True, eq=False)
class Gram:
    """The smaller Gram matrix of ΔW; `right` where it is ΔWᵀΔW, whose eigenvectors are right singular vectors."""

    matrix: Tensor
    right: bool
    energy: float
    """‖ΔW‖²_F, summed on its own."""


def gram(change: Delta) -> Gram:
    """Form the smaller Gram matrix block by block; blocks in which nothing changed cost nothing."""
    rows, columns = change.shape
    if rows < columns:
        return _gram_of_rows(change)
    matrix, energy = torch.zeros(columns, columns, dtype=torch.float64), 0.0
    for _, block in change.blocks():
        part = _energy(change, block)
        if part:
            matrix.addmm_(block.T, block)
            energy += part
    return Gram(matrix, True, energy)


def _gram_of_rows(change: Delta) -> Gram:
    """ΔWΔWᵀ of a wide matrix: both tensors are read once, their difference is taken some columns at a time."""
    rows, columns = change.shape
    late, early = change.now(ALL).flatten(1), change.start(ALL).flatten(1)
    matrix, energy = torch.zeros(rows, rows, dtype=torch.float64), 0.0
    width = max(1, BLOCK // rows)
    for first in range(0, columns, width):
        one, other = late[:, first : first + width], early[:, first : first + width]
        if torch.equal(one, other):
            continue
        block = one.to(torch.float64) - other.to(torch.float64)
        energy += _energy(change, block)
        matrix.addmm_(block, block.T)
    return Gram(matrix, False, energy)


def _energy(change: Delta, block: Tensor) -> float:
    part = float(torch.linalg.vector_norm(block)) ** 2
    if not np.isfinite(part):
        raise SaddlesError.about(
            f"{change.name} holds numbers that are not finite", "finite weights are needed", "did the training diverge?"
        )
    return part


def singular_values(change: Delta) -> np.ndarray:
    """All min(m, n) singular values of ΔW, falling; exact zeros where nothing changed."""
    found = gram(change)
    if not found.energy:
        return np.zeros(min(change.shape))
    squares = torch.linalg.eigvalsh(found.matrix).numpy()[::-1]
    return np.sqrt(np.maximum(squares, 0.0))


def resolution(values: np.ndarray) -> float:
    """The size below which a singular value found from a Gram matrix is not told from zero."""
    return float(values[0]) * float(np.sqrt(len(values) * EPSILON)) if len(values) else 0.0


def leading_vectors(found: Gram, rank: int) -> Tensor:
    """Orthonormal eigenvectors of the `rank` largest eigenvalues, as columns."""
    size = len(found.matrix)
    if rank * FEW < size and size > 256:
        start = np.random.default_rng(0).normal(size=size)
        _, vectors = sparse.eigsh(found.matrix.numpy(), k=rank, which="LA", v0=start)
        return torch.from_numpy(np.ascontiguousarray(vectors[:, ::-1]))
    return torch.linalg.eigh(found.matrix).eigenvectors[:, -rank:].flip(1).contiguous()


def factors(change: Delta, rank: int) -> tuple[Tensor, Tensor]:
    """The best approximation of ΔW of a rank, L·R with L (rows, rank) and R (rank, columns), balanced: LᵀL = RRᵀ.

    The vectors of one side come from the Gram matrix; the other side is ΔW times them. Whatever rounding did to
    the vectors, the product is then an orthogonal projection of ΔW, and its error is ‖ΔW‖² − ‖LR‖².
    """
    vectors = leading_vectors(gram(change), rank)
    right = change.shape[0] >= change.shape[1]
    if right:
        other = torch.cat([block @ vectors for _, block in change.blocks()])
    else:
        other = sum(
            (block.T @ vectors[rows] for rows, block in change.blocks()), torch.zeros(change.shape[1], rank).double()
        )
    scale = torch.linalg.vector_norm(other, dim=0).clamp_min(torch.finfo(torch.float64).tiny).sqrt()
    left, opposite = (other / scale, vectors * scale) if right else (vectors * scale, other / scale)
    return left, opposite.T.contiguous()


def misfit(change: Delta, left: Tensor, right: Tensor) -> float:
    """‖ΔW − LR‖_F, with the factors as they are stored."""
    one, other = left.to(torch.float64), right.to(torch.float64)
    squares = [float(torch.linalg.vector_norm(block - one[rows] @ other)) ** 2 for rows, block in change.blocks()]
    return float(np.sqrt(sum(squares)))
