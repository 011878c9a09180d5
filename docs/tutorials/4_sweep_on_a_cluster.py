"""
Sweep on a cluster
==================

One run answers a question for one setting. A sweep runs an experiment at every point of a
grid, keeps each finished cell, resumes after a crash, and is the same command on a laptop and
on a cluster:

.. code-block:: sh

    saddles sweep linear/figure-1 --size tiny --grid gamma_variance=-2.5:-1:4 --seeds 2
    saddles sweep linear/figure-1 --size tiny --grid gamma_variance=-2.5:-1:4 --seeds 2 --on tcp://HOST:8786

The question here: Figure 1 of *Mixed dynamics* is drawn at one scale of the initial weights.
Do its claims hold at others?
"""

# %%
# On this machine
# ---------------
#
# A cell is exactly what ``saddles run`` computes at the same settings and seed. Values may be
# given as a list, or evenly spaced.

import tempfile
from pathlib import Path

import saddles
from saddles.sweeps import spaced

folder = Path(tempfile.mkdtemp()) / "scales"
grid = {"gamma_variance": spaced(-2.5, -1.0, 4)}
done = saddles.sweep("linear/figure-1", grid, seeds=2, size="tiny", out=folder, on="serial")
print(
    done.facts["status"],
    "-",
    done.facts["cells"],
    "cells,",
    len(done.failed),
    "failed,",
    done.missing,
    "missing",
)

# %%
# The result is one labelled trajectory with the axes of the grid in front of those of the
# experiment.

trajectory = done.trajectory
print(dict(trajectory["claim_value"].sizes))

# %%
# Every claim over the grid; cells in which one fails are marked.

from saddles.figures.sweep import claims_over_grid

figure = claims_over_grid(trajectory)

# %%
# A finished cell is never computed again
# ---------------------------------------
#
# The same sweep again returns at once. After Ctrl-C, a crash or a batch system's time limit,
# ``resume`` computes what is missing, on this machine or on another one. (On the command
# line: ``saddles sweep --resume FOLDER``.)

import time

began = time.perf_counter()
again = saddles.sweep(resume=folder)
print(f"{len(again.rows)} cells shown after {time.perf_counter() - began:.2f} s")

# %%
# On a cluster
# ------------
#
# Any Dask scheduler will do: one that SLURM, Kubernetes or a cloud started for you, or one
# that you start by hand. Here it is started by hand on this machine, with two workers, by the
# two commands that one would type on two machines. In our own code only ``on=`` changes.

import json
import subprocess
import sys

place = folder.with_name("scheduler.json")
shared = ["--no-dashboard", "--scheduler-file", str(place)]


def start(*words: str) -> subprocess.Popen[bytes]:
    """Run `dask WORDS …` beside us, silently."""
    command = [sys.executable, "-m", "dask", *words, *shared]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


scheduler = start("scheduler", "--port", "0")
workers = start("worker", "--nworkers", "2", "--nthreads", "1")
while not (place.exists() and place.read_text()):
    time.sleep(0.1)
address = json.loads(place.read_text())["address"]

# %%

try:
    spread = saddles.sweep(
        "linear/figure-1",
        grid,
        seeds=2,
        size="tiny",
        out=folder.with_name("spread"),
        on=address,
    )
finally:
    workers.terminate()
    scheduler.terminate()
print(spread.facts["status"], "-", len(spread.rows), "cells")

# %%
# Which machine computed a cell does not matter to its numbers:

import numpy as np

apart = abs(spread.trajectory["claim_value"] - trajectory["claim_value"])
print("largest difference of any claim's number:", float(np.nanmax(apart)))
