"""
Predict a run
=============

A network is trained. A theory says, from the start alone, what will happen. How far apart are
they, as a number?

This is the whole of saddles in one page: **simulate**, **predict**, **compare**. It takes a
two-layer linear network that must recover a matrix of low rank from a noisy observation, the
setting of Tu, Aranguri and Jacot's *Mixed dynamics*.
"""

# %%
# The run
# -------
#
# A *task* is what is learned, a *model* what learns, a *method* how. The network below has a
# billion hidden units. That costs nothing: training sees its weights only through a small
# matrix, which is drawn directly (see :doc:`/linear`).

import matplotlib.pyplot as plt

import saddles
from saddles.linear import Balanced, Denoising, GradientDescent, Lazy, SelfConsistent, TwoLayer

task = Denoising(dim=100, rank=5)
model = TwoLayer(width=10**9, variance=1e-9)
method = GradientDescent(rate=10.0, steps=500)
measured = saddles.simulate(model, task, method)

# %%
# Every result is an ``xarray.Dataset`` whose first axis is ``time``. Axes have names, and the
# attributes say where it comes from.

measured

# %%
# The prediction
# --------------
#
# Three theories of the same network. *Lazy* says that the weights hardly move and A' = −2σ²w
# G: an ordinary linear model. *Balanced* is the opposite limit, in which learning feeds on
# what was learned before. *Self-consistent* is the paper's equation (1), which has both as
# limits:
#
# .. math:: A^{\prime} = -\sqrt{AA^\top + \sigma^4 w^2 I}\; G
#           - G\, \sqrt{A^\top A + \sigma^4 w^2 I}, \qquad G = \nabla C(A).
#
# None of them sees the run. Each gets the initial matrix A(0) and the number σ²w, and
# nothing else. Given a method, a theory takes the same steps as the run; without one it is
# the continuous flow.

theories = {
    "self-consistent": SelfConsistent(method),
    "lazy": Lazy(method),
    "balanced": Balanced(method),
}
predicted = {name: saddles.predict(model, task, theory) for name, theory in theories.items()}

# %%
# The number
# ----------
#
# ``compare`` puts both on one clock. ``max_relative`` is the largest distance at any time
# over the largest value.

import pandas

table = {
    name: saddles.compare(measured, prediction)["error"].sel(kind="max_relative").to_pandas()
    for name, prediction in predicted.items()
}
pandas.DataFrame(table).map("{:.1e}".format)

# %%
# The picture
# -----------
#
# Coloured and solid is what happened, dark and dashed what was predicted. The five signal
# directions (the rank of the truth) leave the plateau first and the noise follows: between
# the two lies the moment to stop.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
time = measured["time"]
left.plot(time, measured["singular_value"][:, 5:20], color="#9a9a9a", linewidth=1)
left.plot(time, measured["singular_value"][:, :5], color="#0072B2", linewidth=2.2)
left.plot(
    time,
    predicted["self-consistent"]["singular_value"][:, :20],
    color="#222222",
    linestyle=(0, (4, 2)),
    linewidth=1,
)
left.set(
    xlabel="gradient time",
    ylabel="singular values of A",
    title="Signal (blue), noise (grey), theory (dashed)",
)
right.plot(
    time, measured["test_error"], color="#D55E00", linewidth=2.2, label="test error, measured"
)
for style, (name, prediction) in zip(("--", ":", "-."), predicted.items(), strict=True):
    right.plot(
        time,
        prediction["test_error"],
        color="#222222",
        linestyle=style,
        linewidth=1.3,
        label=name,
    )
right.set(
    xlabel="gradient time",
    ylabel="mean squared error",
    title="Three theories of one run",
    ylim=(0, 1.15),
)
right.legend(frameon=False)

# %%
# The self-consistent theory knows the best moment to stop; the other two are wrong about it.

for name, run in {"measured": measured, **predicted}.items():
    at = run["test_error"].argmin("time")
    error, step = float(run["test_error"][at]), int(run["step"][at])
    print(f"{name:16s} smallest test error {error:.4f} at step {step}")

# %%
# Keep it
# -------
#
# A trajectory is stored as Zarr and opens anywhere with plain xarray. A list adds an axis:
# several seeds, or several widths.

import tempfile
from pathlib import Path

import xarray

place = saddles.save(measured, Path(tempfile.mkdtemp()) / "run.zarr")
print(xarray.open_zarr(place)["test_error"].dims, "read without saddles")

many = saddles.simulate(model, task, method, seed=[0, 1, 2])
print(dict(many["test_error"].sizes))

# %%
# Where to go next: :doc:`a figure of the paper <2_reproduce_a_figure>`, :doc:`the lab's page
# </linear>`, or :doc:`a theory of your own <5_add_your_own_theory>`.
