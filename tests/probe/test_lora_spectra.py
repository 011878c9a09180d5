"""Spectra of a plan and factors of an adapter on other processes, and kept for the next time."""

import os
import signal
from functools import partial
from typing import Any

import pytest
import torch
from dask_cluster import dask_cluster
from planted import planted, tiny
from safetensors.torch import load_file

from saddles.cli import main
from saddles.core.engines.engine import EngineError
from saddles.errors import SaddlesError
from saddles.probe import pieces
from saddles.probe.lora import spectra
from saddles.probe.lora.adapter import lora_extract
from saddles.probe.lora.planning import lora_plan
from saddles.probe.measuring import write_row
from saddles.runtime import progress


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    place = tmp_path_factory.mktemp("pair")
    base = tiny("gpt2")
    base.save_pretrained(place / "base")
    planted(base, 3).save_pretrained(place / "tuned")
    return place / "base", place / "tuned"


def _then(work, more):
    def both(*given):
        work(*given)
        more()

    return both


def test_worker_processes_give_the_same_plan(pair):
    here = lora_plan(*pair, budget=2000)
    assert lora_plan(*pair, budget=2000, on="embedded", workers=2) == here


def test_a_cluster_gives_the_same_plan_and_factors(pair, tmp_path, monkeypatch):
    """Also where a worker is killed while it computes."""
    distributed: Any = pytest.importorskip("distributed", reason="Dask is not installed: pip install saddles[sweep]")
    monkeypatch.setattr(pieces, "TASK_EFFORT", 0.0)  # every module is a task of its own
    here = lora_plan(*pair, max_rank=2)
    _extract(pair, here, tmp_path / "here")
    with dask_cluster(tmp_path) as (address, worker, workers):
        workers.append(worker())
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(3, timeout=60)
        assert lora_plan(*pair, max_rank=2, on=address) == here
        _extract(pair, here, tmp_path / "there", on=address)
        # One hangs from the first task on, and is killed with the tasks it has once the other has finished one.
        for work in (
            lambda parts: lora_plan(*pair, max_rank=2, on=address, parts=parts),
            lambda parts: _extract(pair, here, tmp_path / "after a kill", on=address, parts=parts).plan,
        ):
            doomed = workers.pop(0)
            with monkeypatch.context() as patch:
                hang = partial(os.kill, doomed.pid, signal.SIGSTOP)
                patch.setattr(pieces, "_check_travels", _then(pieces._check_travels, hang))
                patch.setattr(spectra, "write_row", _then(write_row, doomed.kill))
                plan = work(tmp_path / "parts")
            assert doomed.wait(10) == -signal.SIGKILL
            assert plan == here
    for name in ("there", "after a kill"):
        for file in ("adapter_model.safetensors", "adapter_config.json"):
            assert (tmp_path / name / file).read_bytes() == (tmp_path / "here" / file).read_bytes()


@pytest.mark.parametrize("leading", [None, 4])
def test_worker_processes_give_the_same_factors(pair, tmp_path, leading):
    plan = lora_plan(*pair, max_rank=2, leading=leading)
    here = _extract(pair, plan, tmp_path / "here")
    there = _extract(pair, plan, tmp_path / "there", on="embedded", workers=2)
    assert there.errors == here.errors
    _same_adapters(tmp_path / "here", tmp_path / "there")


def test_an_interrupted_extraction_resumes(pair, tmp_path, monkeypatch):
    plan = lora_plan(*pair, max_rank=2)
    _extract(pair, plan, tmp_path / "here")
    honest, made = spectra.best_pair, []

    def stop(change, rank, leading):
        if len(made) == 4:
            raise KeyboardInterrupt
        made.append(change.name)
        return honest(change, rank, leading)

    monkeypatch.setattr(spectra, "best_pair", stop)
    with pytest.raises(KeyboardInterrupt):
        _extract(pair, plan, tmp_path / "there", parts=tmp_path / "parts")
    assert not (tmp_path / "there").exists()
    again: list[str] = []
    monkeypatch.setattr(spectra, "best_pair", lambda c, *rest: again.append(c.name) or honest(c, *rest))
    _extract(pair, plan, tmp_path / "there", parts=tmp_path / "parts")
    assert len(again) == len(plan.carried) - 4
    assert not set(made) & set(again)
    _same_adapters(tmp_path / "here", tmp_path / "there")
    # Another rank is other factors.
    again.clear()
    _extract(pair, lora_plan(*pair, max_rank=1), tmp_path / "less", parts=tmp_path / "parts")
    assert len(again) == len(plan.carried)


def test_work_elsewhere_has_bars_of_its_own(pair, tmp_path, monkeypatch):
    seen: list[tuple[str, bool]] = []

    class Seen(progress.Bar):
        def __init__(self, title, total, display=None):
            seen.append((title, bool(progress._open_bars)))
            super().__init__(title, total, display)

    plan = lora_plan(*pair, max_rank=2)
    monkeypatch.setattr(progress, "Bar", Seen)
    _extract(pair, plan, tmp_path / "there", parts=tmp_path / "parts")
    assert seen == [("factors of ΔW, by module", False), ("errors of the factors as stored, by module", False)]


