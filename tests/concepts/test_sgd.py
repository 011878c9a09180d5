import jax
import jax.numpy as jnp
import numpy as np
import pytest

from saddles import SaddlesError, predict, simulate
from saddles.concepts import MLP, SGD, Batch, Identity, OneLayer, OneLayerTheory, train
from saddles.core.status import Ending, status_of


def _dense(model, task, method, seed):
    """A plain loop in the network's own frame, with the full d × d first layer."""
    layers = [(jnp.asarray(w), jnp.zeros(len(w)) if b is None else jnp.asarray(b)) for w, b in model.start(task, seed)]
    data = jnp.asarray(task.data())

    def run(layers, x):
        for depth, (w, b) in enumerate(layers):
            x = (jnp.maximum(x, 0) if depth and model.activation == "relu" else x) @ w.T + (
                b[None] if model.bias else 0.0
            )
        return x

    def loss(layers, x):
        gap = run(layers, x) - x
        return jnp.mean(gap**2) if method.loss == "mean" else 0.5 * jnp.mean(jnp.sum(gap**2, axis=1))

    slope = jax.jit(jax.grad(loss))
    outputs = [run(layers, jnp.asarray(task.test_point)[None])[0]]
    for order in task.shuffles(method.epochs, seed):
        for k in range(len(data) // method.batch):
            rows = order[k * method.batch : (k + 1) * method.batch]
            gradient = slope(layers, data[rows])
            layers = [
                (w - method.rate * gw, b - method.rate * gb) for (w, b), (gw, gb) in zip(layers, gradient, strict=True)
            ]
            outputs.append(run(layers, jnp.asarray(task.test_point)[None])[0])
    return np.asarray(outputs) @ task.rotation


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (MLP(), "sum"),
        (MLP((6,), "relu"), "sum"),
        (MLP((5, 4), "linear", bias=True), "mean"),
        (MLP((12,), "relu", bias=True), "sum"),
    ],
)
def test_the_program_takes_the_steps_of_a_plain_loop(model, loss):
    task = Identity((1.0, 2.0), 0.3, dim=5, samples=40, rotate=True, seed=4)
    method = SGD(0.05, batch=16, epochs=3, loss=loss, save_every=1)
    found = simulate(model, task, method, seed=9)
    np.testing.assert_allclose(found["output"], _dense(model, task, method, 9), rtol=1e-9, atol=1e-11)
    scale = 2 / 5 if loss == "mean" else 1
    np.testing.assert_allclose(found["time"], 0.05 * scale * found["step"])


