"""`saddles.plot` and `saddles.animate`: one call for every kind of trajectory."""

import re
import subprocess
from typing import Any

import numpy as np
import pytest
import xarray as xr
from PIL import Image

import saddles
from saddles.core.trajectory import make_trajectory
from saddles.errors import SaddlesError
from saddles.figures import films, style
from saddles.runtime import progress
from saddles.runtime.displays import Log

TIMES = np.linspace(0, 4, 9)
SEEDS = (("time", "seed"), np.exp(-TIMES[:, None] * np.array([1.0, 1.2, 1.4])))


def _run(kind="simulated", **more):
    variables = {
        "loss": np.exp(-3 * TIMES),
        "test_error": np.exp(-TIMES),
        "singular_value": (("time", "mode"), np.outer(TIMES, np.arange(20.0))),
        "matrix": (("time", "row", "column"), np.ones((9, 3, 3))),
        **more,
    }
    return make_trajectory(variables, TIMES, kind=kind)


def _recording(steps=5):
    draw = np.random.default_rng(0)
    dims = ("time", "layer", "head", "product")
    shape = (steps, 2, 3, 2)
    coords = {"layer": [0, 1], "head": [0, 1, 2], "product": ["KQ", "VO"], "step": ("time", np.arange(steps) * 10)}
    variables: dict[str, Any] = {name: (dims, draw.random(shape)) for name in ("frobenius_norm", "stable_rank")}
    variables["initial_stable_rank"] = (dims[1:], draw.random(shape[1:]))
    return xr.DataTree.from_dict({"heads": make_trajectory(variables, np.arange(steps), coords=coords)})


def test_losses_share_a_panel_and_theory_is_dashed():
    figure = saddles.plot(_run(), _run("predicted"))
    first: Any = figure.axes[0]
    second: Any = figure.axes[1]
    assert len(figure.axes) == 2
    assert [first.get_title(loc="left"), second.get_title(loc="left")] == ["loss and error", "singular value"]
    assert first.get_yscale() == "log"
    assert [text.get_text() for text in first.get_legend().get_texts()] == ["loss", "test error", "theory"]
    dark = [line for line in first.get_lines() if line.get_color() == style.INK]
    assert len(dark) == 3  # two curves and the entry of the legend
    assert all(line.is_dashed() for line in dark)
    # the twelve that end largest, of the measurement and of the theory
    ends = sorted(float(line.get_ydata()[-1]) for line in second.get_lines() if len(line.get_ydata()))
    assert ends == sorted(2 * [4.0 * k for k in range(8, 20)])


def test_theory_lies_over_the_measurement_in_any_order():
    for pair in ((_run(), _run("predicted")), (_run("predicted"), _run())):
        lines = [line for line in saddles.plot(*pair).axes[0].get_lines() if len(np.asarray(line.get_xdata()))]
        over = {line.is_dashed(): line.get_zorder() for line in lines}
        assert over[True] > over[False]


def test_curves_that_are_the_same_are_drawn_once_under_both_names():
    """In lab `linear` the loss is the train error: one would hide the other."""
    same: dict[str, Any] = {"train_error": np.exp(-3 * TIMES)}
    other: dict[str, Any] = {"train_error": np.exp(-2 * TIMES)}

    def words(predicted):
        axes: list[Any] = saddles.plot(_run(**same), predicted).axes
        return [[text.get_text() for text in axis.get_legend().get_texts()] for axis in axes]

    together, apart = words(_run("predicted", **same)), words(_run("predicted", **other))
    assert together == [["loss = train error", "test error", "theory"], ["measured", "theory"]]
    assert apart[0] == ["loss", "test error", "train error", "theory"]


def test_losses_of_several_seeds_keep_their_names():
    axis: Any = saddles.plot(_run(loss=SEEDS, test_error=(SEEDS[0], 2 * SEEDS[1])), _run("predicted")).axes[0]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["loss", "test error", "theory"]
    assert len({line.get_color() for line in axis.get_lines() if not line.is_dashed()}) == 2


def test_variables_can_be_named_and_a_wrong_name_is_explained():
    (axis,) = saddles.plot(_run(), variables=["matrix"]).axes
    assert len(axis.get_lines()) == 9
    with pytest.raises(SaddlesError, match="Did you mean 'loss'"):
        saddles.plot(_run(), variables=["los"])
    with pytest.raises(SaddlesError, match="at least one trajectory"):
        saddles.plot()


