"""Images from files that the tests write: every format, and every way in which one can be wrong."""

import numpy as np
import pytest
from PIL import Image

import saddles.transformers.images
from saddles.errors import MissingDataError, SaddlesError
from saddles.transformers.feed import colours
from saddles.transformers.files import FileFeed, load_pictures
from saddles.transformers.images import Images, load_images, made

DRAW = np.random.default_rng(5)


def pictures(count, side=32):
    return DRAW.integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def residuals(images):
    """The inverse of the decoding that the data's README gives, written the other way round."""
    planes = images.transpose(3, 0, 1, 2).astype(int)
    planes[0] -= planes[1]
    planes[2] -= planes[1]
    planes = np.diff(planes, axis=3, prepend=0)
    planes = np.diff(planes, axis=2, prepend=0)
    return (planes % 256).astype(np.uint8)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SADDLES_DATA", str(tmp_path))
    return tmp_path


def write_npz(folder, name, images, labels):
    np.savez_compressed(folder / name, residual=residuals(images), labels=np.asarray(labels, dtype=np.uint8))


def test_digits_are_built_in(monkeypatch):
    monkeypatch.delenv("SADDLES_DATA", raising=False)
    images = load_images("digits", classes=10)
    assert images.train.shape == (1500, 8, 8, 1)
    assert images.test.shape == (297, 8, 8, 1)
    assert images.train_labels[:11].tolist() == [*range(10), 0]


def test_residuals_come_back_exactly_and_in_order(folder):
    train, test = pictures(10), pictures(3)
    for i in range(5):
        write_npz(folder, f"cifar10_train_{i}.npz", train[2 * i : 2 * i + 2], [i, i + 1])
    write_npz(folder, "cifar10_test.npz", test, [7, 8, 9])
    found = load_images("cifar10")
    np.testing.assert_array_equal(found.train, train)
    np.testing.assert_array_equal(found.test, test)
    assert found.train_labels.tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert (found.classes, found.shape) == (10, (32, 32, 3))
    few = found.first(4, None)
    assert (len(few.train), len(few.train_labels), len(few.test)) == (4, 4, 3)


def test_cifar_is_decoded_once_and_again_when_a_file_changes(folder, monkeypatch):
    decoded = []
    monkeypatch.setattr(files := saddles.transformers.images, "_residuals", spy(files._residuals, decoded))
    for i in range(5):
        write_npz(folder, f"cifar10_train_{i}.npz", pictures(1), [i])
    write_npz(folder, "cifar10_test.npz", pictures(1), [7])
    first = load_images("cifar10")
    kept = first.train.copy()
    first.train[:], first.train_labels[:] = 0, 9  # what one caller does to its images is its own affair
    second = load_images("cifar10")
    np.testing.assert_array_equal(second.train, kept)
    assert second.train_labels.tolist() == [0, 1, 2, 3, 4]
    assert len(decoded) == 6
    changed = pictures(2)
    write_npz(folder, "cifar10_train_0.npz", changed, [3, 4])
    np.testing.assert_array_equal(load_images("cifar10").train[:2], changed)


def spy(function, seen):
    def spied(file):
        seen.append(file)
        return function(file)

    return spied


def test_mosaic_serves_where_the_npz_files_are_missing(folder):
    tiles = np.broadcast_to(DRAW.integers(0, 256, (6, 1, 1, 3), dtype=np.uint8), (6, 32, 32, 3))
    whole = tiles.reshape(2, 3, 32, 32, 3).transpose(0, 2, 1, 3, 4).reshape(64, 96, 3)
    Image.fromarray(whole).save(folder / "cifar10_train_lite.jpg", quality=95, subsampling=0)
    np.save(folder / "cifar10_train_labels.npy", np.arange(6, dtype=np.uint8))
    write_npz(folder, "cifar10_test.npz", pictures(2), [0, 1])
    found = load_images("cifar10")
    assert found.train.shape == (6, 32, 32, 3)
    assert abs(found.train.astype(int) - tiles).max() < 8
    np.save(folder / "cifar10_train_labels.npy", np.arange(5, dtype=np.uint8))
    with pytest.raises(SaddlesError, match=r"6, 32, 32, 3.* and 5 labels"):
        load_images("cifar10")


@pytest.mark.parametrize(("name", "labels"), [("cifar10", 1), ("cifar100", 2)])
def test_official_binary_version(folder, name, labels):
    place = folder / ("cifar-10-batches-bin" if labels == 1 else "cifar-100-binary")
    place.mkdir()
    files = [f"data_batch_{i}.bin" for i in range(1, 6)] if labels == 1 else ["train.bin"]
    images = {file: pictures(3) for file in [*files, "test_batch.bin" if labels == 1 else "test.bin"]}
    for file, some in images.items():
        rows = [
            np.concatenate([np.full(labels - 1, 19), [i], p.transpose(2, 0, 1).ravel()]) for i, p in enumerate(some)
        ]
        np.stack(rows).astype(np.uint8).tofile(place / file)
    found = load_images(name)
    np.testing.assert_array_equal(found.train, np.concatenate([images[file] for file in files]))
    assert found.train_labels.tolist() == [0, 1, 2] * len(files)
    (place / files[0]).write_bytes(b"\0" * 5000)
    with pytest.raises(SaddlesError, match=r"cannot be read .*not a whole number of rows.*fetch it again"):
        load_images(name)
    (place / files[0]).unlink()
    with pytest.raises(MissingDataError, match=files[0]):
        load_images(name)


