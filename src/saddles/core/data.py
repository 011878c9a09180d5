"""Where data sets are found: a folder given with `--data` or in SADDLES_DATA; two are always there (`embedded`)."""

import os
from pathlib import Path

from saddles.errors import MissingDataError, SaddlesError

SETS = {
    "cifar10": ("cifar-10-batches-bin", "cifar10_test.npz"),
    "cifar100": ("cifar-100-binary",),
    "imagenet": ("imagenet",),
    "wikitext2": ("wikitext2_train.txt.gz",),
    "enwik8": ("enwik8.xz",),
    "shakespeare": ("tinyshakespeare.txt",),
    "gpt2-vocabulary": ("gpt2_vocab.json",),
}
"""Data set -> files or folders, each of which shows that it is there."""


def use_data(folder: Path | None) -> None:
    """Look for data in this folder for the rest of the process; None leaves SADDLES_DATA as it is."""
    if folder is None:
        return
    if not folder.is_dir():
        raise SaddlesError(f"--data must be a folder that holds data sets; {folder} is not a folder.")
    os.environ["SADDLES_DATA"] = str(folder)


def find_data() -> dict[str, Path | None]:
    """The place of each known data set, or None."""
    folder = os.environ.get("SADDLES_DATA")
    if not folder:
        return dict.fromkeys(SETS)
    places = {name: [Path(folder) / file for file in files] for name, files in SETS.items()}
    return {name: next((place for place in row if place.exists()), None) for name, row in places.items()}


def require_data(names: tuple[str, ...]) -> None:
    """Refuse to start without these data sets."""
    places = find_data()
    missing = [name for name in names if places.get(name) is None]
    if missing:
        raise MissingDataError(
            f"The data set {', '.join(missing)} was not found. Set SADDLES_DATA or use --data FOLDER with "
            f"{' and '.join(map(_files, missing))} in it."
        )


def _files(name: str) -> str:
    return " or ".join(SETS.get(name, (name,)))
