"""Data sets of the hub without the network: a stand-in for the package `datasets` that hands out what a test gives."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from saddles.errors import MissingDataError, SaddlesError
from saddles.transformers import load_images, load_text
from saddles.transformers.files import load_pictures

PIXELS = np.random.default_rng(0).integers(0, 255, (6, 8, 8, 3), dtype=np.uint8)


class Table:
    """Columns by name, rows by number."""

    def __init__(self, **columns):
        self.columns, self.column_names = columns, list(columns)

    def __getitem__(self, key):
        return self.columns[key] if isinstance(key, str) else {name: rows[key] for name, rows in self.columns.items()}


def pictures(rows):
    return [Image.fromarray(row) for row in rows]


@pytest.fixture
def hub(monkeypatch):
    """Sets what the next `load_dataset` returns, and lists what it was called with."""
    calls, given = [], {}

    def load_dataset(*words):
        calls.append(words)
        if not given:
            raise ConnectionError("no route to host\nand more")
        return given

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return lambda **parts: (given.update(parts), calls)[1]


def test_images_and_pictures(hub):
    hub(train=Table(img=pictures(PIXELS[:4]), fine_label=[0, 1, 2, 1]), test=Table(img=pictures(PIXELS[4:]),
        fine_label=[2, 0]))  # fmt: skip
    images = load_images("hf:some/set")
    np.testing.assert_array_equal(images.train, PIXELS[:4])
    assert images.test_labels.tolist() == [2, 0]
    assert images.classes == 3


def test_pictures_are_opened_one_at_a_time(hub):
    parts = {"image": pictures(PIXELS), "label": [0, 1, 2, 1, 0, 3]}
    hub(train=Table(**parts), validation=Table(**parts))
    sets = load_pictures("hf:some/set")
    np.testing.assert_array_equal(sets.train.open(3), PIXELS[3])
    assert sets.classes == 4


def test_text_with_a_configuration(hub):
    calls = hub(train=Table(text=["to be\n", "", "or not\n"]), validation=Table(text=["that\n"]))
    text = load_text("hf:some/set:raw", units="bytes")
    assert bytes(text.train.astype(np.uint8)) == b"to be\nor not\n"
    assert calls == [("some/set", "raw")]


def test_what_does_not_fit_is_explained(hub):
    with pytest.raises(MissingDataError, match=r"hf:some/set could not be loaded \(no route to host\)"):
        load_images("hf:some/set")
    hub(train=Table(pixels=[], label=[]), test=Table(pixels=[], label=[]))
    with pytest.raises(SaddlesError, match=r"columns img or image.*it has pixels, label"):
        load_images("hf:some/set")
    with pytest.raises(SaddlesError, match="parts train and validation; it has train, test"):
        load_text("hf:some/set", units="bytes")


def test_without_the_package_its_name_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SaddlesError, match="pip install datasets"):
        load_text("hf:some/set", units="bytes")
