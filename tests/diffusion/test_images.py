"""Circles: what is drawn, its signals, and what is refused; the classifier, its cache and its gate."""

import shutil

import numpy as np
import pytest
import torch

from saddles.diffusion import Circles, ClassifierPlan, concept_classifier
from saddles.diffusion.classifier import _bits, _hash
from saddles.diffusion.images import CLASSES, training_set
from saddles.errors import SaddlesError
from saddles.training.device import generator_of

CPU = torch.device("cpu")
CIRCLES = Circles(0.7, side=8, size_spread=0.1)
PLAN = ClassifierPlan((8, 8), 8, steps=60, batch=32, held_out=32)


def drawn(circles, name, count, seed=0):
    return circles.draw(circles.classes((name,), count, CPU), generator_of(CPU, seed))


def test_class_means_are_those_of_the_paper():
    means = Circles(0.7).means()
    expected = [[0.7, 0.85, 0.15, 0.15], [0.3, 0.85, 0.15, 0.15], [0.7, 0.15, 0.15, 0.85], [0.3, 0.15, 0.15, 0.85]]
    torch.testing.assert_close(means, torch.tensor(expected))


@pytest.mark.parametrize("name", CLASSES)
def test_a_circle_has_the_colour_and_the_area_it_was_drawn_with(name):
    """Area from the share of the background that is missing: π(r² + blur²); colour in the middle."""
    circles = Circles(0.6, side=64, noise=0.0, background=0.0)
    images, described = drawn(circles, name, 20)
    for image, (diameter, *colour) in zip(images, described.tolist(), strict=True):
        inside = (1 - image[1]) / (1 - colour[1])
        touches = torch.cat([inside[0], inside[-1], inside[:, 0], inside[:, -1]]).max() > 1e-3
        if not touches:
            assert float(inside.mean()) == pytest.approx(np.pi * (diameter**2 / 4 + 1 / 64**2), rel=0.01)
        place = np.unravel_index(int(inside.argmax()), inside.shape)
        np.testing.assert_allclose(image[:, place[0], place[1]], colour, atol=1e-3)


def test_every_image_is_its_own():
    """Spread of diameter, colour, place, background and noise, against the uniform distributions asked for."""
    circles = Circles(0.4, side=16)
    _, described = drawn(circles, "10", 4000)
    low, high = described.amin(0), described.amax(0)
    torch.testing.assert_close(low, circles.means()[2] - torch.tensor([0.15, 0.05, 0.05, 0.05]), atol=2e-3, rtol=0)
    torch.testing.assert_close(high, circles.means()[2] + torch.tensor([0.15, 0.05, 0.05, 0.05]), atol=2e-3, rtol=0)
    corner = drawn(Circles(0.4, side=16), "11", 4000)[0][:, :, 0, 0]
    assert 0.79 < float(corner.amin()) < 0.81
    assert 0.99 < float(corner.amax()) < 1.01
    flat = drawn(Circles(0.4, side=16, background=0.0), "11", 50)[0]
    far = flat[:, 0, 0, 0]
    assert float(far.std()) == pytest.approx(1e-3, rel=0.4)


def test_the_same_seed_draws_the_same():
    circles = Circles(0.5, side=8)
    one, same, other = (training_set(circles, 5, seed, CPU) for seed in (3, 3, 4))
    assert torch.equal(one[0], same[0])
    assert torch.equal(one[1], same[1])
    assert not torch.equal(one[0], other[0])
    assert one[0].shape == (15, 3, 8, 8)
    wanted = circles.means()[[0, 1, 2]].repeat_interleave(5, 0)
    assert (one[1] - wanted).abs().max() <= 0.15 + 1e-6


