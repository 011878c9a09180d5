"""The experiments at their smallest size, the text they read, and claims that can fail."""

import gzip
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from saddles import margin, simulate
from saddles.core.experiment import Context
from saddles.core.store import load, save
from saddles.errors import MissingDataError, SaddlesError
from saddles.margin.experiments import EXPERIMENTS, diagonal, general, kkt, real_tokens
from saddles.margin.experiments.norm_grid import on_norms
from saddles.margin.text import embed, sequences, words_of

SIZES = ("tiny", "laptop", "gpu", "paper")


def test_rows_are_complete():
    names = ("diagonal", "kkt", "aligned", "general", "rank", "initialisation", "real-tokens")
    assert [row.name for row in EXPERIMENTS] == [f"margin/{name}" for name in names]
    assert all(tuple(row.sizes) == SIZES for row in EXPERIMENTS)


def _small(name):
    row = next(row for row in EXPERIMENTS if row.name == f"margin/{name}")
    return row.settings("tiny")


def test_claims_of_the_diagonal_experiment_can_fail():
    settings = replace(_small("diagonal"), instances=2, until=1e3)
    run = diagonal.run(settings, Context(seed=3))
    worse = run.assign(excess=run["excess"] + 1.0, reached=0 * run["reached"])
    assert {c.verdict for c in diagonal.claims(worse, "laptop")} >= {"fails"}
    assert (run["optimum_gap"] < 1e-9).all()
    assert ((run["dual_slack"] >= -1e-9) & (run["dual_slack"] <= 1)).all()


def test_the_loss_of_the_diagonal_experiment_is_that_of_its_own_queries():
    task = _small("diagonal").tokens(3, 4, diagonal=True)
    flow = simulate(margin.DiagonalAttention(0.5), task, margin.MarginFlow(1e4))
    own, other = flow["log_loss_gap"].values[-1], diagonal.permuted_gap(
        margin.DiagonalAttention(0.5), task, flow["beta"].values[-1]
    )  # fmt: skip
    shifted = margin.Tokens(task.X, np.roll(task.z, -1, axis=0), task.y, task.head)
    back = diagonal.permuted_gap(margin.DiagonalAttention(0.5), shifted, flow["beta"].values[-1])
    assert back == pytest.approx(own)
    assert own < -100 < other


def test_a_world_without_the_bias_fails():
    """Where a run is replaced by its null, its claims fail; as it is, no null passes."""
    settings = replace(_small("diagonal"), instances=3, until=1e5)
    run = diagonal.run(settings, Context(seed=3))
    assert "not_evidence" not in {c.verdict for c in diagonal.claims(run, "laptop")}
    other = run.assign(
        excess=run["excess"] * 0 + run["ridge_l1"], log_loss_gap=run["log_loss_gap"] * 0 + run["permuted_log_loss_gap"]
    )
    verdicts = {c.claim: c.verdict for c in diagonal.claims(other, "laptop")}
    assert [verdict for claim, verdict in verdicts.items() if "diverges" not in claim and "1e7" not in claim] == [
        "fails"
    ] * 5
    run = kkt.run(replace(_small("kkt"), instances=3), Context(seed=3))
    swapped = run.assign(kkt_slackness=run["null_kkt_slackness"], certified_gap=run["null_certified_gap"])
    assert [c.verdict for c in kkt.claims(swapped, "laptop")[1:]] == ["fails", "fails"]
    assert (run["null_kkt_slackness"] > run["kkt_slackness"]).isel(time=-1).all()


def test_arms_of_the_general_experiment_tell_lost_runs():
    settings = _small("general")
    assert set(general.arms(settings)) == {"rank 1", "rank 2", "init 1", "near tie", "Assumption 1 only"}
    task = general.near_tie(replace(settings, n=3, length=4, dim=5), 1)
    ordered = np.sort(task.scores, axis=1)
    np.testing.assert_allclose((ordered[:, -1] - ordered[:, -2]) / (ordered[:, -1] - ordered[:, 0]), 1e-3, rtol=1e-6)


