"""The commands as a user types them: words, files and exit codes."""

import base64
import hashlib
import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace

import grid_experiment
import numpy as np
import pytest
import toy_experiment
from doc_pages import ROOT

import saddles
from saddles import cli
from saddles.cli import terminal
from saddles.cli.terminal import duration
from saddles.core import experiment
from saddles.core.experiment import Size, chosen, find
from saddles.core.known import known_claims
from saddles.core.status import Ending, Status
from saddles.runtime.records import write_record

TINY = ["--size", "tiny"]


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Run a command in an empty folder; returns its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(cli, "keep_compiled_programs", lambda: None)

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


@pytest.mark.parametrize("width", ["80", "40"])
def test_names_are_whole_in_a_narrow_terminal_and_in_a_pipe(command, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    code, out, _ = command("list", "concepts")
    assert code == 0
    found = {word for line in out.splitlines() for word in line.split()[:1] if word.startswith("concepts/")}
    assert found == {row.name for row in chosen(["concepts"])}


def test_list_as_json(command):
    code, out, _ = command("list", "linear", "--json")
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out)}
    assert set(rows) == {row.name for row in chosen(["linear"])}
    assert rows["linear/figure-1"]["sizes"]["tiny"]["settings"]["rank"] == find("linear/figure-1").settings("tiny").rank


@pytest.mark.parametrize("words", [[], ["lora"], ["--help"], ["lora", "--help"]])
def test_help_alone_is_no_error(command, words):
    code, out, err = command(*words)
    assert (code, err) == (0, "")
    assert "Usage" in out


def test_version(command):
    assert command("--version") == (0, f"saddles {saddles.__version__}\n", "")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("saddles run lin", "linear/figure-1"),
        ("saddles list conc", "concepts"),
        ("saddles run linear/figure-1 --set gamma_v", "gamma_variance="),
        ("saddles run linear/figure-1 --size lap", "laptop"),
    ],
)
def test_the_shell_completes_experiments_and_settings(command, monkeypatch, line, expected):
    words = line.split()
    for key, value in {
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_SADDLES_COMPLETE": "complete_bash",
    }.items():
        monkeypatch.setenv(key, value)
    code, out, _ = command()
    assert code == 0
    assert expected in out.split()


def test_long_times_are_told_in_days():
    assert [duration(seconds) for seconds in (3, 300, 7200 * 2, 2e6)] == ["3 s", "5 min", "4 h", "23.1 days"]


def test_show_tells_paper_claims_data_and_picture(command, monkeypatch):
    monkeypatch.delenv("SADDLES_DATA", raising=False)
    code, out, _ = command("show", "transformers/vit-init-scale")
    assert code == 0
    for words in (
        "paper: Boix-Adsera et al., Transformers learn through gradual rank increase (2023), https://arxiv.org/abs/2306",
        "Figures 6, 7",
        "data: cifar10, digits (1,797 handwritten digits, 8 × 8 pixels, inside the package) instead of cifar10.",
        "picture: `saddles run transformers/vit-init-scale` draws it",
        "ΔKQ ends with low rank at every scale",
        "≤ 0.25",
    ):
        assert words in out


def test_known_claims_are_those_of_the_stored_run():
    stored = json.loads((ROOT / "docs" / "results" / "claims.json").read_text("utf-8"))["records"]
    for name, record in stored.items():
        rows = [
            {key: claim[key] for key in ("claim", "where", "relation", "threshold")}
            for claim in record.get("claims", [])
        ]
        assert known_claims(name) == rows


