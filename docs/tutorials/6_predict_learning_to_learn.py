"""
Predict when a transformer learns to learn
==========================================

A transformer that sees examples in its prompt can learn to learn from them. Its training is
famous for sudden drops of the loss after long plateaus. For linear attention on regression in
context we can say beforehand **how many** drops there will be, **how low** each one leads, and
**when** it comes. Then we train, and look.
"""

# %%
# The task
# --------
#
# A prompt has 31 pairs :math:`(x, y = w^\top x)` and a query; :math:`w` is new in every prompt.
# Inputs vary more in some directions than in others.

import matplotlib.pyplot as plt
import numpy as np

import saddles
from saddles import incontext

task = incontext.Regression([0.9, 0.6, 0.35], prompt=31)
print("losses of the plateaus:", task.plateaus.round(3))

# %%
# The prediction
# --------------
#
# Four heads with separate keys and queries of rank one start small. `AlternatingFlows` lets
# each of them climb the utility of what is not explained yet, wakes the first that gets there,
# lets the loss come to rest, and repeats. It takes no training step.

model = incontext.Separate(heads=4, rank=1, scale=1e-3)
predicted = saddles.predict(model, task, incontext.AlternatingFlows(), seed=1)
for k in range(1, predicted.sizes["stage"]):
    row = predicted.isel(stage=k)
    print(f"at {float(row['stage_time']):.0f} the loss drops to {float(row['plateau']):.3f}")

# %%
# The training
# ------------
#
# The gradient flow of the exact loss over all prompts. Beside it, heads whose keys and queries
# are one matrix: they have no saddles between, and drop once.

end = 1.2 * float(predicted["stage_time"][-1])
method = incontext.GradientFlow(until=end, rtol=1e-6)
flow = saddles.simulate(model, task, method, seed=1)
merged = saddles.simulate(incontext.Merged(4, 1e-3), task, incontext.GradientFlow(), seed=1)

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
left.plot(flow["time"], flow["loss"], linewidth=2.2, label="training")
left.step(predicted["time"], predicted["loss"], "k--", where="post", label="predicted")
left.set(xlabel="gradient time", ylabel="loss", title="Separate keys and queries")
left.legend()
right.plot(merged["time"], merged["loss"], color="#E69F00", linewidth=2.2)
right.set(xlabel="gradient time", ylabel="loss", title="Merged: one drop")
figure

# %%
# What it knows at each step
# --------------------------
#
# On a plateau the model answers as if only the learned directions existed. We let it answer
# fresh prompts half-way through each plateau.

prompts = task.draw(20_000, seed=5)
beta = np.einsum("pn,pnd->pd", prompts.outputs, prompts.inputs) / task.prompt
edges = np.append(predicted["stage_time"].values, end)
for instant in (edges[1:] + edges[:-1]) / 2:
    matrix = flow["matrix"].sel(time=instant, method="nearest").values
    answers = np.einsum("pd,de,pe->p", beta, matrix, prompts.query)
    error = np.mean((answers - prompts.answer) ** 2)
    print(f"error on fresh prompts {error:.3f}, exact {task.loss(matrix):.3f}")

# %%
# Your own neurons
# ----------------
#
# The theory needs no attention: any sum of neurons will do that are homogeneous in their
# weights. Here each neuron is the square of a projection; the first to wake finds the
# strongest direction of the target.


def neuron(x, theta):
    """One neuron of degree three."""
    return theta[0] * (theta[1:] @ x) ** 2


rng = np.random.default_rng(0)
inputs = rng.normal(size=(300, 3))
targets = inputs[:, 0] ** 2 + 0.4 * inputs[:, 1] ** 2
own = incontext.Neurons(neuron, degree=3, size=4, count=6, scale=1e-5)
stages = saddles.predict(own, incontext.Samples(inputs, targets), incontext.AlternatingFlows(4))
for k in range(1, stages.sizes["stage"]):
    row = stages.isel(stage=k)
    direction = row["stage_direction"].values[1:].round(2)
    print(f"at {float(row['stage_time']):.3g} a neuron wakes along {direction}")
