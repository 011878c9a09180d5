"""The experiments as a user runs them, and their claims on made trajectories."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import xarray as xr

from saddles.core.experiment import Context, registry
from saddles.core.run import resume, run_experiment
from saddles.core.status import Ending, Status
from saddles.core.trajectory import make_trajectory
from saddles.diffusion.experiments.verdicts import (
    memorisation_claims,
    order_claims,
    slowing_claims,
    times_learned,
    transient_rise,
)
from saddles.errors import SaddlesError

NAME = "diffusion/figure-6b"
SMALL = {
    "channels": [4, 8], "steps": 60, "batch": 8, "images": 16, "evaluations": 6, "shown": 2, "sampling": 3,
    "store": 0.0, "classifier_steps": 60, "held_out": 32,
}  # fmt: skip


def test_kill_and_resume_give_the_uninterrupted_run(tmp_path):
    longer = {**SMALL, "steps": 120, "evaluations": 10}
    pairs = longer | {"channels": "4,8"}
    words = [word for key, value in pairs.items() for word in ("--set", f"{key}={value}")]
    process = subprocess.Popen(
        [sys.executable, "-m", "saddles", "run", NAME, *words, "--out", "killed"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if list(tmp_path.glob("killed/parts/*/checkpoint.pt")):
            break
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    _, said = process.communicate()
    files = list(tmp_path.glob("killed/parts/*/checkpoint.pt"))
    assert files, said
    assert 0 < torch.load(files[0], weights_only=True)["step"] < 120
    assert json.loads((tmp_path / "killed" / "run.json").read_text())["status"] == "running"
    resumed = resume(tmp_path / "killed")
    whole = run_experiment(NAME, changes=longer, out=tmp_path / "whole")
    xr.testing.assert_equal(resumed.trajectory, whole.trajectory)
    assert not (tmp_path / "killed" / "parts").exists()
    assert (tmp_path / "whole" / "figure.png").exists()


def test_a_run_that_diverges_keeps_what_it_had(tmp_path):
    run = run_experiment(NAME, changes=SMALL | {"rate": 1e9}, out=tmp_path / "here")
    assert Status.parse(run.record["trajectory_status"]).ending == Ending.DIVERGED
    assert run.trajectory.sizes["time"] < 6


def test_separations_are_checked_before_anything_runs():
    row = registry()["diffusion/figure-6a"]
    for given, words in (("0.7,0.3", "ascending"), ("0.2,1.4", r"in \(0, 1\]"), ("0.9", "at most 0.8")):
        with pytest.raises(SaddlesError, match=words):
            row.run(row.settings("tiny", {"separations": given}), Context())


def test_without_torch_one_sentence_says_so(tmp_path):
    """An environment in which torch cannot be imported."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    done = subprocess.run(
        [sys.executable, "-m", "saddles", "run", NAME],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "pip install" in done.stderr
    assert "Traceback" not in done.stderr


def made(paths, seeds=2, steps=4000.0):
    """A trajectory in which class 11 takes these ways: one function of the share of the run a separation."""
    times = np.linspace(np.sqrt(0.005), 1, 60) ** 2 * steps
    share = times / steps
    way = np.stack([np.stack(path(share), -1) for path in paths], 1)[:, :, None].repeat(seeds, 2)
    output = np.stack([np.zeros_like(way)] * 3 + [way], 3)
    runs, grid = ("separation", "seed"), (len(paths), seeds)
    accuracy = np.ones((60, *grid, 4))
    accuracy[0] = 0.25
    fall = np.linspace(4, 0.4, 60)[:, None, None] * np.ones((1, *grid))
    return make_trajectory(
        {
            "output": (("time", *runs, "point", "coordinate"), output),
            "accuracy": (("time", *runs, "point"), accuracy),
            "diffusion": (("time", *runs), fall),
            "target": (("coordinate",), np.ones(2)),
        },
        times,
        unit="step",
        coords={
            "separation": np.linspace(0.2, 0.7, len(paths)),
            "seed": np.arange(seeds),
            "point": ["00", "01", "10", "11"],
            "coordinate": ["colour", "size"],
        },
    )


def after(start, rate=20.0):
    return lambda s: 1 - np.exp(-rate * np.clip(s - start, 0, None))


def ways(*pairs):
    return [lambda s, c=colour, z=size: (after(c)(s), after(z)(s)) for colour, size in pairs]


def verdicts(claims):
    return [claim.verdict for claim in claims]


def test_order_is_judged():
    """Colour from last to first holds; always first, always last, and never learned fail where they should."""
    reversed_ = made(ways((0.6, 0.1), (0.3, 0.1), (0.1, 0.2), (0.05, 0.3)))
    assert verdicts(order_claims(reversed_, "gpu")) == ["holds"] * 5
    assert verdicts(order_claims(reversed_, "tiny")) == ["not_applicable"] * 4 + ["holds"]
    assert verdicts(order_claims(made(ways((0.1, 0.2), (0.05, 0.3))), "gpu"))[:2] == ["fails", "not_evidence"]
    assert verdicts(order_claims(made(ways((0.3, 0.1), (0.2, 0.1))), "gpu"))[:2] == ["not_evidence", "fails"]
    never = made(ways((2.0, 0.1), (0.1, 2.0)))
    assert verdicts(order_claims(never, "gpu"))[:3] == ["holds", "holds", "not_evidence"], "two times: a coin"
    neither = made(ways((2.0, 2.0), (2.0, 2.0)))
    assert verdicts(order_claims(neither, "gpu"))[:3] == ["fails", "fails", "fails"]


