"""Commands under wrong words, wrong files and mistakes of ours: one sentence and an exit code, never a traceback."""

import dataclasses
import json
import os
import random
import signal
import string
import subprocess
import sys
import time
import warnings
from pathlib import Path

import fuzz_constructors
import grid_experiment
import pytest
import toy_experiment
from damage import SEED

from saddles import cli, linear
from saddles.core import experiment
from saddles.core.engines import embedded
from saddles.core.run import run_experiment
from saddles.core.validation import _misfit
from saddles.sweeps.api import sweep


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    rows = (toy_experiment.ROW, grid_experiment.ROW)
    monkeypatch.setattr(experiment, "_own", {row.name: row for row in rows})
    monkeypatch.setattr("saddles.cli.keep_compiled_programs", lambda: None)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    def run(*words):
        monkeypatch.setattr("sys.argv", ["saddles", *words])
        with pytest.raises(SystemExit) as left:
            cli.main()
        told = capsys.readouterr()
        return left.value.code, told.out, told.err

    return run


def test_a_mistake_of_ours_has_its_own_code_and_a_file(command, monkeypatch, tmp_path):
    monkeypatch.setattr("saddles.core.store.load", lambda path: {}["nothing"])
    code, _, err = command("compare", "a", "b")
    assert code == 3
    assert err.startswith("saddles: This is a bug in saddles (KeyError: 'nothing'). Please report it with ")
    (file,) = tmp_path.glob("saddles-bug-*.txt")
    assert "Traceback" in file.read_text()
    assert "Traceback" not in err


def test_what_libraries_raise_beside_exceptions_is_no_traceback(command, monkeypatch):
    class Panic(BaseException):
        pass

    def panic(path):
        raise Panic("oh")

    monkeypatch.setattr("saddles.core.store.load", panic)
    code, _, err = command("compare", "a", "b")
    assert code == 3
    assert err.startswith("saddles: This is a bug in saddles (Panic: oh).")


def test_a_terminal_obeys_nothing_that_was_read(command, capsys):
    from saddles.cli.terminal import out, plain_table, say

    said = "a\x1b]0;title\x07\x1b[2J\r\x9b31mb\u202e"
    say(said)
    table = plain_table("name")
    table.add_row(said)
    out.print(table)
    shown = capsys.readouterr().out
    assert not set(shown) & set("\x1b\x07\r\x9b\u202e")
    assert shown.count(r"a\x1b]0;title\x07\x1b[2J\r\x9b31mb\u202e") == 2
    code, _, err = command("compare", said, "b")
    assert code == 2
    assert "\x1b" not in err


def test_errors_of_the_system_are_one_sentence(command, monkeypatch):
    long = "x" * 300
    for words in (
        ["run", "toy/decay", "--out", long],
        ["run", "--resume", long],
        ["compare", "y" * 5000, "z"],
        ["inspect", "\udc80"],
        ["sweep", "toy/grid", "--seeds", "2", "--on", "serial", "--out", long],
    ):
        code, _, err = command(*words)
        assert (code, err.count("\n")) == (2, 1), err
    monkeypatch.setattr("saddles.core.store.load", lambda path: (_ for _ in ()).throw(MemoryError()))
    assert command("compare", "a", "b")[0] == 2


def test_a_damaged_chunk_is_one_sentence_in_every_command_that_reads_it(command):
    run_experiment(toy_experiment.ROW, out="made")
    run_experiment(toy_experiment.ROW, out="whole")
    files = sorted(path for path in Path("made/trajectory.zarr").rglob("*") if path.is_file())
    chunk = next(path for path in files if not path.name.startswith(".") and path.suffix != ".json")
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 16
    chunk.write_bytes(data)
    for words in (
        ["compare", "made", "whole"],
        ["compare", "whole", "made/trajectory.zarr"],
        ["export", "made", "--to", "csv", "--out", "table.csv"],
        ["export", "made/trajectory.zarr", "--to", "netcdf", "--out", "file.nc"],
    ):
        code, _, err = command(*words)
        assert (code, err.count("\n")) == (2, 1), err
        assert "damaged" in err
    assert not Path("table.csv").exists()
    assert not Path("file.nc").exists()


