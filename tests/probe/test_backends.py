"""Measuring in a process of its own: the same numbers as in threads, and errors that are reported."""

import contextlib
import itertools
import os
import signal
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import small_models
import torch

from saddles import probe
from saddles.errors import SaddlesError
from saddles.probe.recording.backends import ProcessBackend, ThreadBackend
from saddles.probe.recording.snapshot import Copier, Place, buffers_for, places_for
from saddles.probe.weights.live_model import parameters
from saddles.runtime.threads import torch_pool


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
    buffers = buffers_for(places_for(tensors), shared=True)
    Copier(tensors).copy_to(buffers)
    return buffers


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_process_finds_what_threads_find(kind):
    layout, start, now = moved(kind=kind)
    with contextlib.ExitStack() as stack:
        reference, *copies = [stack.enter_context(closing(shared(one))) for one in (start, now, start)]
        process = ProcessBackend(layout, places_for(start), reference, copies, True, 1)
        stack.enter_context(closing(process))
        apart = [process.measure(one) for one in copies]
        with torch_pool(1) as pool:
            here = [ThreadBackend(layout, start, True, pool).measure(one) for one in copies]
    for one, other in zip(apart, here, strict=True):
        assert set(one) == set(other)
        for name, array in other.items():
            np.testing.assert_array_equal(one[name], array)
    assert apart[0]["heads/stable_rank"].min() > 1


def test_an_error_in_the_process_is_raised_here():
    layout, start, now = moved()
    wrong = places_for(now)
    narrow = next(place for place in wrong if place.name == layout.head_parameters()[0])
    places = [replace(place, shape=place.shape[::-1]) if place == narrow else place for place in wrong]
    with contextlib.ExitStack() as stack:
        reference, copy = [stack.enter_context(closing(shared(one))) for one in (start, now)]
        process = stack.enter_context(closing(ProcessBackend(layout, places, reference, [copy], False, 1)))
        with pytest.raises(SaddlesError, match="Expected size"):
            process.measure(copy)
        os.kill(process._worker.pid, signal.SIGKILL)
        with pytest.raises(SaddlesError, match="Expected size"):  # another process has taken its place
            process.measure(copy)


def test_places_do_not_overlap_and_hold_what_was_sent():
    tensors = {"a": torch.randn(3, 5), "b": torch.randn(7).to(torch.bfloat16), "c": torch.randn(2, 2, 2).double()}
    places = places_for(tensors)
    assert all(isinstance(place, Place) and place.start % 64 == 0 for place in places)
    assert all(one.start + one.size <= other.start for one, other in itertools.pairwise(places))
    with closing(shared(tensors)) as buffers:
        for name, tensor in tensors.items():
            assert torch.equal(buffers.tensors[name], tensor)


def test_a_recording_by_a_process_ends_whole():
    torch.manual_seed(0)
    model = small_models.gpt2()
    with probe.record(model, every=1, process=True, pending=3) as run:
        for _ in range(3):
            with torch.no_grad():
                for weight in model.parameters():
                    weight.add_(0.01 * torch.randn_like(weight))
            run.step()
    assert np.asarray(run.result["heads"]["step"]).tolist() == [1, 2, 3]
