"""Experiments of others: whatever is wrong in them is said of them, and takes nothing else down."""

import importlib
import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import toy_experiment
import xarray as xr
from typer.testing import CliRunner

import saddles
from saddles.cli import app
from saddles.core import experiment
from saddles.core.claim import check
from saddles.core.experiment import Size, find, left_out, register, registry
from saddles.core.run import resume, run_experiment
from saddles.errors import SaddlesError

ROW = toy_experiment.ROW
SUPPORT = Path(toy_experiment.__file__).parent


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    toy_experiment.calls.clear()
    toy_experiment.trouble.clear()
    monkeypatch.setattr(experiment, "_own", {})
    yield
    experiment._installed.cache_clear()


@pytest.fixture
def package(monkeypatch, tmp_path):
    """A function that installs a package of one module with an entry point."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name, source, value=None):
        (tmp_path / f"{name}.py").write_text(source)
        facts = tmp_path / f"{name}-0.1.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
        (facts / "entry_points.txt").write_text(f"[saddles.experiments]\n{name} = {value or f'{name}:ROWS'}\n")
        monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        experiment._installed.cache_clear()

    return install


GOOD = "import toy_experiment, dataclasses\nROWS = [dataclasses.replace(toy_experiment.ROW, name='mine/one')]\n"


def test_experiments_of_an_installed_package_are_known(package):
    package("fine", GOOD)
    assert find("mine/one").title == ROW.title
    assert left_out() == ()


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("def (", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(5)", "SystemExit: 5"),
        ("OTHER = []", "AttributeError"),
        ("ROWS = 3", "it must name a list of Experiment; got a int"),
        (GOOD + "ROWS = ROWS[0]", "it must name a list of Experiment; got a Experiment"),
        (GOOD + "ROWS = [*ROWS, 1]", "it must name a list of Experiment; got a list"),
        (GOOD + "ROWS = ROWS * 2", "an experiment named 'mine/one' exists already"),
        (GOOD.replace("mine/one", "linear/figure-1"), "an experiment named 'linear/figure-1' exists already"),
        (GOOD.replace("mine/one", "../one"), "`name` must be LAB/NAME"),
    ],
)
def test_a_broken_package_is_left_out_and_named(package, source, told):
    package("broken", source)
    package("fine", GOOD.replace("mine", "others"))
    known = registry()
    assert "others/one" in known
    assert all(row.shipped for row in known.values() if row.lab in experiment.LABS)
    (sentence,) = left_out()
    assert sentence.startswith(
        "The experiments of the package broken (entry point `broken = broken:ROWS`) are left out: "
    )
    assert told in sentence
    with pytest.raises(SaddlesError, match=r"Unknown experiment 'mine/two'.*package broken"):
        find("mine/two")
    listed = CliRunner().invoke(app, ["list"])
    assert listed.exit_code == 0
    assert "linear/figure-1" in listed.output
    assert "package broken" in " ".join(listed.output.split())


@dataclass
class NotFit:
    how: object = print


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "one"}, "`name` must be LAB/NAME, of letters, digits, - and _; got 'one'"),
        ({"name": "../../one"}, "`name` must be LAB/NAME"),
        ({"default": "gpu"}, r"`default` must be a size of toy/decay \(tiny, laptop\); got 'gpu'"),
        ({"sizes": {"huge": ROW.sizes["tiny"]}}, "`sizes` must be named tiny, laptop, gpu, paper, in toy/decay"),
        ({"sizes": {"tiny": Size(1, toy_experiment.Settings)}}, "`settings` must be a dataclass"),
        ({"sizes": {"tiny": Size(1, object())}}, "`settings` must be a dataclass"),
        ({"sizes": {}}, "`sizes` must be a dictionary"),
        ({"sizes": {"tiny": Size(1, NotFit())}}, "`how` must be a number, text, a truth value or a list"),
        ({"sizes": {"tiny": Size(1, NotFit(np.arange(3.0)))}}, "`how` must be a number, text"),
    ],
)
def test_what_is_no_experiment_is_refused_where_it_is_made(changes, told):
    with pytest.raises(SaddlesError, match=told):
        replace(ROW, **changes)


WRONG_TYPES = """
from dataclasses import replace
import saddles
from saddles.core.claim import check
from toy_experiment import ROW
good = dict(paper="p", where="w", values=1.0, relation="<=", threshold=2.0, size="tiny")
for wrong in (
    lambda: replace(ROW, name=3),
    lambda: replace(ROW, run=None),
    lambda: replace(ROW, figure=3),
    lambda: replace(ROW, sizes={"tiny": 3}),
    lambda: replace(ROW, sizes=[4]),
    lambda: saddles.register("toy/decay"),
    lambda: check("It holds", **good | {"relation": "<"}),
    lambda: check("It holds", **good | {"values": {}}),
):
    try:
        wrong()
    except saddles.SaddlesError as error:
        print(error)
