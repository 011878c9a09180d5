"""Text to train on, as tokens of the GPT-2 vocabulary or as bytes.

Nothing is downloaded unless a data set is asked for by name (`hf:NAME`).
"""

import gzip
import lzma
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from saddles.errors import MissingDataError, SaddlesError
from saddles.transformers.images import hub_set

HOW = "set SADDLES_DATA or --data to the folder that holds it, or give the path of a text file"

END = 50_256
"""GPT-2's end-of-text token."""


@dataclass(frozen=True, eq=False)
class Text:
    """Tokens for training and for validation, and how many different ones there may be."""

    name: str
    train: np.ndarray
    valid: np.ndarray
    vocabulary: int

    def blocks(self, length: int) -> "Text":
        """The same cut into rows of equal length; what does not fill a row is left out."""

        def cut(tokens: np.ndarray) -> np.ndarray:
            rows = len(tokens) // length
            if not rows:
                raise SaddlesError.about(
                    f"{self.name} has {len(tokens)} tokens in a part",
                    f"blocks of {length} are cut",
                    "use shorter blocks",
                )
            return tokens[: rows * length].reshape(rows, length)

        return Text(self.name, cut(self.train), cut(self.valid), self.vocabulary)


def load_text(source: str, *, units: str = "bpe", seed: int = 0, most: int | None = None) -> Text:
    """Find text.

    Args:
        source: "wikitext2", "shakespeare", "enwik8" (in the data folder), "made" (written here), a text file (its
            last tenth validates), or "hf:NAME" for a data set of the hub with a column `text`, which downloads it.
        units: "bpe" for the 50,257 tokens of GPT-2 (its two files in the data folder), "bytes" for 256.
        seed: of made text.
        most: bytes that are used of each part; None uses all.
    """
    if units not in ("bpe", "bytes"):
        raise SaddlesError.about(f"units={units!r} came", "bpe and bytes are known", "use one of them")
    encode = _encoder() if units == "bpe" else _as_bytes
    train, valid = (encode(part[:most]) for part in _parts(source, seed))
    return Text(source, train, valid, END + 1 if units == "bpe" else 256)


def _parts(source: str, seed: int) -> tuple[bytes, bytes]:
    if source == "made":
        return _tenth(made(seed).encode())
    if source.startswith("hf:"):
        return _hub(source.removeprefix("hf:"))
    if source in ("wikitext2", "shakespeare", "enwik8"):
        place = os.environ.get("SADDLES_DATA")
        if not place:
            raise MissingDataError.about(f"no folder for {source} was given", "SADDLES_DATA names it", HOW)
        folder = Path(place)
        if source == "wikitext2":
            return _open(folder / "wikitext2_train.txt.gz"), _open(folder / "wikitext2_valid.txt.gz")
        whole = _open(folder / ("tinyshakespeare.txt" if source == "shakespeare" else "enwik8.xz"))
        if source == "enwik8":
            return whole[: int(0.9 * len(whole))], whole[int(0.9 * len(whole)) : int(0.95 * len(whole))]
        return _tenth(whole)
    if Path(source).is_file():
        return _tenth(_open(Path(source)))
    raise MissingDataError.about(f"the text {source!r} came", "there is no such data set or file", HOW)


def _tenth(whole: bytes) -> tuple[bytes, bytes]:
    at = int(0.9 * len(whole))
    return whole[:at], whole[at:]


def _open(file: Path) -> bytes:
    openers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
    try:
        with openers.get(file.suffix, open)(file, "rb") as stream:
            return stream.read()
    except FileNotFoundError as error:
        raise MissingDataError.about(f"no {file.name} was found", "it is the data set", HOW) from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise SaddlesError.about(
            f"{file.name} cannot be read ({error})", "a whole file is needed", "fetch it again"
        ) from error


def _as_bytes(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8).astype(np.int64)


def _encoder() -> Any:
    place = os.environ.get("SADDLES_DATA")
    files = [Path(place or ".") / name for name in ("gpt2_vocab.json", "gpt2_merges.txt")]
    if not place or not all(file.exists() for file in files):
        raise MissingDataError.about(
            "no GPT-2 vocabulary was found",
            "gpt2_vocab.json and gpt2_merges.txt are needed",
            "put them into SADDLES_DATA",
        )
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer(*(str(file) for file in files))

    def encode(text: bytes) -> np.ndarray:
        lines = re.findall(r"[^\n]*\n|[^\n]+", text.decode("utf-8", errors="replace"))
        pieces = ["".join(lines[at : at + 1000]) for at in range(0, len(lines), 1000)]
        return np.concatenate([np.asarray(one.ids, dtype=np.int64) for one in tokenizer.encode_batch(pieces)])

    return encode


def made(seed: int = 0, words: int = 12_000) -> str:
    """Sentences from a small random grammar: a subject, a verb that depends on it, an object that depends on both."""
    draw = np.random.default_rng([seed, 72])
    nouns = ["the saddle", "a wave", "this model", "the rank", "one head", "a token", "the loss", "some weight"]
    verbs = ["learns", "follows", "finds", "leaves", "keeps", "meets", "lifts", "shows"]
    lines = []
    for _ in range(words // 5):
        first = int(draw.integers(8))
        verb = (first + int(draw.integers(2))) % 8
        last = (first + 2 * verb + int(draw.integers(2))) % 8
        lines.append(f"{nouns[first]} {verbs[verb]} {nouns[last]}.\n")
    return "".join(lines)


def _hub(name: str) -> tuple[bytes, bytes]:
    try:
        from datasets import load_dataset  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise SaddlesError.about(f"hf:{name} came", "the package datasets loads it", "pip install datasets") from error
    path, _, part = name.partition(":")
    found = hub_set(load_dataset, path, *([part] if part else []))
    if not {"train", "validation"} <= set(found) or "text" not in found["train"].column_names:
        raise SaddlesError.about(
            f"hf:{name} has the parts {', '.join(found)}",
            "train and validation with a column text are needed",
            "use another",
        )
    train, valid = ("".join(found[split]["text"]).encode() for split in ("train", "validation"))
    return train, valid
