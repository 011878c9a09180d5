"""Links, refusals, limits, the background, files, and the three lines: everything that needs no browser."""

import asyncio
import dataclasses
import importlib
import io
import math
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import saddles
from saddles.explorer import downloads, draw, phase_map, site
from saddles.explorer.clock import ROWS
from saddles.explorer.latest import Latest
from saddles.explorer.pages import concepts, diagonal, incontext, linear, margin, networks, runs
from saddles.explorer.run_folders import RunFolders
from saddles.explorer.view import LONGEST, RefusedError, computed, from_link, read, to_link
from saddles.explorer.view import settings as settings_of

PAGES = [*site.PAGES, runs.page(RunFolders())]
NAMED = {page.name: page for page in PAGES}


@st.composite
def views(draw_):
    page = draw_(st.sampled_from(PAGES))
    values = {}
    for field in dataclasses.fields(page.view):
        setting = settings_of(page.view)[field.name]
        if isinstance(field.default, str):
            some = st.sampled_from(sorted(setting.options)) if setting.options else st.text(max_size=60)
            values[field.name] = draw_(some)
        elif isinstance(field.default, int):
            values[field.name] = draw_(st.integers(int(setting.low), int(setting.high)))
        else:
            values[field.name] = draw_(st.floats(setting.low, setting.high))
    return page, page.view(**values)


@settings(max_examples=150, deadline=None)
@given(views())
def test_a_link_restores_a_view(made):
    page, view = made
    texts = [v for v in dataclasses.astuple(view) if isinstance(v, str)]
    if any(not t.isprintable() or t != t.strip() for t in texts):
        return
    path, _, query = to_link(page.name, view).partition("?")
    assert path == f"/{page.name}"
    assert from_link(page.view, query) == (view, {})


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(max_size=20), st.text(max_size=400), max_size=6))
def test_no_link_breaks_a_page(query):
    for page in PAGES:
        view, refused = from_link(page.view, query)
        assert isinstance(view, page.view)
        assert all(sentence.endswith(".") for sentence in refused.values())


@pytest.mark.parametrize(
    ("page", "name", "given_", "words"),
    [
        ("linear", "gamma_w", "7", "from 0 to 3"),
        ("linear", "gamma_w", "nan", "a number from"),
        ("linear", "rank", "2.5", "a whole number"),
        ("linear", "rank", "many", "a whole number"),
        ("diagonal", "model", "cnn", "linear, head"),
        ("concepts", "depth", "9", "1, 2, 3, 4"),
        ("runs", "run", "x" * (LONGEST + 1), "at most"),
    ],
)
def test_a_bad_value_is_refused_in_a_sentence(page, name, given_, words):
    with pytest.raises(saddles.SaddlesError, match=words):
        read(NAMED[page].view, name, given_)
    view, refused = from_link(NAMED[page].view, {name: given_})
    assert view == NAMED[page].view()
    assert words in refused[name]


def test_an_unknown_setting_is_told():
    _, refused = from_link(linear.Linear, "colour=red&rank=2")
    assert list(refused) == ["colour"]


@pytest.mark.parametrize(
    ("page", "view", "limit"),
    [
        (linear, linear.Linear(dim=120, steps=2048), "2e\\+09"),
        (diagonal, diagonal.Diagonal(model="head", dim=20), "dimension 8"),
        (concepts, concepts.Concepts(mu2=3.0, until=40.0), "up to 60"),
        (margin, margin.Margin(sequences=8, length=8), "up to 40"),
    ],
)
def test_too_much_work_is_refused_with_the_limit(page, view, limit):
    with pytest.raises(RefusedError, match=limit) as told:
        page.check(view)
    assert told.value.setting in settings_of(view)


CASES = [
    (linear, linear.Linear(dim=10, rank=2, steps=64, gamma_w=0.9)),
    (linear, linear.Linear(dim=10, rank=2, steps=64, gamma_w=0.9, seed=4)),
    (linear, linear.Linear(dim=10, rank=2, steps=64, gamma_w=2.0)),
    (diagonal, diagonal.Diagonal(dim=3, samples=20)),
    (diagonal, diagonal.Diagonal(dim=2, samples=20, model="head", decades=4.0, instant=0.4)),
    (concepts, concepts.Concepts()),
    (concepts, concepts.Concepts(depth="1")),
    (concepts, concepts.Concepts(depth="3")),
    (margin, margin.Margin(decades=1.0)),
    (margin, margin.Margin(decades=1.0, model="diagonal")),
    (incontext, incontext.InContext(dim=2, heads=4)),
    (networks, networks.Networks(activation="linear", gamma_w=2.0, gamma_variance=-3.0)),
]


