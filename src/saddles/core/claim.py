"""A sentence of a paper as a check with a number."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from saddles.errors import SaddlesError
from saddles.protocols import ArrayLike
from saddles.runtime.files import write_json
from saddles.runtime.records import Types, check_types

Relation = Literal["<=", ">="]
Verdict = Literal["holds", "fails", "not_evidence", "not_applicable"]


@dataclass(frozen=True)
class Claim:
    """One claim and its verdict.

    `value` is the worst over the seeds, `spread` the largest minus the smallest, `seeds` how many independent runs
    there were. `null` is the same number of a null model (data permuted, weights untrained or drawn at random, a
    theory that is wrong on purpose): how far it is from the threshold says how much the claim shows; None where there
    is none. `against` says what the null is, or why there is none. `reason` explains a verdict other than `holds`: what
    failed, that the null passes too, or which assumption is broken at this size.
    """

    claim: str
    paper: str
    where: str
    value: float
    relation: Relation
    threshold: float
    spread: float
    seeds: int
    size: str
    verdict: Verdict
    reason: str = ""
    null: float | None = None
    against: str = ""


def check(
    claim: str,
    *,
    paper: str,
    where: str,
    values: ArrayLike,
    relation: Relation,
    threshold: float,
    size: str,
    sizes: Sequence[str] = ("laptop", "gpu", "paper"),
    not_applicable: str = "",
    null: ArrayLike | None = None,
    against: str = "",
) -> Claim:
    """Judge a claim from one number per seed.

    Args:
        values: a number, or an array with one for each seed; the worst one is judged.
        relation, threshold: the claim holds if worst `relation` threshold.
        size: the size that was run.
        sizes: sizes at which the claim is asserted, smallest first; elsewhere it is not applicable.
        not_applicable: why it is not, where an assumption of the paper is broken.
        null: the same numbers of a null model, judged by the same rule. Where they pass, a claim that would hold is
            not evidence. Infinities are fine (a null that gets nowhere); NaN never makes evidence.
        against: what the null is, in a few words; without a null, why there is none.
    """
    if relation not in get_args(Relation):
        raise SaddlesError.must_be("relation", "'<=' or '>='", relation)
    numbers = _numbers("values", values)
    worst = _worst(numbers, relation)
    control = None if null is None else _worst(_numbers("null", null), relation)
    with np.errstate(invalid="ignore"):  # all of them may be infinite
        spread = float(numbers.max() - numbers.min()) if numbers.size else 0.0
    verdict: Verdict = "fails"
    reason = ""
    if not_applicable:
        verdict, reason = "not_applicable", not_applicable
    elif size not in sizes:
        # Only the smallest is named: not every experiment has all of the larger ones.
        verdict, reason = "not_applicable", f"asserted from size {sizes[0]} on; {size} is too small to show it"
    elif not np.isfinite(numbers).all() or not numbers.size:
        reason = "a measured number is not finite"
    elif not _passes(worst, relation, threshold):
        bound = f"{'above the allowed' if relation == '<=' else 'below the required'} {threshold:.4g}"
        several = numbers.size > 1
        reason = f"the worst of {numbers.size} is {worst:.4g}, {bound}" if several else f"{worst:.4g} is {bound}"
    elif control is not None and (np.isnan(control) or _passes(control, relation, threshold)):
        verdict = "not_evidence"
        reason = "its null is not a number" if np.isnan(control) else f"its null passes: {control:.4g}"
    else:
        verdict = "holds"
    return Claim(
        claim, paper, where, worst, relation, float(threshold), spread, numbers.size, size, verdict, reason, control,
        against,
    )  # fmt: skip


def too_few(name: str, values: Sequence[float] | np.ndarray, least: int = 2) -> str:
    """Why a claim on how something changes along a setting is not applicable, or nothing where it is.

    Args:
        name: what they are, in the plural.
        values: those that the claim compares.
        least: how many different ones it needs.
    """
    count = len(set(np.asarray(values).tolist()))
    return "" if count >= least else f"it compares {least} or more {name}, and got {count}"


def _numbers(name: str, given: ArrayLike) -> np.ndarray:
    try:
        return np.atleast_1d(np.asarray(given, dtype=float)).ravel()
    except (TypeError, ValueError) as error:
        raise SaddlesError.must_be(name, "a number, or one for each seed", given) from error


def _worst(numbers: np.ndarray, relation: Relation) -> float:
    if not numbers.size:
        return float("nan")
    return float(numbers.max() if relation == "<=" else numbers.min())


def _passes(value: float, relation: Relation, threshold: float) -> bool:
    return value <= threshold if relation == "<=" else value >= threshold


def compared(value: float, relation: Relation, threshold: float) -> str:
    """The sign between value and threshold that is true: of a claim that fails it is not the claim's own."""
    if np.isnan(value) or np.isnan(threshold):
        return "?"
    own, other = {"<=": ("≤", ">"), ">=": ("≥", "<")}[relation]
    return own if _passes(value, relation, threshold) else other


def null_in_words(claim: Claim, digits: int = 4) -> str:
    """The null as a number, "not finite", or nothing where the claim has none.

    A file keeps an infinite null and one that is NaN alike. A claim that holds has the infinite one (the null gets
    nowhere), for `check` takes NaN for no evidence.
    """
    if claim.null is None:
        return ""
    return f"{claim.null:.{digits}g}" if np.isfinite(claim.null) else "not finite"


def as_row(claim: Claim) -> dict[str, object]:
    """A claim as `claims.json` has it: without the keys `null` and `against` where there are none."""
    empty = {"null": None, "against": ""}
    return {key: value for key, value in asdict(claim).items() if key not in empty or value != empty[key]}


def write_claims(claims: Sequence[Claim], file: Path) -> None:
    """Write `claims.json`: a list of objects, numbers that are not finite as null."""
    write_json(file, [_finite(as_row(claim)) for claim in claims])


def read_claims(file: Path) -> list[Claim]:
    """Read `claims.json` back."""
    hint = "Restore it from a copy, or compute the run again with --fresh"
    try:
        rows = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SaddlesError(f"{file} cannot be read as JSON. {hint}.") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SaddlesError(f"{file} must be a list of claims. {hint}.")
    empty: Any = float("nan")  # JSON has no such number: stored as null
    claims = []
    for row in rows:
        facts = {key: empty if value is None else value for key, value in row.items()}
        there = {key: kind for key, kind in _OPTIONAL.items() if key in facts}
        check_types(facts, {**_TYPES, **there}, str(file), hint)
        words = facts["relation"] in get_args(Relation) and facts["verdict"] in get_args(Verdict)
        if not words or set(facts) - set(Claim.__dataclass_fields__):
            raise SaddlesError(f"{file} has a claim that this version cannot read. {hint}.")
        claims.append(Claim(**facts))
    return claims


_TYPES: Types = {
    "claim": str, "paper": str, "where": str, "value": (int, float), "relation": str, "threshold": (int, float),
    "spread": (int, float), "seeds": int, "size": str, "verdict": str,
}  # fmt: skip
_OPTIONAL: Types = {"reason": str, "null": (int, float), "against": str}


def _finite(row: dict[str, object]) -> dict[str, object]:
    return {key: None if isinstance(value, float) and not np.isfinite(value) else value for key, value in row.items()}
