"""One meaning for every argument, in every lab: what is given is used, or refused; nothing is ignored.

Each row of `CASES` is a model with a method, or a theory with a model. For every argument of the verbs the test gives a
value that must make a difference and looks for it; a refusal in words is the only other way to pass.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import xarray as xr

import saddles
from saddles import concepts, diagonal, incontext, linear, margin, networks
from saddles.core.assumptions import Assumptions
from saddles.core.status import status_of

LOG_ALPHA = -20.0
HEAD = diagonal.LinearDiagonal(3, log_alpha=LOG_ALPHA)
SAMPLES = diagonal.TeacherStudent(HEAD, samples=40, seed=1)
TOKENS = margin.Tokens.random(2, 3, 3, seed=1)
SIM = concepts.Identity((1.0, 2.0), (0.5, 0.3), dim=4)
FEW = concepts.Identity((1.0, 2.0), (0.5, 0.3), dim=4, samples=8)
PAIR = concepts.SymmetricTwoLayer(factor=0.1 * np.eye(4))
DENOISING = linear.Denoising(6, 2)
VECTORS = networks.Regression(np.eye(3), np.eye(3)[:, :2], np.ones((1, 3)), np.ones((1, 2)))
PROMPTS = incontext.Regression((0.9, 0.5), 9)
TANH = networks.Perceptron(4, 0.3, "tanh")


@dataclass(frozen=True)
class Case:
    """One verb with what it is called on."""

    name: str
    verb: Callable[..., xr.Dataset]
    words: tuple[Any, ...]
    times: list[float]
    keepable: tuple[str, ...] = ()

    def __call__(self, **options: Any) -> xr.Dataset:
        return self.verb(*self.words, **options)


def _simulate(
    name: str, *words: Any, times: tuple[float, ...] = (0.0, 0.5, 1.0), keepable: tuple[str, ...] = ()
) -> Case:
    return Case(name, saddles.simulate, words, list(times), keepable)


def _predict(
    name: str, *words: Any, times: tuple[float, ...] = (0.0, 0.5, 1.0), keepable: tuple[str, ...] = ()
) -> Case:
    return Case(name, saddles.predict, words, list(times), keepable)


FACTORS = ("matrix", "gram", "alignment", "factor")
CASES = [
    _simulate("linear descent", linear.TwoLayer(50, 1e-2), DENOISING, linear.GradientDescent(0.5, 4), keepable=FACTORS),
    _simulate("linear flow", linear.TwoLayer(50, 1e-2), DENOISING, linear.GradientFlow(until=1.0), keepable=FACTORS),
    *(
        _predict(f"linear {type(theory).__name__}", linear.TwoLayer(50, 1e-2), DENOISING, theory, keepable=("matrix",))
        for theory in (linear.SelfConsistent(), linear.Balanced(), linear.Lazy(), linear.Aligned())
    ),
    _simulate("diagonal flow", HEAD, SAMPLES, diagonal.Flow(until=2.0), keepable=("weights", "crossings")),
    _simulate("diagonal descent", HEAD, SAMPLES, diagonal.Descent(0.1, 400), keepable=("weights",)),
    _predict("diagonal Incremental", HEAD, SAMPLES, diagonal.Incremental(max_stages=2)),
    _simulate("concepts flow", concepts.OneLayer(), SIM, concepts.GradientFlow(until=1.0), keepable=("jacobian",)),
    _simulate("concepts descent", concepts.OneLayer(), SIM, concepts.GradientDescent(0.5, 4), keepable=("jacobian",)),
    _simulate("concepts pair", PAIR, SIM, concepts.GradientFlow(until=1.0), keepable=("jacobian", "terms")),
    _simulate("concepts drawn pair", concepts.SymmetricTwoLayer(top=0.2), SIM, concepts.GradientFlow(until=1.0),
              keepable=("jacobian", "terms")),
    _simulate("concepts SGD", concepts.MLP((3,)), FEW, concepts.SGD(0.5, 4, 4), keepable=("jacobian", "hierarchy")),
    _simulate("concepts MLP flow", concepts.MLP((3,), "relu"), FEW, concepts.GradientFlow(until=1.0)),
    _predict("concepts OneLayerTheory", concepts.OneLayer(), SIM, concepts.OneLayerTheory(), keepable=("jacobian",)),
    _predict("concepts TwoLayerTheory", PAIR, SIM, concepts.TwoLayerTheory(), keepable=("jacobian", "terms")),
    _simulate("margin diagonal", margin.DiagonalAttention(0.1), TOKENS, margin.MarginFlow(20.0),
              keepable=("accumulated",)),
    _simulate("margin factored", margin.FactoredAttention(scale=0.1), TOKENS, margin.MarginFlow(20.0),
              keepable=("factors", "accumulated")),
    _simulate("margin joint", margin.JointAttention(), TOKENS, margin.MarginFlow(20.0), keepable=("accumulated",)),
    _simulate("networks descent", TANH, VECTORS, networks.GradientDescent(0.5, 4), keepable=("outputs",)),
    _predict("networks Linearised", TANH, VECTORS, networks.Linearised(0.5), keepable=("outputs", "test_outputs")),
    _simulate("incontext flow", incontext.Separate(2, 1, 0.3), PROMPTS, incontext.GradientFlow(until=1.0),
              keepable=("weights",)),
    _simulate("incontext prompts", incontext.Merged(2, 0.3), PROMPTS, incontext.PromptDescent(0.5, 4, batch=8),
              keepable=("weights",)),
    _simulate("incontext softmax", incontext.Softmax(incontext.Merged(2, 0.3)), PROMPTS,
              incontext.PromptDescent(0.5, 4, batch=8)),
    _predict("incontext AlternatingFlows", incontext.Separate(2, 1, 0.3), PROMPTS, incontext.AlternatingFlows(),
             times=(0.0, 10.0, 100.0)),
    _predict("margin MaxMargin", margin.FactoredAttention(scale=0.1), TOKENS, margin.MaxMargin()),
]  # fmt: skip
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def _differ(one: xr.Dataset, other: xr.Dataset) -> bool:
    """Some variable over time differs in its numbers or its shape."""
    return any(
        not one[name].equals(other[name]) for name in one.data_vars if name in other and "time" in one[name].dims
    )


def _refused(call: Callable[[], xr.Dataset], argument: str) -> xr.Dataset | None:
    """The result, or None where the call was refused because of this argument."""
    try:
        return call()
    except saddles.SaddlesError as error:
        if argument not in str(error):
            raise
        return None


@every_case
def test_times_are_the_clock_of_the_result(case):
    result = _refused(lambda: case(times=case.times), "times")
    if result is not None:
        np.testing.assert_allclose(result["time"], case.times, rtol=1e-12)
        assert result["time"].attrs["unit"]
        assert status_of(result).ok


@every_case
def test_seed_changes_the_numbers(case):
    other = _refused(lambda: case(seed=7), "seed")
    if other is not None:
        assert _differ(case(seed=0), other)


@every_case
def test_list_of_seeds_stacks_single_runs(case):
    runs = _refused(lambda: case(seed=[0, 7], times=_times(case)), "seed")
    if runs is not None:
        alone = case(seed=7, times=_times(case))
        name = next(name for name in alone.data_vars if alone[name].dims[:1] == ("time",))
        np.testing.assert_array_equal(runs[name].sel(seed=7), alone[name])


def _times(case: Case) -> list[float] | None:
    return case.times if _refused(lambda: case(times=case.times), "times") is not None else None


@every_case
def test_keep_adds_and_never_removes(case):
    usual = set(_refused(lambda: case(keep=()), "keep") or case())
    for name in case.keepable:
        assert set(case(keep=(name,))) > usual, name
    assert _refused(lambda: case(keep=("nonsense",)), "keep") is None


@every_case
def test_device_that_is_not_there_is_refused(case):
    assert _refused(lambda: case(device="tpu:9"), "device") is None


@every_case
def test_precision_changes_the_numbers(case):
    single = _refused(lambda: case(precision="float32"), "precision")
    if single is not None:
        assert _differ(single, case())


@every_case
def test_an_unknown_option_is_refused(case):
    assert _refused(lambda: case(colour="red"), "colour") is None


MODELS = [case.words[0] for case in CASES if case.verb is saddles.simulate]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_start_has_one_signature(model):
    if hasattr(model, "start"):
        parameters = inspect.signature(model.start).parameters
        assert list(parameters) == ["task", "seed"]
        assert parameters["seed"].default == 0


def test_assumptions_are_of_one_type():
    predicted = saddles.predict(HEAD, SAMPLES, diagonal.Incremental(max_stages=2))
    checked = [
        concepts.check_assumptions(PAIR, SIM),
        diagonal.check_assumptions(HEAD, SAMPLES, predicted),
        margin.check_assumptions(TOKENS),
    ]
    for result in checked:
        assert isinstance(result, Assumptions)
        assert len(result.to_frame()) == len(result.checks)
        assert bool(result.reason) == bool(result.broken)


def test_an_ignored_argument_is_found():
    """The tests above can fail: a model that takes a seed and has no use for it is caught."""

    class Deaf:
        def simulate(self, task, method, *, times=None, seed=0, keep=None, device=None, precision="float64"):
            return saddles.trajectory({"x": np.ones(3)}, np.arange(3.0))

    case = _simulate("deaf", Deaf(), None, None)
    for test in (
        test_times_are_the_clock_of_the_result, test_seed_changes_the_numbers, test_keep_adds_and_never_removes,
        test_device_that_is_not_there_is_refused, test_precision_changes_the_numbers,
    ):  # fmt: skip
        with pytest.raises(AssertionError):
            test(case)


NEURON = {"function": lambda x, theta: theta[0] * (theta[1:] @ x), "degree": 2, "size": 3, "count": 1}

NOTHING = np.zeros((3, 2))

REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("until", lambda: linear.GradientFlow(until=np.inf)),
    ("max_steps", lambda: linear.GradientFlow(until=1.0, max_steps=0)),
    ("scale", lambda: incontext.Neurons(**NEURON, scale=np.nan)),
    ("scale", lambda: incontext.Neurons(**NEURON, scale=[0.1, np.inf])),
    ("weights", lambda: incontext.Neurons(**NEURON, scale=0.1, weights=[[np.nan, 1.0, 1.0]])),
    ("covariance", lambda: incontext.Regression(1e-10 * np.array([[1.0, 0.5], [-0.3, 1.0]]), 5)),
    ("top", lambda: concepts.SymmetricTwoLayer(top=np.inf)),
    ("scale", lambda: concepts.SymmetricTwoLayer(scale=[0.1, np.inf])),
    ("hidden", lambda: concepts.SymmetricTwoLayer(top=0.1, hidden=np.array([1.5]))),
    ("scale", lambda: concepts.MLP((2,), init="gaussian", scale=np.nan)),
    ("scale", lambda: concepts.MLP((2,), init="gaussian", scale=-1.0)),
    ("scale", lambda: diagonal.FullHead(2, scale=np.nan)),
    ("weights", lambda: diagonal.LinearDiagonal(2, weights=([np.nan, 1.0], [1.0, 1.0])).start()),
    ("must not both be 0", lambda: margin.FactoredAttention(weights=(NOTHING, NOTHING)).start(TOKENS)),
]


@pytest.mark.parametrize(("name", "make"), REFUSED, ids=[f"{i} {name}" for i, (name, _) in enumerate(REFUSED)])
def test_settings_that_no_run_can_have_are_refused(name, make):
    with pytest.raises(saddles.SaddlesError, match=name):
        make()