@pytest.mark.parametrize(
    ("page", "view"), CASES, ids=lambda case: getattr(case, "__name__", "").rpartition(".")[2] or None
)
def test_the_three_lines_make_the_same_numbers_and_every_panel_has_words(page, view):
    found = page.compute(view, False)
    code = page.code(view)
    assert len(code.strip().splitlines()) == 3
    made: dict = {}
    exec(code, made)
    for name, data in found.items():
        for variable, values in data.data_vars.items():
            mine = made[name][variable].values
            if values.dtype.kind == "f":
                np.testing.assert_allclose(mine, values.values, rtol=1e-8, atol=1e-11, err_msg=f"{name} {variable}")
    panels = page.panels(view, found)
    assert len(panels) >= 2
    for panel in panels:
        assert len(panel.words) > 30
        assert panel.layout["xaxis"]["title"]["text"]
        assert any(len(trace.get("x", [])) for trace in panel.data)
    assert page.say(view, found).endswith(".")


def test_instants_are_dense_around_the_stages():
    """A stage at α = 10⁻⁸¹ is a step, not a jump between two instants; the number of instants is always the same."""
    view = diagonal.Diagonal(decades=81.0)
    found = diagonal.compute(view)
    clock, when = found["measured"]["time"].values, found["predicted"]["stage_time"].values
    assert len(clock) == len(diagonal.compute(diagonal.Diagonal(decades=1.0))["measured"]["time"]) == ROWS
    assert (np.diff(clock) > 0).all()
    first = np.abs(found["measured"]["beta"].values[:, found["predicted"]["stage_coordinate"].values[0]])
    plateau = first[np.searchsorted(clock, 0.7 * when[1])]
    assert ((first > 0.02 * plateau) & (first < 0.98 * plateau)).sum() >= 5
    even = np.linspace(0.0, clock[-1], ROWS)
    jump = np.interp(even, clock, first)
    assert ((jump > 0.02 * plateau) & (jump < 0.98 * plateau)).sum() <= 2


def test_forces_are_on_the_clock_of_the_other_plots():
    view = concepts.Concepts()
    found = concepts.compute(view)
    panels = concepts.panels(view, found)
    forces = next(panel for panel in panels if "moves" in panel.title)
    assert {panel.layout["xaxis"]["title"]["text"] for panel in panels[1:]} == {"gradient time"}
    total = next(trace for trace in forces.data if "sum" in trace["name"])
    slope = np.gradient(found["measured"]["jacobian"].values[:, 0, 1], found["measured"]["time"].values)
    np.testing.assert_allclose(total["y"], slope, atol=0.02)


def test_settings_without_a_meaning_are_hidden():
    assert concepts.fit(concepts.Concepts(depth="4"), {}) == {"entry": None, "top": None}
    assert concepts.fit(concepts.Concepts(), {}) == {}
    assert margin.fit(margin.Margin(), {}) == {"scale": None}
    assert margin.fit(margin.Margin(model="factored"), {}) == {}


def test_every_curve_has_a_name_and_a_colour_of_its_own():
    view = diagonal.Diagonal()
    found = diagonal.compute(view)
    weights = diagonal.panels(view, found)[0]
    named = [trace["name"] for trace in weights.data if trace["showlegend"]]
    assert sorted(named) == ["Algorithm 1", *(f"β{'₀₁₂₃₄₅'[i]}" for i in range(6))]
    view = margin.Margin(sequences=8, decades=1.0)
    shares = margin.panels(view, margin.compute(view))[1]
    assert len({trace["line"]["color"] for trace in shares.data}) == 8


def test_theory_does_not_hide_the_run():
    """It is drawn on top, and thinner than the run, which is seen on both sides of it."""
    for page, view in ((linear, linear.Linear(dim=10, steps=64)), (diagonal, diagonal.Diagonal(dim=4))):
        for panel in page.panels(view, page.compute(view))[:2]:
            theory = [k for k, trace in enumerate(panel.data) if trace.get("line", {}).get("dash")]
            runs = [
                t["line"]["width"] for t in panel.data if t["mode"] == "lines" and t["line"]["color"] in draw.SHADES
            ]
            assert theory
            assert max(panel.data[k]["line"]["width"] for k in theory) < 0.5 * min(runs)