def test_a_recording_without_heads_is_drawn_by_its_measures():
    heads = _recording()["heads"].to_dataset().isel(layer=slice(0))
    measures = xr.Dataset({"linearity": ("time", np.linspace(0, 1, 5))}, coords={"time": np.arange(5.0)})
    tree = xr.DataTree.from_dict({"heads": heads, "measures": measures})
    (axis,) = saddles.plot(tree).axes
    assert "linearity" in {axis.get_title(), axis.get_ylabel(), *(line.get_label() for line in axis.lines)}
    with pytest.raises(SaddlesError, match="nothing to draw"):
        saddles.plot(xr.DataTree.from_dict({"heads": heads}))


def test_a_recording_is_drawn_by_layer():
    tree = _recording()
    assert [axis.get_title(loc="left") for axis in saddles.plot(tree).axes] == ["layer 0", "layer 1"]
    with pytest.raises(SaddlesError, match="a recording alone"):
        saddles.plot(tree, _run())


def _frames(file):
    with Image.open(file) as film:
        count = int(getattr(film, "n_frames", 1))
        film.seek(0)
        first = np.asarray(film.convert("L")).astype(int)
        film.seek(count - 1)
        return count, first, np.asarray(film.convert("L")).astype(int)


def _staircase():
    waves = np.stack([np.exp(-TIMES * k) for k in (1, 2, 3)], axis=1)
    return _run(loss=(("time", "decade"), waves)).assign_coords(decade=[1, 2, 8])


def _turning():
    path = np.stack([np.minimum(TIMES, 1), np.maximum(0, TIMES - 2)], axis=1)
    return _run(output=(("time", "coordinate"), path), target=(("coordinate",), np.array([1.0, 2.0])))


@pytest.mark.parametrize(
    ("trajectory", "pictures"),
    [(_staircase(), 3), (_turning(), 9), (_recording(), 5), (_run(), 9)],
    ids=["staircase", "output", "heads", "any"],
)
def test_films_move_and_hold_their_end(tmp_path, monkeypatch, trajectory, pictures):
    monkeypatch.setattr(films, "HOLD", 2)
    file = saddles.animate(trajectory, tmp_path / "film.gif", dpi=30)
    count, first, last = _frames(file)
    assert pictures <= count <= pictures + 2  # a writer may join pictures that are the same
    below_title = len(first) // 4
    assert np.abs(first - last)[below_title:].max() > 50


def test_a_film_tells_how_far_it_is(tmp_path, monkeypatch):
    states = []

    class Notes(Log):
        first = every = 0.001

        def show(self, state):
            states.append(state)

    monkeypatch.setattr(progress, "display_here", Notes)
    saddles.animate(_staircase(), tmp_path / "film.gif", dpi=30)
    pictures = 3 + films.HOLD
    assert {(state.title, state.total) for state in states} == {("film.gif, pictures", pictures)}
    assert max(state.done for state in states) > 1
    assert not progress._open_bars


def test_the_legend_of_a_film_stays_where_it_is():
    figure, draw, count, _ = films._passing(_run(loss=np.exp(-10 * TIMES), test_error=np.exp(-TIMES)))
    legend: Any = figure.axes[0].get_legend()
    places = []
    for k in (2, count - 1):
        draw(k)
        figure.draw_without_rendering()
        places.append(legend.get_window_extent().p0)
    assert np.allclose(*places, atol=0.5)


@pytest.mark.parametrize("name", ["film.png", "film"])
def test_other_endings_are_refused(tmp_path, name):
    with pytest.raises(SaddlesError, match=r"ends in \.gif or \.mp4"):
        saddles.animate(_run(), tmp_path / name)


def test_mp4_without_ffmpeg_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("matplotlib.animation.writers.is_available", lambda name: False)
    with pytest.raises(SaddlesError, match="needs ffmpeg"):
        saddles.animate(_run(), tmp_path / "film.mp4")


@pytest.mark.skipif(films.ffmpeg() is None, reason="neither ffmpeg nor imageio-ffmpeg is installed")
def test_mp4_is_a_film_of_all_pictures(tmp_path, monkeypatch):
    monkeypatch.setattr(films, "HOLD", 2)
    file = saddles.animate(_turning(), tmp_path / "film.mp4", dpi=30)
    decoded = subprocess.run(
        [str(films.ffmpeg()), "-i", str(file), "-f", "null", "-"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    count = int(re.findall(r"frame=\s*(\d+)", decoded.stderr)[-1])
    assert 9 <= count <= 11
