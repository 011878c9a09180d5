"""Closed forms of addition modulo p, on networks made by hand; its claims on made trajectories."""

import numpy as np
import pytest
import xarray as xr

from saddles.incontext.experiments import modular_addition as modular

PARTS = modular.encoding(7, 0.7, 3)
TASK = modular.addition(PARTS.sum(axis=0))
POWER = np.array([1.0, 0.49, 0.2401])


def _waves(part, phases):
    """Cosines of the frequency of `part` with these phases, and the angle of its own phase."""
    spectrum = np.fft.fft(part)
    which = int(np.argmax(np.abs(spectrum[:4])))
    return np.cos(2 * np.pi * which * np.arange(7) / 7 + np.asarray(phases)[:, None]), np.angle(spectrum[which])


def _neurons(part, turns):
    """Neurons w (u·x_a ± v·x_b)², (A + B)² − (A − B)² = 4AB; A and B turned by φ and w by 2φ leave cos(a + b)."""
    (wave, own), rows = _waves(part, turns), []
    answers = _waves(part, 2 * np.asarray(turns) - own)[0]
    for side, answer in zip(wave, answers, strict=True):
        rows += [np.concatenate([side, sign * side, sign * answer]) for sign in (1.0, -1.0)]
    return np.stack(rows)


def _scaled(theta):
    """The multiple of these neurons' sum that fits best, and its loss."""
    inputs, targets = np.asarray(TASK.inputs), np.asarray(TASK.targets)
    given = np.sum([_output(inputs, row) for row in theta], axis=0)
    best = np.sum(given * targets) / np.sum(given**2)
    return best, np.sum((targets - best * given) ** 2) / len(inputs)


def _output(inputs, row):
    return ((inputs @ row[:14]) ** 2)[:, None] * row[14:]


def test_parts_have_the_powers_and_add_up():
    np.testing.assert_allclose(np.sum(PARTS**2, axis=1), POWER)
    for sample in range(0, 49, 5):
        first, second = divmod(sample, 7)
        np.testing.assert_allclose(np.asarray(TASK.targets)[sample], np.roll(PARTS.sum(axis=0), first + second))


def test_six_neurons_learn_a_frequency_and_leave_the_power_of_the_others():
    for k in range(3):
        theta = _neurons(PARTS[k], 2 * np.pi * np.arange(3) / 3)
        best, loss = _scaled(theta)
        assert loss == pytest.approx(POWER.sum() - POWER[k], rel=1e-9)
        weights = np.cbrt(best) * theta
        share = modular.learned(weights[None], TASK, PARTS)[0]
        np.testing.assert_allclose(share, np.eye(3)[k], atol=1e-9)


def test_one_neuron_fits_a_ninth_of_the_power():
    _, loss = _scaled(_neurons(PARTS[0], [0.4])[:1])
    assert POWER.sum() - loss == pytest.approx(modular.ALONE, rel=1e-9)


def test_stages_are_read_off_where_the_next_frequency_begins():
    share = np.array([[0.0, 0.0], [0.8, 0.005], [0.95, 0.02], [1.0, 0.3]])
    kept, loss = modular.stages(share, np.array([4.0, 3.0, 2.0, 1.0]))
    assert (kept.tolist(), loss.tolist()) == ([1.0], [2.0])


def test_the_claims_fail_where_they_are_broken():
    def verdicts(kept=0.95, plateau=0.49, drop=2.0):
        rows = {"kept": kept, "large_kept": 0.5, "seen_plateau": plateau, "large_plateau": 0.8}
        data = {name: (("stage", "seed"), np.full((1, 2), value)) for name, value in rows.items()}
        data |= {"first_drop": ("seed", [2.0, 3.0]), "predicted_drop": ("seed", [drop, 3.0])}
        return [
            c.verdict for c in modular.claims(xr.Dataset(data | {"plateau": ("level", [1.49, 0.49, 0.0])}), "laptop")
        ]

    assert verdicts() == ["holds"] * 3
    assert verdicts(kept=0.85)[0] == "fails"
    assert verdicts(plateau=0.53)[1] == "fails"
    assert verdicts(drop=2.05)[2] == "fails"