def test_a_classifiers_answer_to_noise_is_not_learning():
    """Both concepts right at the first evaluation, on noise; what counts is when they are right for good."""

    def way(s):
        noise = np.where(s < 0.01, 1.0, 0.0)
        return np.maximum(noise, after(0.4)(s)), np.maximum(noise, after(0.1)(s))

    found = times_learned(made([way], steps=1.0)).values[0, 0]
    np.testing.assert_allclose(found, [0.4 + np.log(2) / 20, 0.1 + np.log(2) / 20], atol=0.01)


def bend(height):
    """MSE falls, rises by about `height`, and falls: colour ahead all the time, size goes back for a while."""

    def way(s):
        dip = 1.6 * height * np.exp(-(((s - 0.3) / 0.08) ** 2))
        return np.clip(after(0.0, 30)(s), 0, 1), np.clip(0.5 + 0.5 * after(0.5, 10)(s) - dip, 0, 1)

    return way


def test_memorisation_is_judged():
    found = memorisation_claims(made([bend(0.2)]), "gpu")
    assert verdicts(found) == ["holds"] * 7
    assert found[0].value > 0.1
    flat = memorisation_claims(made([bend(0.0)]), "gpu")
    assert verdicts(flat)[:3] == ["fails"] * 3
    assert flat[0].value == 0.0

    def stays(s):
        return after(0.0, 30)(s), np.clip(0.5 - s, 0, 1)

    assert verdicts(memorisation_claims(made([stays]), "gpu"))[:4] == ["fails"] * 4


def test_a_rise_that_trained_classes_share_is_no_memorisation():
    """The same bump in class 00 leaves no excess; before trained classes are there a bump counts for nothing."""
    trajectory = made([bend(0.2)])
    bump = 1 - trajectory["output"].sel(point="11")
    output = trajectory["output"].copy()
    output.loc[{"point": "00"}] = bump
    shared = memorisation_claims(trajectory.assign(output=output), "gpu")
    assert verdicts(shared)[:3] == ["fails"] * 3
    output.loc[{"point": "11"}] = 1.0 - 1.5 * bump  # it rises more, and so does 00 more than 01 and 10
    assert verdicts(memorisation_claims(trajectory.assign(output=output), "gpu"))[0] == "not_evidence"
    late = trajectory.assign(accuracy=trajectory["accuracy"].where(trajectory["time"] > 2000.0, 0.2))
    assert [claim.value for claim in memorisation_claims(late, "gpu")[:3]] == [0.0] * 3


def test_a_short_bump_does_not_outlive_the_authors_smoothing():
    def spike(s):
        return after(0.0, 30)(s), np.clip(0.5 + 0.5 * after(0.3, 30)(s) - 0.3 * (np.abs(s - 0.3) < 0.01), 0, 1)

    assert verdicts(memorisation_claims(made([spike]), "gpu"))[:3] == ["holds", "holds", "fails"]


def test_the_bend_is_told_from_that_of_the_weakest_signal():
    def other(s):
        return bend(0.2)(s)[::-1]

    assert verdicts(memorisation_claims(made([other, bend(0.2)]), "gpu"))[4] == "holds"
    assert verdicts(memorisation_claims(made([bend(0.2), bend(0.2)]), "gpu"))[4] == "not_evidence"


def test_a_rise_without_a_fall_is_not_transient():
    times = np.arange(5.0)
    for values, rise in (
        ([1, 0.5, 0.8, 0.1, 0.1], 0.3),
        ([1, 0.5, 0.8, 0.79, 0.8], 0.0),
        ([0.5, 0.8, 0.2, 0.1, 0], 0.3),
    ):
        curve = xr.DataArray(np.array(values, dtype=float), dims="time", coords={"time": times})
        assert transient_rise(curve) == pytest.approx(rise)


def test_slowing_is_judged():
    assert verdicts(slowing_claims(made(ways((0.05, 0.05), (0.06, 0.05), (0.05, 0.06))), "gpu"))[:2] == ["holds"] * 2
    steady = made([lambda s: (0.9 * s**2, 0.9 * s**2)])
    assert "fails" in verdicts(slowing_claims(steady, "gpu"))[:2]


def test_smoothed_noise_falls_in_a_line_and_is_not_evidence():
    """Every curve falls from its top; smoothing makes that fall straight. The null sees it."""
    draw = np.random.default_rng(5)
    noise = made([lambda s: tuple(draw.uniform(size=(2, len(s))))])
    plain, smooth = slowing_claims(noise, "gpu")[1:3]
    assert smooth.null is not None
    assert plain.null is not None
    assert smooth.null > max(plain.null, 0.5)
    assert smooth.verdict != "holds"


def test_a_model_that_learned_nothing_is_told():
    trajectory = made(ways((0.6, 0.1), (0.05, 0.3)))
    trajectory["diffusion"] = xr.full_like(trajectory["diffusion"], 4.0)
    trajectory["accuracy"] = xr.full_like(trajectory["accuracy"], 0.9)
    assert verdicts(order_claims(trajectory, "gpu"))[-2:] == ["fails", "fails"]
