"""Spectra of changes, from factors, without forming a product and without cancellation.

Everything takes NumPy arrays or torch tensors on any device, batched over leading axes; torch is
touched only when a torch tensor comes. How exact the singular values are, relative to the largest:
float64 input keeps double precision. Narrower input is worked on in float32 by orthogonal
transformations; where singular values come from a Gram matrix, it is made and solved in float64,
so its squared condition costs 1e-8, less than the input's own rounding.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from saddles.protocols import ArrayLike

ROUNDING = float(np.sqrt(1 / (8 * np.log(2))))
"""Root mean square of the rounding error over that of the numbers, in units of the unit roundoff,
0.425: errors are uniform within half a spacing, significands m log-uniform, so it is
sqrt(4/12 · E[1/m²]) with E[1/m²] = 3/(8 ln 2)."""

SQUARINGS = 22
"""Of a Gram matrix, for its largest eigenvalue: its 4,194,304th power."""

_CHUNK = 1 << 22
"""Entries of a matrix that are turned into float64 at a time."""


@runtime_checkable
class Tensor(Protocol):
    """What a NumPy array and a torch tensor have in common, as far as it is used here.

    Results are `Any`: each library returns arrays of its own.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        ...

    @property
    def dtype(self) -> Any:
        """The type of the entries."""
        ...

    def swapaxes(self, first: int, second: int, /) -> Any:
        """Exchange two axes."""
        ...

    def __getitem__(self, index: Any, /) -> Any: ...  # slices and masks, as each library has them

    def __matmul__(self, other: Any, /) -> Any: ...  # with an array of the same library

    def __sub__(self, other: Any, /) -> Any: ...  # as above


T = TypeVar("T", bound=Tensor)
"""One library's array: NumPy in, NumPy out; torch in, torch out, on the same device."""


def change_spectrum(left: T, right: T, left_start: T, right_start: T) -> T:
    """Singular values of L Rᵀ − L₀ R₀ᵀ, largest first: (…, d, h) factors give (…, 2h) values, or d if that is less.

    With dL = L − L₀ and dR = R − R₀ the change is [dL, L₀]·[R, dR]ᵀ, in which nothing large
    cancels: thin QR of both sides, then the singular values of the core. The obvious form
    [L, −L₀]·[R, R₀]ᵀ loses all digits in early training, when L is close to L₀.
    """
    return change_and_floor(left, right, left_start, right_start)[0]


def change_and_floor(
    left: T, right: T, left_start: T, right_start: T, noises: Sequence[Any] | None = None
) -> tuple[T, Any]:
    """`change_spectrum`, and the largest singular value that rounding of the stored factors alone gives.

    Noise N of size s in L (see `matrix_floor`) enters as N Rᵀ, whose norm is s (√d ‖R‖ + ‖R‖_F)
    (Chevet's bound); the four such terms are added as squares. Values below the floor are not resolved.

    Args:
        noises: of the four factors, where they are not as stored (`chained`).
    """
    stored = (left, right, left_start, right_start)
    left, right, left_start, right_start = (_working(part) for part in stored)
    xp = _namespace(left)
    first = _triangle(xp.concatenate((left - left_start, left_start), -1))
    second = _triangle(xp.concatenate((right, right - right_start), -1))
    values = spectrum(first @ second.swapaxes(-1, -2))
    h = left.shape[-1]
    # The columns of the triangles have the norms and angles of the factors, in fewer rows.
    small = (first[..., :h] + first[..., h:], second[..., :h], first[..., h:], second[..., :h] - second[..., h:])
    if noises is None:
        noises = [_noise(part, frobenius(core)) for part, core in zip(stored, small, strict=True)]
    rows = [part.shape[-2] ** 0.5 for part in stored]
    terms = [noises[at] * (rows[at] * _norm_bound(small[at ^ 1]) + frobenius(small[at ^ 1])) for at in range(4)]
    return values, sum(term**2 for term in terms) ** 0.5


def chained(parts: Sequence[T]) -> tuple[T, Any]:
    """The product of some stored matrices in float64, and the root mean square of what rounding gives its entries.

    Noise N of size s in the second of A B enters as A N, of mean square s² ‖A‖_F²/d; in the first as N B. As if it were
    independent in every entry: within a factor of two for a floor.
    """
    xp = _namespace(parts[0])
    product, noise = _cast(parts[0], xp.float64), stored_noise(parts[0])
    for part in parts[1:]:
        wide = _cast(part, xp.float64)
        entries = (product.shape[-2], part.shape[-1])
        noise = (
            noise**2 * frobenius(wide) ** 2 / entries[1]
            + stored_noise(part) ** 2 * frobenius(product) ** 2 / entries[0]
        ) ** 0.5
        product = product @ wide
    return product, noise


