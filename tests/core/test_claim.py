import json

import numpy as np
import pytest

from saddles.core.claim import check, compared, null_in_words, read_claims, too_few, write_claims

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


@pytest.mark.parametrize(
    ("values", "relation", "words"),
    [
        (0.67, ">=", "0.67 is below the required 0.75"),
        ([0.9, 0.67], ">=", "the worst of 2 is 0.67, below the required 0.75"),
        (0.8, "<=", "0.8 is above the allowed 0.75"),
        ([0.1, 0.8, 0.2], "<=", "the worst of 3 is 0.8, above the allowed 0.75"),
    ],
)
def test_the_reason_of_a_failure_is_a_plain_sentence(values, relation, words):
    assert check("it is so", values=values, relation=relation, threshold=0.75, **WORDS).reason == words


def test_asserted_only_at_its_sizes():
    claim = check("it is so", values=9.0, relation="<=", threshold=1.0, **WORDS | {"size": "tiny"})
    assert claim.verdict == "not_applicable"
    assert "tiny" in claim.reason


def test_a_broken_assumption_is_the_reason():
    claim = check("it is so", values=9.0, relation="<=", threshold=1.0, not_applicable="rank-deficient", **WORDS)
    assert (claim.verdict, claim.reason) == ("not_applicable", "rank-deficient")


def test_too_few_values_are_the_reason():
    assert too_few("`starts`", np.array([0.1, 0.2])) == ""
    assert too_few("`starts`", [0.1, 0.1]) == "it compares 2 or more `starts`, and got 1"


def test_file_has_exactly_the_promised_keys(tmp_path):
    claims = [check("it is so", values=[1.0, 2.0], relation="<=", threshold=3.0, **WORDS)]
    write_claims([*claims, check("nan", values=[np.nan], relation="<=", threshold=3.0, **WORDS)], tmp_path / "c.json")
    rows = json.loads((tmp_path / "c.json").read_text())
    expected = "claim paper where value relation threshold spread seeds size verdict reason"
    assert list(rows[0]) == expected.split()
    assert rows[0]["spread"] == 1.0
    assert rows[1]["value"] is None
    assert read_claims(tmp_path / "c.json")[0] == claims[0]


@pytest.mark.parametrize(
    ("values", "null", "verdict", "stored"),
    [
        ([0.1, 0.3], [0.2, 0.9], "holds", 0.9),
        ([0.1, 0.3], [0.2, 0.4], "not_evidence", 0.4),
        (0.1, np.inf, "holds", np.inf),
        (0.1, [0.9, np.nan], "not_evidence", np.nan),
        (0.6, 0.1, "fails", 0.1),
        (0.1, None, "holds", None),
    ],
)
def test_a_claim_whose_null_passes_is_not_evidence(values, null, verdict, stored):
    claim = check("it is so", values=values, null=null, relation="<=", threshold=0.5, **WORDS)
    assert claim.verdict == verdict
    assert claim.null == pytest.approx(stored, nan_ok=True)
    assert ("null" in claim.reason) == (verdict == "not_evidence")
    share = check("most of them", values=1.0, null=[0.5, 1.0], relation=">=", threshold=0.9, **WORDS)
    assert (share.verdict, share.null) == ("holds", 0.5)


def test_a_null_survives_the_file_and_old_files_have_none(tmp_path):
    claims = [
        check("it is so", values=[1.0, 2.0], null=4.0, relation="<=", threshold=3.0, **WORDS),
        check("without one", values=[1.0, 2.0], relation="<=", threshold=3.0, **WORDS),
        check("gets nowhere", values=[1.0, 2.0], null=np.inf, relation="<=", threshold=3.0, **WORDS),
    ]
    write_claims(claims, tmp_path / "c.json")
    rows = json.loads((tmp_path / "c.json").read_text())
    assert ["null" in row for row in rows] == [True, False, True]
    again = read_claims(tmp_path / "c.json")
    assert again[:2] == claims[:2]
    assert again[2].null is not None
    assert np.isnan(again[2].null)
    assert list(map(null_in_words, claims)) == list(map(null_in_words, again)) == ["4", "", "not finite"]


@pytest.mark.parametrize(
    ("value", "relation", "threshold", "sign"),
    [
        (1.0, "<=", 1.0, "≤"),
        (1000.0, "<=", 1.0, ">"),
        (0.4, ">=", 0.5, "<"),
        (2.0, ">=", 1.0, "≥"),
        (np.nan, "<=", 1, "?"),
    ],
)
def test_a_false_relation_is_never_shown_as_true(value, relation, threshold, sign):
    assert compared(value, relation, threshold) == sign