def _made_text(folder, words=4000):
    """Sentences of a made language: two topics, one in each half."""
    draw = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    names = ["".join(draw.choice(letters, size=4)) for _ in range(80)]
    half = words // 2
    first = draw.choice(60, size=half, p=np.arange(60, 0, -1) / 1830)
    second = 20 + draw.choice(60, size=half, p=np.arange(60, 0, -1) / 1830)
    text = [names[i] for i in np.concatenate([first, second])]
    lines = [" ".join(text[i : i + 20]) + " <unk> . \n" for i in range(0, words, 20)]
    place = folder / "wikitext2_train.txt.gz"
    with gzip.open(place, "wt", encoding="utf-8") as file:
        file.writelines(lines)
    return place


def test_real_tokens_on_a_made_text(tmp_path, monkeypatch):
    _made_text(tmp_path)
    monkeypatch.setenv("SADDLES_DATA", str(tmp_path))
    settings = replace(_small("real-tokens"), vocabulary=80, length=3, dim=6, instances=1, until=30.0)
    run = real_tokens.run(settings, Context(seed=5, size="tiny"))
    claims = real_tokens.claims(run, "tiny")
    stored = load(save(run, tmp_path / "run.zarr"))
    xr.testing.assert_equal(stored, run)
    assert [c.value for c in real_tokens.claims(stored, "tiny")] == pytest.approx(
        [c.value for c in claims], nan_ok=True
    )
    real_tokens.figure(stored).savefig(tmp_path / "figure.png")
    lost = stored.assign(diagonal_l1=stored["diagonal_l1"] * np.nan)  # every diagonal run on a wrong token
    real_tokens.figure(lost).savefig(tmp_path / "lost.png")


def test_real_tokens_without_data_say_so(monkeypatch):
    monkeypatch.delenv("SADDLES_DATA", raising=False)
    with pytest.raises(MissingDataError, match="wikitext2"):
        real_tokens.run(_small("real-tokens"), Context())


def test_embedding_is_deterministic_and_puts_neighbours_together(tmp_path):
    words = words_of(_made_text(tmp_path), 4000)
    assert "unk" not in words
    one, two = embed(words, 80, 8), embed(words, 80, 8)
    np.testing.assert_array_equal(one.vectors, two.vectors)
    assert (one.vectors**2).sum(axis=1).mean() == pytest.approx(8)
    pairs = embed([w for pair in ("ab", "cd", "ef", "gh") * 50 for w in pair], 8, 4, window=1)
    number = {word: i for i, word in enumerate(pairs.words)}
    unit = pairs.vectors / np.linalg.norm(pairs.vectors, axis=1, keepdims=True)
    assert unit[number["a"]] @ unit[number["b"]] > unit[number["a"]] @ unit[number["f"]]
    task, ids = sequences(one, 3, 4, 0)
    np.testing.assert_array_equal(task.X[1, 2], one.vectors[ids[1, 2]])
    np.testing.assert_array_equal(task.z[1], one.vectors[ids[1, 4]])
    with pytest.raises(SaddlesError, match="different words"):
        embed(["a", "b"] * 5, 10, 4)
    with pytest.raises(SaddlesError, match="runs of"):
        sequences(pairs, 2, 8, 0)


def test_reading_a_run_at_norms():
    run = xr.Dataset(
        {"frobenius_norm": ("time", [0.0, 1.0, 10.0, 5.0, 100.0]), "x": ("time", [0.0, 1.0, 9.0, 2.0, 4.0])}
    )
    seen = on_norms(run, np.array([0.0, 1.5, 2.0, 3.0]), ("x",))["x"]
    assert seen[0] == 1
    assert seen[2] == 4
    assert np.isnan(seen[3])
    assert 2 < seen[1] < 4
