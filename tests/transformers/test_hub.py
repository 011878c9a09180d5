"""Data sets through the package `datasets`: the same loaders on a local set, where that package is installed."""

import importlib.util
import io
import json

import numpy as np
import pytest
from PIL import Image

from saddles.errors import MissingDataError
from saddles.transformers import load_images
from saddles.transformers.files import load_pictures
from saddles.transformers.text import load_text

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("datasets") is None, reason="the package datasets is not installed (pip install datasets)"
)


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))


def image_set(folder, column):
    """Two parts of random images, as the hub stores them."""
    import pyarrow as pa  # pyright: ignore[reportMissingImports]
    from pyarrow import parquet  # pyright: ignore[reportMissingImports]

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (20, 8, 8, 3), dtype=np.uint8)
    features = {column: {"_type": "Image"}, "label": {"names": list("0123"), "_type": "ClassLabel"}}
    (folder / "data").mkdir(parents=True)
    for split, rows in (("train", pixels[:12]), ("test", pixels[12:])):
        images = []
        for row in rows:
            stream = io.BytesIO()
            Image.fromarray(row).save(stream, "PNG")
            images.append({"bytes": stream.getvalue(), "path": None})
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        table = pa.table({column: pa.array(images, kind), "label": [i % 4 for i in range(len(rows))]})
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        parquet.write_table(table, folder / "data" / f"{split}-00000-of-00001.parquet")
    return pixels


@pytest.mark.parametrize("column", ["img", "image"])
def test_images_of_one_size(tmp_path, column):
    pixels = image_set(tmp_path / "set", column)
    found = load_images(f"hf:{tmp_path / 'set'}")
    assert found.classes == 4
    np.testing.assert_array_equal(found.train, pixels[:12])


def test_pictures_of_any_size(tmp_path):
    pixels = image_set(tmp_path / "set", "image")
    found = load_pictures(f"hf:{tmp_path / 'set'}")
    assert found.train.labels.tolist() == [0, 1, 2, 3] * 3
    np.testing.assert_array_equal(found.train.open(5), pixels[5])


def test_text(tmp_path):
    import pyarrow as pa  # pyright: ignore[reportMissingImports]
    from pyarrow import parquet  # pyright: ignore[reportMissingImports]

    (tmp_path / "set" / "data").mkdir(parents=True)
    for split in ("train", "validation"):
        table = pa.table({"text": [f" {split} \n", "", " the cat sat \n"] * 30})
        parquet.write_table(table, tmp_path / "set" / "data" / f"{split}-00000-of-00001.parquet")
    found = load_text(f"hf:{tmp_path / 'set'}", units="bytes")
    assert bytes(found.train[:22].astype(np.uint8)) == b" train \n the cat sat \n"


def test_a_name_that_cannot_be_fetched_is_one_sentence(tmp_path):
    with pytest.raises(MissingDataError, match="could not be loaded"):
        load_images(f"hf:{tmp_path / 'nothing'}")