def test_every_epoch_has_an_order_of_its_own():
    orders = Identity((1.0, 2.0), 0.3, samples=20, seed=4).shuffles(3, seed=9)
    assert all(sorted(order) == list(range(40)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


def test_pytorch_weights_are_drawn_by_the_number_of_inputs():
    ((one, _),) = OneLayer().layers(Identity((1.0, 2.0), 0.3, dim=50))
    assert 0.99 / np.sqrt(50) < np.abs(one).max() <= 1 / np.sqrt(50)
    layers = MLP((400,), bias=True).start(Identity((1.0, 2.0), 0.3, dim=4))
    for (weights, biases), inputs in zip(layers, (4, 400), strict=True):
        edge = 1 / np.sqrt(inputs)  # the largest of n uniform numbers lies within 10/n of the edge, but for e^-10
        assert edge * (1 - 10 / weights.size) < np.abs(weights).max() <= edge
        assert biases is not None
        assert np.abs(biases).max() <= edge


def test_side_by_side_and_one_after_another_agree(monkeypatch):
    tasks = [Identity((1.0, 2.0), s, dim=4, samples=50, seed=1) for s in (0.1, 0.5)]
    model = MLP((4,))
    method = SGD(0.1, batch=10, epochs=2, save_every=2)
    batch = Batch([model] * 2, tasks, [3, 3], method)
    together = train(batch)
    monkeypatch.setattr("saddles.concepts.method.TINY", 0)
    apart = train(batch)
    np.testing.assert_allclose(together["output"], apart["output"], rtol=1e-10, atol=1e-13)
    alone = simulate(model, tasks[1], method, seed=3)
    np.testing.assert_allclose(together["output"][:, 1], alone["output"], rtol=1e-10, atol=1e-13)


def test_full_batch_descends_on_the_second_moment():
    task = Identity((1.0, 2.0), 0.3, dim=3, samples=30)
    found = simulate(OneLayer(np.zeros((3, 3))), task, SGD(0.1, batch=None, epochs=20, save_every=5), seed=0)
    factor = np.linalg.matrix_power(np.eye(2) - 0.1 * task.moment, 20)
    exact = (np.eye(2) - factor) @ task.target[:2]
    np.testing.assert_allclose(found["output"][-1, :2], exact, rtol=1e-10)
    gap = factor
    assert float(found["loss"][-1]) == pytest.approx(0.5 * np.trace(gap @ task.moment @ gap.T), rel=1e-10)


def test_the_error_against_theorem_4_1_falls_with_the_rate():
    task = Identity((1.0, 2.0), 0.3, dim=3, samples=100, seed=1)
    errors = []
    for rate in (0.1, 0.05, 0.025):
        found = simulate(OneLayer(), task, SGD(rate, batch=None, epochs=round(2 / rate), save_every=1))
        exact = predict(OneLayer(), task, OneLayerTheory(), times=found["time"].values)
        errors.append(float(np.abs(found["output"] - exact["output"]).max()))
    np.testing.assert_allclose(np.diff(np.log2(errors)), -1, atol=0.1)


def test_hierarchy_ends_at_the_test_point():
    task = Identity((1.0, 2.0), 0.3, dim=3, samples=50)
    found = simulate(MLP((6,), "relu"), task, SGD(0.1, batch=25, epochs=2), keep=["hierarchy"])
    assert list(found["point"].values) == ["00", "01", "10", "11"]
    np.testing.assert_allclose(found["point_loss"].sel(point="11"), found["test_loss"])


def test_what_cannot_be_kept_is_named():
    task = Identity((1.0, 2.0), 0.3, samples=50)
    with pytest.raises(SaddlesError, match="`keep` must be names out of jacobian, hierarchy; got 'weights'"):
        simulate(MLP(), task, SGD(0.1, batch=10), keep=["weights"])
    with pytest.raises(SaddlesError, match="depends on the input"):
        simulate(MLP((2,), "relu"), task, SGD(0.1, batch=10), keep=["jacobian"])
    with pytest.raises(SaddlesError, match="batch=None"):
        simulate(MLP(), task, SGD(0.1, batch=1000))
    with pytest.raises(SaddlesError, match="infinitely many"):
        simulate(MLP(), task.limit(), SGD(0.1))


def test_a_run_that_diverges_says_so():
    task = Identity((4.0, 4.0), 0.3, samples=200)
    found = simulate(MLP(), task, SGD(5.0, batch=20, epochs=40))
    assert status_of(found).ending is Ending.DIVERGED
    assert "smaller rate than 5" in status_of(found).reason


def test_times_are_met_by_the_nearest_steps():
    task = Identity((1.0, 2.0), 0.3, dim=4, samples=50)
    method = SGD(0.05, batch=20, epochs=4, loss="mean", save_every=1)
    every = simulate(MLP((3,)), task, method, seed=1)
    some = simulate(MLP((3,)), task, method, seed=1, times=[0.1, 0.2, 0.4])
    np.testing.assert_allclose(some["time"], [0.1, 0.2, 0.4], atol=0.0125)
    np.testing.assert_array_equal(some["step"], [4, 8, 16])
    np.testing.assert_allclose(some["output"], every["output"].isel(time=[4, 8, 16]), rtol=1e-12)
    with pytest.raises(SaddlesError, match="Raise `epochs`"):
        simulate(MLP((3,)), task, method, times=[0.0, 9.0])
