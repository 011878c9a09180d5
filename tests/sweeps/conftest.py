"""The small experiment of the sweeps, registered, in an empty folder."""

import grid_experiment
import pytest

from saddles.core import experiment


@pytest.fixture(autouse=True)
def registered(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(experiment, "_own", {grid_experiment.ROW.name: grid_experiment.ROW})
    monkeypatch.delenv("GRID_LOG", raising=False)
