"""The commands as a user types them: words, files and exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace

import grid_experiment
import pytest

from saddles import cli
from saddles.core import experiment
from saddles.core.experiment import Size, find
from saddles.core.status import Ending, Status

TINY = ["--size", "tiny"]


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Run a command in an empty folder; returns its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(cli, "_cache", lambda: None)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["saddles", *words])
        with pytest.raises(SystemExit) as left:
            cli.main()
        spoken = capsys.readouterr()
        return int(left.value.code or 0), spoken.out, spoken.err

    return call


def test_list_shows_every_experiment(command):
    code, out, _ = command("list")
    assert code == 0
    assert "linear/figure-2" in out
    assert "paper" in out


def test_show_prints_every_setting_with_its_documentation_and_values(command, monkeypatch):
    changed = Size(90, replace(grid_experiment.ROW.sizes["tiny"].settings, points=64, levels=(3.0, 4.5)))
    row = replace(grid_experiment.ROW, sizes={**grid_experiment.ROW.sizes, "laptop": changed}, needs=("cifar10",))
    monkeypatch.setattr(experiment, "_own", {row.name: row})
    code, out, _ = command("show", "toy/grid")
    assert code == 0
    for line in (
        "toy/grid: A decay on a grid",
        "paper: nobody",
        "data: cifar10",
        "tiny 1 s (default), laptop 1.5 min",
    ):
        assert line in out
    lines = {line.split()[0]: " ".join(line.split()) for line in out.splitlines() if line.strip()}
    assert lines["setting"] == "setting what it is tiny laptop"
    assert lines["points"] == "points instants that are saved 4 64"
    assert lines["levels"] == "levels nothing depends on them 1.0,2.0 3.0,4.5"
    assert {item.name for item in fields(grid_experiment.Settings)} <= set(lines)


def test_run_writes_and_judges(command, tmp_path):
    code, out, _ = command("run", "linear/figure-1", *TINY, "--out", "here", "--set", "dim=20", "--set", "steps=30")
    assert code == 0
    assert "not applicable" in out
    claims = json.loads((tmp_path / "here" / "claims.json").read_text())
    assert {row["verdict"] for row in claims} == {"not_applicable"}
    assert json.loads((tmp_path / "here" / "run.json").read_text())["settings"]["dim"] == 20
    assert (tmp_path / "here" / "figure.png").stat().st_size > 10_000
    code, out, _ = command("run", "--resume", "here")
    assert code == 0
    assert "earlier identical run" in out


def test_compare_and_export(command, tmp_path):
    command("run", "linear/figure-1", *TINY, "--out", "a", "--set", "dim=20", "--set", "steps=30")
    code, out, _ = command("compare", "a", "a")
    assert code == 0
    assert "test_error" in out
    assert "0.000e+00" in out
    code, out, _ = command("export", "a", "--to", "netcdf")
    assert (code, (tmp_path / "a" / "trajectory.nc").exists()) == (0, True)
    code, out, _ = command("export", "a", "--to", "csv", "--out", "tables/t.csv")
    assert code == 0
    assert len(list((tmp_path / "tables").iterdir())) == len(out.split())
    code, _, err = command("export", "a", "--to", "csv", "--out", "tables/t.csv")
    assert code == 2
    assert "already exists" in err


def test_doctor_tells_versions_devices_and_data(command, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tinyshakespeare.txt").write_text("To be")
    monkeypatch.setenv("SADDLES_DATA", "")
    code, out, _ = command("doctor", "--data", "data")
    assert code == 0
    assert "jax" in out
    assert "cpu:0" in out
    assert "tinyshakespeare.txt" in out
    assert "not found" in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "linear/figure-7"], "Did you mean"),
        (["run", "linear/figure-1", "--size", "huge"], "tiny, laptop, gpu, paper"),
        (["run", "linear/figure-1", "--set", "gama_w=2"], "Did you mean 'gamma_w'"),
        (["run", "linear/figure-1", "--set", "dim"], "key=value"),
        (["run", "linear/figure-1", *TINY, "--set", "dim=ten"], "a value like 40"),
        (["run", "linear/figure-1", *TINY, "--set", "rank=41"], "between 1 and the dimension"),
        (["run", "linear/figure-1", *TINY, "--out", "taken"], "already exists"),
        (["run", "linear/figure-1", *TINY, "--out", "taken/file/run"], "cannot be written"),
        (["run"], "either LAB/NAME"),
        (["run", "--resume", "nowhere"], "no run.json"),
        (["run", "linear/figure-1", "--data", "nowhere"], "not a folder"),
        (["run", "linear/figure-1", "--colour", "red"], "--colour"),
        (["sweep", "linear/figure-1", *TINY, "--grid", "c=a:b:3"], "got 'a:b:3'"),
        (["reproduce", "quadratic"], "Unknown lab"),
        (["show", "linear/figure-7"], "Did you mean"),
        (["compare", "nowhere", "taken"], "does not exist"),
        (["export", "taken", "--to", "csv"], "holds no stored trajectory"),
        (["dance"], "dance"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_bad_input_gets_one_sentence_and_code_2(command, tmp_path, words, expected):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    code, _, err = command(*words)
    assert code == 2
    assert expected in err
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err
    assert (tmp_path / "taken" / "file").read_text() == "mine"


def test_a_diverging_run_keeps_what_it_had_and_says_so(command, tmp_path):
    code, _, err = command("run", "linear/figure-1", *TINY, "--out", "here", "--set", "c=0.5")
    assert code == 2
    assert "diverged" in err
    assert "smaller" in err
    record = json.loads((tmp_path / "here" / "run.json").read_text())
    assert Status.parse(record["trajectory_status"]).ending == Ending.DIVERGED
    assert (tmp_path / "here" / "trajectory.zarr").is_dir()


def test_a_failing_claim_gives_code_1(command, monkeypatch):
    honest = find("linear/figure-1")
    claims = lambda trajectory, size: honest.claims(trajectory.assign(hidden_units=1e18), "laptop")  # noqa: E731
    broken = replace(honest, claims=claims)
    monkeypatch.setattr(experiment, "_own", {honest.name: broken})
    code, out, _ = command("run", "linear/figure-1", *TINY, "--set", "dim=20", "--out", "here")
    assert code == 1
    assert "fails" in out


def test_reproduce_writes_one_page_without_network(command, tmp_path):
    code, out, err = command("reproduce", "linear", *TINY, "--out", "all")
    assert code == 0, err
    page = (tmp_path / "all" / "report.html").read_text()
    assert page.count("<img ") == 6
    assert page.count('alt="') == 6
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page
    assert "linear/transition" in page
    assert "report.html" in out
    assert "6/6" in err
    code, _, err = command("reproduce", "linear", *TINY, "--out", "all/report.html")
    assert code == 2
    assert "cannot be written" in err


def test_ctrl_c_keeps_finished_parts_and_tells_how_to_go_on(tmp_path):
    """A real process, a real signal: exit code 130, the command that goes on, and nothing done twice."""
    words = [sys.executable, "-m", "saddles", "run", "linear/trade-off", *TINY, "--set", "seeds=40", "--out", "here"]
    process = subprocess.Popen(
        words, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"}
    )
    parts = tmp_path / "here" / "parts"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (parts.is_dir() and any(p.suffix == ".zarr" for p in parts.iterdir())):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "saddles run --resume here" in err
    record = json.loads((tmp_path / "here" / "run.json").read_text())
    assert Status.parse(record["status"]).ending == Ending.INTERRUPTED
    kept = {p.name for p in parts.iterdir() if p.suffix == ".zarr"}
    assert 1 <= len(kept) < 40