def test_show_prints_every_setting_with_its_documentation_and_values(command, monkeypatch):
    changed = Size(90, replace(grid_experiment.ROW.sizes["tiny"].settings, points=64, levels=(3.0, 4.5)))
    row = replace(grid_experiment.ROW, sizes={**grid_experiment.ROW.sizes, "laptop": changed})
    monkeypatch.setattr(experiment, "_own", {row.name: row})
    code, out, _ = command("show", "toy/grid")
    assert code == 0
    for line in (
        "toy/grid: A decay on a grid",
        "paper: nobody",
        "picture: `saddles run toy/grid` draws it",
        "tiny 1 s (default), laptop 1.5 min",
    ):
        assert line in out
    lines = {line.split()[0]: " ".join(line.split()) for line in out.splitlines() if line.strip()}
    assert lines["setting"] == "setting what it is tiny laptop"
    assert lines["points"] == "points instants that are saved 4 64"
    assert lines["levels"] == "levels nothing depends on them 1.0,2.0 3.0,4.5"
    assert {item.name for item in fields(grid_experiment.Settings)} <= set(lines)


def test_run_writes_and_judges(command, tmp_path):
    code, out, err = command("run", "linear/figure-1", *TINY, "--out", "here", "--set", "dim=20", "--set", "steps=30")
    assert code == 0
    assert "not applicable" in out
    assert out.splitlines()[-1] == "figure: here/figure.png"
    assert "a smoke test" in err
    assert "smoke test" in (tmp_path / "here" / "figure.svg").read_text("utf-8")
    claims = json.loads((tmp_path / "here" / "claims.json").read_text())
    assert {row["verdict"] for row in claims} == {"not_applicable"}
    assert json.loads((tmp_path / "here" / "run.json").read_text())["settings"]["dim"] == 20
    assert (tmp_path / "here" / "figure.png").stat().st_size > 10_000
    code, out, _ = command("run", "--resume", "here")
    assert code == 0
    assert "earlier identical run" in out
    shutil.rmtree(tmp_path / "here" / "trajectory.zarr")
    code, _, err = command("run", "--resume", "here")
    assert code == 2
    assert "holds no stored trajectory" in err


def test_a_run_tells_how_long_its_command_was_waited_for(command, tmp_path, monkeypatch):
    monkeypatch.setattr(terminal, "LOADED", time.perf_counter() - 600)
    words = ("run", "linear/figure-1", *TINY, "--out", "here", "--set", "dim=20", "--set", "steps=30")
    _, out, _ = command(*words)
    assert re.search(r"finished, 10\.?\d* min by the clock$", out, re.MULTILINE)
    record = tmp_path / "here" / "run.json"
    known = json.loads(record.read_text())
    record.unlink()
    write_record(record, known | {"status": "interrupted", "wall_time_s": 3600.0})
    _, out, _ = command("run", "--resume", "here")
    assert re.search(r"finished, 10\.?\d* min by the clock, 60\.?\d* min with what was computed before$", out, re.M)


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


