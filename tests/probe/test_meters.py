"""Measuring in a process of its own: the same numbers as in threads, and errors that are told."""

import contextlib
import itertools
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import small_models
import torch

from saddles import probe
from saddles.errors import SaddlesError
from saddles.probe.recording.backends import Process, Threads, measured, rows_from, rows_to
from saddles.probe.recording.snapshot import Courier, Place, buffers_for, places_for
from saddles.probe.threads import calm_pool
from saddles.probe.weights.live import parameters


def moved(seed=0, kind=torch.float32):
    """A layout, some weights and others of the same shapes."""
    torch.manual_seed(seed)
    model = small_models.gpt2().to(kind)
    layout = probe.heads(model)
    start = {name: tensor.detach().clone() for name, tensor in parameters(model).items() if tensor.dim() == 2}
    now = {name: tensor + 0.1 * torch.randn_like(tensor) for name, tensor in start.items()}
    return layout, start, now


def shared(tensors):
    """Tensors in memory that a process may look at."""
    made = buffers_for(places_for(tensors), shared=True)
    Courier(tensors).send(made)
    return made


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_process_finds_what_threads_find(kind):
    layout, start, now = moved(kind=kind)
    with contextlib.ExitStack() as stack:
        reference, *copies = [stack.enter_context(closing(shared(one))) for one in (start, now, start)]
        process = Process(layout, places_for(start), reference, copies, True, 1)
        stack.enter_context(closing(process))
        apart = [process.row(one) for one in copies]
        with calm_pool(1) as pool:
            here = [Threads(layout, start, True, pool).row(one) for one in copies]
    for one, other in zip(apart, here, strict=True):
        assert set(one) == set(other)
        for name, array in other.items():
            np.testing.assert_array_equal(one[name], array)
    assert apart[0]["heads/stable_rank"].min() > 1


def test_an_error_over_there_is_told_here():
    layout, start, now = moved()
    wrong = places_for(now)
    narrow = next(place for place in wrong if place.name == layout.head_parameters()[0])
    places = [replace(place, shape=place.shape[::-1]) if place == narrow else place for place in wrong]
    with contextlib.ExitStack() as stack:
        reference, copy = [stack.enter_context(closing(shared(one))) for one in (start, now)]
        process = stack.enter_context(closing(Process(layout, places, reference, [copy], False, 1)))
        with pytest.raises(SaddlesError, match="Expected size"):
            process.row(copy)
        process._process.kill()
        process._process.wait()
        with pytest.raises(SaddlesError, match="ended early"):
            process.row(copy)


def test_places_do_not_overlap_and_hold_what_was_sent():
    tensors = {"a": torch.randn(3, 5), "b": torch.randn(7).to(torch.bfloat16), "c": torch.randn(2, 2, 2).double()}
    places = places_for(tensors)
    assert all(isinstance(place, Place) and place.start % 64 == 0 for place in places)
    assert all(one.start + one.size <= other.start for one, other in itertools.pairwise(places))
    made = shared(tensors)
    try:
        for name, tensor in tensors.items():
            assert torch.equal(made.tensors[name], tensor)
    finally:
        made.close()


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
