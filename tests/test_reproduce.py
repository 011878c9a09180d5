"""Whole labs at once: what fails or is skipped is told, the rest runs, and worker processes give the same numbers."""

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pytest
import toy_experiment

import saddles
from saddles import cli
from saddles.core import experiment
from saddles.core.claim import read_claims
from saddles.core.experiment import chosen
from saddles.errors import MissingDataError, SaddlesError
from saddles.report import reproduce as module
from saddles.report.page import Section, _thumbnail, write_page
from saddles.report.reproduce import reproduce
from saddles.runtime import progress
from saddles.runtime.workers import Worker

RECORDS = Path(__file__).parents[1] / "docs" / "results" / "claims.json"


def _toys(monkeypatch):
    def broken(error):
        def run(settings, context):
            raise error

        if isinstance(error, ZeroDivisionError):
            run.__module__ = "saddles.toy"  # as one that we ship
        return run

    good = toy_experiment.ROW
    rows = [
        good,
        replace(good, name="toy/bad", run=broken(SaddlesError("The rate must be smaller."))),
        replace(good, name="toy/bug", run=broken(ZeroDivisionError("division by zero"))),
        replace(good, name="toy/data", run=broken(MissingDataError("No stars were found."))),
    ]
    monkeypatch.setattr(experiment, "_own", {row.name: row for row in rows})


def test_what_fails_or_is_skipped_is_told_and_the_rest_runs(tmp_path, monkeypatch):
    _toys(monkeypatch)
    lines = []
    failed, page = reproduce(["toy"], root=tmp_path, say=lines.append)
    assert failed == 2
    told = {line.split()[1].rstrip(","): line for line in lines[1:]}
    assert told["toy/decay"].endswith("1 holds")
    assert "failed: The rate must be smaller." in told["toy/bad"]
    assert "this is a bug in saddles (ZeroDivisionError: division by zero)" in told["toy/bug"]
    assert "skipped: No stars were found." in told["toy/data"]
    text = page.read_text("utf-8")
    for words in ("The rate must be smaller.", "No stars were found.", "ZeroDivisionError"):
        assert words in text
    # Each has a sign of its own, and the reason stands where the reader begins.
    for name, sign, state in (("data", "⊘", "skipped"), ("bad", "!", "broken"), ("bug", "!", "broken")):
        assert re.search(rf'<a href="#toy-{name}"[^>]*class="mark {state}">{sign}</a>', text), name
    top = text[: text.index('class="cards"')]
    assert "skipped: No stars were found." in top
    assert "1 skipped, 2 broken off" in top


def test_the_page_is_there_before_anything_ran_and_after_each_experiment(tmp_path, monkeypatch):
    _toys(monkeypatch)
    seen = []
    write = module.write_page  # pyright: ignore[reportPrivateImportUsage]
    monkeypatch.setattr(
        module,
        "write_page",
        lambda sections, *rest: seen.append([s.record is not None for s in sections]) or write(sections, *rest),
    )
    reproduce(["toy"], root=tmp_path, workers=1)
    assert sum(seen[0]) == 0
    assert len(seen) == 5
    assert sum(seen[-1]) == 1


