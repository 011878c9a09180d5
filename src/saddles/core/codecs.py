"""What a Zarr store may ask its reader to run: only codecs that turn bytes into numbers and text, never a pickle.

The arrays are judged as they are opened, from consolidated metadata where there is any: what the arrays say of
themselves can differ from it.
"""

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from saddles.errors import SaddlesError, shown

if TYPE_CHECKING:
    import zarr

HARMLESS = {
    "adler32", "astype", "base64", "bitround", "blosc", "bytes", "bz2", "crc32", "crc32c", "delta", "endian",
    "fixedscaleoffset",
    "fletcher32", "gzip", "json2", "lz4", "lzma", "packbits", "quantize", "sharding_indexed", "shuffle", "transpose",
    "vlen-array", "vlen-bytes", "vlen-utf8", "zlib", "zstd",
}  # fmt: skip

MOST_CHUNKS = 10**6
"""Of one array: as many as a sweep may have cells. A few bytes can ask for 10¹⁸, each of which is looked for."""

SAFE_NUMCODECS = (0, 16, 6)
"""From this version on, numcodecs itself refuses to open a pickle: a second guard behind this one."""


def check_store(store: Path) -> bool:
    """Refuse a Zarr folder with any other codec: numcodecs would run what a pickle says.

    Returns whether it has consolidated metadata, as which it was judged and is to be opened.
    """
    import zarr

    from saddles.core.checked import CheckedStore

    _check_numcodecs()
    group = zarr.open_group(CheckedStore(store), mode="r")
    check_arrays(group, store)
    return group.metadata.consolidated_metadata is not None


def check_arrays(group: "zarr.Group", store: Path) -> None:
    """Judge every array of a group that was opened."""
    import zarr

    for name, array in group.members(max_depth=None):
        if isinstance(array, zarr.Array) and array.nchunks > MOST_CHUNKS:
            raise SaddlesError(f"{store} cuts {shown(name)} into {array.nchunks:,} pieces, far too many to read.")
        facts = array.metadata.to_dict()
        facts.pop("attributes", None)
        facts.pop("consolidated_metadata", None)  # of a group
        for codec in _codecs(facts):
            if codec.removeprefix("numcodecs.") not in HARMLESS:
                raise SaddlesError(
                    f"{store} asks for the codec {codec!r} in {name}, which could run code, and is not read. "
                    "Store the data again with saddles.save."
                )


def _check_numcodecs() -> None:
    found = importlib.metadata.version("numcodecs")
    if tuple(int(part) for part in found.split(".")[:3] if part.isdecimal()) < SAFE_NUMCODECS:
        needed = ".".join(map(str, SAFE_NUMCODECS))
        raise SaddlesError(
            f"numcodecs {found} opens pickles, which is not safe for files of others. Install {needed} or newer: "
            f"pip install 'numcodecs>={needed}'."
        )


def _codecs(facts: object) -> Iterator[str]:
    """Names under `compressor`, `filters` and `codecs`, at any depth of an array's metadata."""
    if isinstance(facts, list | tuple):
        for part in facts:
            yield from _codecs(part)
    elif isinstance(facts, dict):
        for key, value in facts.items():
            if key in ("compressor", "filters", "codecs", "index_codecs"):
                yield from _named(value)
            yield from _codecs(value)


def _named(value: object) -> Iterator[str]:
    for part in value if isinstance(value, list | tuple) else [value]:
        if isinstance(part, dict):
            yield str(part.get("id", part.get("name", "")))
