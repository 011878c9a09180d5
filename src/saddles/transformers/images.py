"""Images to train on: embedded digits, CIFAR in its common formats, folders of classes, the hub, synthetic ones.

Nothing is downloaded unless a data set is named with `hf:`, and no pickle is opened.
"""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from saddles.core.embedded import digits
from saddles.errors import MissingDataError, SaddlesError
from saddles.transformers.sources import HOW, Part, damaged, data_folder, load_hub, read

INSTEAD = "name a folder with train/ and test/"
TRAINED = 1_500
"""Digits that are trained on; the rest test."""


@dataclass(frozen=True, eq=False)
class Images:
    """Pictures as uint8 (sample, row, column, channel) and their classes, for training and for testing."""

    name: str
    train: np.ndarray
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray
    classes: int

    def __post_init__(self) -> None:
        for pictures, labels in ((self.train, self.train_labels), (self.test, self.test_labels)):
            if pictures.ndim != 4 or pictures.dtype != np.uint8 or len(pictures) != len(labels):
                raise SaddlesError(
                    f"{self.name}: images must be uint8 (sample, row, column, channel) with one label each; got "
                    f"{pictures.dtype} {pictures.shape} and {len(labels)} labels."
                )
            if len(labels) and int(labels.max()) >= self.classes:
                raise SaddlesError(
                    f"{self.name}: labels must be below classes={self.classes}; got {int(labels.max())}. "
                    f"Set classes to {int(labels.max()) + 1} or more."
                )

        if self.train.shape[1:] != self.test.shape[1:]:
            raise SaddlesError(
                f"{self.name}: training and test images must have one size; got {self.train.shape[1:]} and "
                f"{self.test.shape[1:]} (row, column, channel)."
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and channels."""
        rows, columns, channels = self.train.shape[1:]
        return rows, columns, channels

    def first(self, train: int | None, test: int | None) -> "Images":
        """The first so many; None keeps all."""
        return Images(
            self.name,
            self.train[:train],
            self.train_labels[:train],
            self.test[:test],
            self.test_labels[:test],
            self.classes,
        )


def load_images(source: str, *, seed: int = 0, classes: int | None = None) -> Images:
    """Find images.

    Args:
        source: "digits" (inside the package, 8 × 8, the last 297 for testing), "cifar10" or "cifar100" (in the
            data folder: the compact npz files, the JPEG mosaic, or the official binary version), "made" (synthetic,
            16 × 16), a folder with train/CLASS/… and test/CLASS/…, or "hf:NAME" for a data set of the Hugging Face
            hub, which downloads it.
        seed: of synthetic images.
        classes: how many there must be; None takes what the source has.
    """
    if source == "made":
        images = made(seed)
    elif source == "digits":
        pictures, labels = digits()
        pictures = pictures[..., None]
        images = Images(
            "digits", pictures[:TRAINED], labels[:TRAINED], pictures[TRAINED:], labels[TRAINED:], classes=10
        )
    elif source in ("cifar10", "cifar100"):
        images = _cifar(source)
    elif source.startswith("hf:"):
        images = _hub(source.removeprefix("hf:"))
    elif Path(source).is_dir():
        images = _folder(Path(source))
    else:
        raise MissingDataError(f"There is no data set or folder of images {source!r}. {HOW}, or {INSTEAD}.")
    if classes is not None and classes != images.classes:
        raise SaddlesError.must_be("classes", f"{images.classes}, as in {images.name}", classes)
    return images


def made(seed: int = 0, train: int = 512, test: int = 256, classes: int = 4, side: int = 16) -> Images:
    """Stripes whose direction and frequency tell the class, with random phase, contrast and noise."""
    draw = np.random.default_rng([seed, 71])
    count = train + test
    labels = draw.integers(classes, size=count)
    angle, pitch = np.pi * labels / classes, 2 * np.pi * (1 + labels % 3) / side
    rows, columns = np.mgrid[:side, :side]
    along = np.cos(angle)[:, None, None] * rows + np.sin(angle)[:, None, None] * columns
    wave = np.sin(pitch[:, None, None] * along + draw.uniform(0, 2 * np.pi, count)[:, None, None])
    bright = 0.5 + 0.3 * draw.uniform(0.5, 1.0, (count, 1, 1, 3)) * wave[..., None]
    pictures = np.clip(bright + 0.08 * draw.normal(size=(count, side, side, 3)), 0, 1)
    whole = np.round(255 * pictures).astype(np.uint8)
    return Images("made", whole[:train], labels[:train], whole[train:], labels[train:], classes)


def _cifar(name: str) -> Images:
    """CIFAR, decoded once: experiments ask for it in each of their parts."""
    folder = data_folder(name, INSTEAD)
    facts = [(file, file.stat()) for pattern in ("cifar*", "cifar*/*") for file in sorted(folder.glob(pattern))]
    kept = _decoded_cifar(name, folder, tuple((file, one.st_mtime_ns, one.st_size) for file, one in facts))
    train, test = (kept.train.copy(), kept.train_labels.copy()), (kept.test.copy(), kept.test_labels.copy())
    return Images(name, *train, *test, kept.classes)


@lru_cache(maxsize=1)
def _decoded_cifar(name: str, folder: Path, state: tuple[tuple[Path, int, int], ...]) -> Images:
    """The images in a folder whose files, times of change and sizes are `state`."""
    tens = name == "cifar10"
    binary = folder / ("cifar-10-batches-bin" if tens else "cifar-100-binary")
    if binary.is_dir():
        files = [f"data_batch_{i}.bin" for i in range(1, 6)] if tens else ["train.bin"]
        train = [_binary(binary / file, 1 if tens else 2) for file in files]
        test = _binary(binary / ("test_batch.bin" if tens else "test.bin"), 1 if tens else 2)
        return Images(name, *_concatenated(train), *test, 10 if tens else 100)
    if tens and (folder / "cifar10_test.npz").exists():
        parts = [folder / f"cifar10_train_{i}.npz" for i in range(5)]
        if all(part.exists() for part in parts):
            with ThreadPoolExecutor() as pool:
                pictures, labels = _concatenated([*pool.map(_residuals, parts)])
        else:
            pictures, labels = _mosaic(folder)
        return Images(name, pictures, labels, *_residuals(folder / "cifar10_test.npz"), 10)
    raise MissingDataError(f"{name} was not found in {folder}. {HOW}, or {INSTEAD}.")


def _concatenated(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([pictures for pictures, _ in parts]), np.concatenate([labels for _, labels in parts])


def _binary(file: Path, labels: int) -> tuple[np.ndarray, np.ndarray]:
    """The official binary version: a row is one label byte (CIFAR-100: coarse, fine) and 3,072 pixels."""
    raw = read(file, lambda: np.fromfile(file, np.uint8), INSTEAD)
    if not len(raw) or len(raw) % (3072 + labels):
        raise damaged(file, f"its {len(raw)} bytes are not a whole number of rows")
    rows = raw.reshape(-1, 3072 + labels)
    pictures = rows[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(pictures), rows[:, labels - 1].astype(np.int64)


def _residuals(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pixels from differences modulo 256 (red and blue minus green, then along rows and columns)."""

    def opened() -> tuple[np.ndarray, np.ndarray]:
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as stored:
            residual, labels = stored["residual"], stored["labels"].astype(np.int64)
        planes = np.cumsum(np.cumsum(residual, axis=2, dtype=np.uint8), axis=3, dtype=np.uint8)
        planes[0] += planes[1]
        planes[2] += planes[1]
        return np.ascontiguousarray(planes.transpose(1, 2, 3, 0)), labels

    return read(file, opened, INSTEAD)


def _mosaic(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """All training images as tiles of one JPEG, row by row (slightly lossy), labels beside it."""
    file, names = folder / "cifar10_train_lite.jpg", folder / "cifar10_train_labels.npy"
    if not (file.exists() and names.exists()):
        raise MissingDataError(
            f"The training images of cifar10 were not found in {folder}: neither the five files cifar10_train_*.npz "
            f"nor {file.name} with {names.name}. {HOW}, or {INSTEAD}."
        )

    def opened() -> np.ndarray:
        from PIL import Image

        with _without_size_limit(), Image.open(file) as picture:
            whole = np.asarray(picture.convert("RGB"))
        rows, columns = whole.shape[0] // 32, whole.shape[1] // 32
        tiles = whole.reshape(rows, 32, columns, 32, 3).transpose(0, 2, 1, 3, 4)
        return np.ascontiguousarray(tiles.reshape(-1, 32, 32, 3))

    labels = read(names, lambda: np.load(names, allow_pickle=False).astype(np.int64), INSTEAD)
    return read(file, opened, INSTEAD), labels


@contextlib.contextmanager
def _without_size_limit() -> Iterator[None]:
    """Let the mosaic be larger than what Pillow takes for a decompression bomb."""
    from PIL import Image

    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def class_files(folder: Path) -> tuple[list[str], dict[str, list[tuple[Path, int]]]]:
    """Classes, and the files of train/CLASS/ and test/CLASS/ (or val/CLASS/), each with the number of its class."""
    last = next((name for name in ("test", "val", "validation") if (folder / name).is_dir()), None)
    names = sorted(place.name for place in (folder / "train").glob("[!.]*") if place.is_dir())
    if not names or last is None:
        raise SaddlesError(f"{folder} must hold train/ and test/ (or val/), each with one folder per class.")
    if len(names) < 2:
        raise SaddlesError(f"{folder / 'train'} must hold two classes or more; it holds {names[0]} alone.")
    strange = sorted({place.name for place in (folder / last).glob("[!.]*") if place.is_dir()} - set(names))
    if strange:
        raise SaddlesError(f"{folder / last} has the class {strange[0]}, which {folder / 'train'} does not have.")
    parts = {}
    for split, place in (("train", folder / "train"), ("test", folder / last)):
        files = [(file, i) for i, name in enumerate(names) for file in sorted((place / name).glob("[!.]*.*"))]
        if not files:
            raise SaddlesError(f"{place} holds no images. Put them into one folder per class.")
        parts[split] = files
    return names, parts


def decoded(file: Path) -> np.ndarray:
    """One image file as uint8 (row, column, 3)."""

    def opened() -> np.ndarray:
        from PIL import Image

        with Image.open(file) as picture:
            return np.asarray(picture.convert("RGB"))

    return read(file, opened, INSTEAD)


def _folder(folder: Path) -> Images:
    """A folder of classes whose images have one size, all in memory."""
    names, listed = class_files(folder)
    parts: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for split, files in listed.items():
        pictures = [decoded(file) for file, _ in files]
        sizes = {one.shape for one in pictures}
        if len(sizes) != 1:
            raise SaddlesError(f"{folder}, {split}: images must all have one size; got images of {len(sizes)} sizes.")
        parts[split] = np.stack(pictures), np.array([label for _, label in files])
    return Images(folder.name, *parts["train"], *parts["test"], len(names))


def _hub(name: str) -> Images:
    """A data set of the hub, all in memory."""
    columns = (("img", "image"), ("label", "fine_label", "labels"))
    first, last, (picture, label) = load_hub(name, columns, ("test", "validation"))

    def arrays(part: Part) -> tuple[np.ndarray, np.ndarray]:
        pictures = [np.asarray(one.convert("RGB"), dtype=np.uint8) for one in part[picture]]
        return np.stack(pictures), np.asarray(part[label])

    train = arrays(first)
    return Images(name, *train, *arrays(last), int(train[1].max()) + 1)
