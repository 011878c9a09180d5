"""The exact loss and its flows, against prompts, full attention and SciPy."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import saddles
from saddles import linear
from saddles.incontext import GradientDescent, GradientFlow, Merged, PromptDescent, Regression, Separate, Wide
from saddles.incontext.simulate import key_of, merged_matrix, separate_matrix

PROMPT = 9


def _task(dim: int = 3, seed: int = 0) -> Regression:
    root = np.random.default_rng(seed).normal(size=(dim, dim + 2))
    return Regression(root @ root.T / dim**2, PROMPT)


def test_population_loss_is_the_mean_over_prompts():
    task = _task()
    matrix = task.target + 0.3 * np.random.default_rng(1).normal(size=(3, 3))
    prompts = task.draw(200_000, seed=2)
    beta = np.einsum("pn,pnd->pd", prompts.outputs, prompts.inputs) / PROMPT
    errors = (prompts.answer - np.einsum("pd,de,pe->p", beta, matrix, prompts.query)) ** 2
    assert task.loss(matrix) == pytest.approx(errors.mean(), abs=4 * errors.std() / np.sqrt(len(errors)))
    assert task.loss(task.target) == pytest.approx(task.plateaus[-1], rel=1e-12)
    slope = jax.grad(lambda m: task.cost(m))(jnp.asarray(matrix))
    np.testing.assert_allclose(task.cost.gradient(matrix), slope, rtol=1e-10)


def _attention(weights, prompts):
    """Linear attention on tokens (x, y) of R^{D+1} with full value, key and query matrices; answers at the query."""
    value, key, query = weights
    tokens = jnp.concatenate([jnp.asarray(prompts.inputs), jnp.asarray(prompts.outputs)[..., None]], axis=-1)
    ask = jnp.concatenate([jnp.asarray(prompts.query), jnp.zeros((len(prompts.query), 1))], axis=-1)
    scores = jnp.einsum("pni,hir,hjr,pj->hpn", tokens, key, query, ask)
    return jnp.einsum("hpn,pni,hi->p", scores, tokens, value) / prompts.inputs.shape[1]


def test_the_loss_is_in_double_precision_whatever_jax_is_set_to():
    """A user's program has JAX in its default, float32; the tests of this package do not."""
    task = Regression([0.9, 0.5], prompt=31)
    new = hasattr(jax, "enable_x64")  # JAX 0.8 and later
    with jax.enable_x64(False) if new else jax.experimental.disable_x64():  # type: ignore[attr-defined]
        assert task.loss(task.target) == pytest.approx(task.plateaus[-1], rel=1e-13)


def test_full_attention_on_drawn_prompts():
    """It answers as the reduced model does, and the entries outside its blocks have no force but sampling noise."""
    task, heads, rank = _task(), 2, 2
    value, key, query = Separate(heads, rank, 0.7).start(task, 4)
    full = (
        jnp.asarray(np.concatenate([np.zeros((heads, 3)), value[:, None]], axis=1)),
        *(jnp.asarray(np.concatenate([part, np.zeros((heads, 1, rank))], axis=1)) for part in (key, query)),
    )
    prompts = task.draw(4000, seed=5)
    matrix = np.einsum("h,hdr,her->de", value, key, query)
    beta = np.einsum("pn,pnd->pd", prompts.outputs, prompts.inputs) / PROMPT
    np.testing.assert_allclose(
        _attention(full, prompts), np.einsum("pd,de,pe->p", beta, matrix, prompts.query), atol=1e-10
    )

    def loss(weights, sign):
        flipped = prompts._replace(outputs=sign * prompts.outputs, answer=sign * prompts.answer)
        return jnp.mean((flipped.answer - _attention(weights, flipped)) ** 2)

    def both(weights):
        return (loss(weights, 1.0) + loss(weights, -1.0)) / 2

    one, even = jax.grad(loss)(full, 1.0), jax.grad(both)(full)
    assert np.abs(one[0][:, :3]).max() > 1e-3  # noise of the drawn prompts …
    assert np.abs(one[1][:, 3]).max() > 1e-4
    assert np.abs(even[0][:, :3]).max() < 1e-12  # … which the symmetry w → −w removes
    assert np.abs(even[1][:, 3]).max() < 1e-12
    assert np.abs(one[2][:, 3]).max() == 0.0
    push = -np.asarray(task.cost.gradient(matrix))
    exact = -np.einsum("hdr,de,her->h", key, push, query)
    np.testing.assert_allclose(one[0][:, 3], exact, atol=0.15 * np.abs(exact).max())


