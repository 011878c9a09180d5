"""Whole labs at once: what fails or is skipped is told, the rest runs, and worker processes give the same numbers."""

import re
from dataclasses import replace

import numpy as np
import pytest
import toy_experiment

import saddles
from saddles.core import experiment
from saddles.errors import MissingDataError, SaddlesError
from saddles.report import reproduce as module
from saddles.report.reproduce import reproduce


def _toys(monkeypatch):
    def broken(error):
        def run(settings, context):
            raise error

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
    assert told["toy/decay"].endswith("1 hold")
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


def test_a_process_of_its_own_gives_the_numbers_of_this_one(tmp_path):
    with module._runner(experiment.chosen(["margin"]), 2) as submit:
        job = module.Job("margin/kkt", "tiny", 3, tmp_path)
        outcome = submit(experiment.find("margin/kkt"), job).result(120)
    assert outcome.run is not None, outcome.reason
    row = experiment.find("margin/kkt")
    mine = row.run(row.settings("tiny"), experiment.Context(seed=3, size="tiny"))
    for name, values in mine.data_vars.items():
        np.testing.assert_allclose(saddles.load(outcome.run.folder)[name], values, rtol=1e-6, err_msg=str(name))


@pytest.mark.parametrize("workers", [0, -2])
def test_workers_must_be_positive(tmp_path, workers):
    with pytest.raises(SaddlesError, match="`workers` must be at least 1"):
        reproduce(["linear"], root=tmp_path, workers=workers)
