import gzip
import json
import lzma

import numpy as np
import pytest

from saddles.errors import MissingDataError, SaddlesError
from saddles.transformers.text import load_text


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SADDLES_DATA", str(tmp_path))
    return tmp_path


def test_bytes_of_every_source(folder):
    (folder / "tinyshakespeare.txt").write_bytes(bytes(range(100)) * 10)
    (folder / "enwik8.xz").write_bytes(lzma.compress("é".encode() * 100))
    for part, text in (("train", "to be\n"), ("valid", "or not\n")):
        (folder / f"wikitext2_{part}.txt.gz").write_bytes(gzip.compress(text.encode()))
    play = load_text("shakespeare", units="bytes")
    assert (len(play.train), len(play.valid), play.vocabulary) == (900, 100, 256)
    np.testing.assert_array_equal(play.valid, range(100))
    dump = load_text("enwik8", units="bytes")
    assert (len(dump.train), len(dump.valid)) == (180, 10)
    assert bytes(load_text("wikitext2", units="bytes").valid.astype(np.uint8)) == b"or not\n"
    assert len(load_text("wikitext2", units="bytes", most=3).train) == 3
    assert len(load_text(str(folder / "tinyshakespeare.txt"), units="bytes").valid) == 100
    library = load_text("python", units="bytes", most=1000)
    assert (len(library.train), len(library.valid), library.name) == (1000, 1000, "python")


def test_blocks_leave_out_the_rest():
    text = load_text("made", units="bytes", seed=1)
    cut = text.blocks(100)
    assert cut.train.shape == (len(text.train) // 100, 100)
    np.testing.assert_array_equal(cut.train.ravel(), text.train[: cut.train.size])
    with pytest.raises(SaddlesError, match="is too short: a part of it has"):
        text.blocks(10**7)
    with pytest.raises(SaddlesError, match="at least 2 tokens, of which the last is guessed; got 1"):
        text.blocks(1)


def test_gpt2_tokens_by_its_two_files(folder):
    """A vocabulary of bytes and one merge: "ab" is one token, and nothing is lost between pieces."""
    letters = [chr(i) for i in range(33, 127)] + ["Ċ"]  # GPT-2 writes a line end as Ċ
    vocabulary = {letter: i for i, letter in enumerate(letters)} | {"ab": len(letters)}
    (folder / "gpt2_vocab.json").write_text(json.dumps(vocabulary))
    (folder / "gpt2_merges.txt").write_text("#version: 0.2\na b\n")
    source = folder / "mine.txt"
    source.write_text("ab\n" * 2999 + "ba" + "x" * 1000)
    tokens = load_text(str(source))
    words = {i: word for word, i in vocabulary.items()}
    assert tokens.train[:3].tolist() == [vocabulary["ab"], vocabulary["Ċ"], vocabulary["ab"]]
    back = "".join(words[int(i)] for i in np.concatenate([tokens.train, tokens.valid]))
    assert back.replace("Ċ", "\n") == source.read_text()
    assert tokens.vocabulary == 50_257
    source.write_text("")
    with pytest.raises(SaddlesError, match="a part of it has 0 tokens"):
        load_text(str(source)).blocks(8)


@pytest.mark.parametrize("source", ["wikitext2", "enwik8", "nothing.txt"])
def test_missing_text_says_how_to_get_it(folder, source):
    with pytest.raises(MissingDataError, match="SADDLES_DATA"):
        load_text(source, units="bytes")
    with pytest.raises(MissingDataError, match=r"gpt2_vocab\.json"):
        load_text("made")


def test_bad_text(folder):
    (folder / "wikitext2_train.txt.gz").write_bytes(gzip.compress(b"to be" * 99)[:20])
    with pytest.raises(SaddlesError, match=r"wikitext2_train\.txt\.gz cannot be read"):
        load_text("wikitext2", units="bytes")
    with pytest.raises(SaddlesError, match="`units` must be 'bpe' or 'bytes'"):
        load_text("made", units="words")
