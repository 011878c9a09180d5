"""Where data come from: the data folder, files that may be damaged, the Hugging Face hub.

Nothing is downloaded unless a data set is named with `hf:`.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from saddles.errors import MissingDataError, SaddlesError

T = TypeVar("T")

HOW = "Set SADDLES_DATA or --data to the folder that holds it"


def data_folder(name: str, otherwise: str) -> Path:
    """The folder of data sets; `otherwise` says what could be used instead of the data set of this name."""
    place = os.environ.get("SADDLES_DATA")
    if not place:
        raise MissingDataError(f"No data folder is set, and {name} was looked for there. {HOW}, or {otherwise}.")
    return Path(place)


def read(file: Path, opened: Callable[[], T], otherwise: str) -> T:
    """What `opened` reads, or one sentence where the file is missing or damaged."""
    try:
        return opened()
    except FileNotFoundError as error:
        raise MissingDataError(f"{file.name} was not found in {file.parent}. {HOW}, or {otherwise}.") from error
    except Exception as error:  # a damaged file breaks its reader in many ways
        raise damaged(file, (str(error).splitlines() or [type(error).__name__])[0]) from error


def damaged(file: Path, why: str) -> SaddlesError:
    """The error for a file that is there and not whole."""
    return SaddlesError(f"{file.name} cannot be read ({why}). It may be incomplete: fetch it again.")


def digest_of(*arrays: np.ndarray) -> str:
    """Sixteen characters that stand for the values, types and shapes of some arrays."""
    whole = hashlib.blake2b(digest_size=8)
    for array in arrays:
        whole.update(f"{array.dtype.str} {array.shape}".encode())
        whole.update(np.ascontiguousarray(array).data)
    return whole.hexdigest()


@runtime_checkable
class Part(Protocol):
    """One part of a data set, such as train: rows by number, columns by name."""

    column_names: list[str]

    def __getitem__(self, key: int | str, /) -> Any:  # a row or a column of whatever the data set holds
        ...


def load_hub(
    name: str, columns: Sequence[Sequence[str]], tests: Sequence[str], configuration: str = ""
) -> tuple[Part, Part, list[str]]:
    """Fetch a data set: its training part, its test part, and the names of the columns that are needed.

    Args:
        columns: for each needed column the names that it may have, in the order of preference.
        tests: names that the test part may have, in the order of preference.
        configuration: of the data set, where it has several.
    """
    try:
        from datasets import load_dataset  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise SaddlesError(f"hf:{name} needs the package datasets: pip install datasets.") from error
    try:
        parts = load_dataset(name, *([configuration] if configuration else []))
    except Exception as error:  # the library raises errors of many kinds: network, names, formats
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise MissingDataError(
            f"hf:{name} could not be loaded ({why}). Check the name and the network, or use a local folder or file."
        ) from error
    last = next((part for part in tests if part in parts), None)
    if "train" not in parts or last is None:
        raise SaddlesError(f"hf:{name} must have the parts train and {' or '.join(tests)}; it has {', '.join(parts)}.")
    known = parts["train"].column_names
    names = [next((word for word in words if word in known), None) for words in columns]
    chosen = [column for column in names if column is not None]
    if len(chosen) < len(names):
        wanted = ", ".join(" or ".join(words) for words in columns)
        raise SaddlesError(f"hf:{name} must have the columns {wanted}; it has {', '.join(known)}.")
    return parts["train"], parts[last], chosen
