"""LoRA plan and extraction against plain decompositions, on matrices with the shapes of real models.

    python -m benchmarks lora [--full]      --full: 4096-wide matrices too (minutes)

Both are measured in one run, alternately, in processor seconds and on the clock. Plain: `torch.linalg.svd` in float32
of the stored ΔW, once for each matrix, from which ranks and factors are taken. Ours: eigenvalues of the Gram matrix in
float64 for the plan, Lanczos vectors for the extraction.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from saddles.probe.lora.ranks import rank_of
from saddles.probe.weights.weight_change import WeightChange, factors, misfit, singular_values

SHAPES = {"GPT-2 small c_attn": (768, 2304), "GPT-2 small c_fc": (768, 3072), "2048-wide MLP": (2048, 5504)}
LARGE = {"Llama-7B q_proj": (4096, 4096)}
ENERGY = 0.9


def spent(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Clock and processor seconds of one call, and its result."""
    began, used = time.perf_counter(), time.process_time()
    result = work()
    return time.perf_counter() - began, time.process_time() - used, result


def change(shape: tuple[int, int]) -> tuple[WeightChange, torch.Tensor]:
    """A change with singular values falling as 1/i over noise, between float32 weights."""
    draw = torch.Generator().manual_seed(0)
    start = 0.02 * torch.randn(shape, generator=draw)
    count = min(shape) // 8
    left, right = (torch.randn(side, count, generator=draw) / side**0.5 for side in shape)
    now = start + 0.1 * (left / torch.arange(1, count + 1)) @ right.T + 1e-6 * torch.randn(shape, generator=draw)
    return WeightChange("w", shape, lambda rows: now[rows], lambda rows: start[rows]), now - start


def plain(dense: torch.Tensor) -> tuple[int, float]:
    left, values, right = torch.linalg.svd(dense, full_matrices=False)
    kept = torch.cumsum(values.double() ** 2, 0)
    rank = int(torch.searchsorted(kept, ENERGY * kept[-1])) + 1
    best = (left[:, :rank] * values[:rank]) @ right[:rank]
    return rank, float(torch.linalg.vector_norm((dense - best).double()))


def ours(part: WeightChange) -> tuple[int, float]:
    rank = rank_of(singular_values(part) ** 2, ENERGY)
    return rank, misfit(part, *factors(part, rank))


def main(full: bool = False) -> None:
    for name, shape in (SHAPES | (LARGE if full else {})).items():
        part, dense = change(shape)
        turns = 1 if max(shape) > 3500 else 3
        rows = [(spent(partial(ours, part)), spent(partial(plain, dense))) for _ in range(turns)]
        mine, other = (min(row[i][1] for row in rows) for i in (0, 1))
        clock = [min(row[i][0] for row in rows) for i in (0, 1)]
        (rank, error), (plain_rank, plain_error) = rows[0][0][2], rows[0][1][2]
        floor = 2 * np.prod(shape) * min(shape) / 1e9
        print(
            f"{name} {shape[0]}×{shape[1]}: plan and factors {mine:.2f} processor s ({clock[0]:.2f} s), "
            f"torch.linalg.svd {other:.2f} ({clock[1]:.2f} s), {other / mine:.1f} times faster; "
            f"rank {rank} and {plain_rank}, error {error:.6e} and {plain_error:.6e}; "
            f"one Gram product is {floor:.1f} Gflop",
            flush=True,
        )


if __name__ == "__main__":
    import sys

    main("--full" in sys.argv)
