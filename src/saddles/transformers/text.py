"""Text to train on, as tokens of the GPT-2 vocabulary or as bytes.

Nothing is downloaded unless a data set is named with `hf:`.
"""

import gzip
import lzma
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from saddles.core.embedded import python_text
from saddles.errors import MissingDataError, SaddlesError
from saddles.transformers.sources import HOW, data_folder, load_hub, read

INSTEAD = "give the path of a text file"

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
        if length < 2:
            raise SaddlesError(f"A block must have at least 2 tokens, of which the last is guessed; got {length}.")

        def cut(tokens: np.ndarray) -> np.ndarray:
            rows = len(tokens) // length
            if not rows:
                raise SaddlesError(
                    f"{self.name} is too short: a part of it has {len(tokens)} tokens, and a block takes {length}. Use "
                    "more text, or shorter blocks."
                )
            return tokens[: rows * length].reshape(rows, length)

        return Text(self.name, cut(self.train), cut(self.valid), self.vocabulary)


def load_text(source: str, *, units: str = "bpe", seed: int = 0, most: int | None = None) -> Text:
    """Find text.

    Args:
        source: "python" (the sources of the standard library), "wikitext2", "shakespeare", "enwik8" (in the data
            folder), "made" (synthetic), a text file (its last tenth validates, as of "python"), or "hf:NAME" for a
            data set of the hub with a column `text`, which downloads it.
        units: "bpe" for the 50,257 tokens of GPT-2 (its two files in the data folder), "bytes" for 256.
        seed: of synthetic text.
        most: bytes to use of each part; None uses all.
    """
    if units not in ("bpe", "bytes"):
        raise SaddlesError.must_be("units", "'bpe' or 'bytes'", units)
    encode = _encoder() if units == "bpe" else _as_bytes
    train, valid = (encode(part[:most]) for part in _parts(source, seed))
    return Text(source, train, valid, END + 1 if units == "bpe" else 256)


def _parts(source: str, seed: int) -> tuple[bytes, bytes]:
    if source == "made":
        return _tenth(made(seed).encode())
    if source == "python":
        return _tenth(python_text())
    if source.startswith("hf:"):
        return _hub(source.removeprefix("hf:"))
    if source in ("wikitext2", "shakespeare", "enwik8"):
        folder = data_folder(source, INSTEAD)
        if source == "wikitext2":
            return _open(folder / "wikitext2_train.txt.gz"), _open(folder / "wikitext2_valid.txt.gz")
        whole = _open(folder / ("tinyshakespeare.txt" if source == "shakespeare" else "enwik8.xz"))
        if source == "enwik8":
            return whole[: int(0.9 * len(whole))], whole[int(0.9 * len(whole)) : int(0.95 * len(whole))]
        return _tenth(whole)
    if Path(source).is_file():
        return _tenth(_open(Path(source)))
    raise MissingDataError(f"There is no data set or text file {source!r}. {HOW}, or {INSTEAD}.")


def _tenth(whole: bytes) -> tuple[bytes, bytes]:
    at = int(0.9 * len(whole))
    return whole[:at], whole[at:]


def _open(file: Path) -> bytes:
    def opened() -> bytes:
        with {".gz": gzip.open, ".xz": lzma.open}.get(file.suffix, open)(file, "rb") as stream:
            return stream.read()

    return read(file, opened, INSTEAD)


def _as_bytes(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8).astype(np.int64)


def _encoder() -> Callable[[bytes], np.ndarray]:
    folder = data_folder("the GPT-2 vocabulary (gpt2_vocab.json and gpt2_merges.txt)", "use units='bytes'")
    files = [folder / name for name in ("gpt2_vocab.json", "gpt2_merges.txt")]
    if not all(file.exists() for file in files):
        raise MissingDataError(
            f"The GPT-2 vocabulary (gpt2_vocab.json and gpt2_merges.txt) was not found in {folder}. {HOW}, "
            "or use units='bytes'."
        )
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer(*(str(file) for file in files))

    def encode(text: bytes) -> np.ndarray:
        # Pieces of 1,000 lines are encoded in parallel; at a border only a token of several line ends can be cut.
        lines = re.findall(r"[^\n]*\n|[^\n]+", text.decode("utf-8", errors="replace"))
        pieces = ["".join(lines[at : at + 1000]) for at in range(0, len(lines), 1000)]
        return np.concatenate(
            [np.zeros(0, np.int64), *(np.asarray(one.ids, dtype=np.int64) for one in tokenizer.encode_batch(pieces))]
        )

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
    path, _, configuration = name.partition(":")
    train, valid, (text,) = load_hub(path, (("text",),), ("validation",), configuration)
    return "".join(train[text]).encode(), "".join(valid[text]).encode()
