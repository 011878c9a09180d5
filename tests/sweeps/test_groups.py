"""Cells that share a compiled program keep their numbers, to the last bit."""

from dataclasses import replace

import grid_experiment
import numpy as np
import pytest

from saddles.concepts import SGD, Batch, Identity, OneLayer, train, train_together
from saddles.core.experiment import as_dict, registry
from saddles.core.status import FINISHED, Ending, status_of
from saddles.errors import SaddlesError
from saddles.sweeps.api import sweep
from saddles.sweeps.cells import Job, Task, compute

SHORT = {"samples": 64, "batch": 16, "epochs": 3, "seeds": 1}


@pytest.mark.parametrize("name", [name for name, row in registry().items() if row.together])
def test_an_experiment_that_says_so_can_compute_together(name):
    row = registry()[name]
    assert set(row.together) <= {"seed", *as_dict(row.settings("tiny"))}
    assert callable(row.run_many)


@pytest.mark.parametrize(
    ("name", "dim"), [("concepts/figure-2a", 16), ("concepts/figure-12", 12), ("concepts/figure-2b", 4)]
)
def test_together_gives_the_bytes_of_each_alone(name, dim):
    """Rates and seeds differ; a network of width 4 goes side by side and is not put together."""
    row = registry()[name]
    cells = [(rate, seed) for rate in (0.05, 0.02) for seed in (0, 3)]
    jobs = [
        Job(k, row.settings("tiny", SHORT | {"dim": dim, "rate": rate}), seed) for k, (rate, seed) in enumerate(cells)
    ]
    together = compute(Task(row, "tiny", tuple(jobs)))
    alone = [compute(Task(row, "tiny", (job,))) for job in jobs]
    assert isinstance(together, list)
    assert [one.error for one in together] == [""] * 4
    assert [one.digest for one in together] == [made[0].digest for made in alone if isinstance(made, list)]
    assert len({one.digest for one in together}) == 4


def broken_together(settings, contexts):
    raise MemoryError("too much at once")


GROUPED = replace(grid_experiment.ROW, together=("rate",), run_many=broken_together)


def test_a_shared_program_that_fails_by_itself_is_told_once():
    with pytest.warns(UserWarning, match="one by one: MemoryError: too much at once") as told:
        made = sweep(GROUPED, {"rate": [1.0, 2.0], "points": [3, 4]}, out="s", on="serial")
    assert len(told) == 1
    assert (made.failed, made.missing) == ([], 0)
    assert {row.get("computed_apart", "") for row in made.rows.values()} == {"MemoryError: too much at once"}
    alone = sweep(grid_experiment.ROW, {"rate": [1.0, 2.0], "points": [3, 4]}, out="t", on="serial")
    assert [made.rows[k]["digest"] for k in range(4)] == [alone.rows[k]["digest"] for k in range(4)]


def test_a_run_that_diverges_does_not_cut_the_others_short():
    tasks = [Identity((1.0, 2.0), (0.5, 0.5), dim=12, samples=64, seed=0)]
    batches = [Batch([OneLayer()], tasks, [0], SGD(rate, 16, 30, save_every=1)) for rate in (0.05, 300.0)]
    fine, broken = train_together(batches)
    assert status_of(fine) == FINISHED
    assert status_of(broken).ending == Ending.DIVERGED
    alone = train(batches[0])
    assert fine["output"].values.tobytes() == alone["output"].values.tobytes()
    assert np.isfinite(fine["loss"]).all()
    assert broken.sizes["time"] < fine.sizes["time"]


def test_other_methods_do_not_go_together():
    task = Identity((1.0, 2.0), (0.5, 0.5), dim=12, samples=64, seed=0)
    batches = [Batch([OneLayer()], [task], [0], SGD(0.1, size, 2)) for size in (8, 16)]
    with pytest.raises(SaddlesError, match="only rates may differ"):
        train_together(batches)