def stored_noise(stored: Tensor) -> Any:  # a number per matrix, of NumPy or torch
    """Root mean square of the rounding errors in a matrix, from the type in which it is stored."""
    return _noise(stored, frobenius(stored))


def change_grams(left: T, right: T, left_start: T, right_start: T) -> tuple[T, T]:
    """Gram matrices of [dL, L₀] and [R, dR] in float64, (…, 2h, 2h) each: all that is needed of the change.

    A GPU forms them at the speed of its memory, where QR and singular values are slow. What follows from them
    (`change_gram`, `grams_floor`) agrees with `change_and_floor` of float32 factors within 1e-6 of the largest
    singular value; of float64 factors half of the digits are lost.
    """
    xp = _namespace(left)
    left, right, left_start, right_start = (_cast(part, xp.float64) for part in (left, right, left_start, right_start))
    first = xp.concatenate((left - left_start, left_start), -1)
    second = xp.concatenate((right, right - right_start), -1)
    return first.swapaxes(-1, -2) @ first, second.swapaxes(-1, -2) @ second


def change_gram(first: T, second: T) -> T:
    """A symmetric matrix (…, 2h, 2h) whose eigenvalues are the squared singular values of the change.

    With AᵀA = D C Cᵀ D, D the norms of the columns of A = [dL, L₀] and C a Cholesky factor, the eigenvalues of
    Cᵀ D BᵀB D C are those of AᵀA BᵀB. Scaling by D first keeps the digits of dL where it is small beside L₀.

    Args:
        first, second: what `change_grams` gives. Where one is not finite, the result is NaN.
    """
    xp = _namespace(first)
    good = (xp.isfinite(first) & xp.isfinite(second)).all(-1).all(-1)[..., None, None]
    first, second = (xp.where(good, gram, xp.zeros_like(gram)) for gram in (first, second))
    norms = xp.sqrt(_diagonal(first))
    divisors = xp.where(norms > 0, norms, xp.ones_like(norms))
    scaled = first / (divisors[..., :, None] * divisors[..., None, :]) + _ridge(first)
    # torch's other Cholesky waits for the GPU to say whether it succeeded.
    factor = np.linalg.cholesky(scaled) if isinstance(scaled, np.ndarray) else xp.linalg.cholesky_ex(scaled)[0]
    inner = second * (norms[..., :, None] * norms[..., None, :])
    gram = factor.swapaxes(-1, -2) @ inner @ factor
    return xp.where(good, gram, xp.full_like(gram, float("nan")))


def _ridge(gram: Tensor) -> Any:
    """What makes Cholesky succeed on a singular matrix with unit diagonal: four times the rounding errors in it.

    It adds at most sqrt(4 · 2h · 2⁻⁵²), 3e-7 at h = 64, to singular values that are 0, relative to the largest.
    """
    xp = _namespace(gram)
    size = gram.shape[-1]
    eye = xp.eye(size, dtype=gram.dtype, **({} if isinstance(gram, np.ndarray) else {"device": gram.device}))  # type: ignore[attr-defined]
    return 4 * size * float(xp.finfo(gram.dtype).eps) * eye


def gram_spectrum(gram: T, count: int) -> T:
    """The `count` largest singular values, largest first, from what `change_gram` gives."""
    return _finite_only(gram, _roots)[..., :count]


def gram_ranks(gram: T) -> tuple[T, T]:
    """Stable rank Σσ²/σ₁² and Frobenius norm sqrt(Σσ²), from what `change_gram` gives, without eigenvalues.

    σ₁² is tr(Gᴺ⁺¹)/tr(Gᴺ) with N = 2^`SQUARINGS`, by repeated squaring: too small by a share of at most log(2h)/N,
    1.2e-6 at h = 64, whatever the spectrum. Nothing waits for a GPU, as an iteration until convergence would.
    """
    xp = _namespace(gram)
    total = _diagonal(gram).sum(-1)
    unit = gram / xp.where(total > 0, total, xp.ones_like(total))[..., None, None]
    power = unit
    for _ in range(SQUARINGS):
        power = power @ power
        trace = _diagonal(power).sum(-1)
        power = power / xp.where(trace > 0, trace, xp.ones_like(trace))[..., None, None]
    top = (power * unit).sum(-1).sum(-1)
    return xp.where(total > 0, 1 / xp.where(top > 0, top, xp.ones_like(top)), total), xp.sqrt(total)


