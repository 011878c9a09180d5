"""The spectrum of the change ΔW = W − W₀ of one matrix, without a singular value decomposition.

The eigenvalues of the smaller Gram matrix, ΔWᵀΔW or ΔWΔWᵀ, are the squared singular values. Both it and the
difference are formed in float64 from blocks of rows, so the difference of stored numbers is exact and neither tensor
need be in memory twice. Cost: mn·min(m, n) multiplications, almost all in matrix products, and (4/3)·min(m, n)³ for the
eigenvalues; a dense decomposition needs several times as many, at a lower speed.

Accuracy: an eigenvalue is wrong by at most about √n·ε·σ₁², ε = 2.2e-16, so a singular value σ by √n·ε·σ₁²/2σ:
1e-8 of itself at σ = 1e-3·σ₁. Below `resolution` = σ₁·(n ε)^½ (1e-6·σ₁ at n = 4096) a value cannot be distinguished
from zero; float32 weights carry rounding noise above that.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import scipy.sparse.linalg as sparse
import torch
from torch import Tensor

from saddles.errors import SaddlesError
from saddles.measures.factored import matrix_floor
from saddles.probe.weights.checkpoints import ALL, Weights
from saddles.probe.weights.grid import Grid

BLOCK = 2**22
"""Numbers of ΔW that are in memory in float64 at once: 32 MiB."""

LANCZOS_ONE_IN = 20
"""Where fewer than one in so many singular vectors are wanted, Lanczos is faster than a full decomposition."""

LANCZOS_SIZE = 256
"""Matrices up to this size are decomposed in full, which takes milliseconds."""

QUANTISED_TAIL = 0.01
"""Of the energy that quantisation would give, what the smaller half of the singular values has at least if it is there.