def test_what_waits_for_a_slider_comes_last_and_is_there_when_it_rests():
    for page, view in ((linear, linear.Linear(dim=10, steps=64)), (diagonal, diagonal.Diagonal(dim=4))):
        whole, draft = (page.panels(view, page.compute(view, draft)) for draft in (False, True))
        assert [panel.waits for panel in whole] == [False, False, True]
        assert [panel.title for panel in draft if not panel.waits] == [panel.title for panel in whole[:2]]
    assert "matrix" not in linear.compute(linear.Linear(dim=10, steps=64), True)["measured"]


def test_a_narrow_network_keeps_the_shape_of_a_wide_one():
    """Hidden units of weight 0 change nothing but the shape: the same program serves every width."""
    view = linear.Linear(dim=10, rank=2, gamma_w=0.5)
    task, model, _ = linear._pieces(view)
    padded = linear._padded(model, task, view.seed)
    assert padded.weights is not None
    assert padded.weights[0].shape == (20, 10)
    assert padded.threshold == model.threshold
    inner, outer = model.start(task, view.seed)
    np.testing.assert_allclose(padded.weights[1] @ padded.weights[0], outer @ inner.T)


def test_a_draft_is_close_to_the_whole():
    view = diagonal.Diagonal(dim=4)
    rough, fine = (diagonal.compute(view, draft)["measured"]["beta"].values for draft in (True, False))
    assert not np.array_equal(rough, fine)
    assert np.abs(rough - fine).max() < 0.05


def test_what_is_only_drawn_is_not_computed_again():
    view = concepts.Concepts()
    assert computed(view) == computed(dataclasses.replace(view, instant=0.3, entry="11"))
    assert computed(view) != computed(dataclasses.replace(view, mu1=1.1))


def test_only_the_latest_job_is_run():
    seen, delivered, failed = [], [], []

    def job(k):
        def work():
            seen.append(k)
            time.sleep(0.02)
            if k == 9:
                raise saddles.SaddlesError("nine")
            return k

        return work

    async def drag():
        latest = Latest()
        tasks = []
        for k in range(10):
            tasks.append(asyncio.create_task(latest.ask(job(k), delivered.append, failed.append)))
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
        return latest

    with ThreadPoolExecutor(1) as apart:  # the browser's driver may have left a loop in this thread
        latest = apart.submit(asyncio.run, drag()).result()
    assert seen[0] == 0
    assert seen[-1] == 9
    assert len(seen) < 6
    assert latest.dropped == 10 - len(seen)
    assert delivered == seen[:-1]
    assert [str(error) for error in failed] == ["nine"]


def test_waiting_is_told_until_the_last_answer(monkeypatch):
    """Each job that is to be late ends only once it has been told; the others end before."""
    told, missing = [], threading.Semaphore(0)

    def late(on):
        told.append(on)
        missing.release()

    def wait():
        assert missing.acquire(timeout=20)

    def fail():
        wait()
        raise saddles.SaddlesError("late and wrong")

    async def one(*jobs, patience, quiet=False):
        monkeypatch.setattr("saddles.explorer.latest.PATIENCE", patience)
        told.clear()
        latest = Latest(None, late)
        await asyncio.gather(*(latest.ask(job, lambda result: None, lambda error: None, quiet) for job in jobs))
        return list(told)

    async def all_of_them():
        assert await one(wait, patience=0.01) == [True, False]
        missing.acquire(blocking=False)
        assert await one(fail, patience=0.01) == [True, False]
        missing.acquire(blocking=False)
        assert await one(wait, wait, patience=0.01) == [True, True, False], "the first answer was overtaken"
        assert await one(lambda: None, lambda: None, patience=20.0) == []
        assert await one(lambda: time.sleep(0.05), patience=0.0, quiet=True) == []

    with ThreadPoolExecutor(1) as apart:  # the browser's driver may have left a loop in this thread
        apart.submit(asyncio.run, all_of_them()).result()


