"""
Add your own theory
===================

``saddles.predict`` asks the theory itself: any object with a method ``predict`` will do, also
one that you write in a notebook cell today. ``saddles.simulate`` asks the model in the same
way. ``saddles.protocols`` lists what each of them may be asked.

As an example we put a popular belief to the test: *each mode of a linear network learns along
its own logistic curve*, the exact solution of Saxe, McClelland and Ganguli for balanced,
aligned starts, used for a network that starts from random weights.
"""

# %%
# The theory, in words and in code
# --------------------------------
#
# With the observation :math:`Y = U \operatorname{diag}(y) V^\top` and a start in which mode i
# has strength :math:`s_i(0)`, the belief is
#
# .. math:: s_i^{\prime} = \frac{4}{d^2}\, s_i\, (y_i - s_i),
#           \qquad s_i(t) = \frac{y_i}{1 + (y_i / s_i(0) - 1)\, e^{-4 y_i t / d^2}},
#
# and the matrix at time t is :math:`U \operatorname{diag}(s(t)) V^\top`. There are no
# singular vectors to rotate and no noise to fit first. Nothing is known of the width: what is
# left of the initialisation is :math:`s_i(0)`, for which we take the one scale that the
# network has, σ²w.
#
# A theory gets the model, the task, and the instants at which it should speak. It returns a
# trajectory, which ``saddles.trajectory`` makes from arrays.

from dataclasses import dataclass

import numpy as np

import saddles


@dataclass(frozen=True)
class Logistic:
    """s' = (4/d²) s (y − s) for every mode of the observation, from s(0) = σ²w."""

    def predict(self, model, task, *, times):
        left, goal, right = np.linalg.svd(np.asarray(task.observed))
        growth = np.exp(-4 * goal * times[:, None] / goal.size**2)
        modes = goal / (1 + (goal / model.threshold - 1) * growth)
        matrices = np.einsum("im,tm,mj->tij", left, modes, right)
        variables = {
            "singular_value": (("time", "mode"), -np.sort(-modes, axis=1)),
            "train_error": np.mean((matrices - task.observed) ** 2, axis=(1, 2)),
            "test_error": np.mean((matrices - task.target) ** 2, axis=(1, 2)),
        }
        return saddles.trajectory(variables, times, model=model, task=task, theory=self)


# %%
# It takes ``times`` and nothing else. Who passes it a ``device`` or a ``seed`` is told so, in
# one sentence, instead of being ignored.

try:
    saddles.predict(None, None, Logistic(), times=[0.0, 1.0], device="gpu")
except saddles.SaddlesError as error:
    print(error)

# %%
# Against a run
# -------------
#
# From here on nothing is special: it is predicted and compared like the theories that come
# with the lab.

from saddles.linear import Denoising, GradientDescent, SelfConsistent, TwoLayer

task = Denoising(dim=60, rank=3)
method = GradientDescent(rate=4.0, steps=600)
model = TwoLayer(width=10**6, variance=1e-8)
measured = saddles.simulate(model, task, method)
predicted = saddles.predict(model, task, Logistic(), times=measured["time"])
print(saddles.compare(measured, predicted)["error"].sel(kind="max_relative").to_pandas())

# %%
# Where it holds, and where it breaks
# -----------------------------------
#
# One number for one setting is an anecdote. A scan over the scale of the start, three seeds
# each, says where the belief is a theory. The lab's own theory runs beside it as the
# standard.

scales = 10.0 ** np.linspace(-6, 2, 9)
seeds = [0, 1, 2]


def error(run, guess):
    """The largest relative error of the test error along a run."""
    return float(
        saddles.compare(run, guess)["error"].sel(variable="test_error", kind="max_relative")
    )


table = np.zeros((2, len(scales), len(seeds)))
for row, scale in enumerate(scales):
    network = TwoLayer(width=10**6, variance=scale / 10**6)
    for column, seed in enumerate(seeds):
        run = saddles.simulate(network, task, method, seed=seed)
        guess = saddles.predict(network, task, Logistic(), times=run["time"])
        table[0, row, column] = error(run, guess)
        guess = saddles.predict(network, task, SelfConsistent(method), seed=seed)
        table[1, row, column] = error(run, guess)

# %%

import matplotlib.pyplot as plt

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
left.plot(measured["time"], measured["singular_value"][:, :8], color="#0072B2", linewidth=2)
left.plot(
    predicted["time"],
    predicted["singular_value"][:, :8],
    color="#222222",
    linestyle=(0, (4, 2)),
    linewidth=1.3,
)
left.set(
    xlabel="gradient time",
    ylabel="singular values of A",
    title=f"One run, σ²w = {model.threshold:g}",
)
for values, name, colour in zip(
    table, ("each mode alone", "self-consistent"), ("#D55E00", "#009E73"), strict=True
):
    right.fill_between(scales, values.min(1), values.max(1), color=colour, alpha=0.25)
    right.loglog(scales, np.median(values, 1), "o-", color=colour, label=name)
right.axvline(60, color="#9a9a9a", linestyle=":", label="σ²w = d")
right.set(
    xlabel="σ²w, the scale of the start",
    ylabel="error of the test error",
    title="Three seeds, worst to best",
)
right.legend(frameon=False)

# %%
# The verdict is the picture's: the belief is no theory of these networks at any scale that
# was tried, while the self-consistent equation is. A claim of that kind, with a threshold
# that you can defend before you look, is what an experiment holds. How to add one, with a
# worked diff, is in :doc:`/contributing`.

assert np.median(table[0], axis=1).min() > 10 * np.median(table[1], axis=1).max(), (
    "then the sentence above is wrong"
)
