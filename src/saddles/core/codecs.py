"""What a Zarr store may ask its reader to run: only codecs that turn bytes into numbers and text, never a pickle."""

import json
from collections.abc import Iterator
from pathlib import Path

from saddles.errors import SaddlesError

HARMLESS = {
    "adler32", "astype", "base64", "bitround", "blosc", "bytes", "bz2", "crc32", "crc32c", "delta", "endian",
    "fixedscaleoffset",
    "fletcher32", "gzip", "json2", "lz4", "lzma", "packbits", "quantize", "sharding_indexed", "shuffle", "transpose",
    "vlen-array", "vlen-bytes", "vlen-utf8", "zlib", "zstd",
}  # fmt: skip
METADATA = (".zarray", ".zmetadata", "zarr.json")


def check_codecs(store: Path) -> None:
    """Refuse a Zarr folder that names any other codec: numcodecs would run what a pickle says."""
    for file in sorted(path for name in METADATA for path in store.rglob(name)):
        try:
            facts = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise SaddlesError(f"{file} cannot be read as part of a stored trajectory ({error}).") from error
        for name in _codecs(facts):
            if name.removeprefix("numcodecs.") not in HARMLESS:
                raise SaddlesError(
                    f"{store} asks for the codec {name!r}, which could run code, and is not read. "
                    "Store the data again with saddles.save."
                )


def _codecs(facts: object) -> Iterator[str]:
    """Names under `compressor`, `filters` and `codecs`, at any depth."""
    if isinstance(facts, list):
        for part in facts:
            yield from _codecs(part)
    elif isinstance(facts, dict):
        for key, value in facts.items():
            if key in ("compressor", "filters", "codecs", "index_codecs"):
                yield from _named(value)
            if key != "attributes" and not key.endswith(".zattrs"):
                yield from _codecs(value)


def _named(value: object) -> Iterator[str]:
    for part in value if isinstance(value, list) else [value]:
        if isinstance(part, dict):
            yield str(part.get("id", part.get("name", "")))