def grams_floor(first: T, second: T, rows: Sequence[int], units: Sequence[float]) -> T:
    """The noise floor of `change_and_floor` from what `change_grams` gives.

    Args:
        rows: of the left and of the right factor.
        units: spacing at 1 of the types in which L, R, L₀ and R₀ are stored (`finfo(…).eps`).
    """
    h = first.shape[-1] // 2
    # Gram matrices of L = dL + L₀, R, L₀ and R₀ = R − dR, put together from the blocks.
    small = (
        first[..., :h, :h] + first[..., :h, h:] + first[..., h:, :h] + first[..., h:, h:],
        second[..., :h, :h],
        first[..., h:, h:],
        second[..., :h, :h] - second[..., :h, h:] - second[..., h:, :h] + second[..., h:, h:],
    )
    sizes = [_diagonal(gram).sum(-1) ** 0.5 for gram in small]
    total: Any = 0
    for at in range(4):
        d = rows[at % 2]
        noise = ROUNDING * units[at] / 2 * sizes[at] / (d * h) ** 0.5
        total = total + (noise * (d**0.5 * _gram_norm_bound(small[at ^ 1]) + sizes[at ^ 1])) ** 2
    return total**0.5


def product_spectrum(left: T, right: T) -> T:
    """Singular values of L Rᵀ, largest first, for factors (…, d, h) and (…, e, h) with h below d and e."""
    left, right = _triangle(_working(left)), _triangle(_working(right))
    return spectrum(left @ right.swapaxes(-1, -2))


def spectrum(matrix: T) -> T:
    """Singular values of a matrix (…, m, n), largest first.

    Float64 input: QR of the longer side, then LAPACK's values. Otherwise the Gram matrix of the
    shorter side, summed up in float64 in pieces: ten times faster than float32 values of a 768 ×
    768 matrix, and closer to the truth. A 50,257 × 768 embedding costs one product and a 768 ×
    768 symmetric problem.
    """
    matrix = _working(matrix)
    xp = _namespace(matrix)
    tall = matrix if matrix.shape[-2] >= matrix.shape[-1] else matrix.swapaxes(-1, -2)
    if matrix.dtype == xp.float64:
        core = _triangle(tall) if tall.shape[-2] > tall.shape[-1] else tall
        return _finite_only(core, xp.linalg.svdvals)
    return _finite_only(_gram(tall), _roots)


def _roots(gram: T) -> T:
    """Square roots of the eigenvalues, largest first."""
    xp = _namespace(gram)
    return xp.flip(xp.sqrt(xp.clip(xp.linalg.eigvalsh(gram), 0, None)), (-1,))


def _finite_only(matrix: T, solve: Callable[[T], T]) -> T:
    """Solve what is finite; NaN for a matrix that is not, as in a run that diverged."""
    xp = _namespace(matrix)
    good = xp.isfinite(matrix).all(-1).all(-1)
    values = solve(xp.where(good[..., None, None], matrix, xp.zeros_like(matrix)))
    return xp.where(good[..., None], values, xp.full_like(values, float("nan")))


def frobenius(matrix: Tensor) -> Any:
    """Frobenius norm over the last two axes."""
    matrix = _working(matrix)
    return _namespace(matrix).linalg.norm(matrix, None, (-2, -1))


