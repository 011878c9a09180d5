"""
Lazy or active? One number for your network
===========================================

A network that hardly moves its weights trains like a linear model: it is **lazy**, and learns
no features. One that moves them far is **active**. One number tells them apart, for any network
that can be differentiated, from its weights before and after training.
"""

# %%
# The number
# ----------
#
# How much of the change of the outputs is *not* linear in the change of the weights:
#
# .. math::
#
#    e = \frac{\|f(\theta) - f(\theta_0) - J(\theta_0)(\theta - \theta_0)\|}
#    {\|f(\theta) - f(\theta_0)\|}
#
# 0 is lazy, about 1 says that the linear part explains nothing. It takes one Jacobian-vector
# product. We train a network on handwritten digits from a large and from a small start.

import matplotlib.pyplot as plt
import numpy as np

import saddles
from saddles import networks

task = networks.Regression.from_images("digits", dim=10, samples=60, tests=200)
runs = {}
for variance in (0.1, 1e-4):
    model = networks.Perceptron(width=100, variance=variance)
    method = networks.GradientDescent(rate=0.05, steps=600, save_every=10)
    runs[variance] = saddles.simulate(model, task, method)
    last = runs[variance].isel(time=-1)
    print(
        f"start of variance {variance:g}: e = {float(last['linearity']):.2f}, "
        f"test accuracy {float(last['test_accuracy']):.2f}"
    )

# %%
# Along the way
# -------------
#
# The small start waits at a saddle first, and becomes active when it leaves it. The large start
# never has to: moving each weight a little is enough.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for variance, run in runs.items():
    left.plot(run["time"], run["loss"] / run["loss"][0], label=f"variance {variance:g}")
    right.plot(run["time"], run["linearity"], label=f"variance {variance:g}")
left.set(xlabel="gradient time", ylabel="loss, over that of the start", yscale="log")
right.set(xlabel="gradient time", ylabel="linearity of the change, e", ylim=(0, None))
left.legend()
figure

# %%
# Against its linearisation
# -------------------------
#
# A lazy network can be predicted without training it: `Linearised` solves the linear model in
# closed form. The wider the network, the longer the two stay together.

for width in (30, 1000):
    model = networks.Perceptron(width, variance=1 / 10)
    rate = 1 / networks.top_eigenvalue(model, task)
    method = networks.GradientDescent(rate, 60)
    measured = saddles.simulate(model, task, method, keep=["outputs"])
    clock = rate * np.arange(61)
    predicted = saddles.predict(
        model, task, networks.Linearised(rate), times=clock, keep=["outputs"]
    )
    apart = float(networks.distance(measured, predicted).max())
    print(f"width {width}: apart by at most {apart:.3f} of what was learned")

# %%
# Your own network
# ----------------
#
# Any JAX function of parameters and a batch will do, or a torch module with two state dicts;
# for two checkpoints of a language model there is the command `saddles regime`. The same
# direction, followed further, is another regime.


def network(parameters, batch):
    """Two layers, written by hand."""
    return np.sqrt(1 / 50) * networks.Perceptron(50, 1.0).outputs(parameters, batch)


start = networks.Perceptron(50, 1.0).start(task, seed=3)
rng = np.random.default_rng(0)
direction = [rng.normal(size=part.shape) for part in start]
for size in (0.01, 0.1, 1.0):
    end = tuple(part + size * move for part, move in zip(start, direction, strict=True))
    e = networks.linearity(network, tuple(start), end, task.inputs)
    print(f"moved by {size:g}: e = {e:.3f}")