"""


def test_wrong_types_are_one_sentence():  # in a process whose functions do not check types by themselves
    done = subprocess.run([sys.executable, "-c", WRONG_TYPES], capture_output=True, text=True, cwd=SUPPORT)
    assert done.stdout.splitlines() == [
        "`name` must be LAB/NAME, of letters, digits, - and _; got 3.",
        "`run` must be a function, in toy/decay; got None.",
        "`figure` must be a function, in toy/decay; got 3.",
        "`sizes` must be a dictionary of names and Sizes, in toy/decay; got {'tiny': 3}.",
        "`sizes` must be a dictionary of names and Sizes, in toy/decay; got [4].",
        "`experiment` must be an Experiment; got 'toy/decay'.",
        "`relation` must be '<=' or '>='; got '<'.",
        "`values` must be a number, or one for each seed; got {}.",
    ], done.stderr


def _nothing(*words):
    return None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"run": _nothing}, "`run` of toy/decay must return a trajectory .*; got a NoneType"),
        ({"run": lambda s, c: {"loss": 1.0}}, "`run` of toy/decay must return a trajectory .*; got a dict"),
        ({"claims": _nothing}, "`claims` of toy/decay must return a list of claims .*; got a NoneType"),
        ({"claims": lambda t, s: [1.0]}, "`claims` of toy/decay must return a list of claims .*; got a list"),
        ({"figure": _nothing}, "`figure` of toy/decay must return a figure .*; got a NoneType"),
    ],
)
def test_what_its_functions_return_is_checked(changes, told):
    with pytest.raises(SaddlesError, match=told):
        run_experiment(replace(ROW, **changes))


def test_one_size_is_enough_and_claims_may_be_a_tuple(tmp_path):
    row = replace(ROW, sizes={"tiny": ROW.sizes["tiny"]}, default="", claims=lambda t, s: tuple(ROW.claims(t, s)))
    assert row.default == "tiny"
    assert replace(ROW, default="").default == "laptop"
    assert len(run_experiment(row, out=tmp_path / "run").claims) == 1


def test_a_folder_in_which_nothing_was_computed_may_be_taken_again(tmp_path):
    """Settings that are refused when the run begins."""

    def refuses(settings, context):
        raise SaddlesError.must_be("rate", "larger", settings.rate)

    with pytest.raises(SaddlesError, match="`rate` must be larger"):
        run_experiment(replace(ROW, run=refuses), out=tmp_path / "run")
    assert run_experiment(ROW, out=tmp_path / "run").computed


@pytest.mark.parametrize(
    "error",
    [
        KeyError("alpha"),
        RuntimeError("oops\nand more"),
        SystemExit(0),
        FileNotFoundError("no data"),
        ValueError("Bad."),
    ],
)
def test_an_error_inside_it_is_told_as_its_own_and_it_resumes(error):
    register(ROW)
    toy_experiment.trouble.append(error)
    done = CliRunner().invoke(app, ["run", "toy/decay", "--out", "here"], standalone_mode=False)
    assert isinstance(done.exception, SaddlesError)
    words = str(done.exception)
    assert words.startswith(f"toy/decay raised {type(error).__name__}: ")
    assert "not an experiment of saddles" in words
    assert ".." not in words
    trace = (Path("here") / "traceback.txt").read_text()
    assert "toy_experiment.py" in trace
    assert f"{type(error).__name__}: {str(error).splitlines()[0]}" in trace
    assert json.loads((Path("here") / "run.json").read_text())["status"].startswith("failed")
    made = resume("here")
    assert made.claims[0].verdict == "holds"
    assert len(toy_experiment.calls) == 3, "finished parts are kept"
    assert not (made.folder / "traceback.txt").exists()


def test_an_error_of_a_shipped_experiment_stays_a_bug(monkeypatch):
    row = replace(ROW, run=toy_experiment.run)
    monkeypatch.setattr(toy_experiment.run, "__module__", "saddles.linear.experiments.toy")
    toy_experiment.trouble.append(KeyError("alpha"))
    with pytest.raises(KeyError, match="alpha"):
        run_experiment(row)


def test_a_cell_that_ends_its_process_has_failed_and_the_others_have_not():
    def run(settings, context):
        if settings.rate > 1:
            raise SystemExit(0)
        return toy_experiment.run(settings, context)

    found = saddles.sweep(replace(ROW, run=run), {"rate": [1.0, 2.0]}, on="serial", out="here")
    assert [row.get("error") for row in found.failed] == ["SystemExit: 0"]
    assert float(found.trajectory["cell_done"].sum()) == 1


def test_claims_of_a_cell_that_are_none_are_noted():
    found = saddles.sweep(replace(ROW, claims=_nothing), {"rate": [1.0]}, on="serial", out="here")
    assert "must return a list of claims" in found.rows[0].get("claims_not_judged", "")


def test_a_trajectory_without_a_status_is_finished():
    plain = xr.Dataset({"value": ("time", [1.0, 0.0])}, coords={"time": [0.0, 1.0]})
    row = replace(ROW, run=lambda s, c: plain, claims=lambda t, s: [])
    made = run_experiment(row, out="here")
    assert made.record["trajectory_status"] == "finished"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"values": "hello"}, "`values` must be a number, or one for each seed; got 'hello'"),
        ({"null": "none"}, "`null` must be a number"),
    ],
)
def test_a_check_that_cannot_be_made_is_refused(words, told):
    good = {"paper": "p", "where": "w", "values": 1.0, "relation": "<=", "threshold": 2.0, "size": "tiny"}
    with pytest.raises(SaddlesError, match=told):
        check("It holds", **{**good, **words})
