"""The list of bugs fits the package as it is: every patch applies, once, and leaves valid Python."""

import ast
import json
from pathlib import Path

import pytest
from mutations import MUTATIONS, RECORD, ROOT

import saddles
from saddles.core.experiment import registry


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: f"{one.file}-{one.new[:24]}")
def test_every_bug_can_be_put_in(mutation):
    text = (Path(saddles.__file__).parent / mutation.file).read_text("utf-8")
    assert text.count(mutation.old) == 1
    assert ast.dump(ast.parse(text.replace(mutation.old, mutation.new))) != ast.dump(ast.parse(text))
    assert all((ROOT / part).exists() for part in mutation.tests.split())


def test_the_record_of_claims_names_bugs_and_experiments_that_exist():
    rows = json.loads(RECORD.read_text("utf-8"))["records"]["claims"]["bugs"]
    assert {(row["file"], row["bug"]) for row in rows} <= {(one.file, one.new) for one in MUTATIONS}
    assert {place.split()[0] for row in rows for place in row["experiments"]} <= set(registry())
    assert all(row["shown"] in ("", None) or row["shown"].partition(":")[0] in registry() for row in rows)
