"""The list of bugs fits the package as it is: every patch applies, once, and leaves valid Python."""

import ast
from pathlib import Path

import pytest
from mutations import MUTATIONS, ROOT

import saddles


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: f"{one.file}-{one.new[:24]}")
def test_every_bug_can_be_put_in(mutation):
    text = (Path(saddles.__file__).parent / mutation.file).read_text("utf-8")
    assert text.count(mutation.old) == 1
    assert ast.dump(ast.parse(text.replace(mutation.old, mutation.new))) != ast.dump(ast.parse(text))
    assert all((ROOT / part).exists() for part in mutation.tests.split())