def write_folder(folder, sides=(16, 16), test="test"):
    for split in ("train", test):
        for name, side in zip(("ant", "bee"), sides, strict=True):
            (folder / split / name).mkdir(parents=True, exist_ok=True)
            for i, picture in enumerate(pictures(3, side)):
                Image.fromarray(picture).save(folder / split / name / f"{i}.png")


def test_folder_of_classes(tmp_path):
    write_folder(tmp_path)
    found = load_images(str(tmp_path))
    assert found.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_array_equal(found.train[4], np.asarray(Image.open(tmp_path / "train" / "bee" / "1.png")))
    with pytest.raises(SaddlesError, match=r"`classes` must be 2, .*; got 5"):
        load_images(str(tmp_path), classes=5)
    (tmp_path / "test" / "cow").mkdir()
    with pytest.raises(SaddlesError, match="has the class cow"):
        load_images(str(tmp_path))
    (tmp_path / "test" / "cow").rmdir()
    whole = (tmp_path / "train" / "ant" / "0.png").read_bytes()
    (tmp_path / "train" / "ant" / "0.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SaddlesError, match=r"0\.png cannot be read"):
        load_images(str(tmp_path))


def test_folder_with_images_of_two_sizes_or_without_a_part(tmp_path):
    write_folder(tmp_path, sides=(16, 20), test="val")
    with pytest.raises(SaddlesError, match="images of 2 sizes"):
        load_images(str(tmp_path))
    (tmp_path / "val").rename(tmp_path / "other")
    with pytest.raises(SaddlesError, match="train/ and test/"):
        load_images(str(tmp_path))


def test_folders_whose_images_no_vit_can_read_are_refused(tmp_path):
    """Other sizes in the test set, or one class alone; a file that the system hides is no image."""
    for split, side in (("train", 16), ("test", 8)):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.fromarray(pictures(1, side)[0]).save(tmp_path / split / name / "a.png")
    (tmp_path / "train" / "cat" / ".DS_Store.x").write_text("hidden")
    (tmp_path / "train" / ".ipynb_checkpoints").mkdir()
    (tmp_path / "test" / ".cache").mkdir()
    with pytest.raises(SaddlesError, match=r"one size; got \(16, 16, 3\) and \(8, 8, 3\)"):
        load_images(str(tmp_path))
    for split in ("train", "test"):
        (tmp_path / split / "dog" / "a.png").unlink()
        (tmp_path / split / "dog").rmdir()
    with pytest.raises(SaddlesError, match="two classes or more; it holds cat alone"):
        load_images(str(tmp_path))


def test_large_images_are_read_as_the_step_says(tmp_path):
    write_folder(tmp_path, sides=(40, 30), test="val")
    sets = load_pictures(str(tmp_path))
    assert sets.classes == 2
    one, other = (FileFeed(sets, 4, 9, "cpu", side=16, tests=None) for _ in range(2))
    one.batch(0, slice(None))
    part, labels = one.batch(1, slice(1, None, 2))
    whole, all_labels = other.batch(1, slice(None))
    assert whole.shape == (4, 3, 16, 16)
    np.testing.assert_array_equal(part, whole[1::2])
    np.testing.assert_array_equal(labels, all_labels[1::2])
    assert not np.array_equal(other.batch(2, slice(None))[0], whole)
    assert set(one._ahead) == {(1, str(slice(None))), (2, str(slice(1, None, 2)))}, "parts read ahead are kept"
    with pytest.raises(MissingDataError, match=r"no folder .*nowhere"):
        load_pictures(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("source", ["cifar10", "cifar100", "nothing/here"])
def test_missing_data_says_how_to_get_it(folder, source, monkeypatch):
    with pytest.raises(MissingDataError, match="SADDLES_DATA"):
        load_images(source)
    monkeypatch.delenv("SADDLES_DATA")
    with pytest.raises(MissingDataError, match="SADDLES_DATA"):
        load_images(source)


def test_corrupt_archives_are_named(folder):
    write_npz(folder, "cifar10_test.npz", pictures(2), [0, 1])
    for i in range(5):
        (folder / f"cifar10_train_{i}.npz").write_bytes((folder / "cifar10_test.npz").read_bytes()[:900])
    with pytest.raises(SaddlesError, match=r"cifar10_train_0\.npz cannot be read .*fetch it again"):
        load_images("cifar10")
    np.savez(folder / "cifar10_train_0.npz", pixels=np.zeros(3))
    with pytest.raises(SaddlesError, match=r"cifar10_train_0\.npz cannot be read .*residual"):
        load_images("cifar10")


def test_no_pickle_is_opened(folder):
    write_npz(folder, "cifar10_test.npz", pictures(2), [0, 1])
    for i in range(5):
        np.savez(folder / f"cifar10_train_{i}.npz", residual=np.array([{}], dtype=object), labels=np.zeros(1))
    with pytest.raises(SaddlesError, match="cannot be read"):
        load_images("cifar10")


def test_labels_that_do_not_fit_are_refused():
    with pytest.raises(SaddlesError, match="Set classes to 8 or more"):
        Images("mine", pictures(1), np.array([7]), pictures(1), np.array([0]), classes=5)
    with pytest.raises(SaddlesError, match="uint8"):
        Images("mine", pictures(1).astype(float), np.array([0]), pictures(1), np.array([0]), classes=5)


def test_made_images_and_colours():
    one, same, other = made(1), made(1), made(2)
    np.testing.assert_array_equal(one.train, same.train)
    assert not np.array_equal(one.train, other.train)
    mean, spread = colours(one.train)
    pixels = one.train.reshape(-1, 3) / 255
    np.testing.assert_allclose(mean, pixels.mean(0), rtol=1e-12)
    np.testing.assert_allclose(spread, pixels.std(0), rtol=1e-10)
