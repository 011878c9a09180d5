"""
Reproduce a figure
==================

Each figure and theorem of the papers is an *experiment*: something that runs, is judged, and
is drawn. On the command line

.. code-block:: sh

    saddles list                        # all of them, with their sizes and times
    saddles run diagonal/figure-2       # one of them
    saddles reproduce                   # all of them, and one page that shows them

This page does the second from Python and then looks behind the picture. The figure is Figure
2 of Boix-Adserà et al., *Transformers learn through gradual rank increase*: an attention head
that starts small learns one coordinate at a time.
"""

# %%
# Run it
# ------
#
# The seed decides everything that is random. One teacher instead of three keeps this page
# quick; a setting that the experiment does not have would be refused with the names of those
# it has.

import tempfile

from saddles.core.run import run_experiment

done = run_experiment(
    "diagonal/figure-2", seed=0, changes={"seeds": 1}, root=tempfile.mkdtemp()
)
record = done.record
print(record["title"])
print(f"{record['size']}, {record['wall_time_s']:.0f} s, {record['machine']['processor']}")

# %%
# The same run is never computed twice: its folder is named after its settings, and asking
# again shows what is there.

print(sorted(file.name for file in done.folder.iterdir()))

# %%
# What became of the claims
# -------------------------
#
# A claim is a sentence of the paper as a check: a number, a relation, a threshold that the
# experiment's module justifies. The exit code of ``saddles run`` is 1 if one of them fails.

for claim in done.claims:
    asked = f"{claim.relation} {claim.threshold:g}"
    print(f"{claim.verdict:6s} {claim.value:10.3g} {asked:9s} {claim.claim[:65]}…")

# %%
# The figure
# ----------
#
# It is drawn from the stored trajectory and from nothing else. Dashed is Algorithm 1 of the
# paper, which knows no α: it is the limit α → 0. The smaller the start, the closer the curves
# come.

from saddles.core.experiment import find

trajectory = done.trajectory
figure = find("diagonal/figure-2").figure(trajectory)

# %%
# Behind the picture
# ------------------
#
# How fast do they come closer? The proof's order is 1/log(1/α). Read it off the same
# trajectory:

import matplotlib.pyplot as plt
import numpy as np

gap = (
    abs(trajectory["loss"] - trajectory["predicted_loss"]).mean("time")
    / trajectory["predicted_loss"][0]
)
decades = trajectory["decade"].values.astype(float)
drawing, axis = plt.subplots(figsize=(5.5, 3.8), layout="constrained")
axis.loglog(decades, gap, "o-", color="#0072B2", label="measured")
axis.loglog(
    decades, float(gap[-1]) * decades[-1] / decades, "--", color="#222222", label="slope −1"
)
axis.set(xlabel="log₁₀(1/α)", ylabel="distance to the staircase")
axis.set_title("Mean |loss − staircase|, over the first loss", loc="left", fontsize=10)
axis.legend(frameon=False)
slope = np.polyfit(np.log(decades[decades >= 4]), np.log(gap.values[decades >= 4]), 1)[0]
print(f"slope from α = 1e-4 on: {slope:.2f}")

# %%
# Further than the paper
# ----------------------
#
# The flow is solved in coordinates in which only log α appears, so a start that no
# floating-point number can hold is no harder than another. Here is α = 1e-1000, and the order
# in which coordinates became active beside the predicted one:

import math

from saddles import predict, simulate
from saddles.diagonal import AttentionHead, Flow, Incremental, TeacherStudent
from saddles.measures import stages

model = AttentionHead(10, log_alpha=-1000 * math.log(10))
task = TeacherStudent(model, samples=100, seed=1)
flow = simulate(model, task, Flow(until=40.0))
predicted = predict(model, task, Incremental(max_stages=10))
seen = stages(flow)["stage_coordinate"].values[:10]
print("seen     ", seen)
print("predicted", predicted["stage_coordinate"].values)
print(f"{flow.attrs['gradient_evaluations']} gradients")

# %%
# Where to go on: :doc:`the lab's page </diagonal>` says what is exact and what is not; all
# claims stand in one table; :doc:`the next tutorial <3_watch_a_fine_tune>` asks the same
# question of a real transformer.