A tenth of the smallest share, so that bfloat16 on top of quantised numbers does not count as quantisation."""

EPSILON = float(np.finfo(np.float64).eps)

Rows = Callable[[slice], Tensor]


@dataclass(frozen=True, eq=False)
class WeightChange:
    """ΔW of one matrix, read by blocks.

    Attributes:
        name: of the tensor.
        shape: (rows, columns); a tensor of more axes is seen as (first, all others).
        now, start: some rows of W and W₀, as stored.
        device: where the blocks are given and products are taken.
        coarse: some rows of the variance that quantisation gives to each entry; None where nothing is quantised.
    """

    name: str
    shape: tuple[int, int]
    now: Rows = field(repr=False)
    start: Rows = field(repr=False)
    device: str = "cpu"
    coarse: Rows | None = field(default=None, repr=False)

    def pairs(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """All rows in order, some at a time: the first row's number, and the rows of W and W₀ as stored."""
        height = max(1, BLOCK // self.shape[1])
        for first in range(0, self.shape[0], height):
            rows = slice(first, min(first + height, self.shape[0]))
            yield first, self.now(rows).to(self.device), self.start(rows).to(self.device)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """All rows of ΔW in order, some at a time, in float64: exact for weights stored in 32 bits or fewer."""
        for first, late, early in self.pairs():
            yield slice(first, first + len(late)), difference(late, early)


def difference(late: Tensor, early: Tensor) -> Tensor:
    """W − W₀ in float64 as a matrix."""
    return (late.to(torch.float64) - early.to(torch.float64)).reshape(len(late), -1)


def weight_change(
    name: str,
    now: Weights,
    start: Weights,
    start_name: str | None = None,
    rows: int | None = None,
    device: str = "cpu",
) -> WeightChange:
    """The change of one tensor, or of its first rows, between two sets of weights."""
    shape, other = now.shapes[name], start_name or name
    size = (shape[0] if rows is None else rows, int(np.prod(shape[1:])))
    grids = [grid for grid in (now.quantised.get(name), start.quantised.get(other)) if grid is not None]
    return WeightChange(
        name, size, partial(now.read, name), partial(start.read, other), device,
        partial(_coarse, grids) if grids else None,
    )  # fmt: skip


def _coarse(grids: Sequence[Grid], rows: slice) -> Tensor:
    return torch.stack([grid.variance(rows) for grid in grids]).sum(dim=0)


@dataclass(frozen=True, eq=False)
class Gram:
    """The smaller Gram matrix of ΔW, and what else one pass over both tensors gives.

    Attributes:
        matrix: ΔWᵀΔW, or ΔWΔWᵀ of a wide matrix, in float64.
        energy: ‖ΔW‖²_F, summed from the blocks.
        noise_floor: the largest singular value that rounding of the stored weights alone would give.
        errors: the same as a bound, where rounding differs from row to row or from column to column; None where it
            was not asked for.
    """

    matrix: Tensor
    energy: float
    noise_floor: float
    errors: "Rounding | None" = None


class Rounding:
    """The largest singular value that rounding of W and W₀ gives to ΔW, gathered from their rows.

    An entry is wrong by up to half the spacing h of its type at its size, evenly distributed: variance h²/12 from each
    side. A matrix of independent errors with variances v has a norm of at most max_i (Σ_j v_ij)^½ + max_j (Σ_i v_ij)^½
    up to a few per cent (Bandeira and van Handel 2016); for equal variances that is Marchenko and Pastur's edge. Rows
    in which nothing changed have no error: nothing was rounded there. Where numbers in 32 or 64 bits all fit into
    bfloat16 or float16, they were rounded to it before.

    Quantisation (`WeightChange.coarse`) is rounding, too, unless the other model was trained on the quantised numbers
    themselves: ΔW then has no such errors. The smaller half of its singular values tells: independent errors leave at
    least a tenth of their energy in it (square matrices, the quarter circle law), a change of low rank none.
    """

    def __init__(self, change: WeightChange) -> None:
        self._change = change
        self._fine, self._coarse = _Bound(change), _Bound(change)
        self._quantised = 0.0

    def add(self, first: int, late: Tensor, early: Tensor) -> None:
        """Count some rows of both matrices; `first` is the number of the first."""
        changed = (late != early).any(dim=1)
        if changed.any():
            variance = sum(_spacing(part[changed]).square() for part in (late, early)) / 12
            assert isinstance(variance, Tensor)
            self._fine.add(variance)
            if self._change.coarse is not None:
                rows = self._change.coarse(slice(first, first + len(late))).to(variance).reshape(len(late), -1)
                self._quantised += float(rows[changed].sum())
                self._coarse.add(variance + rows[changed])

    def floor(self, tail: float) -> float:
        """The bound for all rows that were counted; `tail` is the energy of the smaller half of ΔW's values."""
        there = self._quantised and tail > QUANTISED_TAIL * self._quantised
        return self._coarse.value if there else self._fine.value


class _Bound:
    def __init__(self, change: WeightChange) -> None:
        self._columns, self._row = torch.zeros(change.shape[1], dtype=torch.float64, device=change.device), 0.0

    def add(self, variance: Tensor) -> None:
        self._columns += variance.sum(dim=0)
        self._row = max(self._row, float(variance.sum(dim=1).max()))

    @property
    def value(self) -> float:
        return float(self._columns.max()) ** 0.5 + self._row**0.5


def smaller_half(values: np.ndarray, count: int, rest: float = 0.0) -> float:
    """Energy of the smaller half of `count` singular values; `rest` is that of those which were not computed."""
    return float(np.sum(values[count // 2 :] ** 2)) + rest


def _spacing(part: Tensor) -> Tensor:
    """Distance between neighbouring numbers of the type at each entry, in float64."""
    kind = part.dtype
    if kind in (torch.float32, torch.float64):
        short = (torch.bfloat16, torch.float16)
        kind = next((one for one in short if torch.equal(part.to(one).to(kind), part)), kind)
    info = torch.finfo(kind)
    exponent = torch.frexp(part.to(torch.float64).abs().clamp_min(info.tiny))[1]
    return info.eps * torch.exp2((exponent - 1).to(torch.float64))


def gram(change: WeightChange, rounding: bool = False) -> Gram:
    """Form the smaller Gram matrix block by block; blocks in which nothing changed cost no product.

    Args:
        rounding: also bound what rounding gives.
    """
    rows, columns = change.shape
    if rows < columns:
        return _gram_of_rows(change, rounding)
    matrix = torch.zeros(columns, columns, dtype=torch.float64, device=change.device)
    energy, noise = 0.0, 0.0
    errors = Rounding(change) if rounding else None
    for first, late, early in change.pairs():
        if errors is not None:
            errors.add(first, late.reshape(len(late), -1), early.reshape(len(early), -1))
        # The floor of a block, s(√rows + √columns), gives its noise s; squares of s are averaged over all rows.
        noise += (_floor(late, early) / (len(late) ** 0.5 + columns**0.5)) ** 2 * len(late) / rows
        if not torch.equal(late, early):
            block = difference(late, early)
            energy += _energy(change, block)
            matrix.addmm_(block.T, block)
    return Gram(matrix, energy, noise**0.5 * (rows**0.5 + columns**0.5), errors)


def _gram_of_rows(change: WeightChange, rounding: bool) -> Gram:
    """ΔWΔWᵀ of a wide matrix: both tensors are read once, their difference is taken some columns at a time."""
    rows, columns = change.shape
    late, early = (side(ALL).to(change.device).reshape(rows, -1) for side in (change.now, change.start))
    matrix, energy = torch.zeros(rows, rows, dtype=torch.float64, device=change.device), 0.0
    width = max(1, BLOCK // rows)
    for first in range(0, columns, width):
        one, other = late[:, first : first + width], early[:, first : first + width]
        if not torch.equal(one, other):
            block = difference(one, other)
            energy += _energy(change, block)
            matrix.addmm_(block, block.T)
    errors = Rounding(change) if rounding else None
    for first in range(0, rows if errors else 0, height := max(1, BLOCK // columns)):
        assert errors is not None
        errors.add(first, late[first : first + height], early[first : first + height])
    return Gram(matrix, energy, _floor(late, early), errors)


def rounding_floor(change: WeightChange, tail: float) -> float:
    """What `Rounding` says of a change, without its Gram matrix."""
    errors = Rounding(change)
    for first, late, early in change.pairs():
        errors.add(first, late.reshape(len(late), -1), early.reshape(len(early), -1))
    return errors.floor(tail)


def _floor(late: Tensor, early: Tensor) -> float:
    return float(matrix_floor(late.reshape(len(late), -1), early.reshape(len(early), -1)))


def _energy(change: WeightChange, block: Tensor) -> float:
    part = float(torch.linalg.vector_norm(block)) ** 2
    if not np.isfinite(part):
        raise SaddlesError(f"{change.name} holds numbers that are not finite. Did the training diverge?")
    return part


@dataclass(frozen=True, eq=False)
class Spectrum:
    """All min(m, n) singular values of ΔW, largest first, and the noise floors of the stored weights (see `Gram`)."""

    values: np.ndarray
    noise_floor: float
    rounding: float = 0.0


def spectrum_of(change: WeightChange, rounding: bool = False) -> Spectrum:
    """The spectrum of ΔW; exact zeros, at no cost, where nothing changed."""
    squared = gram(change, rounding)
    if not squared.energy:
        return Spectrum(np.zeros(min(change.shape)), squared.noise_floor)
    # Rounding can make the smallest eigenvalues slightly negative.
    eigenvalues = torch.linalg.eigvalsh(squared.matrix).cpu().numpy()[::-1]
    values = np.sqrt(np.maximum(eigenvalues, 0.0))
    floor = squared.errors.floor(smaller_half(values, len(values))) if squared.errors is not None else 0.0
    return Spectrum(values, squared.noise_floor, floor)


def singular_values(change: WeightChange) -> np.ndarray:
    """The singular values of ΔW alone."""
    return spectrum_of(change).values


def effort(shape: tuple[int, int]) -> float:
    """Billions of operations that a spectrum takes, about: the Gram matrix and its eigenvalues; for progress bars."""
    small, large = sorted(shape)
    return (2.0 * small**2 * large + 8.0 * small**3) / 1e9


def resolution(values: np.ndarray) -> float:
    """The size below which a singular value from a Gram matrix cannot be distinguished from zero."""
    return float(values[0]) * float(np.sqrt(len(values) * EPSILON)) if len(values) else 0.0


def leading_vectors(squared: Gram, rank: int) -> Tensor:
    """Orthonormal eigenvectors of the `rank` largest eigenvalues, as columns."""
    size = len(squared.matrix)
    if rank * LANCZOS_ONE_IN < size and size > LANCZOS_SIZE and squared.matrix.device.type == "cpu":
        # A fixed start makes the result reproducible; ARPACK would draw one from its own state.
        start = np.random.default_rng(0).normal(size=size)
        _, vectors = sparse.eigsh(squared.matrix.numpy(), k=rank, which="LA", v0=start)
        return torch.from_numpy(np.ascontiguousarray(vectors[:, ::-1]))
    return torch.linalg.eigh(squared.matrix).eigenvectors[:, -rank:].flip(1).contiguous()


def factors(change: WeightChange, rank: int) -> tuple[Tensor, Tensor]:
    """The best approximation of ΔW of a rank, L·R with L (rows, rank) and R (rank, columns), balanced: LᵀL = RRᵀ.

    The vectors of one side come from the Gram matrix; the other side is ΔW times them. Whatever rounding did to
    the vectors, the product is then an orthogonal projection of ΔW, and its error is ‖ΔW‖² − ‖LR‖².
    """
    # The Gram matrix is of the smaller side: right vectors of a tall matrix, left vectors of a wide one.
    vectors = leading_vectors(gram(change), rank)
    right = change.shape[0] >= change.shape[1]
    if right:
        other = torch.cat([block @ vectors for _, block in change.blocks()])
    else:
        other = sum(
            (block.T @ vectors[rows] for rows, block in change.blocks()), vectors.new_zeros(change.shape[1], rank)
        )
    scale = torch.linalg.vector_norm(other, dim=0).clamp_min(torch.finfo(torch.float64).tiny).sqrt()
    left, opposite = (other / scale, vectors * scale) if right else (vectors * scale, other / scale)
    return left, opposite.T.contiguous()


def misfit(change: WeightChange, left: Tensor, right: Tensor) -> float:
    """‖ΔW − LR‖_F, with the factors as they are stored."""
    one, other = (side.to(change.device, torch.float64) for side in (left, right))
    squares = [float(torch.linalg.vector_norm(block - one[rows] @ other)) ** 2 for rows, block in change.blocks()]
    return float(np.sqrt(sum(squares)))