def test_one_worker_and_sigterm_end_like_ctrl_c(tmp_path, monkeypatch, capsys):
    """The experiment runs where signals arrive, and the command that resumes has every option."""
    seen = []

    def run(settings, context):
        seen.append((threading.current_thread() is threading.main_thread(), signal.getsignal(signal.SIGTERM)))
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "_own", {"toy/decay": replace(toy_experiment.ROW, run=run)})
    monkeypatch.setattr(cli, "keep_compiled_programs", lambda: None)
    monkeypatch.chdir(tmp_path)
    Path("sets").mkdir()
    words = ["reproduce", "toy", "--seed", "0", "--out", "here", "--workers", "1", "--data", "sets"]
    monkeypatch.setattr(sys, "argv", ["saddles", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    assert seen == [(True, signal.default_int_handler)]
    assert f"saddles {' '.join(words)}\n" in capsys.readouterr().err
    assert json.loads(next(Path("here").rglob("run.json")).read_text())["status"] == "interrupted"


def test_what_is_only_shown_says_nothing_about_the_pace(tmp_path, monkeypatch):
    """The toy runs once and is shown then; the one without its data is skipped each time."""
    _toys(monkeypatch)
    told = []

    class Seen(progress.Bar):
        def close(self):
            super().close()
            told.append((self.state.done, self.state.before))

    monkeypatch.setattr(progress, "Bar", Seen)
    for _ in range(2):
        reproduce(["toy"], root=tmp_path, workers=1)
    assert told == [(4.0, 1.0), (4.0, 2.0)]


def test_a_process_of_its_own_gives_the_numbers_of_this_one(tmp_path):
    with module._runner(2) as submit:
        job = module.Job("margin/kkt", "tiny", 3, tmp_path)
        outcome = submit(experiment.find("margin/kkt"), job).result(120)
    assert outcome.run is not None, outcome.reason
    row = experiment.find("margin/kkt")
    mine = row.run(row.settings("tiny"), experiment.Context(seed=3, size="tiny"))
    for name, values in mine.data_vars.items():
        np.testing.assert_allclose(saddles.load(outcome.run.folder)[name], values, rtol=1e-6, err_msg=str(name))


@pytest.mark.parametrize(
    ("how", "status"),
    [("Ctrl-C", "interrupted"), ("kill", "failed: The worker process ended early")],
    ids=["ctrl-c", "kill"],
)
def test_a_run_whose_worker_was_killed_does_not_say_that_it_is_running(tmp_path, monkeypatch, how, status):
    """By Ctrl-C, which kills them, or by the system; each run can be resumed, and no lock stays."""
    pids = []

    def start(*given, **options):
        worker = Worker(*given, **options)
        pids.append(worker.pid)
        return worker

    monkeypatch.setattr(module, "Worker", start)
    job, begun = module.Job("margin/kkt", "laptop", 3, tmp_path), time.monotonic()
    expected = pytest.raises(KeyboardInterrupt) if how == "Ctrl-C" else contextlib.nullcontext()
    with expected, module._runner(2) as submit:
        answer = submit(experiment.find(job.name), job)
        while not (records := list(tmp_path.rglob("run.json"))):
            assert time.monotonic() - begun < 120
            time.sleep(0.02)
        assert json.loads(records[0].read_text())["status"] == "running"
        if how == "Ctrl-C":
            raise KeyboardInterrupt
        os.kill(pids[0], signal.SIGKILL)
        answer.result(60)
    assert json.loads(records[0].read_text())["status"].startswith(status)
    assert {place.name for place in records[0].parent.iterdir()} == {"run.json", "parts"}


@pytest.mark.parametrize("workers", [0, -2])
def test_workers_must_be_positive(tmp_path, workers):
    with pytest.raises(SaddlesError, match="`workers` must be at least 1"):
        reproduce(["linear"], root=tmp_path, workers=workers)


def test_every_experiment_says_what_was_predicted_what_happened_and_how_near(tmp_path):
    """Beside its figure, for a reader without the paper: title, claim, bound, number, null and verdict."""
    records = json.loads(RECORDS.read_text("utf-8"))["records"]
    sections = []
    for row in chosen([]):
        record = records.get(row.name, {})
        if "claims" in record:  # the others were skipped
            (tmp_path / "claims.json").write_text(json.dumps(record["claims"]))
            claims = read_claims(tmp_path / "claims.json")
            sections.append(Section(row.name, row.title, record | {"settings": {}}, claims))
    assert len(sections) > 55
    write_page(sections, tmp_path / "report.html", "all", {})
    text = (tmp_path / "report.html").read_text("utf-8")
    for section in sections:
        begin = text.index(f'<h2 id="{section.name.replace("/", "-")}">')
        part = text[begin : text.index("</details>", begin)]
        assert escape(section.title) in part
        rows = re.findall("<tr>(<td.*?)</tr>", part, re.DOTALL)
        assert section.claims, section.name
        for row, claim in zip(rows, section.claims, strict=True):
            words, bound, measured = re.findall("<td.*?</td>", row, re.DOTALL)
            assert escape(claim.claim) in words
            assert f'class="{claim.verdict}"' in words
            assert f"{claim.threshold:.3g}</td>" in bound
            assert 'data-name="holds if"' in bound
            assert f'data-name="measured">{claim.value:.3g}</td>' in measured
            null = "not finite" if claim.null is not None and np.isnan(claim.null) else f"{claim.null or 0.0:.3g}"
            assert (f"null {null}" in words) == (claim.null is not None)
            assert ("no null:" in words) == (claim.null is None and claim.against != "")
            assert escape(claim.against) in words


def test_a_small_picture_is_made_once_and_again_where_the_figure_changed(tmp_path, monkeypatch):
    from PIL import Image

    shrunk = []
    shrink = Image.Image.thumbnail
    monkeypatch.setattr(Image.Image, "thumbnail", lambda one, size: (shrunk.append(size), shrink(one, size))[1])
    figure = tmp_path / "figure.png"
    made = set()
    for colour in ("red", "blue"):
        Image.new("RGB", (300, 200), colour).save(figure)
        os.utime(figure, ns=(len(made), len(made)))
        made |= {_thumbnail(figure), _thumbnail(figure)}
    assert (len(shrunk), len(made)) == (2, 2)
