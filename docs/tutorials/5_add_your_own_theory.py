"""
Add your own theory
===================

``saddles.predict`` takes any theory, also one that you write today. It looks for a function ``predict`` in the module
``theory`` of the package that the theory's class lives in; ``saddles.simulate`` looks for a module ``simulate``
beside a model's class in the same way. So a theory of your own is one small package, and saddles need not know it.

As an example we put a popular belief to the test: *each mode of a linear network learns along its own logistic
curve*, the exact solution of Saxe, McClelland and Ganguli for balanced, aligned starts, used for a network that
starts from random weights.
"""

# %%
# The theory, in words and in code
# --------------------------------
#
# With the observation :math:`Y = U \operatorname{diag}(y) V^\top` and a start in which mode i has strength
# :math:`s_i(0)`, the belief is
#
# .. math:: \dot s_i = \frac{4}{d^2}\, s_i\, (y_i - s_i),
#           \qquad s_i(t) = \frac{y_i}{1 + (y_i / s_i(0) - 1)\, e^{-4 y_i t / d^2}},
#
# and the matrix at time t is :math:`U \operatorname{diag}(s(t)) V^\top`. There are no singular vectors to rotate and
# no noise to fit first. Nothing is known of the width: what is left of the initialisation is :math:`s_i(0)`, for
# which we take the one scale that the network has, σ²w.
#
# Below, the package ``logistic`` is written to a folder of its own, as you would write it in your editor.

import sys
import tempfile
from pathlib import Path

package = Path(tempfile.mkdtemp()) / "logistic"
package.mkdir()
(package / "__init__.py").write_text("from logistic.theory import Logistic as Logistic\n")
code = '''
"""Each mode learns alone."""

import time
from dataclasses import dataclass

import numpy as np

from saddles.core.trajectory import make_trajectory


@dataclass(frozen=True)
class Logistic:
    """s' = (4/d²) s (y − s) for every mode of the observation, from s(0) = σ²w."""


def predict(model, task, theory, *, times=None, seed=0, keep=None, device=None, precision="float64"):
    """What `saddles.simulate` would measure, if the belief were true."""
    began = time.perf_counter()
    left, goal, right = np.linalg.svd(np.asarray(task.observed))
    clock = np.asarray(times, dtype=float)
    start = np.full_like(goal, model.threshold)
    growth = np.exp(-4 * goal * clock[:, None] / goal.size**2)
    modes = goal / (1 + (goal / start - 1) * growth)
    matrices = np.einsum("im,tm,mj->tij", left, modes, right)
    return make_trajectory(
        {
            "singular_value": (("time", "mode"), -np.sort(-modes, axis=1)),
            "train_error": (("time",), np.mean((matrices - task.observed) ** 2, axis=(1, 2))),
            "test_error": (("time",), np.mean((matrices - task.target) ** 2, axis=(1, 2))),
        },
        clock,
        unit="gradient time",
        wall_time=time.perf_counter() - began,
        kind="predicted",
        model=model,
        task=task,
        theory=theory,
        seed=seed,
    )
'''
(package / "theory.py").write_text(code)
sys.path.insert(0, str(package.parent))

from logistic import Logistic

# %%
# Against a run
# -------------
#
# From here on nothing is special: it is predicted and compared like the theories that come with the lab.

import saddles
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
# One number for one setting is an anecdote. A scan over the scale of the start, three seeds each, says where the
# belief is a theory. The lab's own theory runs beside it as the standard.

import numpy as np

scales = 10.0 ** np.linspace(-6, 2, 9)
seeds = [0, 1, 2]


def error(theory, model, seed, run):
    """The largest relative error of the test error along a run."""
    guess = saddles.predict(model, task, theory, times=run["time"], seed=seed)
    return float(saddles.compare(run, guess)["error"].sel(variable="test_error", kind="max_relative"))


table = np.zeros((2, len(scales), len(seeds)))
for row, scale in enumerate(scales):
    network = TwoLayer(width=10**6, variance=scale / 10**6)
    for column, seed in enumerate(seeds):
        run = saddles.simulate(network, task, method, seed=seed)
        table[0, row, column] = error(Logistic(), network, seed, run)
        table[1, row, column] = error(SelfConsistent(method), network, seed, run)

# %%

import matplotlib.pyplot as plt

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
left.plot(measured["time"], measured["singular_value"][:, :8], color="#0072B2", linewidth=2)
left.plot(predicted["time"], predicted["singular_value"][:, :8], color="#222222", linestyle=(0, (4, 2)), linewidth=1.3)
left.set(xlabel="gradient time", ylabel="singular values of A", title=f"One run, σ²w = {model.threshold:g}")
for values, name, colour in zip(table, ("each mode alone", "self-consistent"), ("#D55E00", "#009E73"), strict=True):
    right.fill_between(scales, values.min(1), values.max(1), color=colour, alpha=0.25)
    right.loglog(scales, np.median(values, 1), "o-", color=colour, label=name)
right.axvline(60, color="#9a9a9a", linestyle=":", label="σ²w = d")
right.set(xlabel="σ²w, the scale of the start", ylabel="error of the test error", title="Three seeds, worst to best")
right.legend(frameon=False)

# %%
# The verdict is the picture's: the belief is no theory of these networks at any scale that was tried, while the
# self-consistent equation is. A claim of that kind, with a threshold that you can defend before you look, is what an
# experiment holds. How to add one, with a worked diff, is in :doc:`/contributing`.

assert np.median(table[0], axis=1).min() > 10 * np.median(table[1], axis=1).max(), "then the sentence above is wrong"
