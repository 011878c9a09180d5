"""Grids and the words that make them."""

import subprocess
import sys
from pathlib import Path

import grid_experiment
import numpy as np
import pytest

from saddles.errors import SaddlesError
from saddles.sweeps.grid import Grid, checked_grid, read_grid, spaced

ROW = grid_experiment.ROW


def read(*words, **options):
    return read_grid(ROW, "tiny", words, **options)


def test_three_ways_to_write_values():
    grid = read("rate=0.2:1:5", "points=log:1:100:3", "trouble=none,error", "levels=1,2;3")
    assert grid.values["rate"] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert grid.values["points"] == [1, 10, 100]
    assert all(isinstance(value, int) for value in grid.values["points"])
    assert grid.values["trouble"] == ["none", "error"]
    assert grid.values["levels"] == [(1.0, 2.0), (3.0,)]
    assert grid.axes == {"rate": 5, "points": 3, "trouble": 2, "levels": 2}
    assert list(grid.coordinates["levels"][1]) == ["1.0,2.0", "3.0"]


def test_a_list_without_semicolon_gives_one_element_lists():
    assert read("levels=1,2").values["levels"] == [(1.0,), (2.0,)]


def test_spaced_numbers_are_those_that_are_written():
    assert spaced(0, 1, 11)[3] == 0.3
    assert spaced(1e-3, 1, 4, log=True) == [0.001, 0.01, 0.1, 1.0]


def test_cells_are_the_product_in_row_major_order():
    cells = read("rate=1,2", "points=3,4,5", seeds="2").cells()
    assert [cell.number for cell in cells] == list(range(12))
    assert cells[0].changes == {"rate": 1.0, "points": 3}
    assert cells[0].seed == 0
    assert (cells[1].seed, cells[1].place) == (1, (0, 0, 1))
    assert (cells[-1].changes, cells[-1].place) == ({"rate": 2.0, "points": 5}, (1, 2, 1))
    shape = (2, 3, 2)
    assert all(np.ravel_multi_index(cell.place, shape) == cell.number for cell in cells)


def test_side_by_side():
    grid = read("rate=1,2", "points=3,4", zipped=True, seeds="7,9")
    assert grid.axes == {"point": 2, "seed": 2}
    assert [(c.changes["rate"], c.changes["points"], c.seed) for c in grid.cells()] == [
        (1.0, 3, 7), (1.0, 3, 9), (2.0, 4, 7), (2.0, 4, 9),
    ]  # fmt: skip


def test_seeds_alone_are_a_grid():
    assert [cell.seed for cell in read(seeds="3").cells()] == [0, 1, 2]
    assert checked_grid(ROW, "tiny", {}, False, [5]).axes == {"seed": 1}


@pytest.mark.parametrize(
    ("words", "options", "told"),
    [
        (["rte=1,2"], {}, "Did you mean 'rate'"),
        ([], {}, "grid is empty"),
        (["rate="], {}, "no value for rate"),
        (["rate=0:1:0"], {}, "no value for rate"),
        (["rate"], {}, "must be key=values"),
        (["rate=0:1"], {}, "from:to:count"),
        (["rate=0:1:2:3"], {}, "from:to:count"),
        (["rate=0:inf:2"], {}, "from:to:count"),
        (["rate=log:0:1:3"], {}, "ends .* must be positive"),
        (["rate=1,1.0"], {}, "a value of rate twice"),
        (["rate=1", "rate=2"], {}, "given twice"),
        (["points=1:2:3"], {}, "a value like 4"),
        (["rate=1,2", "points=3"], {"zipped": True}, "same number of values"),
        (["rate=1"], {"seeds": "many"}, "a number such as 5"),
        (["rate=1"], {"seeds": "0"}, "at least 1"),
        (["rate=1"], {"seeds": "-1,2"}, "must be whole numbers from 0 to"),
        (["rate=1"], {"seeds": "2,2"}, "a value of seed twice"),
        (["rate=1"], {"seeds": f"{2**63},2"}, "`seeds` must be whole numbers from 0 to 2⁶³ − 1"),
        (["rate=1"], {"seeds": f"{2**64},2"}, "`seeds` must be whole numbers from 0 to 2⁶³ − 1"),
    ],
)
def test_bad_grids_are_explained(words, options, told):
    with pytest.raises(SaddlesError, match=told):
        read(*words, **options)


def test_a_value_that_is_not_a_list_is_explained():
    with pytest.raises(SaddlesError, match="must be a list of values"):
        checked_grid(ROW, "tiny", {"rate": 3.0}, False, None)


def test_a_grid_is_checked_however_it_is_made():
    with pytest.raises(SaddlesError, match="grid is empty"):
        Grid({})


SEEDS = """
import numpy as np, saddles
from grid_experiment import ROW
for seeds in (np.int64(2), np.arange(2), (3, np.int64(5)), [1.5], "2", True, [True], 2.0):
    try:
        print(checked_grid(ROW, "tiny", {}, False, seeds).seeds)
    except saddles.SaddlesError as error:
        print(error)
"""


def test_seeds_are_whole_numbers():  # in a process whose functions do not check types by themselves
    code = f"from saddles.sweeps.grid import checked_grid\n{SEEDS}"
    home = Path(grid_experiment.__file__).parent
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=home)
    assert done.stdout.splitlines() == [
        "[0, 1]",
        "[0, 1]",
        "[3, 5]",
        "`seeds` must be whole numbers from 0 to 2⁶³ − 1; got [1.5].",
        "`seeds` must be a whole number, or a list of them; got '2'.",
        "`seeds` must be a whole number, or a list of them; got True.",
        "`seeds` must be whole numbers from 0 to 2⁶³ − 1; got [True].",
        "`seeds` must be a whole number, or a list of them; got 2.0.",
    ], done.stderr
