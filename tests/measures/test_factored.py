"""Factored spectra against an explicit float64 loop, rank measures against known spectra, floors against rounding."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from saddles.measures import change_and_floor, change_spectrum, matrix_floor, product_spectrum, rank_measures, spectrum
from saddles.measures.factored import change_gram, change_grams, gram_ranks, gram_spectrum, grams_floor

SCALES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pair(scale, shape=(5, 96, 16), seed=0, rank=None):
    draw = np.random.default_rng(seed)
    starts = [0.02 * draw.normal(size=shape) for _ in range(2)]
    if rank is None:
        moves = [0.02 * scale * draw.normal(size=shape) for _ in range(2)]
    else:
        d, h = shape[1:]
        moves = [0.02 * scale * draw.normal(size=(5, d, rank)) @ draw.normal(size=(5, rank, h)) for _ in range(2)]
    started = [start.astype(np.float32) for start in starts]
    return [(s + m).astype(np.float32) for s, m in zip(started, moves, strict=True)] + started


def explicit(left, right, left_start, right_start):
    """One head after the other, the whole product, in float64."""
    found = []
    for parts in zip(left, right, left_start, right_start, strict=True):
        one, two, one_start, two_start = (np.asarray(part, dtype=np.float64) for part in parts)
        found.append(np.linalg.svd(one @ two.T - one_start @ two_start.T, compute_uv=False))
    return np.array(found)


@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("scale", SCALES)
def test_change_agrees_with_an_explicit_loop_at_every_scale(scale, rank, make):
    factors = pair(scale, rank=rank)
    exact = explicit(*factors)
    values = np.asarray(change_spectrum(*(make(factor) for factor in factors)))
    assert values.shape == (5, 32)
    assert np.all(np.abs(values - exact[:, :32]) <= 1e-6 * exact[:, :1])
    if rank is None:
        np.testing.assert_allclose(values, exact[:, :32], rtol=1e-6)
    for name, value in rank_measures(values).items():
        if not name.startswith("energy"):
            np.testing.assert_allclose(value, rank_measures(exact)[name], rtol=1e-6 if rank is None else 1e-4)


def test_the_obvious_form_would_fail_that_test():
    """What the dK form is for: concatenated whole weights lose the change in float32."""
    factors = pair(1e-5)
    left, right, left_start, right_start = (torch.as_tensor(factor) for factor in factors)
    obvious = product_spectrum(torch.cat((left, -left_start), -1), torch.cat((right, right_start), -1))
    exact = explicit(*factors)
    assert np.abs(obvious.numpy() - exact[:, :32]).max() > 1e-3 * exact.max()


def test_float64_stays_float64():
    factors = [factor.astype(np.float64) for factor in pair(1e-3)]
    exact = explicit(*factors)[:, :32]
    for make in (np.asarray, torch.as_tensor):
        np.testing.assert_allclose(np.asarray(change_spectrum(*(make(f) for f in factors))), exact, rtol=1e-10)


@pytest.mark.parametrize("shape", [(40, 40), (300, 24), (24, 300), (3, 50, 20)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_plain_spectrum(shape, dtype, monkeypatch):
    monkeypatch.setattr("saddles.measures.factored._CHUNK", 500)
    matrix = np.random.default_rng(2).normal(size=shape).astype(dtype)
    exact = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    for make in (np.asarray, torch.as_tensor):
        values = np.asarray(spectrum(make(matrix)))
        assert np.abs(values - exact).max() <= (1e-7 if dtype == np.float32 else 1e-14) * exact.max() * 10


def test_small_values_of_an_ill_conditioned_float32_matrix():
    """The Gram matrix in float64 keeps 1e-8 of the largest; in float32 it would keep 3e-4."""
    draw = np.random.default_rng(3)
    u, v = (np.linalg.qr(draw.normal(size=(60, 60)))[0] for _ in range(2))
    matrix = ((u * np.logspace(0, -12, 60)) @ v).astype(np.float32)
    exact = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    assert np.abs(np.asarray(spectrum(matrix)) - exact).max() < 1e-7


def test_rank_measures_of_known_spectra():
    values = np.array([[2.0, 2.0, 2.0, 0.0], [3.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [4.0, 2.0, 1.0, 0.5]])
    found = rank_measures(values)
    assert found["stable_rank"] == pytest.approx([3, 1, 0, 21.25 / 16])
    share = np.array([4, 2, 1, 0.5]) / 7.5
    assert found["effective_rank"] == pytest.approx([3, 1, 0, math.exp(-(share * np.log(share)).sum())])
    assert found["energy_rank_90"] == pytest.approx([3, 1, 0, 2])
    assert found["energy_rank_99"] == pytest.approx([3, 1, 0, 4])
    assert found["frobenius_norm"] == pytest.approx([12**0.5, 3, 0, 21.25**0.5])


def test_rank_measures_do_not_overflow_and_skip_padding():
    tiny = rank_measures(np.array([[1e-200, 1e-200, np.nan], [np.nan, np.nan, np.nan]]))
    assert tiny["stable_rank"][0] == pytest.approx(2)
    assert all(np.isnan(value[1]) for value in tiny.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [0.013, 0.02, 0.7])
def test_floor_is_what_rounding_gives(dtype, scale):
    """Weights before and after rounding to the narrow type: nothing else changed."""
    true = scale * torch.randn(3, 200, 32, generator=torch.Generator().manual_seed(1))
    other = scale * torch.randn(3, 200, 32, generator=torch.Generator().manual_seed(2))
    values, floor = change_and_floor(true.to(dtype), other.to(dtype), true, other)
    assert torch.all(values[:, 0] < floor)
    assert torch.all(values[:, 0] > 0.5 * floor)
    noise = torch.linalg.svdvals(true.to(dtype).float() - true)[:, 0]
    assert noise == pytest.approx(matrix_floor(true.to(dtype), true), rel=0.08)


def test_narrow_types_are_measured_in_float32():
    factors = [torch.as_tensor(factor).bfloat16() for factor in pair(0.1)]
    exact = explicit(*(factor.double().numpy() for factor in factors))
    assert np.abs(np.asarray(change_spectrum(*factors)) - exact[:, :32]).max() < 1e-6 * exact.max()


def test_weights_that_diverged_give_nan_and_leave_other_heads_alone():
    factors = [torch.as_tensor(factor) for factor in pair(1.0)]
    clean = change_spectrum(*factors)
    factors[0] = factors[0].clone()
    factors[0][2, 0, 0] = torch.inf
    values = change_spectrum(*factors)
    assert torch.isnan(values[2]).all()
    torch.testing.assert_close(values[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


def test_numpy_needs_no_torch():
    code = (
        "import sys, numpy as np; from saddles.measures import spectrum, change_spectrum; a = np.eye(4)[None];"
        "change_spectrum(a, a, a, a); spectrum(a.astype('float32')); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("scale", SCALES)
def test_gram_matrices_tell_what_the_factors_tell(scale, rank, make):
    """The path of a GPU: spectra, ranks and floor of the other path, within 1e-6 of the largest singular value."""
    factors = [make(factor) for factor in pair(scale, rank=rank)]
    values, floor = (np.asarray(part) for part in change_and_floor(*factors))
    first, second = change_grams(*factors)
    gram = change_gram(first, second)
    found = np.asarray(gram_spectrum(gram, 32))
    assert np.all(np.abs(found - values) <= 1e-6 * values[:, :1])
    stable, norm = (np.asarray(part) for part in gram_ranks(gram))
    ranks = rank_measures(found)
    np.testing.assert_allclose(stable, ranks["stable_rank"], rtol=2e-6)
    np.testing.assert_allclose(norm, ranks["frobenius_norm"], rtol=1e-9)
    unit = float(np.finfo(np.float32).eps)
    np.testing.assert_allclose(grams_floor(first, second, (96, 96), (unit,) * 4), floor, rtol=1e-5)


def test_the_largest_of_gram_matrices_needs_no_gap():
    """Two equal values, values a millionth apart, and a hundred that are nearly equal: the worst for iterations."""
    draw = np.random.default_rng(5)
    turn = np.linalg.qr(draw.normal(size=(100, 100)))[0]
    spectra = np.zeros((3, 100))
    spectra[0, :2] = 3.0
    spectra[1, :5] = 1 - 1e-6 * np.arange(5)
    spectra[2] = 1 - 4e-6 * draw.random(100)
    stable, _ = gram_ranks((turn * spectra[:, None, :]) @ turn.T)
    error = stable * spectra.max(1) / spectra.sum(1) - 1
    assert np.all(np.abs(error) <= np.log(100) / 2**22 + 1e-12)


def test_gram_matrices_of_nothing_of_singular_factors_and_of_a_diverged_head():
    left, right, left_start, right_start = (torch.as_tensor(factor) for factor in pair(1e-2, rank=2))
    still = change_gram(*change_grams(left, right, left, right))
    assert np.all(np.asarray(gram_spectrum(still, 32)) == 0)
    assert np.all(np.asarray(gram_ranks(still)[0]) == 0)
    left_start[1, :, 3:] = left_start[1, :, :1]  # thirteen equal columns
    left[2, 0, 0] = float("nan")
    values = change_spectrum(left, right, left_start, right_start)
    gram = change_gram(*change_grams(left, right, left_start, right_start))
    found = gram_spectrum(gram, 32)
    assert torch.isnan(found[2]).all()
    assert torch.isnan(gram_ranks(gram)[0][2])
    good = [0, 1, 3, 4]
    assert ((found - values).abs()[good] <= 1e-6 * values[good, :1]).all()


def test_wide_factors_have_as_many_values_as_rows():
    factors = pair(1e-2, shape=(5, 20, 16))
    values = change_spectrum(*factors)
    assert values.shape == (5, 20)
    found = gram_spectrum(change_gram(*change_grams(*factors)), 20)
    assert np.all(np.abs(found - values) <= 1e-6 * values[:, :1])
