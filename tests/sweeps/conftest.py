"""The small experiment of the sweeps, registered, in an empty folder."""

import pytest


@pytest.fixture(autouse=True)
def registered(monkeypatch, tmp_path):
    # Here, not above: pytest reads this file before jaxtyping looks at the package where it is asked for this folder.
    import grid_experiment

    from saddles.core import experiment

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(experiment, "_own", {grid_experiment.ROW.name: grid_experiment.ROW})
    monkeypatch.delenv("GRID_LOG", raising=False)
