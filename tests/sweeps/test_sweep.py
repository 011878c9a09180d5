"""Whole sweeps in one process: what is computed, recorded, resumed and refused."""

import errno
import inspect
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import grid_experiment
import numpy as np
import pytest

import saddles
from saddles import cli
from saddles.core import experiment
from saddles.core.experiment import Size
from saddles.core.run import run_experiment
from saddles.core.status import Ending, Status
from saddles.errors import SaddlesError
from saddles.report.sweep import summary
from saddles.runtime import progress
from saddles.sweeps.api import read_sweep, sweep
from saddles.sweeps.store import Store

ROW = grid_experiment.ROW
GRID = {"rate": [1.0, 2.0], "points": [3, 4]}


@pytest.fixture
def log(monkeypatch, tmp_path):
    """Lines of the cells that were begun."""
    monkeypatch.setenv("GRID_LOG", str(tmp_path / "log"))
    return lambda: (tmp_path / "log").read_text().splitlines() if (tmp_path / "log").exists() else []


@pytest.fixture
def command(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["saddles", "sweep", *words])
        with pytest.raises(SystemExit) as left:
            cli.main()
        spoken = capsys.readouterr()
        return int(left.value.code or 0), spoken.out, spoken.err

    return call


def test_sweep_is_a_plain_function_whatever_was_imported():
    program = (
        "import saddles, inspect\nassert inspect.isfunction(saddles.sweep)\nprint(inspect.signature(saddles.sweep))"
    )
    again = "import saddles.sweeps.api, saddles.sweeps.grid\nprint(inspect.signature(saddles.sweep))"
    done = subprocess.run([sys.executable, "-c", f"{program}\n{again}"], capture_output=True, text=True, check=True)
    before, after = done.stdout.splitlines()
    assert before == after
    assert list(inspect.signature(saddles.sweep).parameters)[:3] == ["experiment", "grid", "seeds"]
    made = saddles.sweep("toy/grid", {"rate": np.array([1.0, 2.0])}, out="s", on="serial")
    assert made.trajectory["rate"].values.tolist() == [1, 2]


@pytest.mark.parametrize("place", ["__main__", "<locals>"])
def test_an_experiment_of_a_notebook_is_refused_by_worker_processes(monkeypatch, place):
    def run(settings, context):
        return ROW.run(settings, context)

    if place == "__main__":
        run.__qualname__, run.__module__ = "run", "__main__"
        monkeypatch.setattr(sys.modules["__main__"], "run", run, raising=False)
    own = replace(ROW, run=run)
    with pytest.raises(SaddlesError, match=r"cannot import toy/grid.*serial"):
        sweep(own, {"rate": [1.0]}, out="s")
    assert not Path("s").exists()
    assert sweep(own, {"rate": [1.0]}, out="s", on="serial").missing == 0


def test_a_cell_is_what_run_computes():
    made = sweep(ROW, GRID, seeds=[5], out="s", on="serial", changes={"clock": "own"})
    assert (made.facts["status"], made.failed, made.missing) == ("finished", [], 0)
    alone = run_experiment(ROW, seed=5, changes={"rate": 2.0, "points": 4, "clock": "own"}, out="alone")
    here = made.trajectory.sel(rate=2.0, points=4, seed=5)
    assert here["value"].values.tobytes() == alone.trajectory["value"].values.tobytes()
    assert here["own_time"].values.tobytes() == alone.trajectory["time"].values.tobytes()
    assert here["claim_value"].values[0] == alone.claims[0].value


def test_the_same_sweep_is_shown_and_not_repeated(log):
    first = sweep(ROW, GRID, on="serial")
    assert first.folder.parent == Path("runs/toy/grid")
    assert len(log()) == 4
    assert sweep(ROW, GRID, on="serial").folder == first.folder
    assert len(log()) == 4
    assert sweep(ROW, GRID, seeds=1, on="serial").folder != first.folder


def test_failed_cells_are_recorded_and_retried_on_request(log, monkeypatch):
    made = sweep(ROW, {"trouble": ["none", "once"]}, seeds=2, out="s", on="serial")
    assert made.errors == [("RuntimeError: it broke here", 2)]
    assert "grid_experiment.py" in made.failed[0].get("trace", "")
    assert made.facts["failed"] == 2
    assert made.trajectory["cell_done"].values.tolist() == [[1, 1], [0, 0]]
    monkeypatch.setenv("GRID_FIXED", "yes")
    assert len(sweep(resume="s", on="serial").failed) == 2, "nobody asked for them"
    assert len(log()) == 4
    again = sweep(resume="s", retry=True, on="serial")
    assert (again.failed, len(log())) == ([], 6)
    assert again.trajectory["cell_done"].values.tolist() == [[1, 1], [1, 1]]


