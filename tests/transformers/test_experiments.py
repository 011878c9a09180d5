"""The experiments as a user runs them: killed and resumed, in two processes, diverging, without data."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from PIL import Image

from saddles.core.experiment import Context, registry
from saddles.core.run import resume, run_experiment
from saddles.core.status import Ending, Status
from saddles.core.store import load
from saddles.errors import MissingDataError, SaddlesError
from saddles.transformers.experiments.runs import INSTANTS, LEADING, thinned
from saddles.transformers.experiments.verdicts import (
    diffusing,
    growth,
    growth_claims,
    scale_claims,
    spearman,
)

NAME = "transformers/vit-cifar10-adam"
SMALL = {"width": 8, "layers": 1, "hidden": 8, "every": 8, "epochs": 16.0, "store": 0.0}
WORDS = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        (NAME, {"epochs": 0.0}, "`epochs` must be positive; got 0"),
        ("transformers/vit-init-scale", {"scales": (1.0, 1.0)}, "`scales` must be one or more different numbers"),
        ("transformers/vit-init-scale", {"scales": ()}, "`scales` must be one or more different numbers"),
        ("transformers/vit-init-scale", {"scales": (1.0, 0.0)}, "`scales` must be between 1e-06 and"),
        ("transformers/gpt2-wikitext", {"heads": 5}, "`heads` must be a divisor of width=24; got 5"),
        ("transformers/gpt2-wikitext", {"block": 1}, "at least 2 tokens"),
    ],
)
def test_settings_that_cannot_be_trained_are_refused_before_anything_is(tmp_path, name, changes, words):
    with pytest.raises(SaddlesError, match=words):
        run_experiment(name, size="tiny", changes=changes, out=tmp_path / "run")


def test_images_that_are_not_square_are_refused(tmp_path):
    for part in ("train/cat", "train/dog", "test/cat", "test/dog"):
        (tmp_path / part).mkdir(parents=True)
        Image.fromarray(np.zeros((8, 16, 3), dtype=np.uint8)).save(tmp_path / part / "a.png")
    with pytest.raises(SaddlesError, match="images must be square; got 8 × 16 pixels"):
        run_experiment(NAME, size="tiny", changes={"source": str(tmp_path)}, out=tmp_path / "run")


def killed_after_a_checkpoint(words: list[str], folder: Path) -> int:
    """Start a run, kill -9 when a checkpoint is there; returns the step of the checkpoint."""
    process = subprocess.Popen(
        words, cwd=folder.parent, env=os.environ | ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if list(folder.glob("parts/*/checkpoint.pt")):
            break
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    _, said = process.communicate()
    files = list(folder.glob("parts/*/checkpoint.pt"))
    assert files, said
    return torch.load(files[0], weights_only=True)["step"]


def test_kill_and_resume_give_the_uninterrupted_run(tmp_path, monkeypatch):
    from saddles.transformers import training

    words = [sys.executable, "-m", "saddles", "run", NAME, "--size", "tiny", *WORDS, "--out", "killed"]
    step = killed_after_a_checkpoint(words, tmp_path / "killed")
    assert 0 < step < 128
    assert json.loads((tmp_path / "killed" / "run.json").read_text())["status"] == "running"
    counted = []
    honest = training._Stepper.step
    monkeypatch.setattr(training._Stepper, "step", lambda this, step: (counted.append(step), honest(this, step))[1])
    resumed = resume(tmp_path / "killed")
    assert counted == list(range(step, 128)), "steps were repeated or left out"
    whole = run_experiment(NAME, size="tiny", changes=SMALL, out=tmp_path / "whole")
    assert resumed.trajectory["step"].values.tolist() == list(range(8, 129, 8))
    xr.testing.assert_equal(resumed.trajectory, whole.trajectory)
    assert not (tmp_path / "killed" / "parts").exists()


@pytest.mark.slow
def test_two_processes_do_what_one_does(tmp_path):
    """Gradients averaged over two halves of a batch are those of the batch, up to the order of sums."""
    changes = {"width": 8, "layers": 1, "hidden": 8, "epochs": 3.0, "accumulate": 2}
    pairs = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    words = [*launcher, "saddles", "run", NAME, "--size", "tiny", *pairs, "--out", "two"]
    done = subprocess.run(
        words, cwd=tmp_path, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("finished") == 1, "every process spoke"
    two = load(tmp_path / "two")
    one = run_experiment(NAME, size="tiny", changes=changes | {"accumulate": 1}, out=tmp_path / "one").trajectory
    for name in ("train_loss", "test_loss", "test_accuracy", "rate", "frobenius_norm", "stable_rank"):
        np.testing.assert_allclose(two[name], one[name], rtol=1e-3, err_msg=name)
    np.testing.assert_allclose(two["train_loss"], one["train_loss"], rtol=1e-5)


def test_a_run_that_diverges_keeps_what_it_had(tmp_path):
    run = run_experiment(NAME, size="tiny", changes={"rate": 1e9, "epochs": 2.0}, out=tmp_path / "here")
    assert Status.parse(run.record["trajectory_status"]).ending == Ending.DIVERGED
    assert run.trajectory["step"].values.tolist() == [4]


def test_a_result_says_what_it_was_trained_on(tmp_path):
    changes = {"source": "digits", "patch": 4, "epochs": 0.2, "layers": 1}
    runs = [
        run_experiment(NAME, size="tiny", changes=changes | {"train": count}, out=tmp_path / f"{place}").trajectory
        for place, count in enumerate((100, 100, 101))
    ]
    first, again, more = (run.attrs["trained_on"] for run in runs)
    assert first == again != more
    assert first.startswith("digits ")
    assert len(first) == len("digits ") + 16


def test_scales_may_be_trained_in_any_order():
    row = registry()["transformers/vit-init-scale"]
    changes = {"width": 8, "layers": 1, "hidden": 8, "epochs": 0.5}
    mixed, ordered = (
        row.run(row.settings("tiny", changes | {"scales": scales}), Context(seed=0, size="tiny"))
        for scales in ((0.17, 1.0, 0.3), (1.0, 0.3, 0.17))
    )
    assert mixed["scale"].values.tolist() == [1.0, 0.3, 0.17]
    xr.testing.assert_equal(mixed, ordered)


def test_data_are_needed_where_a_setting_names_them(tmp_path, monkeypatch):
    monkeypatch.setenv("SADDLES_DATA", str(tmp_path))
    row = registry()[NAME]
    assert row.data(row.settings("tiny")) == ()
    assert row.data(row.settings("laptop")) == ("cifar10",)
    assert row.data(row.settings("laptop", {"source": "my/folder"})) == ()
    with pytest.raises(MissingDataError, match="cifar10"):
        run_experiment(NAME, size="gpu", out=tmp_path / "here")
    assert not (tmp_path / "here").exists()


SPECTRUM = np.array([1.0, 0.5, 0.25, 0.125])
"""Of the change: it falls, and that of the initial product does not."""


def trajectory(ranks, initial=40.0, scales=(1.0,)):
    """A trajectory with given stable ranks (time, scale, seed, layer, head) of both products."""
    values = np.repeat(np.asarray(ranks, dtype=float)[..., None], 2, axis=-1)
    dims = ("time", "scale", "seed", "layer", "head", "product")
    return xr.Dataset(
        {
            "stable_rank": (dims, values),
            "initial_stable_rank": (dims[1:], np.full(values.shape[1:], initial)),
            "frobenius_norm": (dims, np.ones(values.shape)),
            "initial_singular_value": (
                ("scale", "layer", "head", "product", "index"),
                np.ones((*values.shape[1:2], *values.shape[3:], 4)),
            ),
            "singular_value": (("instant", *dims[1:], "index"), np.ones((1, *values.shape[1:], 1)) * SPECTRUM),
            "train_loss": (dims[:3], np.ones(values.shape[:3])),
        },
        coords={
            "step": ("time", 500 * (1 + np.arange(len(values)))),
            "product": ["KQ", "VO"],
            "scale": list(scales),
            "instant": [500 * len(values)],
        },
        attrs={"outputs": 10},
    )


def verdicts(run):
    return [claim.verdict for claim in growth_claims(run, "gpu", "Figure 4")]


def test_growth_is_judged():
    """Gradual growth to 5 holds; one jump, high rank, and decrease are told from it."""
    gradual = np.linspace(1, 5, 50)[:, None, None, None, None] * np.ones((1, 1, 2, 3, 4))
    assert verdicts(trajectory(gradual)) == ["holds"] * 9
    jump = np.where(np.arange(50) < 25, 1.0, 5.0)[:, None, None, None, None] * np.ones((1, 1, 2, 3, 4))
    assert verdicts(trajectory(jump))[:3] == ["holds", "holds", "fails"]
    high = gradual.copy()
    high[:, :, 1, 2] *= 3
    assert verdicts(trajectory(high))[:3] == ["fails", "holds", "holds"]
    falling = gradual.copy()
    falling[:, :, 0, 1] = falling[::-1, :, 0, 1]
    assert verdicts(trajectory(falling))[1] == "fails"
    measured = growth(trajectory(falling), "KQ")
    np.testing.assert_allclose(measured["low"].isel(seed=1), 5 / 40)
    assert float(measured["jump"].isel(seed=1).max()) == pytest.approx(4 / 49 / 5)


def test_weights_that_diffuse_are_the_null():
    """They have more than the initial rank and no rise; a flat rank is gradual in any order, which shows nothing."""
    flat = 5 * np.ones((50, 1, 1, 6, 4))
    run = trajectory(flat)
    found = diffusing(run, "KQ")
    assert float(found["low"].min()) > 1
    assert float(found["rise"].mean()) == pytest.approx(0.95, abs=0.1)
    small = diffusing(run.assign(frobenius_norm=1e-6 * run["frobenius_norm"]), "KQ")
    assert float(small["rise"].mean()) == pytest.approx(1, abs=0.1), "small walks keep their rank"
    assert float(small["low"].min()) > float(found["low"].max()) - 0.3
    assert verdicts(run)[2] == "not_evidence"


def test_early_is_a_step_not_a_share_of_the_run():
    """A fall in the first thousand steps is not counted, and the early value does not move with the run's length."""
    late = np.append(9, np.linspace(1, 5, 49))[:, None, None, None, None] * np.ones((1, 1, 1, 2, 2))
    assert verdicts(trajectory(late))[1] == "holds"
    whole, longer = trajectory(late), trajectory(np.concatenate([late, late[-1:].repeat(450, 0)]))
    for product in ("KQ", "VO"):
        np.testing.assert_array_equal(growth(whole, product)["rise"], growth(longer, product)["rise"])
    np.testing.assert_allclose(growth(whole, "KQ")["rise"], 5)


