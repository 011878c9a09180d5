"""Softmax attention: its answers one prompt at a time, its small limit, and its claims."""

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import saddles
from saddles.incontext import GradientFlow, Merged, PromptDescent, Regression, Separate, Softmax
from saddles.incontext.experiments import softmax
from saddles.incontext.softmax import SEEN, attended

TASK = Regression([1.0, 0.5], 9)


def _answer(weights, inputs, outputs, query):
    """One prompt, head by head."""
    value, *rest = weights
    total = 0.0
    for head in range(len(value)):
        merged = rest[0][head] if len(rest) == 1 else rest[0][head] @ rest[1][head].T
        score = np.exp(inputs @ merged @ query)
        total += value[head] * (score / score.sum()) @ outputs
    return total


def test_the_loss_is_that_of_answers_prompt_by_prompt():
    """With w = (1, 0) and (0, 1), whose squared errors add up to the mean over all w."""
    model, prompts = Separate(3, 2, 1.2), TASK.draw(SEEN, 5)
    run = saddles.simulate(Softmax(model), TASK, PromptDescent(1e-9, 1), seed=5)
    root = np.linalg.cholesky(prompts.query.T @ prompts.query / SEEN)
    queries = prompts.query @ np.linalg.inv(root).T * np.sqrt([1.0, 0.5])
    np.testing.assert_allclose(queries.T @ queries / SEEN, TASK.matrix, atol=1e-12)
    weights, total = model.start(TASK, 5), 0.0
    for inputs, query in zip(prompts.inputs, queries, strict=True):
        total += sum((query[d] - _answer(weights, inputs, inputs[:, d], query)) ** 2 for d in (0, 1))
    np.testing.assert_allclose(run["loss"][0], total / SEEN, rtol=1e-10)


def test_a_small_start_attends_as_linear_attention_with_centred_pairs():
    value, weights = Merged(3, 1e-3).start(TASK, 1)
    prompts = TASK.draw(4, 2)
    seen = attended((jnp.asarray(value), jnp.asarray(weights)), prompts.inputs, prompts.query)
    scores = np.einsum("pnd,hde,pe->hpn", prompts.inputs, weights, prompts.query)
    expected = np.einsum("h,hpn->pn", value, (1 + scores - scores.mean(axis=-1, keepdims=True)) / 9)
    np.testing.assert_allclose(seen, expected, atol=1e-5 * np.abs(value).max())


def test_softmax_is_trained_on_prompts_only():
    with pytest.raises(saddles.SaddlesError, match="PromptDescent; got GradientFlow"):
        saddles.simulate(Softmax(Merged(2, 0.1)), TASK, GradientFlow())
    with pytest.raises(saddles.SaddlesError, match="one start, not a list"):
        Softmax(Merged(2, [0.1, 0.2]))


def _staircase(middle, wait, balance, length=1.0):
    """A run with two drops of the loss, `wait` apart, and a pause at `middle`."""
    clock = np.linspace(0.0, 40.0, 401)
    first, second = (1 / (1 + np.exp(-(clock - at) / length)) for at in (10.0, 10.0 + wait))
    loss = 1 - (1 - middle) * first - middle * second
    value = np.tile([1.0, -1.0 + 2 * balance / (1 + balance)], (len(clock), 1))
    return xr.Dataset(
        {"loss": ("time", loss), "learned": (("time", "direction"), np.stack([first, second], axis=1)),
         "value": (("time", "head"), value)}, coords={"time": clock})  # fmt: skip


def test_pauses_and_waits_are_read_off_a_made_staircase():
    read = softmax.between(_staircase(0.4, 20.0, 0.1), np.ones(2))
    assert read.wait == pytest.approx(20.0, abs=0.2)
    assert read.loss == pytest.approx(0.4, abs=1e-3)
    assert read.balance == pytest.approx(0.1, abs=1e-6)
    assert softmax.slowest(_staircase(0.4, 20.0, 0.1)) > 0.6
    assert softmax.slowest(_staircase(0.4, 0.5, 0.1)) < 0.3


def test_the_claims_of_softmax_fail_where_they_are_broken():
    good = {"pause": 0.7, "merged_pause": 0.3, "paused_loss": 0.4, "merged_paused_loss": 0.2, "balance": 0.1,
            "linear_balance": 0.9}  # fmt: skip

    def verdicts(waits=(5.0, 8.0), **other):
        rows = {name: (("start", "seed"), np.full((2, 1), value)) for name, value in (good | other).items()}
        for name, pair in (("wait", waits), ("linear_wait", (5.0, 20.0))):
            rows[name] = (("start", "seed"), np.array(pair)[:, None])
        data = xr.Dataset(rows | {"plateau": (("level",), [1.0, 0.4, 0.1])}, coords={"start": [0.1, 0.025]})
        return [claim.verdict for claim in softmax.claims(data, "laptop")]

    assert verdicts() == ["holds"] * 4
    assert verdicts(pause=0.5)[0] == "fails"
    assert verdicts(paused_loss=0.45)[1] == "fails"
    assert verdicts(balance=0.3)[2] == "fails"
    assert verdicts((5.0, 18.0))[3] == "fails"
