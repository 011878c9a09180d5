"""Every random quantity of a run has a stream of its own: two of them never see the same random numbers.

A target and a noise that share a stream are the same numbers twice, and no test of either alone can tell.
"""

import traceback
from collections import defaultdict

import numpy as np
import pytest

from saddles import concepts, diagonal, linear, margin, simulate


def _linear(task=None):
    simulate(linear.TwoLayer(8, 0.1), task or linear.Denoising(6, 2), linear.GradientDescent(0.1, 2))


def _completion():
    _linear(linear.Completion(6, 2))


def _sensing():
    _linear(linear.Sensing(6, 2, measurements=20))


def _diagonal():
    model = diagonal.AttentionHead(2, log_alpha=-5.0)
    task = diagonal.TeacherStudent(model, 12, 3, noise=0.1, sparsity=2)
    predicted = diagonal.Incremental(1).predict(model, task)
    diagonal.check_assumptions(model, task, predicted, trials=1)
    simulate(model, task, diagonal.Descent(0.1, 3, batch=4))


def _concepts():
    task = concepts.Identity((1.0, 2.0), 0.3, samples=10, rotate=True)
    for model in (concepts.OneLayer(), concepts.MLP((4,))):
        simulate(model, task, concepts.SGD(0.05, batch=4, epochs=2))


def _margin():
    task = margin.Tokens.random(3, 4, 5)
    simulate(margin.FactoredAttention(scale=0.1), task, margin.MarginFlow(until_norm=1.0))


SCENARIOS = (_linear, _completion, _sensing, _diagonal, _concepts, _margin)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__[1:])
def test_no_two_places_draw_from_one_stream(monkeypatch, scenario):
    places = defaultdict(set)
    make = np.random.default_rng

    def recorded(key: int | list[int]) -> np.random.Generator:
        callers = traceback.extract_stack()[:-1]
        site = next(frame for frame in reversed(callers) if "/saddles/" in frame.filename)  # past the type checker's
        places[tuple(np.ravel(key))].add((site.filename, site.lineno))
        return make(key)

    monkeypatch.setattr(np.random, "default_rng", recorded)
    scenario()
    assert len(places) > 1
    shared = {key: sites for key, sites in places.items() if len(sites) > 1}
    assert not shared