def test_a_short_run_is_not_judged_on_its_rise():
    gradual = np.linspace(5, 1, 9)[:, None, None, None, None] * np.ones((1, 1, 1, 2, 2))
    claims = growth_claims(trajectory(gradual), "gpu", "Figure 20")
    assert [claim.verdict for claim in claims] == [
        "holds",
        *["not_applicable"] * 2,
        "holds",
        *["not_applicable"] * 2,
        *["holds"] * 3,
    ]
    assert claims[1].reason == "judged in runs of at least 5,000 steps; this one has 4,500"


def test_ranks_by_scale_are_judged():
    growing = np.array([3.0, 2.0, 1.0])[None, :, None, None, None] * np.ones((50, 1, 5, 3, 4))
    held = scale_claims(trajectory(growing, scales=(1.0, 0.3, 0.1)), "laptop", "Figure 7")
    assert [claim.verdict for claim in held] == ["holds"] * 6 + ["not_applicable"] * 4 + ["holds"]
    assert held[0].value == 1.0
    one = trajectory(growing[:, :, :1], scales=(1.0, 0.3, 0.1))
    told = [claim.verdict for claim in scale_claims(one, "laptop", "Figure 7")][:5]
    assert told == ["not_evidence", "not_evidence", "holds", "not_evidence", "holds"], "one order in six is right"
    turned = scale_claims(trajectory(growing, scales=(0.1, 0.3, 1.0)), "laptop", "Figure 7")
    assert turned[0].value == -1.0
    assert [claim.verdict for claim in turned[:2]] == ["fails", "fails"]
    exchanged = trajectory(growing[:, [1, 0, 2]], scales=(1.0, 0.3, 0.1))["stable_rank"].isel(time=-1, product=0)
    np.testing.assert_allclose(spearman(exchanged), 0.5)