def rank_measures(singular_values: ArrayLike) -> dict[str, np.ndarray]:
    """What is reported of a spectrum (…, index): ranks and the Frobenius norm; all ranks of zero are 0.

    - stable_rank: Σσ² / σ₁².
    - effective_rank: exp of the entropy of σ/Σσ (Roy and Vetterli).
    - energy_rank_90, energy_rank_99: how many values hold that share of Σσ².
    - frobenius_norm: sqrt(Σσ²).

    Values that are NaN (padding) count as absent; a spectrum of nothing but NaN gives NaN.
    """
    values = np.asarray(singular_values, dtype=float)
    absent = np.isnan(values).all(-1)
    values = np.nan_to_num(values)
    top = values.max(-1, keepdims=True)
    scaled = values / np.where(top > 0, top, 1.0)
    energy = scaled**2
    total = energy.sum(-1)
    share = scaled / np.maximum(scaled.sum(-1, keepdims=True), 1e-300)
    entropy = -(share * np.log(np.where(share > 0, share, 1.0))).sum(-1)
    measured = {
        "stable_rank": total,
        "effective_rank": np.where(total > 0, np.exp(entropy), 0.0),
        "energy_rank_90": _energy_rank(energy, 0.90),
        "energy_rank_99": _energy_rank(energy, 0.99),
        "frobenius_norm": top[..., 0] * np.sqrt(total),
    }
    return {name: np.where(absent, np.nan, value) for name, value in measured.items()}


def _energy_rank(energy: np.ndarray, share: float) -> np.ndarray:
    total = energy.sum(-1, keepdims=True)
    # the last value reaches 100 % only up to rounding of the sum
    reached = np.cumsum(energy, -1) >= share * total * (1 - 1e-12)
    return np.where(total[..., 0] > 0, reached.argmax(-1) + 1.0, 0.0)


def matrix_floor(now: Tensor, start: Tensor) -> Any:
    """Largest singular value that rounding alone gives to W − W₀, for weights as they are stored.

    Rounding errors act like independent noise of root mean square s = 0.425 u ‖W‖_F/√(mn), u the
    unit roundoff of the stored type; the noise has the norm s (√m + √n). Values below it are not
    resolved. Rounding to a type's subnormal numbers is not counted.
    """
    rows, columns = now.shape[-2:]
    noise = sum(_noise(part, frobenius(part)) ** 2 for part in (now, start)) ** 0.5
    return noise * (rows**0.5 + columns**0.5)


def _noise(stored: Tensor, size: Any) -> Any:  # a number per matrix, of NumPy or torch
    """Root mean square of rounding errors, given the Frobenius norm."""
    rows, columns = stored.shape[-2:]
    unit = float(_namespace(stored).finfo(stored.dtype).eps) / 2
    return ROUNDING * unit * size / (rows * columns) ** 0.5


def _norm_bound(matrix: Tensor) -> Any:
    """σ₁ from above, at most h^(1/16) too large: the 16th Schatten norm, by three squarings of the Gram matrix."""
    matrix = _working(matrix)
    return _gram_norm_bound(matrix.swapaxes(-1, -2) @ matrix)


def _gram_norm_bound(gram: Tensor) -> Any:
    """The same from the Gram matrix."""
    xp = _namespace(gram)
    size = xp.linalg.norm(gram, None, (-2, -1))
    gram = gram / xp.where(size > 0, size, xp.ones_like(size))[..., None, None]
    for _ in range(2):  # with the norm below, the third squaring
        gram = gram @ gram
    return size**0.5 * xp.linalg.norm(gram, None, (-2, -1)) ** 0.125


def _diagonal(matrix: Tensor) -> Any:
    return _namespace(matrix).diagonal(matrix, 0, -2, -1)


def _gram(tall: T) -> T:
    """AᵀA in float64, without a float64 copy of A."""
    xp = _namespace(tall)
    step = max(1, _CHUNK // max(1, tall.shape[-1] * int(np.prod(tall.shape[:-2]))))
    total: Any = 0
    for begin in range(0, tall.shape[-2], step):
        piece = _cast(tall[..., begin : begin + step, :], xp.float64)
        total = total + piece.swapaxes(-1, -2) @ piece
    return total


def _triangle(tall: T) -> T:
    """R of a thin QR."""
    result = _namespace(tall).linalg.qr(tall, mode="r")
    factor: Any = result if isinstance(result, np.ndarray) else result[1]  # torch returns (empty, R)
    return factor


def _working(array: T) -> T:
    """The same in float32 or, where it is so already, in float64."""
    xp = _namespace(array)
    return array if array.dtype in (xp.float32, xp.float64) else _cast(array, xp.float32)


def _cast(array: Tensor, dtype: Any) -> Any:  # a type of NumPy or torch
    other: Any = array  # a torch tensor, which has `to`
    return other.astype(dtype) if isinstance(array, np.ndarray) else other.to(dtype)


def _namespace(array: object) -> Any:  # numpy or torch
    if isinstance(array, np.ndarray):
        return np
    return sys.modules[type(array).__module__.partition(".")[0]]
