"""Images to train on: CIFAR in the formats people have it in, folders of classes, data sets by name, made ones.

Nothing is downloaded unless a data set is asked for by name (`hf:NAME`), and no pickle is opened.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from saddles.errors import MissingDataError, SaddlesError

HOW = "set SADDLES_DATA or --data to the folder that holds it, or name a folder with train/ and test/"


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
                raise SaddlesError.about(
                    f"{self.name}: images of shape {pictures.shape} and {len(labels)} labels came",
                    "uint8 (sample, row, column, channel) and one label each are needed",
                    "check the files",
                )
            if len(labels) and int(labels.max()) >= self.classes:
                raise SaddlesError.about(
                    f"{self.name}: the class {int(labels.max())} came",
                    f"classes are counted from 0 and there are {self.classes}",
                    f"set classes to {int(labels.max()) + 1} or more",
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
        source: "cifar10" or "cifar100" (in the data folder: the compact npz files, the JPEG mosaic, or the official
            binary version), "made" (drawn here, 16 × 16), a folder with train/CLASS/… and test/CLASS/…, or
            "hf:NAME" for a data set of the Hugging Face hub, which downloads it.
        seed: of made images.
        classes: how many there are where the files do not say; checked where they do.
    """
    if source == "made":
        found = made(seed)
    elif source in ("cifar10", "cifar100"):
        found = _cifar(source)
    elif source.startswith("hf:"):
        found = _hub(source.removeprefix("hf:"))
    elif Path(source).is_dir():
        found = _folder(Path(source))
    else:
        raise MissingDataError.about(f"the images {source!r} came", "there is no such data set or folder", HOW)
    if classes is not None and classes != found.classes:
        raise SaddlesError.about(
            f"classes={classes} came", f"{found.name} has {found.classes}", f"leave it out or set {found.classes}"
        )
    return found


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


def _data_folder(name: str) -> Path:
    place = os.environ.get("SADDLES_DATA")
    if not place:
        raise MissingDataError.about(f"no folder for {name} was given", "SADDLES_DATA names it", HOW)
    return Path(place)


def _cifar(name: str) -> Images:
    folder = _data_folder(name)
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
            pictures, labels = _concatenated([_residuals(part) for part in parts])
        else:
            pictures, labels = _mosaic(folder)
        return Images(name, pictures, labels, *_residuals(folder / "cifar10_test.npz"), 10)
    raise MissingDataError.about(f"no {name} was found in the data folder", "its files are needed there", HOW)