def test_files_hold_the_view(tmp_path):
    found = concepts.compute(concepts.Concepts())
    with zipfile.ZipFile(io.BytesIO(downloads.zarr_zip(found, "view"))) as archive:
        archive.extractall(tmp_path)
    stored = saddles.load(tmp_path / "view.zarr")
    np.testing.assert_array_equal(stored["measured"]["output"].values, found["measured"]["output"].values)
    with zipfile.ZipFile(io.BytesIO(downloads.csv_zip(found, "view"))) as archive:
        names = archive.namelist()
        table = archive.read("view-measured-time.csv").decode().splitlines()
    assert "view-attributes.json" in names
    assert len(table) == found["measured"].sizes["time"] + 1


def test_a_sentence_writes_a_large_norm_as_people_do():
    view = margin.Margin(decades=3.0)
    assert "At ‖W‖ = 1,000 the run" in margin.say(view, margin.compute(view))


def test_a_margin_below_zero_is_said_in_words():
    """There is no norm at unit margin then."""
    view = margin.Margin(seed=999)
    found = margin.compute(view)
    assert float(found["measured"]["margin"][-1]) < 0
    words = margin.panels(view, found)[2].words
    assert "nan" not in words
    assert "Frobenius none, the margin is not positive (least 8.04)" in words


def test_concepts_of_equal_signal_are_said_to_be_equal():
    said = concepts.say(view := concepts.Concepts(mu1=1.2, mu2=1.2), concepts.compute(view))
    assert said.startswith("Both concepts are equally strong. The test loss has 1 descent.")


def test_an_axis_writes_numbers_up_to_a_hundred_thousand_in_full():
    """A training step is 5,000; Plotly's own choice is 0.5×10⁴."""
    for axis in ("xaxis", "yaxis"):
        shown = draw.layout("training step", "loss")[axis]
        assert shown["minexponent"] == 5
        assert shown["separatethousands"]


def test_numbers_for_the_page():
    assert draw.values([1.23456789, 0.0, -1e-300, math.nan, math.inf, 3e8]) == [1.23457, 0.0, -1e-300, None, None, 3e8]


def test_curves_of_one_look_are_one_trace_with_gaps():
    made = draw.lines([0, 1], [[1, 2], [3, math.nan]], "two", theory=True)
    assert made["x"] == [0.0, 1.0, None, 0.0, 1.0]
    assert made["y"] == [1.0, 2.0, None, 3.0, None]
    assert made["line"]["color"] == draw.THEORY


@pytest.mark.parametrize("page", [linear, diagonal, concepts], ids=lambda page: page.PAGE.name)
def test_every_curve_of_theory_is_drawn(page):
    """Joined curves hold all numbers of the curves they join."""
    view = page.PAGE.view()
    found = page.compute(view, True)
    first = page.panels(view, found)[1 if page is concepts else 0]
    theory = next(trace for trace in first.data if trace.get("line", {}).get("color") == draw.THEORY)
    seen = found["predicted"]
    if page is linear:
        foreseen = seen["singular_value"].values[:, : view.rank + 1].T
    elif page is diagonal:
        order = list(dict.fromkeys(seen["stage_coordinate"].values.tolist()))
        foreseen = np.vstack([seen["beta"].values, seen["beta"].values[-1:]])[:, order].T
    else:
        foreseen = [seen["jacobian"].values[:, i, j] for i, j in ((0, 0), (1, 1), (0, 1))]
    drawn = [y for y in theory["y"] if y is not None]
    np.testing.assert_allclose(drawn, np.ravel(foreseen), rtol=1e-5, atol=1e-9)


def test_a_row_of_the_map_says_where_the_signal_is_found():
    errors, steps = phase_map.row((12, 1, 1.0, 0), 2.0)
    assert len(errors) == len(steps) == phase_map.POINTS
    assert errors[0] < 0.5 * errors[-1]
    made = phase_map.PhaseMap((12, 1, 1.0, 0))
    made.rows[8] = [errors, steps]
    panel = phase_map.panel(made, (-1.0, 2.0))
    assert made.done == 1
    assert "1.00" in panel.words
    assert phase_map.nearest(-1.4, 1.9) == (-1.5, 2.0)


def test_without_nicegui_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "nicegui", None)
    monkeypatch.delitem(sys.modules, "saddles.explorer.serve", raising=False)
    with pytest.raises(saddles.SaddlesError, match=r"saddles\[explorer\]"):
        importlib.import_module("saddles.explorer.serve")