def test_a_scale_that_diverged_is_not_left_out():
    """Of one seed: no claim takes the worst of the scales that are left, nor its ranks for equal ones."""
    growing = np.array([3.0, 2.0, 1.0])[None, :, None, None, None] * np.ones((50, 1, 5, 3, 4))
    growing[20:, 2, 4] = np.nan
    run = trajectory(growing, scales=(1.0, 0.3, 0.1))
    run["train_loss"] = run["train_loss"].where(run["stable_rank"].isel(layer=0, head=0, product=0).notnull())
    judged = scale_claims(run, "laptop", "Figure 7")
    reasons = {claim.reason for claim in (*judged[:4], judged[-1])}
    assert reasons == {"a measured number is not finite"}


def test_spectra_are_kept_at_few_instants():
    steps = np.arange(1, 501) * 10
    flat = {name: ("time", np.ones(500)) for name in ("train_loss", "test_loss", "test_accuracy", "rate")}
    names = ("stable_rank", "effective_rank", "energy_rank_90", "energy_rank_99", "frobenius_norm", "noise_floor")
    end = np.array([[[4.0, 1.0, 0.4, 4.0, 0.1, 0.1]], [[2.0, 1.0, 1.0, 2.0, 0.1, 0.1]]])
    first = np.array([[[2.0, 1.0, 0.4, 1e-9, 0.0, 0.0]], [[1.0, 0.4, 0.3, 1e-9, 0.0, 0.0]]])
    heads = xr.Dataset(
        flat
        | {name: (("time", "layer"), np.ones((500, 2))) for name in names}
        | {"singular_value": (("time", "layer", "head", "index"), steps[:, None, None, None] * end)}
        | {
            "initial_stable_rank": ("layer", [1.0, 1.0]),
            "initial_singular_value": (("layer", "head", "index"), first),
        },
        coords={"time": steps.astype(float), "step": ("time", steps), "epoch": ("time", steps / 10)},
    )
    kept = thinned(heads)
    assert kept.sizes["instant"] <= INSTANTS
    assert kept["instant"].values[[0, -1]].tolist() == [10, 5000]
    np.testing.assert_array_equal(kept["singular_value"][:, 0, 0, 0], 4 * kept["instant"])
    np.testing.assert_array_equal(kept["leading_singular_value"], kept["singular_value"][..., :LEADING])
    # Where the initial product has singular values: 1/4 − 1/2 and 0.1 − 0.2 in the first layer, 0.1 and 0.2 after it.
    np.testing.assert_allclose(kept["spectrum_excess"], [-0.1, 0.2], rtol=1e-6)
    assert {str(variable.dtype) for variable in kept.data_vars.values()} == {"float32"}
    assert kept.sizes["time"] == 500
