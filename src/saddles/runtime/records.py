"""JSON objects on disk: written with a digest of their own, and read with the types of their values checked."""

import json
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saddles.errors import SaddlesError, shown
from saddles.runtime.checksums import digest
from saddles.runtime.files import write_json

CHECK = "check"
"""Key that holds the digest of all others."""

Types = Mapping[str, type | tuple[type, ...]]
"""Keys that must be there, and what each must be."""

MOST_BYTES = 2**28
"""A record is far smaller; a larger file is not one."""


def with_check(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with a digest of its own."""
    plain = json.loads(json.dumps({key: value for key, value in facts.items() if key != CHECK}))
    return {**plain, CHECK: digest(json.dumps(plain, sort_keys=True).encode())}


def write_record(file: Path, facts: Mapping[str, Any], *, durable: bool = False) -> None:
    """Write a JSON object with its digest, all or nothing."""
    write_json(file, with_check(facts), durable=durable)


def read_record(file: Path, types: Types, hint: str) -> dict[str, Any]:
    """Read a JSON object; `hint` says what to do where it is damaged or is something else.

    Raises:
        FileNotFoundError, NotADirectoryError: there is none.
    """
    try:
        state = file.stat()
        if not stat.S_ISREG(state.st_mode):  # reading a pipe may never end
            raise SaddlesError(f"{file} is not a file. {hint}.")
        if state.st_size > MOST_BYTES:
            raise SaddlesError(f"{file} is too large to be a record of a run. {hint}.")
        return parse_record(file.read_bytes(), str(file), types, hint)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise SaddlesError(f"{file} cannot be read ({error.strerror}). {hint}.") from error


def parse_record(data: bytes, place: str, types: Types, hint: str) -> dict[str, Any]:
    """The same from bytes; `place` names them. An object without a digest is older, and passes."""
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SaddlesError(f"{place} cannot be read as JSON. {hint}.") from error
    if not isinstance(facts, dict):
        raise SaddlesError(f"{place} must be a JSON object; got {shown(facts)}. {hint}.")
    # The digest comes last. Where its key is damaged, the record must not pass for an older one without a digest.
    last = next(reversed(facts.values()), None)
    lost = CHECK not in facts and isinstance(last, str) and re.fullmatch("[0-9a-f]{16}", last)
    if lost or (CHECK in facts and with_check(facts)[CHECK] != facts[CHECK]):
        raise SaddlesError(f"{place} is damaged: it differs from its checksum. {hint}.")
    check_types(facts, types, place, hint)
    return facts


def check_types(facts: Mapping[str, Any], types: Types, place: str, hint: str) -> None:
    """Refuse an object that lacks a key, or has something else there."""
    for key, kind in types.items():
        value = facts.get(key)
        wrong_truth = isinstance(value, bool) and kind is not bool  # in Python, True is a whole number
        if key not in facts or wrong_truth or not isinstance(value, kind):
            got = shown(value) if key in facts else "nothing"
            raise SaddlesError(f"`{key}` in {place} must be {_words(kind)}; got {got}. {hint}.")


_NAMES = {
    str: "text", int: "a whole number", float: "a number", dict: "an object", list: "a list", bool: "true or false",
    type(None): "null",
}  # fmt: skip


def _words(kind: type | tuple[type, ...]) -> str:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return " or ".join(_NAMES[one] for one in kinds if not (one is int and float in kinds))
