import json

import numpy as np
import pytest

from saddles.core.claim import check, read_claims, write_claims

WORDS = {"paper": "someone2024", "where": "equation (1)", "size": "laptop"}


@pytest.mark.parametrize(
    ("values", "relation", "threshold", "verdict", "worst"),
    [
        ([0.1, 0.3], "<=", 0.5, "holds", 0.3),
        ([0.1, 0.6], "<=", 0.5, "fails", 0.6),
        ([2.0, 3.0], ">=", 2.5, "fails", 2.0),
        (3.0, ">=", 2.5, "holds", 3.0),
        ([0.1, np.nan], "<=", 0.5, "fails", None),
        ([], "<=", 0.5, "fails", None),
    ],
)
def test_the_worst_seed_is_judged(values, relation, threshold, verdict, worst):
    claim = check("it is so", values=values, relation=relation, threshold=threshold, **WORDS)
    assert claim.verdict == verdict
    assert bool(claim.reason) == (verdict == "fails")
    if worst is not None:
        assert claim.value == worst


def test_asserted_only_at_its_sizes():
    claim = check("it is so", values=9.0, relation="<=", threshold=1.0, **WORDS | {"size": "tiny"})
    assert claim.verdict == "not_applicable"
    assert "tiny" in claim.reason


def test_a_broken_assumption_is_the_reason():
    claim = check("it is so", values=9.0, relation="<=", threshold=1.0, not_applicable="rank-deficient", **WORDS)
    assert (claim.verdict, claim.reason) == ("not_applicable", "rank-deficient")


def test_file_has_exactly_the_promised_keys(tmp_path):
    claims = [check("it is so", values=[1.0, 2.0], relation="<=", threshold=3.0, **WORDS)]
    write_claims([*claims, check("nan", values=[np.nan], relation="<=", threshold=3.0, **WORDS)], tmp_path / "c.json")
    rows = json.loads((tmp_path / "c.json").read_text())
    expected = "claim paper where value relation threshold spread seeds size verdict reason"
    assert list(rows[0]) == expected.split()
    assert rows[0]["spread"] == 1.0
    assert rows[1]["value"] is None
    assert read_claims(tmp_path / "c.json")[0] == claims[0]
