"""The comparison of a diffusion trajectory with SIM, on made trajectories whose answer is known."""

import sys

import numpy as np
import pytest
import xarray as xr

from saddles.core.store import load, save
from saddles.core.trajectory import make_trajectory
from saddles.errors import SaddlesError
from saddles.studies import order_against_sim, sim_for

SIGNALS = np.array([[0.1, 0.2], [0.2, 0.21], [0.3, 0.22]])
SPREADS = SIGNALS * np.array([0.07, 0.2])


def made(rates, signals=SIGNALS, spreads=SPREADS):
    """Concepts of class 11 that grow as 1 − e^{−rate t}; rates (separation, seed, coordinate)."""
    times = np.linspace(0, 40, 4001)
    path = -np.expm1(-times[:, None, None, None] * np.asarray(rates))
    output = np.stack([np.zeros_like(path)] * 3 + [path], axis=3)
    names = ("separation", "coordinate")
    return make_trajectory(
        {
            "output": (("time", "separation", "seed", "point", "coordinate"), output),
            "signal": (names, signals),
            "spread": (names, spreads),
            "target": (("coordinate",), np.ones(2)),
        },
        times,
        unit="step",
        coords={
            "separation": [0.2, 0.4, 0.6],
            "coordinate": ["colour", "size"],
            "point": ["00", "01", "10", "11"],
            "seed": [0, 1],
        },
    )


def strengths():
    return SPREADS**2 + SIGNALS**2 / 3


def test_sim_has_the_strengths_of_the_images():
    """a_p ∝ σ_p² + μ_p²/3 by hand, and half-times log 2/a_p."""
    sim = sim_for(made(np.ones((3, 2, 2))))
    ratio = sim["strength"].values / strengths()
    np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-12)
    found = order_against_sim(made(np.ones((3, 2, 2))), sim)
    np.testing.assert_allclose(found["predicted"] * sim["strength"], np.log(2), rtol=1e-3)
    assert found["predicted_colour_first"].values.tolist() == [False, False, True]


def test_a_model_that_is_sim_agrees_in_order_and_speed():
    rates = np.repeat(strengths()[:, None], 2, axis=1) * 100
    found = order_against_sim(made(rates))
    assert float(found["agreement"]) == 1
    assert float(found["correlation"]) == pytest.approx(1, abs=0.05)
    assert float(found["slope"]) == pytest.approx(1, abs=0.02)
    assert int(found["runs"]) == 6
    np.testing.assert_allclose(
        found["lead"], found["predicted_lead"].expand_dims(seed=2).transpose(..., "seed"), atol=0.02
    )


def test_other_laws_are_told_apart():
    """Times as 1/√a have slope ½; order turned about agrees nowhere; colour always first agrees in a third."""
    rates = np.repeat(strengths()[:, None], 2, axis=1) * 100
    half = order_against_sim(made(rates**0.5))
    assert float(half["slope"]) == pytest.approx(0.5, abs=0.02)
    assert float(half["agreement"]) == 1
    turned = order_against_sim(made(rates[..., ::-1]))
    assert float(turned["agreement"]) == 0
    assert float(turned["slope"]) == pytest.approx(-1, abs=0.02)
    always = order_against_sim(made(np.broadcast_to([2.0, 1.0], (3, 2, 2))))
    assert float(always["agreement"]) == pytest.approx(1 / 3)
    assert float(always["slope"]) == pytest.approx(0, abs=1e-9)


def test_what_is_not_learned_counts_as_later():
    rates = np.repeat(strengths()[:, None], 2, axis=1) * 100
    rates[0, 0] = [1e-6, 1.0]  # size first, colour never: as SIM says
    rates[2, 1] = [1e-6, 1e-6]  # neither: agrees with nothing
    found = order_against_sim(made(rates))
    assert found["agrees"].values.tolist() == [[True, True], [True, True], [True, False]]
    assert int(found["runs"]) == 4
    assert np.isnan(found["measured"].values[0, 0, 0])


def test_stored_trajectories_are_opened(tmp_path):
    rates = np.repeat(strengths()[:, None], 2, axis=1) * 100
    run = made(rates)
    one = save(run, tmp_path / "run.zarr")
    two = save(sim_for(run), tmp_path / "sim.zarr")
    xr.testing.assert_allclose(order_against_sim(one, two), order_against_sim(run))
    stored = load(save(order_against_sim(run), tmp_path / "study.zarr"))
    xr.testing.assert_allclose(stored, order_against_sim(run))


def test_the_command(tmp_path, monkeypatch, capsys):
    """A table, one sentence, a file; bad input is exit code 2."""
    from saddles import cli

    monkeypatch.setenv("COLUMNS", "200")
    save(made(np.repeat(strengths()[:, None], 2, axis=1) * 100), tmp_path / "run.zarr")

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["saddles", "study", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        return left.value.code, capsys.readouterr()

    code, spoken = call(tmp_path / "run.zarr", "--out", tmp_path / "study.zarr")
    assert code == 0
    assert "order agrees in 100 % of runs" in spoken.out
    assert "2 of 2" in spoken.out
    assert float(load(tmp_path / "study.zarr")["agreement"]) == 1
    code, spoken = call(tmp_path / "study.zarr")
    assert code == 2
    assert "diffusion/figure-6a" in spoken.err


def test_other_signals_and_other_trajectories_are_refused():
    run = made(np.ones((3, 2, 2)))
    other = sim_for(made(np.ones((3, 2, 2)), signals=SIGNALS[:, ::-1]))
    with pytest.raises(SaddlesError, match="same ratios of signals"):
        order_against_sim(run, other)
    with pytest.raises(SaddlesError, match="has no signal"):
        order_against_sim(run.drop_vars("signal"))
    with pytest.raises(SaddlesError, match="does not exist"):
        order_against_sim("nowhere.zarr")
