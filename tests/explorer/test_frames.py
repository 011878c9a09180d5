"""Views as data inside a page: changes from picture to picture, short numbers, one plotting library."""

import base64
import copy
import gzip
import json
import math
import re

import numpy as np
import pytest

import saddles
from saddles.explorer import frames, site
from saddles.explorer.pages import diagonal, margin


def changed(first, changes):
    made = copy.deepcopy(first)
    for path, value in changes:
        place = made
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
    return made


def test_changes_make_the_new_of_the_old():
    old = {"a": [1, 2], "b": [{"x": 1}, {"y": [1, 2]}], "c": {"d": None}}
    new = {"a": [1, 3], "b": [{"x": 1}, {"y": [2]}], "c": {"d": {"e": 1}}}
    found = frames.changes(old, new)
    assert found == [[["a"], [1, 3]], [["b", 1, "y"], [2]], [["c", "d"], {"e": 1}]]
    assert changed(old, found) == new
    assert frames.changes(new, new) == []


def test_a_scene_holds_what_the_live_room_draws():
    page, view = margin.PAGE, margin.Margin(decades=1.0)
    found = frames.scene(page, view, frames=5)
    results = page.compute(view, False)
    for instant, frame in zip((0.0, 0.25, 0.5, 0.75, 1.0), found["frames"], strict=True):
        now = margin.Margin(decades=1.0, instant=instant)
        shot = changed(found["first"], frame)
        assert shot["said"] == page.say(now, results)
        for figure, panel in zip(shot["figures"], page.panels(now, results), strict=True):
            assert figure["words"] == panel.words
            for mine, live in zip(figure["data"], panel.data, strict=True):
                assert mine["name"] == live["name"]
                for axis in ("x", "y"):
                    np.testing.assert_allclose(*(np.array(t[axis], dtype=float) for t in (mine, live)), rtol=6e-4)
    assert found["code"] == page.code(view)


def test_marks_are_frames_after_each_stage():
    view = diagonal.Diagonal(dim=4, decades=8.0)
    results = diagonal.compute(view)
    clock, when = results["measured"]["time"].values, results["predicted"]["stage_time"].values
    for k, mark in enumerate(diagonal.marks(view, results)):
        now = clock[round(mark * (len(clock) - 1))]
        assert now > when[k]
        assert k + 1 == len(when) or now < when[k + 1]


def test_numbers_are_short_and_maps_have_as_many_shades_as_can_be_told_apart():
    assert frames.short([1.234567, 2.0, math.nan, np.float64(1e-9), "x", True]) == [1.235, 2, None, 1e-9, "x", True]
    made = frames.short({"z": [[0.123456, None]], "zmax": 1.0})
    assert made["z"] == [[0.12, None]]


def test_packed_data_are_json_again():
    facts = {"x": [1, None, "τ"]}
    assert json.loads(gzip.decompress(base64.b64decode(frames.packed(facts)))) == facts


def test_the_library_is_a_plain_script():
    text = site.library()
    assert "window.Plotly=" in text
    assert "export{" not in text[-200:]
    assert "</script" not in text


def test_without_nicegui_an_export_says_what_to_install(monkeypatch):
    monkeypatch.setattr(site, "find_spec", lambda name: None)
    site.library.cache_clear()
    with pytest.raises(saddles.SaddlesError, match=r"saddles\[explorer\]"):
        site.library()


def test_every_room_has_its_miniature():
    kept = site.miniatures()
    assert list(kept) == [page.name for page in site.PAGES]
    assert all(len(one["frames"]) == frames.FRAMES for one in kept.values())
    assert site.KEPT.stat().st_size < 3e5


def same(one, other):
    """Equal but for the last digits of numbers, which differ between machines."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, str):
        return re.sub(r"[\d.]+", "#", one) == re.sub(r"[\d.]+", "#", other)
    return one == (pytest.approx(other, rel=0.02, abs=0.02) if isinstance(other, int | float) else other)


@pytest.mark.parametrize("page", site.PAGES, ids=lambda page: page.name)
def test_a_kept_miniature_is_what_its_room_computes(page):
    made = json.loads(json.dumps(site.miniature(page)))
    kept = site.miniatures()[page.name]
    assert same(kept["first"], made["first"])
    assert same(kept["frames"][-1], made["frames"][-1])