@pytest.mark.parametrize("seed", [31, 32])
def test_full_attention_trained_by_scipy_on_drawn_prompts_nears_the_exact_flow(seed):
    """All entries of the (D+1)-dimensional matrices move, by SciPy on automatic gradients over a fixed set of prompts.

    Noise delays or hastens a drop, so that no distance at one time is small by itself; it falls like one over the root
    of the number of prompts. Sixteen times as many should bring it to a quarter; half is required.
    """
    task, dim = _task(2, seed), 2
    value, key, query = np.zeros((2, dim + 1)), np.zeros((2, dim + 1, 1)), np.zeros((2, dim + 1, 1))
    value[:, dim], key[:, :dim], query[:, :dim] = Separate(2, 1, 0.4).start(task, seed)
    flat, shape = jax.flatten_util.ravel_pytree(tuple(jnp.asarray(part) for part in (value, key, query)))
    times = np.linspace(0, 12 / float(task.frame[0][0]) ** 2, 7)
    flows = [
        saddles.simulate(Separate(2, 1, 0.4), task, GradientFlow(rtol=1e-7), times=times, seed=one)["matrix"].values
        for one in (seed, seed + 100)
    ]

    def distances(count):
        prompts = task.draw(count, seed)
        slope = jax.jit(jax.grad(lambda y: -jnp.mean((prompts.answer - _attention(shape(y), prompts)) ** 2)))
        ends = (0, times[-1])
        seen = solve_ivp(lambda t, y: np.asarray(slope(y)), ends, flat, t_eval=times, rtol=1e-6, atol=1e-8).y.T
        full = [[np.asarray(part) for part in shape(jnp.asarray(y))] for y in seen]
        matrix = [np.einsum("h,hdr,her->de", v[:, dim], k[:, :dim], q[:, :dim]) for v, k, q in full]
        assert np.abs(full[-1][2][:, dim]).max() == 0.0
        return [np.sqrt(np.mean((flow - matrix) ** 2)) for flow in flows]

    (few, few_null), (many, many_null) = distances(1_000), distances(16_000)
    assert many < 0.5 * few
    assert many_null > 0.5 * few_null  # to the flow from another start it does not fall


@pytest.mark.parametrize(("model", "matrix"), [(Merged(3, 0.3), merged_matrix), (Separate(3, 2, 0.3), separate_matrix)])
def test_flows_agree_with_scipy_on_automatic_gradients(model, matrix):
    task = _task(seed=3)
    start = tuple(jnp.asarray(part) for part in model.start(task, 1))
    flat, shape = jax.flatten_util.ravel_pytree(start)
    slope = jax.jit(jax.grad(lambda state: -task.cost(matrix(shape(state)))))
    times = np.array([0.0, 3.0, 8.0, 20.0])
    exact = solve_ivp(lambda t, y: np.asarray(slope(y)), (0, 20), flat, t_eval=times, rtol=1e-10, atol=1e-12).y.T
    run = saddles.simulate(model, task, GradientFlow(), times=times, seed=1, keep=["weights"])
    np.testing.assert_allclose(run["matrix"], [matrix(shape(jnp.asarray(y))) for y in exact], atol=2e-7)
    assert run["loss"][-1] < 0.7 * run["loss"][0]
    steps = saddles.simulate(model, task, GradientDescent(0.002, 4000, 4000), seed=1)
    np.testing.assert_allclose(steps["matrix"][-1], matrix(shape(jnp.asarray(exact[2]))), atol=0.02)