def test_progress_tells_cells_and_failures(monkeypatch):
    told = []

    class Seen(progress.Bar):
        def reach(self, done):
            super().reach(done)
            told.append(self.state.line)

    monkeypatch.setattr(progress, "Bar", Seen)
    sweep(ROW, {"trouble": ["error", "none"]}, seeds=2, out="s", on="serial")
    assert re.fullmatch(r".*, cells: 4/4, [\d.e+]+/s, 2 failed, ends in 0:00:00", told[-1])


def test_claims_that_cannot_be_judged_leave_the_numbers():
    made = sweep(replace(ROW, claims=lambda trajectory, size: 1 / 0), {"rate": [1.0]}, out="s", on="serial")
    assert made.failed == []
    assert made.rows[0].get("claims_not_judged", "").startswith("ZeroDivisionError")
    assert any("claims not judged: ZeroDivisionError" in line for line in summary(made))
    assert made.trajectory["value"].notnull().all()


def test_an_interrupted_sweep_is_resumed(log, monkeypatch):
    calls = []

    def run(settings, context):
        calls.append(settings)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return ROW.run(settings, context)

    monkeypatch.setattr(experiment, "_own", {ROW.name: replace(ROW, run=run)})
    with pytest.raises(KeyboardInterrupt):
        sweep(ROW.name, GRID, out="s", on="serial")
    assert read_sweep("s").missing == 2
    assert read_sweep("s").status == Status(Ending.INTERRUPTED)
    done = sweep(resume="s", on="serial")
    assert (len(calls), done.missing, done.facts["status"]) == (5, 0, "finished")
    reference = sweep(ROW, GRID, out="t", on="serial")
    assert [done.rows[k]["digest"] for k in range(4)] == [reference.rows[k]["digest"] for k in range(4)]


def interrupted():
    """A sweep of two cells of which the second is missing."""
    sweep(ROW, {"rate": [1.0, 2.0]}, out="s", on="serial")
    lines = Path("s/cells.jsonl").read_text().splitlines()
    Path("s/cells.jsonl").write_text(lines[0] + "\n")


def test_another_version_is_refused_unless_told(monkeypatch):
    interrupted()
    monkeypatch.setattr(saddles, "__version__", "99.0")
    with pytest.raises(SaddlesError, match=r"started with saddles 0.*this is saddles 99\.0.*--accept-changes"):
        sweep(resume="s", on="serial")
    made = sweep(resume="s", on="serial", accept_changes=True)
    assert [made.rows[k]["version"] == "99.0" for k in (0, 1)] == [False, True]


def test_other_settings_are_refused_unless_told(monkeypatch):
    interrupted()
    changed = replace(ROW, sizes={"tiny": Size(1, replace(ROW.sizes["tiny"].settings, points=7))})
    monkeypatch.setattr(experiment, "_own", {ROW.name: changed})
    with pytest.raises(SaddlesError, match=r"points=4.*now has 7"):
        sweep(resume="s", on="serial")
    made = sweep(resume="s", on="serial", accept_changes=True)
    assert made.trajectory.sizes["time"] == 4, "the old settings are kept"


def test_another_grid_for_the_same_folder_is_refused():
    interrupted()
    with pytest.raises(SaddlesError, match=r"s was started with grid .*got .*3\.0"):
        sweep(ROW, {"rate": [1.0, 3.0]}, resume="s", on="serial")
    assert sweep(ROW, {"rate": [1.0, 2.0]}, resume="s", on="serial").missing == 0
    with pytest.raises(SaddlesError, match="already exists"):
        sweep(ROW, {"rate": [1.0, 2.0]}, out="s", on="serial")


def test_an_experiment_without_its_data_is_not_begun(monkeypatch):
    monkeypatch.setenv("SADDLES_DATA", "")
    with pytest.raises(SaddlesError, match="cifar10 was not found"):
        sweep(replace(ROW, needs=("cifar10",)), {"rate": [1.0]}, out="s", on="serial")
    assert not Path("s").exists()