@pytest.mark.parametrize("command", [["plan"], ["extract", "--out", "adapter"]], ids=["plan", "extract"])
def test_an_interrupted_command_says_how_to_resume(pair, tmp_path, monkeypatch, capsys, command):
    def stop(*given):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(spectra, "one_spectrum", stop)
    words = ["saddles", "lora", command[0], *map(str, pair), *command[1:]]
    for more, told in ((["--parts", "parts"], "kept in parts. Resume with:"), ([], "nothing is kept. With --parts")):
        monkeypatch.setattr("sys.argv", words + more)
        with pytest.raises(SystemExit, match="130"):
            main()
        shown = capsys.readouterr().err
        assert told in shown
        assert not more or f"saddles lora {command[0]}" in shown


def test_names_of_modules_stay_whole_in_a_narrow_terminal(pair, monkeypatch):
    from rich.console import Console

    from saddles.cli.lora import _modules
    from saddles.cli.terminal import out

    plan = lora_plan(*pair)
    for width, norms in ((80, False), (120, True)):
        monkeypatch.setattr(out, "_width", width)
        console = Console(width=width)
        with console.capture() as shown:
            console.print(_modules(plan))
        lines = shown.get().splitlines()
        assert [line.split()[0] for line in lines[2:]] == [*(row.module for row in plan.modules), "all"]
        assert ("‖ΔW‖" in shown.get()) == norms


def test_a_lost_cluster_says_what_is_kept(pair, tmp_path, monkeypatch):
    told = []

    def lost(address, versions, say, kept):
        say(f"{address} has no worker left")
        told.append(kept)
        raise EngineError("lost")

    monkeypatch.setattr(pieces, "Cluster", lost)
    for more in ({}, {"parts": tmp_path / "parts"}):
        with pytest.raises(SaddlesError, match="lost"), pytest.warns(UserWarning, match="no worker left"):
            lora_plan(*pair, on="tcp://there:1", **more)
    assert "Nothing is kept: give `parts`" in told[0]
    assert f"is kept in {tmp_path / 'parts'}: the same command resumes" in told[1]


def _extract(pair, *given, **more):
    base, tuned = pair
    return lora_extract(base, tuned, *given, **more)


def _same_adapters(one, other):
    first, second = (load_file(place / "adapter_model.safetensors") for place in (one, other))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor, rtol=1e-6, atol=1e-8)


def test_an_interrupted_plan_resumes_and_other_rules_cost_nothing(pair, tmp_path, monkeypatch):
    honest, made = spectra.one_spectrum, []

    def stop(change, leading, exact):
        if len(made) == 4:
            raise KeyboardInterrupt
        made.append(change.name)
        return honest(change, leading, exact)

    monkeypatch.setattr(spectra, "one_spectrum", stop)
    with pytest.raises(KeyboardInterrupt):
        lora_plan(*pair, parts=tmp_path / "parts")
    again: list[str] = []
    monkeypatch.setattr(spectra, "one_spectrum", lambda c, *rest: again.append(c.name) or honest(c, *rest))
    plan = lora_plan(*pair, parts=tmp_path / "parts")
    assert len(again) == len(plan.modules) - 4
    assert not set(made) & set(again)
    assert plan == lora_plan(*pair)
    again.clear()
    assert lora_plan(*pair, max_rank=2, parts=tmp_path / "parts").carried
    assert not again
    # Other files under the same names are computed anew.
    planted(tiny("gpt2"), 2).save_pretrained(tmp_path / "tuned")
    lora_plan(pair[0], tmp_path / "tuned", parts=tmp_path / "parts")
    assert len(again) == len(plan.modules)


def test_arguments_that_have_no_meaning_are_refused(pair, tmp_path):
    live, plan = tiny("gpt2"), lora_plan(*pair, max_rank=2)
    for given, words in (
        ({"on": "embedded", "device": "cuda"}, "device"),
        ({"workers": 2}, "`workers` counts worker processes"),
        ({"on": "embedded", "data": torch.arange(10)[None]}, "plain changes"),
        ({"on": "cluster"}, "`on` must be 'embedded' or a scheduler's address"),
    ):
        with pytest.raises(SaddlesError, match=words):
            lora_plan(*pair, **given)
        with pytest.raises(SaddlesError, match=words):
            _extract(pair, plan, tmp_path / "out", **given)
    with pytest.raises(SaddlesError, match="models in files"):
        lora_plan(live, planted(live, 2), parts=tmp_path / "parts")
    with pytest.raises(SaddlesError, match="cannot be sent to other processes"):
        lora_plan(live, planted(live, 2), on="embedded", workers=1)
