"""The list of long tests names tests that exist."""

import ast
from pathlib import Path

import pytest
from doc_pages import ROOT

LINES = (ROOT / "tests" / "long.txt").read_text().splitlines()[1:]


@pytest.mark.parametrize("file", sorted({line.partition("::")[0] for line in LINES}))
def test_a_long_test_exists(file):
    names = {node.name for node in ast.parse(Path(ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}
    listed = {line.partition("::")[2].partition("[")[0] for line in LINES if line.startswith(f"{file}::")}
    assert listed <= names


def test_lines_are_sorted_and_unique():
    assert sorted(set(LINES)) == LINES