def _concatenated(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([pictures for pictures, _ in parts]), np.concatenate([labels for _, labels in parts])


def _binary(file: Path, labels: int) -> tuple[np.ndarray, np.ndarray]:
    """The official binary version: a row is one label byte (CIFAR-100: coarse, fine) and 3,072 pixels."""
    raw = _read(file, lambda: np.fromfile(file, np.uint8))
    if not len(raw) or len(raw) % (3072 + labels):
        raise _corrupt(file, f"its {len(raw)} bytes are no whole number of rows")
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

    return _read(file, opened)


def _mosaic(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """All training images as tiles of one JPEG, row by row (slightly lossy), labels beside it."""
    file, names = folder / "cifar10_train_lite.jpg", folder / "cifar10_train_labels.npy"
    if not (file.exists() and names.exists()):
        raise MissingDataError.about(
            "no training images of cifar10 were found",
            "the five npz files or the mosaic and its labels are needed",
            HOW,
        )

    def opened() -> np.ndarray:
        from PIL import Image

        with _unlimited(Image), Image.open(file) as picture:
            whole = np.asarray(picture.convert("RGB"))
        rows, columns = whole.shape[0] // 32, whole.shape[1] // 32
        tiles = whole.reshape(rows, 32, columns, 32, 3).transpose(0, 2, 1, 3, 4)
        return np.ascontiguousarray(tiles.reshape(-1, 32, 32, 3))

    labels = _read(names, lambda: np.load(names, allow_pickle=False).astype(np.int64))
    return _read(file, opened), labels


@contextlib.contextmanager
def _unlimited(library: Any) -> Iterator[None]:
    """Let the mosaic be larger than what the library takes for an attack."""
    before, library.MAX_IMAGE_PIXELS = library.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        library.MAX_IMAGE_PIXELS = before


def _read(file: Path, opened: Any) -> Any:
    try:
        return opened()
    except FileNotFoundError as error:
        raise MissingDataError.about(f"no {file.name} was found", "it belongs to the data set", HOW) from error
    except Exception as error:
        raise _corrupt(file, str(error).splitlines()[0] if str(error) else type(error).__name__) from error


def _corrupt(file: Path, why: str) -> SaddlesError:
    return SaddlesError.about(f"{file.name} cannot be read ({why})", "a whole file is needed", "fetch it again")


def class_files(folder: Path) -> tuple[list[str], dict[str, list[tuple[Path, int]]]]:
    """Classes, and the files of train/CLASS/ and test/CLASS/ (or val/CLASS/) with the number of their class."""
    last = next((name for name in ("test", "val", "validation") if (folder / name).is_dir()), None)
    names = sorted(place.name for place in (folder / "train").glob("*") if place.is_dir())
    if not names or last is None:
        raise SaddlesError.about(
            f"{folder} came", "train/ and test/ (or val/) with one folder a class are needed", "see the documentation"
        )
    strange = sorted({place.name for place in (folder / last).glob("*") if place.is_dir()} - set(names))
    if strange:
        raise SaddlesError.about(
            f"{folder / last} has the class {strange[0]}",
            f"{folder / 'train'} has none of that name",
            "check the folders",
        )
    found = {}
    for split, place in (("train", folder / "train"), ("test", folder / last)):
        files = [(file, i) for i, name in enumerate(names) for file in sorted((place / name).glob("*.*"))]
        if not files:
            raise SaddlesError.about(f"{place} holds no images", "files in one folder a class are needed", "fill it")
        found[split] = files
    return names, found


def decoded(file: Path) -> np.ndarray:
    """One image file as uint8 (row, column, 3)."""

    def opened() -> np.ndarray:
        from PIL import Image

        with Image.open(file) as picture:
            return np.asarray(picture.convert("RGB"))

    return _read(file, opened)


def _folder(folder: Path) -> Images:
    """A folder of classes whose images have one size, all in memory."""
    names, found = class_files(folder)
    parts: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for split, files in found.items():
        pictures = [decoded(file) for file, _ in files]
        sizes = {one.shape for one in pictures}
        if len(sizes) != 1:
            raise SaddlesError.about(
                f"{folder}, {split}: images of {len(sizes)} sizes came", "all have one size", "resize them first"
            )
        parts[split] = np.stack(pictures), np.array([label for _, label in files])
    return Images(folder.name, *parts["train"], *parts["test"], len(names))


def _hub(name: str) -> Images:
    """A data set of the hub with the splits train and test (or validation) and columns img/image and label."""
    try:
        from datasets import load_dataset  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise SaddlesError.about(f"hf:{name} came", "the package datasets loads it", "pip install datasets") from error
    found = hub_set(load_dataset, name)
    last = "test" if "test" in found else "validation"
    columns = found["train"].column_names
    picture = next((word for word in ("img", "image") if word in columns), None)
    label = next((word for word in ("label", "fine_label", "labels") if word in columns), None)
    if picture is None or label is None or last not in found:
        raise SaddlesError.about(
            f"hf:{name} has the columns {', '.join(columns)}", "an image and a label column are needed", "use another"
        )

    def read(part: Any) -> tuple[np.ndarray, np.ndarray]:
        pictures = [np.asarray(one.convert("RGB"), dtype=np.uint8) for one in part[picture]]
        return np.stack(pictures), np.asarray(part[label])

    train = read(found["train"])
    return Images(name, *train, *read(found[last]), int(train[1].max()) + 1)


def hub_set(load: Any, name: str, *more: Any) -> Any:
    """What the hub's library gives, or one sentence where it cannot."""
    try:
        return load(name, *more)
    except Exception as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise MissingDataError.about(
            f"hf:{name} could not be loaded ({why})", "it is fetched by that name", HOW
        ) from error
