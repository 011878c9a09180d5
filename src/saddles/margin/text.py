"""Real text as tokens: word vectors from co-occurrence, and sequences of them.

Vectors: counts of the most frequent words within a window, positive pointwise mutual information, the leading
eigenvectors scaled by the roots of their (positive) eigenvalues, signs fixed so that the largest entry is positive. All
deterministic; nothing is trained or downloaded.
"""

import gzip
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from saddles.core.data import find_data, require_data
from saddles.core.embedded import python_text
from saddles.errors import SaddlesError
from saddles.margin.task import Tokens

WORD = re.compile(r"[a-z]+")


def read_words(name: str, most: int) -> list[str]:
    """The first words of a data set or of "python", in lower case, letters only (`<unk>` and markup fall away)."""
    if name == "python":
        return WORD.findall(python_text().decode("utf-8", errors="replace").lower())[:most]
    require_data((name,))
    place = find_data()[name]
    assert place is not None
    return words_of(Path(place), most)


def words_of(place: Path, most: int) -> list[str]:
    """The same of a plain or gzipped text file."""
    opening = gzip.open if place.suffix == ".gz" else open
    words: list[str] = []
    with opening(place, "rt", encoding="utf-8") as lines:
        for line in lines:
            words += WORD.findall(line.lower().replace("<unk>", " "))
            if len(words) >= most:
                break
    return words[:most]


@dataclass(frozen=True, eq=False)
class Embedding:
    """Word vectors of a text, and the text in numbers.

    `vectors` (word, coordinate) has rows of mean squared norm `coordinate`; `text` are word numbers, −1 for rare words.
    """

    words: list[str]
    vectors: np.ndarray
    text: np.ndarray


def embed(text: list[str], vocabulary: int, dim: int, window: int = 4) -> Embedding:
    """Vectors of the most frequent words of a text."""
    names, counts = np.unique(np.array(text), return_counts=True)
    # By frequency, and words of one frequency by the alphabet: the vocabulary does not depend on how a sort treats
    # ties.
    order = np.lexsort((names, -counts))[:vocabulary]
    if len(order) <= dim:
        raise SaddlesError(
            f"The text must have more than dim={dim} different words; it has {len(order)}. Give a longer text."
        )
    chosen = [str(name) for name in names[order]]
    number = {word: i for i, word in enumerate(chosen)}
    ids = np.array([number.get(word, -1) for word in text])
    values, vectors = np.linalg.eigh(_information(ids, len(chosen), window))
    values, vectors = values[::-1][:dim], vectors[:, ::-1][:, :dim]
    signs = np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])])
    scaled = vectors * signs * np.sqrt(np.maximum(values, 0.0))
    return Embedding(chosen, scaled * np.sqrt(dim / (scaled**2).sum(axis=1).mean()), ids)


def _information(ids: np.ndarray, size: int, window: int) -> np.ndarray:
    """Positive pointwise mutual information of words within the window."""
    counts = np.zeros((size, size))
    for shift in range(1, window + 1):
        a, b = ids[:-shift], ids[shift:]
        fine = (a >= 0) & (b >= 0)
        np.add.at(counts, (a[fine], b[fine]), 1.0)
    counts += counts.T
    rows = counts.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        information = np.log(counts * counts.sum() / (rows * rows.T))
    return np.where(np.isfinite(information), np.maximum(information, 0.0), 0.0)


def sequences(embedding: Embedding, n: int, length: int, seed: int) -> tuple[Tokens, np.ndarray]:
    """A task from `n` places of the text, and its word numbers (sequence, length + 1).

    A sequence is `length` different frequent words in a row, its query the word after them; its label says whether it
    lies in the first or the second half of the text, and the head is the difference of the mean vectors of the halves,
    scaled to a mean gap of `length` ln n between the best and the other scores (what Assumption 3 wants of equal
    scores).
    """
    draw, half = np.random.default_rng([seed, 64]), len(embedding.text) // 2
    parts = [embedding.text[:half], embedding.text[half:]]
    head = np.subtract(*(embedding.vectors[part[part >= 0]].mean(axis=0) for part in parts))
    rows, labels = [], []
    for start in draw.permutation(len(embedding.text) - length):
        ids = embedding.text[start : start + length + 1]
        if (ids >= 0).all() and len(set(ids.tolist())) == length + 1:
            rows.append(ids)
            labels.append(1.0 if start < half else -1.0)
        if len(rows) == n:
            break
    else:
        raise SaddlesError(
            f"The text must have {n} runs of {length + 1} different frequent words; it has {len(rows)}. Give a longer "
            "text, or shorter sequences."
        )
    ids, y = np.array(rows), np.array(labels)
    scores = np.sort(y[:, None] * (embedding.vectors[ids[:, :length]] @ head), axis=1)
    gap = (scores[:, -1] - scores[:, :-1].mean(axis=1)).mean()
    scale = (length * np.log(n) if n > 1 else 1.0) / gap if gap > 0 else 1.0
    return Tokens(embedding.vectors[ids[:, :length]], embedding.vectors[ids[:, length]], y, head * scale), ids