def test_crossed_plateaus_equal_stepped_ones():
    task, model = Regression([0.9, 0.5], PROMPT), Separate(4, 1, 3e-3)
    crossed = saddles.simulate(model, task, GradientFlow(rtol=1e-8), seed=2)
    assert crossed.sizes["crossing"] == 2
    times = np.linspace(0, float(crossed["time"][-1]), 60)
    flows = [
        saddles.simulate(model, task, GradientFlow(rtol=1e-8, cross=c), times=times, seed=2) for c in (True, False)
    ]
    assert flows[0].attrs["gradient_evaluations"] < 0.5 * flows[1].attrs["gradient_evaluations"]
    np.testing.assert_allclose(flows[0]["matrix"], flows[1]["matrix"], atol=3e-4)
    np.testing.assert_allclose(flows[0]["head_norm"], flows[1]["head_norm"], atol=3e-4)


def test_a_tiny_start_costs_little_more():
    """Plateaus and the order of the spec's example, from 1e-4 to 1e-16."""
    task, counts = Regression([0.4, 0.3, 0.2, 0.1], 31), []
    for scale in (1e-4, 1e-16):
        run = saddles.simulate(Separate(8, 1, scale), task, GradientFlow(rtol=1e-7), seed=3)
        assert run.attrs["status"] == "converged"
        middle = [np.interp(np.mean(edge), run["time"], run["loss"]) for edge in run["crossing"].values]
        np.testing.assert_allclose(middle, task.plateaus[:4], rtol=1e-4)
        counts.append(run.attrs["gradient_evaluations"])
    assert counts[1] <= 3 * counts[0]


def test_start_of_the_spec_shows_its_plateaus():
    task = Regression([0.4, 0.3, 0.2, 0.1], 31)
    np.testing.assert_allclose(task.plateaus[1:], [0.64058, 0.37737, 0.20980, 0.13600], atol=1e-5)
    run = saddles.simulate(Separate(8, 1, 0.02), task, GradientFlow(rtol=1e-7), seed=0)
    loss = np.interp(np.linspace(0, float(run["time"][-1]), 4000), run["time"], run["loss"])
    for level in task.plateaus[2:4]:
        assert (np.abs(loss / level - 1) < 0.01).mean() > 0.05


def test_wide_head_is_the_two_layer_network_of_lab_linear():
    task, times = _task(seed=6), np.linspace(0, 4, 9)
    head = saddles.simulate(Wide(5000, 1e-4), task, GradientFlow(), times=times, seed=1)
    query, key = Wide(5000, 1e-4).start(task, 1)
    network = linear.TwoLayer.from_weights(query.T, key)
    same = saddles.simulate(network, task, linear.GradientFlow(), times=times, keep=["matrix"])
    np.testing.assert_allclose(head["matrix"], same["matrix"], atol=1e-8)
    np.testing.assert_allclose(head["loss"], same["loss"], atol=1e-8)


def test_prompt_descent_nears_the_flow_with_larger_batches():
    task, model = Regression([0.8, 0.4], 20), Merged(3, 0.3)
    exact = saddles.simulate(model, task, GradientDescent(0.05, 120, 120), seed=1)
    gaps = []
    for batch in (8, 2048):
        runs = saddles.simulate(model, task, PromptDescent(0.05, 120, 120, batch=batch), seed=1)
        gaps.append(float(np.abs(runs["matrix"][-1] - exact["matrix"][-1]).max()))
    assert gaps[1] < 0.3 * gaps[0]


def test_a_seed_may_have_any_size():
    task, seeds = Regression([0.8, 0.4], 20), (0, 2**32, 2**63 - 1, 2**63, 2**64, 3 * 2**64)
    assert len({str(jax.random.key_data(key_of(seed))) for seed in seeds}) == len(seeds)
    assert (jax.random.key_data(key_of(2**63 - 1)) == jax.random.key_data(jax.random.key(2**63 - 1))).all()
    for method in (GradientFlow(until=1.0), PromptDescent(0.05, 3)):
        assert saddles.simulate(Merged(3, 0.3), task, method, seed=2**64).attrs["seed"] == 2**64


def test_refusals():
    with pytest.raises(saddles.SaddlesError, match="positive definite"):
        Regression([1.0, 0.0], 5)
    with pytest.raises(saddles.SaddlesError, match="`heads` must be a whole number"):
        Separate(0, 1, 0.1)
    with pytest.raises(saddles.SaddlesError, match=r"trained on incontext\.Regression"):
        saddles.simulate(Merged(2, 0.1), linear.Denoising(4, 1), GradientFlow())
