"""What the public functions say of arguments of another type: one sentence each."""

import subprocess
import sys
from pathlib import Path

import toy_experiment

SCRIPT = """
import functools
import numpy as np
import pandas as pd
import saddles
from saddles.core.run import Run, resume, run_experiment
from toy_experiment import ROW

one = saddles.trajectory({"loss": [2.0, 1.0]}, [0, 1])
run = Run(None, {}, [], True)
sweep = functools.partial(saddles.sweep, ROW, on="serial")
for wrong in (
    lambda: saddles.plot(3),
    lambda: saddles.plot("runs"),
    lambda: saddles.plot([one, one]),
    lambda: saddles.plot(one["loss"]),
    lambda: saddles.plot(one, variables="loss"),
    lambda: saddles.plot(one, variables=[]),
    lambda: saddles.plot(saddles.trajectory({"loss": []}, [])),
    lambda: saddles.animate(run, "a.gif"),
    lambda: saddles.animate(one, 3),
    lambda: saddles.animate(one, "a.gif", dpi="high"),
    lambda: saddles.animate(one, "a.gif", dpi=-3),
    lambda: saddles.save(one, None),
    lambda: saddles.load(3),
    lambda: saddles.compare(run, one),
    lambda: saddles.trajectory([1, 2], [0, 1]),
    lambda: saddles.trajectory({"loss": [1, 2]}, ["a", "b"]),
    lambda: run_experiment(3),
    lambda: run_experiment(ROW, changes="rate=2"),
    lambda: run_experiment(ROW, seed="1"),
    lambda: run_experiment(ROW, seed=True),
    lambda: run_experiment(ROW, out=3),
    lambda: resume(3),
    lambda: sweep([1, 2]),
    lambda: sweep({"rate": [1.0]}, changes=[1]),
    lambda: sweep({"rate": [1.0]}, out=3),
):
    try:
        wrong()
    except saddles.SaddlesError as error:
        print(str(error).partition("; got ")[0], "|", str(error).rpartition(". ")[2])
print(run_experiment(ROW, seed=np.int64(1)).record["seed"])
print(*sweep({"rate": pd.Series([1.0, 2.0])}, seeds=pd.Series([3, 4])).trajectory["seed"].values)
"""

A_TRAJECTORY = "must be a trajectory, an xarray.Dataset or DataTree"
SAID = [
    f"`trajectories` {A_TRAJECTORY}",
    f"`trajectories` {A_TRAJECTORY} | Read a stored one with saddles.load.",
    f"`trajectories` {A_TRAJECTORY} | Give them one by one.",
    f"`trajectories` {A_TRAJECTORY} | Give the Dataset that it is part of.",
    "`variables` must be a list of names | Write ['loss'].",
    "`variables` must be one or more names",
    "The trajectories must hold a number over time; they hold none.",
    f"`trajectory` {A_TRAJECTORY} | Give its attribute `trajectory`.",
    "`path` must be the name of a file or folder",
    "`dpi` must be a positive number",
    "`dpi` must be a positive number",
    "`path` must be the name of a file or folder",
    "`path` must be the name of a file or folder",
    "`measured` must be an xarray.Dataset | Give its attribute `trajectory`.",
    "`variables` must be a dictionary of names and values",
    "`times` must be numbers",
    "`experiment` must be an Experiment or the name of one",
    "`changes` must be a dictionary such as {'dim': 50}",
    "`seed` must be a whole number",
    "`seed` must be a whole number",
    "`out` must be the name of a file or folder",
    "`folder` must be the name of a file or folder",
    "`grid` must be a dictionary of settings",
    "`changes` must be a dictionary of settings",
    "`out` must be the name of a file or folder",
]


def test_every_public_function_names_the_argument(tmp_path):  # in a process whose functions do not check types
    support = str(Path(toy_experiment.__file__).parent)
    script = f"import sys; sys.path.insert(0, {support!r})\n{SCRIPT}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    *told, seed, seeds = done.stdout.splitlines() or ["", ""]
    assert [line.partition(" | ")[0] for line in told] == [line.partition(" | ")[0] for line in SAID], done.stderr
    hints = [(line, words) for line, words in zip(told, SAID, strict=True) if " | " in words]
    assert [line for line, _ in hints] == [words for _, words in hints]
    assert (seed, seeds) == ("1", "3 4")
