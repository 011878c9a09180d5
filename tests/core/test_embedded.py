"""Data that every machine has, and what takes their place when others are missing."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
from toy_experiment import ROW as EXPERIMENT

from saddles.core import embedded
from saddles.core.data import SETS
from saddles.core.experiment import Experiment, Size
from saddles.core.run import planned_folder, run_experiment
from saddles.errors import MissingDataError
from saddles.sweeps.grid import Grid
from saddles.sweeps.plan import make_plan


@dataclass(frozen=True)
class Settings:
    """Which data, and how much is made of them."""

    source: Annotated[str, "data set"]
    points: Annotated[int, "instants"] = 5


def _row(without_data):
    def run(settings, context):
        trajectory = EXPERIMENT.run(EXPERIMENT.settings("tiny"), context)
        return trajectory.assign_attrs(source=settings.source)

    sizes = {"laptop": Size(1, Settings("cifar10"), without_data), "gpu": Size(1, Settings("cifar10"))}
    return Experiment("toy/data", "On data", "x", sizes, run, EXPERIMENT.claims, EXPERIMENT.figure, needs=("source",))


ROW = _row({"source": "digits", "points": 3})


@pytest.fixture
def nothing(monkeypatch, tmp_path):
    monkeypatch.delenv("SADDLES_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


def test_digits_are_the_file_that_the_readme_describes():
    readme = embedded.DIGITS.with_name("README.md").read_text("utf-8")
    assert "CC BY 4.0" in readme
    found = re.search(r"SHA-256: (\w{64})", readme)
    assert found
    assert found[1] == hashlib.sha256(embedded.DIGITS.read_bytes()).hexdigest() == embedded.digest("digits")
    images, labels = embedded.digits()
    assert images.shape == (1797, 8, 8)
    assert images.dtype == np.uint8
    assert (images.min(), images.max()) == (0, 255)
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    # The first row of the file, a zero: 0, 0, 5, 13, 9, 1, 0, 0 of 16.
    assert images[0, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]


def test_text_is_the_library_in_front_of_us_and_the_same_each_time():
    text = embedded.python_text()
    assert Path(json.__file__).parent.parent.joinpath("argparse.py").read_bytes() in text
    assert len(text) > 2_000_000
    assert hashlib.sha256(text).hexdigest() == embedded.digest("python")


def test_a_python_without_sources_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(embedded.sysconfig, "get_path", lambda name: str(tmp_path))  # pyright: ignore[reportPrivateImportUsage]
    with pytest.raises(MissingDataError, match="keeps no sources"):
        embedded.python_text.__wrapped__()


def test_embedded_data_take_the_place_of_missing_ones_and_the_result_says_so(nothing):
    run = run_experiment(ROW)
    assert run.record["settings"] == {"source": "digits", "points": 3}
    assert run.record["data"] == {"digits": embedded.digest("digits")}
    assert run.record["data_note"].endswith("instead of cifar10.")
    trajectory = run.trajectory
    assert trajectory.attrs["source"] == "digits"
    assert json.loads(trajectory.attrs["data"]) == run.record["data"]
    assert not run_experiment(ROW).computed


def test_nothing_takes_their_place_where_they_were_chosen_or_no_substitute_is_named(nothing):
    assert ROW.fallback("laptop", {"points": 9}) == {"source": "digits"}
    assert ROW.fallback("laptop", {"source": "my/folder"}) == {}
    for size, changes in (("gpu", None), ("laptop", {"source": "cifar10"})):
        with pytest.raises(MissingDataError, match="cifar10"):
            run_experiment(ROW, size=size, changes=changes)


def test_data_at_hand_are_used(tmp_path, monkeypatch):
    monkeypatch.setenv("SADDLES_DATA", str(tmp_path))
    (tmp_path / SETS["cifar10"][0]).mkdir()
    assert ROW.at_hand("laptop") == ROW.settings("laptop")
    assert ROW.instead("laptop", ROW.settings("laptop")) == ""


def test_the_sources_of_another_python_are_another_run(nothing, monkeypatch):
    row = _row({"source": "python"})
    here = planned_folder(row)
    monkeypatch.setattr(embedded, "python_text", lambda: b"import this")
    assert planned_folder(row) != here


def test_a_sweep_takes_them_too(nothing):
    plan = make_plan(ROW, "laptop", {}, Grid({"points": [2, 3]}))
    assert plan.settings["source"] == "digits"
    plan = make_plan(ROW, "laptop", {}, Grid({"source": ["cifar10", "my/folder"]}))
    assert plan.settings["source"] == "cifar10"
