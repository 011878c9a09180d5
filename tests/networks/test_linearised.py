"""The linearised network in closed form, against descent on it step by step, and beside a real one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.flatten_util import ravel_pytree
from torch import nn

import saddles
from saddles import networks
from saddles.errors import SaddlesError
from saddles.networks.experiments.linearised import _judged
from saddles.networks.side_by_side import cross_entropy
from saddles.networks.theory import kernels

DRAW = np.random.default_rng(5)
TASK = networks.Regression(
    DRAW.normal(size=(8, 3)), DRAW.normal(size=(8, 2)), DRAW.normal(size=(4, 3)), DRAW.normal(size=(4, 2))
)
MODEL = networks.Perceptron(6, 0.3, "tanh")
RATE, STEPS = 0.2, 12


def _descent_on_the_linearisation(rate, steps):
    """θ ← θ − η∇ of the loss of f₀ + J(θ − θ₀), with J written out."""
    start = tuple(map(jnp.asarray, MODEL.start(TASK, 3)))
    flat, unravel = ravel_pytree(start)

    def f(at, x):
        return MODEL.outputs(unravel(at), x).reshape(-1)

    train, test = (jnp.asarray(x) for x in (TASK.inputs, TASK.test_inputs))
    jacobian, other = jax.jacobian(f)(flat, train), jax.jacobian(f)(flat, test)
    moved, seen = jnp.zeros_like(flat), []
    for _ in range(steps + 1):
        here = f(flat, train) + jacobian @ moved
        seen.append((np.asarray(here), np.asarray(f(flat, test) + other @ moved)))
        moved = moved - rate / 8 * jacobian.T @ (here - TASK.targets.reshape(-1))
    return seen


def test_closed_form_is_descent_on_the_linearised_network():
    expected = _descent_on_the_linearisation(RATE, STEPS)
    times = RATE * np.arange(STEPS + 1)
    found = saddles.predict(
        MODEL, TASK, networks.Linearised(RATE), times=times, seed=3, keep=["outputs", "test_outputs"]
    )
    for at, (train, test) in enumerate(expected):
        np.testing.assert_allclose(found["outputs"].values[at].ravel(), train, atol=1e-10)
        np.testing.assert_allclose(found["test_outputs"].values[at].ravel(), test, atol=1e-10)
    loss = [np.sum((train - TASK.targets.reshape(-1)) ** 2) / 16 for train, _ in expected]
    np.testing.assert_allclose(found["loss"], loss, rtol=1e-10)


class ColumnByColumn:
    """A network that does not know its kernel."""

    def __init__(self, model):
        self.start, self.outputs = model.start, model.outputs


@pytest.mark.parametrize(("activation", "layers"), [("relu", 2), ("tanh", 3), ("linear", 4)])
def test_kernel_layer_by_layer_is_that_of_products_with_the_jacobian(activation, layers):
    model = networks.Perceptron(7, 0.3, activation, layers)
    weights = tuple(jnp.asarray(part) for part in model.start(TASK, 2))
    points = jnp.asarray(TASK.inputs), jnp.asarray(TASK.test_inputs)
    for one, other in zip(
        kernels(model, weights, *points), kernels(ColumnByColumn(model), weights, *points), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
    tops = [networks.top_eigenvalue(one, TASK, seed=2) for one in (model, ColumnByColumn(model))]
    assert tops[0] == pytest.approx(tops[1], rel=1e-10)


def test_top_eigenvalue_of_a_network_whose_units_are_all_silent_is_0():
    silent = networks.Regression(np.zeros((4, 3)), np.ones((4, 2)), np.zeros((4, 3)), np.ones((4, 2)))
    assert networks.top_eigenvalue(networks.Perceptron(5, 0.3), silent) == 0.0


def test_a_rate_that_grows_beyond_what_numbers_hold_is_told():
    rate = 20 / networks.top_eigenvalue(MODEL, TASK)
    run = saddles.predict(MODEL, TASK, networks.Linearised(rate), times=rate * np.array([0.0, 5.0, 50.0, 1e4]))
    assert run.attrs["status"].startswith("diverged")
    assert run.sizes["time"] == 3
    assert np.isfinite(run["loss"]).all()
    late = saddles.predict(MODEL, TASK, networks.Linearised(rate), times=rate * np.array([1e4, 2e4]))
    assert late.attrs["status"] == f"diverged: near time {1e4 * rate:.6g}"
    alone = saddles.predict(MODEL, TASK, networks.Linearised(rate), times=rate * np.array([1e4]))
    assert alone.attrs["status"] == late.attrs["status"], "there is nothing before it"


def test_flow_is_the_limit_of_small_rates():
    times = np.linspace(0, 2, 5)
    flow = saddles.predict(MODEL, TASK, networks.Linearised(), times=times)
    fine, coarse = (saddles.predict(MODEL, TASK, networks.Linearised(r), times=times) for r in (1e-3, 2e-3))
    one, two = (float(abs(run["loss"] - flow["loss"]).max()) for run in (fine, coarse))
    assert two / one == pytest.approx(2, rel=0.05)


def test_a_lazy_network_stays_with_its_linearisation_and_an_active_one_parts():
    """Width 4096 at unit variance is lazy; a small start is not. Both take 30 steps that stay stable."""
    found = []
    for model, rate in ((networks.Perceptron(4096, 1.0, "tanh"), 2e-4), (networks.Perceptron(64, 1e-3, "tanh"), 1.0)):
        times = rate * np.arange(31)
        real = saddles.simulate(model, TASK, networks.GradientDescent(rate, 30), keep=["outputs"])
        linear = saddles.predict(model, TASK, networks.Linearised(rate), times=times, keep=["outputs"])
        found.append((networks.parting_time(real, linear), float(real["linearity"][-1])))
    assert found[0][0] == np.inf
    assert found[0][1] < 0.05
    assert found[1][0] < 30
    assert found[1][1] > 0.1


def test_beside_agrees_with_the_closed_form_and_across_libraries():
    start = tuple(jnp.asarray(part) for part in MODEL.start(TASK, 3))
    batches = [(TASK.inputs, TASK.targets)] * STEPS
    found = networks.beside(MODEL.outputs, start, batches, TASK.inputs, rate=RATE)
    times = RATE * np.arange(STEPS + 1)
    linear = saddles.predict(MODEL, TASK, networks.Linearised(RATE), times=times, seed=3, keep=["outputs"])
    np.testing.assert_allclose(found["linearised_loss"][:-1], linear["loss"][:-1], rtol=1e-9)
    real = saddles.simulate(MODEL, TASK, networks.GradientDescent(RATE, STEPS), seed=3, keep=["outputs"])
    np.testing.assert_allclose(found["loss"][:-1], real["loss"][:-1], rtol=1e-9)
    np.testing.assert_allclose(found["distance"], networks.distance(real, linear), rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(found["linearity"][1:], real["linearity"][1:], rtol=1e-7)
    module = nn.Sequential(nn.Linear(3, 6, bias=False), nn.Tanh(), nn.Linear(6, 2, bias=False)).double()
    names = ("0.weight", "2.weight")
    state = {name: torch.tensor(np.asarray(part)) for name, part in zip(names, start, strict=True)}
    inputs, targets = torch.tensor(TASK.inputs), torch.tensor(TASK.targets)
    again = networks.beside(module, state, [(inputs, targets)] * STEPS, inputs, rate=RATE)
    for name in ("loss", "linearised_loss", "distance", "linearity"):
        np.testing.assert_allclose(again[name], found[name], rtol=1e-7, atol=1e-10)


def test_a_run_that_never_parts_is_together_for_all_of_it():
    """The null of the claim, the widest network, is a number that fails it."""
    widths, steps = np.array([16, 64, 256]), np.arange(11)
    apart = np.minimum(steps[:, None] / 20, 1.6 / widths)[:, None].repeat(2, 1)  # (step, seed, width)
    apart[:, 1, 0] /= 100  # the second seed's narrowest never parts either
    *_, claim = _judged(apart, widths, -1.0, "network", "laptop")
    assert claim.null == 1
    assert claim.value == pytest.approx(1.0)  # the worst seed's
    assert claim.verdict == "fails"


def test_cross_entropy_gradient():
    values, labels = DRAW.normal(size=(4, 3)), np.array([0, 2, 1, 1])
    tensor = torch.tensor(values, requires_grad=True)
    loss = nn.functional.cross_entropy(tensor, torch.tensor(labels))
    loss.backward()
    ours, gradient = cross_entropy(values, labels)
    assert ours == pytest.approx(loss.item())
    assert tensor.grad is not None
    np.testing.assert_allclose(gradient, tensor.grad.numpy(), atol=1e-14)


def test_bad_input():
    start = tuple(jnp.asarray(part) for part in MODEL.start(TASK, 0))
    with pytest.raises(SaddlesError, match="`batches` must hold at least one batch"):
        networks.beside(MODEL.outputs, start, [], TASK.inputs, rate=0.1)
    with pytest.raises(SaddlesError, match="Unknown loss 'hinge'"):
        networks.beside(MODEL.outputs, start, [], TASK.inputs, rate=0.1, loss="hinge")
    with pytest.raises(SaddlesError, match="Try a smaller rate"):
        networks.beside(MODEL.outputs, start, [(TASK.inputs, TASK.targets)] * 40, TASK.inputs, rate=1e8)
    with pytest.raises(SaddlesError, match="`rate` must be a positive learning rate"):
        networks.Linearised(-1.0)
    with pytest.raises(SaddlesError, match="models with `start` and `outputs`"):
        saddles.predict(object(), TASK, networks.Linearised())
    with pytest.raises(SaddlesError, match="`activation` must be one of relu, tanh, linear"):
        networks.Perceptron(3, 1.0, "gelu")
    with pytest.raises(SaddlesError, match="their lengths differ"):
        networks.Regression(np.ones((3, 2)), np.ones((2, 1)), np.ones((1, 2)), np.ones((1, 1)))
    with pytest.raises(SaddlesError, match="keep=\\['outputs'\\]"):
        networks.distance(
            saddles.predict(MODEL, TASK, networks.Linearised()), saddles.predict(MODEL, TASK, networks.Linearised())
        )
    with pytest.raises(SaddlesError, match="`dim` must be between 1 and"):
        networks.Regression.from_images("made", dim=2000, samples=50)


class Flat(networks.Perceptron):
    """One output, without an axis of its own."""

    tangent_kernel = None  # pyright: ignore[reportAssignmentType]

    def outputs(self, weights, inputs):
        return super().outputs(weights, inputs)[:, 0]


class Named(Flat):
    def start(self, task, seed=0):  # pyright: ignore[reportIncompatibleMethodOverride]
        return dict(enumerate(super().start(task, seed)))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Flat(4, 0.3), r"`outputs` of Flat must have the shape of the targets, \(8, 1\); got the shape \(8,\)"),
        (Named(4, 0.3), "`start` of Named must return a tuple of arrays; got a dict"),
    ],
)
def test_networks_of_other_shapes_are_refused(model, words):
    task = networks.Regression(TASK.inputs, TASK.targets[:, :1], TASK.test_inputs, TASK.test_targets[:, :1])
    for ask in (
        lambda: saddles.predict(model, task, networks.Linearised(RATE), times=[0.0, 1.0]),
        lambda: networks.top_eigenvalue(model, task),
    ):
        with pytest.raises(SaddlesError, match=words):
            ask()


class Changing:
    """A network whose attribute may change, hashed by its identity."""

    def __init__(self, gain):
        self.gain = gain

    def start(self, task, seed=0):
        return MODEL.start(task, seed)

    def outputs(self, weights, inputs):
        return jnp.sin(self.gain * inputs @ weights[0].T) @ weights[1].T


def test_a_network_that_was_changed_is_not_taken_for_the_old_one():
    model = Changing(1.0)
    for gain in (1.0, 3.0):
        model.gain = gain
        expected = networks.top_eigenvalue(Changing(gain), TASK)
        assert networks.top_eigenvalue(model, TASK) == expected
        found = saddles.predict(model, TASK, networks.Linearised(), times=[0.0, 1.0])["loss"]
        assert found.equals(saddles.predict(Changing(gain), TASK, networks.Linearised(), times=[0.0, 1.0])["loss"])


def test_a_flow_from_a_start_in_float32_is_that_of_float64():
    one, other = (
        saddles.simulate(MODEL, TASK, networks.GradientFlow(), times=[0.0, 5.0], precision=precision)
        for precision in ("float64", "float32")
    )
    np.testing.assert_allclose(other["linearity"], one["linearity"], rtol=1e-5)
    np.testing.assert_allclose(other["loss"], one["loss"], rtol=1e-5)


def test_a_flow_held_at_a_kink_of_a_relu_says_so_and_arrives_with_larger_steps():
    draw = np.random.default_rng([1, 3])
    inputs, targets = draw.normal(size=(6, 2)), draw.normal(size=(6, 1))
    task = networks.Regression(inputs, targets, draw.normal(size=(2, 2)), draw.normal(size=(2, 1)))
    model, times = networks.Perceptron(3, 0.5), np.linspace(0.0, 20.0, 11)
    held = saddles.simulate(model, task, networks.GradientFlow(max_steps=20_000), times=times, seed=1)
    assert held.attrs["status"].startswith("stopped: 20000 solver steps")
    assert "sliding along a kink" in held.attrs["status"]
    coarse = saddles.simulate(model, task, networks.GradientFlow(rtol=1e-6), times=times, seed=1)
    stepped = saddles.simulate(model, task, networks.GradientDescent(1e-3, 20_000), times=times, seed=1)
    assert coarse.attrs["status"] == "finished"
    np.testing.assert_allclose(coarse["loss"], stepped["loss"], rtol=0, atol=1e-3 * float(stepped["loss"][0]))