def test_doctor_tells_where_compiled_programs_are_and_how_large(command, tmp_path, monkeypatch):
    def told():
        return "".join(command("doctor")[1].split())  # a long path is folded

    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "programs"))
    assert "/programs(noneyet)" in told()
    (tmp_path / "programs").mkdir()
    for name, size in (("jit_f-cache", 1_500_000), ("jit_g-cache", 1_000_000)):
        (tmp_path / "programs" / name).write_bytes(bytes(size))
    assert "/programs(2files,2.5MB)" in told()


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
        (["run", "linear/figure-1", "--set", "dim=20", "--set", "dim=30"], "--set dim is given twice"),
        (["sweep", "linear/figure-1", "--grid", "c=1,2", "--set", "dim=20", "--set", "dim=30"], "dim is given twice"),
        (["run", "linear"], "'linear' is a lab. Give one of its experiments; `saddles list linear` shows"),
        (["run", "linear/figure-1", "--seed", "x"], " integer. Try --help."),
        (["lst"], "Did you mean 'list'? Try --help."),
        (["run", "--resume", "here", *TINY], "Give --resume without them"),
        (["run", "--resume", "here", "--seed", "3"], "Give --resume without them"),
        (["run", "--resume", "here", "--set", "dim=20"], "Give --resume without them"),
        (["run", "--resume", "here", "--out", "there"], "Give --resume without them"),
        (["run", "--resume", "here", "--fresh"], "Give --resume without them"),
        (["run", "linear/figure-1", *TINY, "--set", "dim=ten"], "a value like 40"),
        (["run", "linear/figure-1", *TINY, "--set", "rank=41"], "between 1 and the dimension"),
        (["run", "linear/figure-1", *TINY, "--out", "taken"], "already exists"),
        (["run", "linear/figure-1", *TINY, "--out", "taken/file/run"], "cannot be written"),
        (["run", "linear/figure-1", *TINY, "--set", "steps=1e12"], "between 1 and 1,000,000,000"),
        (["run", "linear/figure-1", *TINY, "--set", "gamma_w=nan"], "between -10 and 10; got nan"),
        (["run", "linear/figure-1", *TINY, "--set", "gamma_w=inf"], "between -10 and 10; got inf"),
        (["run", "linear/figure-1", *TINY, "--set", "gamma_w=1000"], "between -10 and 10; got 1000"),
        (["run", "linear/figure-1", *TINY, "--set", "seeds=0"], "between 1 and"),
        (["run", "linear/figure-1", *TINY, "--set", "c=0"], "`c` must be positive; got 0"),
        (["run", "linear/figure-2", *TINY, "--set", "c=0"], "`c` must be positive; got 0"),
        (["run", "linear/trade-off", *TINY, "--set", "c=0"], "`c` must be positive; got 0"),
        (["run", "linear/transition", *TINY, "--set", "c=0"], "`c` must be positive; got 0"),
        (["run", "linear/theorem-1", *TINY, "--set", "points=1"], "between 3 and"),
        (["run", "margin/diagonal", *TINY, "--set", "until=0"], "`until` must be positive; got 0"),
        (["run", "margin/diagonal", *TINY, "--set", "until=9"], "at least 100: claims look at norms from 1 on"),
        (["run", "incontext/lazy-active", *TINY, "--set", "widths=1e3,0"], "`widths` must be positive; got 0"),
        (["run", "incontext/merged-vs-separate", *TINY, "--set", "ratio=0"], "`ratio` must be between 0.6 and 1.0"),
        (["run", "concepts/breakdown", *TINY, "--set", "widths=4"], "`widths` must be 2 or more different numbers"),
        (["run", "concepts/breakdown", *TINY, "--set", "starts=2"], "`starts` must be between 10 and"),
        (["run", "networks/linearised", *TINY, "--set", "widths=8"], "`widths` must be 2 or more different numbers"),
        (["run", "diagonal/figure-2", *TINY, "--set", "decades=4,4"], "`decades` must be 1 or more different numbers"),
        (["run", "diagonal/figure-2", *TINY, "--set", "sgd=4,4"], "`sgd` must be 1 or more different numbers"),
        (["run", "incontext/order", *TINY, "--set", "dim=1"], "between 2 and"),
        (["run", "incontext/conjecture", *TINY, "--set", "dim=1"], "between 2 and"),
        (["run", "incontext/modular-addition", *TINY, "--set", "modulus=1"], "between 3 and"),
        (["run", "concepts/figure-5", *TINY, "--set", "seeds=1"], "between 2 and"),
        (["run", "concepts/pivot-law", *TINY, "--set", "instants=1"], "between 2 and"),
        (["run", "concepts/theory-vs-sgd", *TINY, "--set", "samples=1"], "fill a batch of"),
        (["run", "diagonal/full-head", *TINY, "--set", "dim=1"], "between 2 and"),
        (["run", "networks/phase-diagram", *TINY, "--set", "dim=1"], "between 2 and"),
        (["run", "networks/vit-regime", *TINY, "--set", "samples=1"], "between 2 and"),
        (["run", "networks/closure", *TINY, "--set", "looks=1"], "between 2 and"),
        (["run", "transformers/vit-cifar10-adam", *TINY, "--set", "head_width=1"], "between 2 and"),
        (["run", "margin/kkt", *TINY, "--set", "until=500"], "at least 1000: claims look at norms from 100 on"),
        (["run", "linear/theorem-1", *TINY, "--set", "costs_points=2"], "between 3 and"),
        (["run", "linear/theorem-1", *TINY, "--set", "decades=2"], "Two of the widths must be at least 500 d"),
        (["reproduce", "--size", "huge"], "one of tiny, laptop, gpu, paper; got 'huge'"),
        (["reproduce", "--seed", "-1"], "`seed` must be at least 0"),
        (["list", "quadratic"], "Unknown lab"),
        (["explore", "--host", "999.1.1.1"], "The host '999.1.1.1' cannot be used"),
        (
            ["sweep", "linear/figure-1", "--grid", "c=1:2:100000", "--grid", "gamma_w=1:2:10000"],
            "at most 1,000,000 cells",
        ),
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
    assert sum(line.startswith("saddles: ") for line in err.splitlines()) == 1
    assert len(err.strip().splitlines()) <= 2  # a run names what it begins
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


