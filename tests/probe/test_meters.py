"""Measuring in a process of its own: the same numbers as in threads, and errors that are told."""

import numpy as np
import pytest
import small_models
import torch

from saddles import probe
from saddles.core.errors import SaddlesError
from saddles.probe.live import parameters
from saddles.probe.meters import Process, Threads, measured, rows_from, rows_to
from saddles.probe.threads import calm_pool


def moved(seed=0, kind=torch.float32):
    """A layout, some weights and others of the same shapes."""
    torch.manual_seed(seed)
    model = small_models.gpt2().to(kind)
    layout = probe.heads(model)
    start = {name: tensor.detach().clone() for name, tensor in parameters(model).items() if tensor.dim() == 2}
    now = {name: tensor + 0.1 * torch.randn_like(tensor) for name, tensor in start.items()}
    return layout, start, now


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_process_finds_what_threads_find(kind):
    layout, start, now = moved(kind=kind)
    process = Process(layout, start, True, 1)
    try:
        apart = [process.row(now), process.row(start)]
    finally:
        process.close()
    with calm_pool(1) as pool:
        here = [Threads(layout, start, True, pool).row(one) for one in (now, start)]
    for one, other in zip(apart, here, strict=True):
        assert set(one) == set(other)
        for name, array in other.items():
            np.testing.assert_array_equal(one[name], array)
    assert apart[0]["heads/stable_rank"].min() > 1


def test_an_error_over_there_is_told_here():
    layout, start, now = moved()
    process = Process(layout, start, False, 1)
    name = layout.head_parameters()[0]
    try:
        with pytest.raises(SaddlesError, match="shape"):
            process.row({**now, name: now[name][:, :-1].contiguous()})
        assert process.row(now)["heads/singular_value"].size
        process._process.kill()
        process._process.wait()
        with pytest.raises(SaddlesError, match="ended early"):
            process.row(now)
    finally:
        process.close()


def test_a_recording_by_a_process_ends_whole():
    torch.manual_seed(0)
    model = small_models.gpt2()
    with probe.watch(model, every=1, process=True, pending=3) as run:
        for _ in range(3):
            with torch.no_grad():
                for weight in model.parameters():
                    weight.add_(0.01 * torch.randn_like(weight))
            run.step()
    assert np.asarray(run.result["heads"]["step"]).tolist() == [1, 2, 3]


def test_rows_as_bytes_and_back():
    layout, start, now = moved()
    row = measured(layout, now, start, False, map)
    again = rows_from(rows_to(row))
    for name, array in row.items():
        np.testing.assert_array_equal(again[name], array)