def test_cells_of_one_program_go_together_and_keep_their_numbers():
    widths = []

    def run_many(settings, contexts):
        widths.append(len(settings))
        assert len({one.points for one in settings}) == 1
        return [ROW.run(one, context) for one, context in zip(settings, contexts, strict=True)]

    grouped = sweep(replace(ROW, together=("rate", "seed"), run_many=run_many), GRID, seeds=3, out="s", on="serial")
    alone = sweep(ROW, GRID, seeds=3, out="t", on="serial")
    assert sorted(widths) == [6, 6]
    assert [grouped.rows[k]["digest"] for k in range(12)] == [alone.rows[k]["digest"] for k in range(12)]


def test_an_error_in_a_shared_program_is_put_to_its_cell():
    def run_many(settings, contexts):
        raise RuntimeError("one of them")

    made = sweep(
        replace(ROW, together=("trouble",), run_many=run_many), {"trouble": ["none", "error"]}, out="s", on="serial"
    )
    assert [row["cell"] for row in made.failed] == [1]
    assert made.errors[0][0] == "RuntimeError: it broke here"
    assert not any("computed_apart" in row for row in made.rows.values())


def test_the_command_tells_and_exits(command):
    code, out, _ = command("toy/grid", "--grid", "rate=1:2:3", "--seeds", "2", "--out", "s", "--on", "serial")
    assert code == 0, "claims that fail are results"
    assert "6 of 6 cells finished" in out
    assert "holds in 4 of 6: The rate is small" in out
    assert "no verdict: does not apply, or is no evidence: Never asked" in out
    assert Path("s/figure.png").stat().st_size > 10_000
    code, out, _ = command("toy/grid", "--grid", "trouble=none,error", "--out", "t t", "--on", "serial")
    assert code == 1
    assert "1 failed" in out
    assert "1 × RuntimeError: it broke here" in out
    assert "saddles sweep --resume 't t' --retry" in out
    code, out, _ = command("--resume", "t t", "--on", "serial")
    assert code == 1
    code, out, _ = command(
        "toy/grid", "--grid", "rate=1,2", "--grid", "points=3,4", "--zip", "--out", "z", "--on", "serial"
    )
    assert (code, json.loads(Path("z/sweep.json").read_text())["cells"]) == (0, 2)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["toy/grid", "--grid", "rte=1"], "Did you mean 'rate'"),
        (["toy/grid"], "grid is empty"),
        (["toy/grid", "--grid", "rate=1", "--set", "rate=2"], "both as a setting and in the grid"),
        (["toy/grid", "--grid", "rate=1", "--set", "rte=2"], "Did you mean 'rate'"),
        (["toy/grid", "--grid", "rate=1", "--on", "moon"], "tcp://HOST:8786"),
        (["toy/grid", "--grid", "rate=1", "--workers", "0"], "at least 1"),
        (["toy/grid", "--grid", "rate=1", "--size", "huge"], "one of tiny for toy/grid"),
        (["toy/gird", "--grid", "rate=1"], "Did you mean 'toy/grid'"),
        ([], "Give LAB/NAME"),
        (["--resume", "nowhere"], r"holds no sweep.json"),
        (["--resume", "nowhere", "--grid", "rate=1"], "Give --resume alone"),
    ],
)
def test_bad_input_gets_a_sentence_and_code_2(command, words, told):
    code, _, err = command(*words, "--out", "s") if "--resume" not in words else command(*words)
    assert code == 2
    assert told in err
    assert err.count("\n") == 1
    assert not Path("s").exists()


def test_ctrl_c_prints_the_command_that_goes_on(command, monkeypatch):
    def run(settings, context):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "_own", {ROW.name: replace(ROW, run=run)})
    code, _, err = command("toy/grid", "--grid", "rate=1,2", "--out", "s", "--on", "serial")
    assert code == 130
    assert "saddles sweep --resume s --on serial" in err


def test_a_disk_that_fills_up_gets_a_sentence_and_code_2(command, monkeypatch):
    def full(self, outcomes):
        raise OSError(errno.ENOSPC, "No space left on device")

    real = Store._row
    monkeypatch.setattr(Store, "_row", lambda self, *some: full(self, some))
    code, _, err = command("toy/grid", "--grid", "rate=1,2", "--out", "s", "--on", "serial")
    assert code == 2
    assert "No space left on device" in err
    assert "saddles sweep --resume s" in err
    monkeypatch.setattr(Store, "_row", real)
    code, out, _ = command("--resume", "s", "--on", "serial")
    assert (code, "2 of 2 cells finished" in out) == (0, True)