@pytest.mark.parametrize(
    ("lost", "module", "told"),
    [(slice(None), "mine", True), (slice(2, None), "mine", True), (slice(0, 2), "mine", False),
     (slice(None), "saddles.mine", False)],
)  # fmt: skip
def test_a_finished_run_of_a_user_that_ends_in_nan_says_so(command, monkeypatch, lost, module, told):
    """As where diffrax gave NaN in place of an error; no claim looks at it."""

    def run(settings, context):
        found = toy_experiment.run(settings, context)
        gap = found["value"].values.copy()
        gap[lost] = np.nan
        return found.assign(gap=(("time", "seed"), gap))

    run.__module__ = module
    monkeypatch.setattr(experiment, "_own", {"toy/decay": replace(toy_experiment.ROW, run=run)})
    code, out, err = command("run", "toy/decay", *TINY)
    assert (code, "holds" in out) == (0, True)
    words = "NaN at the last time of this finished run: `gap`."
    assert (words in err) == told
    assert ("EQX_ON_ERROR=raise" in err) == told
    assert (words in command("run", "toy/decay", *TINY)[2]) == told  # shown from the earlier run


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
    count = sum(name.startswith("linear/") for name in experiment.registry())
    assert page.count("<img ") == 2 * count  # thumbnails and figures
    assert page.count('alt="') == 2 * count
    assert page.index("<img ") < page.index("<h2") < page.index("<table") < page.index('id="claims"')
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html.unescape(page)
    assert "http://" not in page
    assert "https://" not in page
    assert "linear/transition" in page
    assert "report.html" in out
    assert f"{count}/{count}" in err
    code, _, err = command("reproduce", "linear", *TINY, "--out", "all/report.html")
    assert code == 2
    assert "cannot be written" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_finished_parts_and_tells_how_to_go_on(tmp_path, number):
    """A real process and signal (`timeout` sends SIGTERM): exit code 130, how to go on, and nothing done twice."""
    (tmp_path / "my data").mkdir()
    # Pieces of any length are stored at once: on a fast machine with a warm cache none of these takes a second.
    begin = "import runpy, saddles.core.run as run; run.SHORT = 0.0; runpy.run_module('saddles', run_name='__main__')"
    words = [sys.executable, "-c", begin, "run", "linear/trade-off", *TINY, "--set", "seeds=40", "--out", "here"]
    words += ["--data", "my data"]
    process = subprocess.Popen(
        words, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"}
    )
    parts = tmp_path / "here" / "parts"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (parts.is_dir() and any(p.suffix == ".zarr" for p in parts.iterdir())):
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "saddles run --resume here --data 'my data'" in err
    record = json.loads((tmp_path / "here" / "run.json").read_text())
    assert Status.parse(record["status"]).ending == Ending.INTERRUPTED
    kept = {p.name for p in parts.iterdir() if p.suffix == ".zarr"}
    assert 1 <= len(kept) < 40
