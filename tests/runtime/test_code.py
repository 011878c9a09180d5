"""The digest of a user's own code changes with what it computes, and with nothing else."""

import os
import subprocess
import sys

import pytest

from saddles.runtime.code import code_digest

CODE = """
import functools
import numpy as np
import helper
RATE = 2.0
WIDTHS = [1, 2]
NAMES = {"a", "b", "c"}
TABLE = np.arange(3)

class Model:
    scale = 1.0
    def start(self):
        return self.scale

def slope(x):
    return -RATE * x

@functools.cache
def kept(x):
    return x

def run(settings, context):
    model = Model()
    return slope(model.start()), kept(3), WIDTHS, NAMES, TABLE, helper.start(3), "x" in {"x", "y", "z"}

def unused():
    return 1
"""
HELPER = "def start(x):\n    return x + 1\n"


@pytest.fixture
def digest(tmp_path):
    def of(code, helper=HELPER, hashing="0"):
        (tmp_path / "helper.py").write_text(helper)
        last = "from saddles.runtime.code import code_digest; print(code_digest(functools.partial(run, 1)))"
        command = [sys.executable, "-B", "-c", f"exec({code!r})\n{last}"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True,
                              env={**os.environ, "PYTHONHASHSEED": hashing})  # fmt: skip
        return done.stdout

    return of


def test_only_edits_that_matter_change_it(digest):
    first = digest(CODE)
    same = [
        digest(CODE, hashing="1"),
        digest(CODE.replace("def slope(x):", "\n# a comment\ndef slope(x):  # another")),
        digest(CODE.replace("return 1\n", "return 2\n")),
    ]
    assert set(same) == {first}
    edits = [
        ("RATE = 2.0", "RATE = 3.0"), ("-RATE * x", "RATE * x"), ("scale = 1.0", "scale = 1.5"), ("[1, 2]", "[1, 3]"),
        ('"c"}', '"d"}'), ("arange(3)", "arange(4)"), ("kept(3)", "kept(4)"), ("    return x\n", "    return -x\n"),
        ("self.scale", "2 * self.scale"), ('"z"', '"w"'),
    ]  # fmt: skip
    assert all(old in CODE for old, _ in edits)
    edited = [digest(CODE.replace(*edit)) for edit in edits]
    edited.append(digest(CODE, HELPER.replace("+ 1", "+ 2")))
    assert len({first, *edited}) == len(edits) + 2


def test_what_nests_without_end_has_one():
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    loop: list[object] = []
    loop.append(loop)

    def run():
        return deep, loop

    assert code_digest(run) == code_digest(run)