def test_signals_are_differences_of_class_means():
    """Colour is proportional to its separation; size does not vanish with it; reversed roles by a plain average."""
    signals = np.array([Circles(c, side=16).signals() for c in (0.2, 0.4, 0.8)])
    np.testing.assert_allclose(signals[:, 0] / signals[0, 0], [1, 2, 4], rtol=1e-3)
    assert np.all(np.diff(signals[:, 1]) > 0)
    assert signals[0, 1] > signals[0, 0]
    assert signals[2, 0] > signals[2, 1]
    circles = Circles(0.4, side=16)
    red, blue = (drawn(circles, name, 20_000, seed=9)[0].mean(0) for name in ("00", "10"))
    assert float((red - blue).pow(2).mean().sqrt()) == pytest.approx(signals[1, 0], rel=0.02)
    weak = Circles(0.4, 0.2, side=16).signals()
    assert weak[1] < 0.7 * signals[1, 1]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Circles(1.2), r"`colour` must be in \(0, 1\]; got 1.2"),
        (lambda: Circles(-0.1), "`colour` must be .* got -0.1"),
        (lambda: Circles(0.0), "`colour` must be .* got 0.0"),
        (lambda: Circles(0.5, size=1.5), "`size` must be .* got 1.5"),
        (lambda: Circles(0.9), "`colour` must be at most 0.8"),
        (lambda: Circles(0.5, size=0.6), "`size` must be at most 0.571"),
        (lambda: Circles(0.5, colour_spread=0.5), "classes overlap"),
        (lambda: Circles(0.5, side=2), "at least 4 pixels"),
        (lambda: training_set(Circles(0.5), 0, 0, CPU), "`images` must be at least 1"),
        (lambda: ClassifierPlan(steps=0), "`steps` must be at least 1"),
        (lambda: ClassifierPlan(rate=0.0), "`rate` must be positive"),
    ],
)
def test_bad_settings_are_explained(make, words):
    with pytest.raises(SaddlesError, match=words):
        make()


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder with a kept classifier, and the classifier."""
    folder = tmp_path_factory.mktemp("kept")
    return folder, concept_classifier(CIRCLES, PLAN, folder=folder)[0]


def test_classifier_is_perfect_kept_and_found_again(tmp_path, monkeypatch, kept):
    shutil.copytree(kept[0], tmp_path, dirs_exist_ok=True)
    circles, first = CIRCLES, kept[1]
    accuracy = concept_classifier(circles, PLAN, folder=tmp_path)[1]
    assert accuracy == 1.0
    images, _ = circles.draw(circles.classes(CLASSES, 25, CPU), generator_of(CPU, 77))
    asked = _bits(circles.classes(CLASSES, 25, CPU))
    found = first.concepts(images)
    assert found.shape == (100, 2)
    assert (found.round() == asked).all()
    monkeypatch.setattr("saddles.diffusion.classifier._train", lambda *words: pytest.fail("trained again"))
    again, _ = concept_classifier(circles, PLAN, folder=tmp_path)
    assert torch.equal(again.concepts(images), found)
    assert len(list(tmp_path.glob("*.pt"))) == 1
    with pytest.raises(pytest.fail.Exception, match="trained again"):
        concept_classifier(Circles(0.6, side=8, size_spread=0.1), PLAN, folder=tmp_path)


def copying(classifier):
    return lambda network, *words: network.load_state_dict(classifier.state_dict())


@pytest.mark.parametrize("harm", ["weights", "half", "other"])
def test_a_kept_classifier_that_does_not_fit_is_said_and_trained_anew(tmp_path, harm, kept, monkeypatch):
    """Really trained once, which must give the same weights; else by copying them."""
    if harm != "weights":
        monkeypatch.setattr("saddles.diffusion.classifier._train", copying(kept[1]))
    shutil.copytree(kept[0], tmp_path, dirs_exist_ok=True)
    circles, first, file = CIRCLES, kept[1], next(tmp_path.glob("*.pt"))
    stored = torch.load(file, weights_only=True)
    if harm == "weights":
        stored["state"]["head.0.weight"][0, 0] += 1
        torch.save(stored, file)
    elif harm == "half":
        file.write_bytes(file.read_bytes()[:100])
    else:
        state = {"a": torch.ones(2)}
        torch.save({"state": state, "hash": _hash(state)}, file)
    with pytest.warns(UserWarning, match=r"is not used .*; the classifier is trained anew"):
        again, accuracy = concept_classifier(circles, PLAN, folder=tmp_path)
    assert accuracy == 1.0
    for one, other in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    state = torch.load(file, weights_only=True)
    assert state["hash"] == _hash(state["state"])


def test_a_classifier_that_is_not_perfect_is_refused(tmp_path):
    """Two colours that noise hides."""
    circles = Circles(0.02, side=8, noise=0.5)
    plan = ClassifierPlan((4, 4), 4, steps=2, batch=8, held_out=16)
    with pytest.raises(SaddlesError, match=r"right on all 64 held-out images.* Raise the classifier's steps above 2"):
        concept_classifier(circles, plan, folder=tmp_path)


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path, kept, monkeypatch):
    monkeypatch.setattr("saddles.diffusion.classifier._train", copying(kept[1]))
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="was not kept"):
        assert concept_classifier(CIRCLES, PLAN, folder=tmp_path / "file")[1] == 1.0