def test_settings_that_leave_nothing_to_compare(command, tmp_path):
    """One rate has no slope; a learning rate too large for its theory still gives claims and a figure."""
    code, _, err = command("run", "concepts/theory-vs-sgd", "--size", "tiny", "--set", "rates=0.5", "--out", "one")
    assert code == 2
    assert err.strip().splitlines()[-1].startswith("saddles: `rates` must be two or more")
    code, _, err = command("run", "linear/transition", "--size", "tiny", "--set", "c=1", "--out", "two")
    assert code in (0, 1), err
    assert {"claims.json", "figure.png", "trajectory.zarr"} <= {place.name for place in (tmp_path / "two").iterdir()}


def test_an_interrupt_inside_exec_has_the_code_of_an_interrupt(tmp_path):
    words = [sys.executable, "-m", "interrupted_command", "run", "toy/decay", "--out", "here"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert "saddles run --resume here" in done.stderr


def test_an_interrupt_inside_a_destructor_is_not_lost(command, monkeypatch):
    """Python only prints it there, and the work would go on."""

    class Last:
        def __del__(self):
            raise KeyboardInterrupt

    def run(settings, context):
        Last()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            time.sleep(0.01)
        ended.append(True)

    ended = []
    row = dataclasses.replace(toy_experiment.ROW, run=run)
    monkeypatch.setattr(experiment, "_own", {row.name: row})
    code, _, err = command("run", "toy/decay", "--out", "here")
    assert (code, ended) == (130, [])
    assert "saddles run --resume here" in err


def make_a_class_that_is_interrupted():
    class Interrupted:
        def __set_name__(self, owner, name):
            raise KeyboardInterrupt

    class Made:
        part = Interrupted()

    return Made


def test_an_interrupt_while_a_class_is_made_is_no_bug(command, monkeypatch):
    """Before Python 3.12 it is a RuntimeError there; imports make hundreds of classes."""
    monkeypatch.setattr("saddles.core.store.load", lambda path: make_a_class_that_is_interrupted())
    code, _, err = command("compare", "a", "b")
    assert (code, err.strip()) == (130, "interrupted")


def test_a_run_that_is_interrupted_while_it_imports_can_be_resumed(command, monkeypatch):
    row = dataclasses.replace(toy_experiment.ROW, run=lambda settings, context: make_a_class_that_is_interrupted())
    monkeypatch.setattr(experiment, "_own", {row.name: row})
    code, _, err = command("run", "toy/decay", "--out", "here")
    assert code == 130
    assert "saddles run --resume here" in err
    assert json.loads(Path("here/run.json").read_text())["status"] == "interrupted"


COMMANDS = ["run", "sweep", "show", "compare", "export", "list", "report", "inspect", "spectra", "regime", "lora plan",
            "lora extract", "lora compress", "lora merge", "lora grow"]  # fmt: skip
WORDS = ["toy/decay", "toy/grid", "--grid", "--seeds", "--set", "--size", "tiny", "--out", "here", "--resume",
         "--zip", "--to", "csv", "netcdf", "--on", "serial", "--workers", "--retry", "--energy", "--rank",
         "--data", "--seed", "--fresh", "points=3", "rate=1:2:3", "rate=nan", "rate=log:0:1:2", "levels=;", "1",
         "-1", "1e9", "1000000000", "99999999999999999999", "", "=", "nan", "inf", "/", "..", "\udc80",
         "a\x00b", "x" * 300, "made", "made/run.json", "made/trajectory.zarr", "runs"]  # fmt: skip


@pytest.mark.parametrize("count", [400, pytest.param(2500, marks=pytest.mark.attack)])
def test_constructors_raise_nothing_but_ours(count):
    """Outside pytest, which checks the types of arguments and would refuse most of them first."""
    words = [sys.executable, fuzz_constructors.__file__, str(count), str(SEED)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}ATTACK_SEED={SEED}"


def test_the_message_names_the_argument():
    told = _misfit(linear.Sensing, {"measurements": "many"}, TypeError())
    assert str(told) == "`measurements` must be a whole number; got 'many'."
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
        linear.Sensing(3, 1, 5, nothing=1)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("count", [60, pytest.param(2500, marks=pytest.mark.attack)])
def test_no_words_give_a_traceback(command, count):
    run_experiment(toy_experiment.ROW, out="made")
    draw = random.Random(SEED)
    for _ in range(count):
        words = [*draw.choice(COMMANDS).split(), *draw.choices(WORDS, k=draw.randrange(5))]
        if draw.random() < 0.2:
            words.append("".join(draw.choices(string.printable, k=draw.randrange(1, 9))))
        code, _, err = command(*words)
        assert code in (0, 1, 2), (words, err, f"ATTACK_SEED={SEED}")
        assert "Traceback" not in err


@pytest.mark.parametrize("count", [12, pytest.param(300, marks=pytest.mark.attack)])
def test_no_bytes_in_a_run_give_a_traceback(command, count):
    """Random bytes written over random files of a run and of a sweep."""
    run_experiment(toy_experiment.ROW, out="made")
    sweep(grid_experiment.ROW, {"rate": [1.0, 2.0]}, out="grid", on="serial")
    files = sorted(p for home in ("made", "grid") for p in Path(home).rglob("*") if p.is_file())
    draw = random.Random(SEED)
    for _ in range(count):
        file = draw.choice(files)
        whole = file.read_bytes()
        at = draw.randrange(len(whole) + 1)
        file.write_bytes(whole[:at] + draw.randbytes(draw.randrange(9)) + whole[at + draw.randrange(9) :])
        if draw.random() < 0.5:  # as if its writer had made no checksums
            sums = file.parents[len(file.parts) - 2] / "trajectory.zarr" / ".checksums"
            kept = sums.read_bytes()
            sums.unlink()
        else:
            sums = kept = None
        home = file.parts[0]
        for words in (["export", home, "--to", "netcdf", "--out", "new.nc"], ["compare", home, home]):
            code, _, err = command(*words)
            assert code in (0, 2), (file, err, f"ATTACK_SEED={SEED}")
        Path("new.nc").unlink(missing_ok=True)
        if sums is not None and kept is not None:
            sums.write_bytes(kept)
        file.write_bytes(whole)


def test_workers_that_are_killed_before_they_are_ready_are_replaced(command, monkeypatch):
    """Two of the first three are killed as soon as they exist; the sweep does not notice."""
    killed, real = [], embedded.Embedded._start

    def start(self):
        worker = real(self)
        if len(killed) < 2:
            killed.append(worker.pid)
            os.kill(worker.pid, signal.SIGKILL)
        return worker

    monkeypatch.setattr(embedded.Embedded, "_start", start)
    done = sweep(grid_experiment.ROW, {"rate": [1.0, 2.0]}, out="s", workers=1)
    assert len(killed) == 2
    assert len(done.rows) == 2
    assert not done.failed


def test_a_warning_of_ours_is_one_line_without_code(capsys, monkeypatch):
    from saddles.cli.terminal import plain_warnings

    others = []
    monkeypatch.setattr(warnings, "showwarning", lambda *given: others.append(given[2]))
    with plain_warnings():
        warnings.showwarning("no worker left", UserWarning, cli.__file__, 1)
        warnings.showwarning("theirs", UserWarning, "other.py", 1)
    assert capsys.readouterr().err == "no worker left\n"
    assert others == ["other.py"]
