"""A sentence of a paper as a check with a number."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from saddles.errors import SaddlesError
from saddles.protocols import ArrayLike
from saddles.runtime.files import write_json

Relation = Literal["<=", ">="]
Verdict = Literal["holds", "fails", "not_applicable"]


@dataclass(frozen=True)
class Claim:
    """One claim and its verdict.

    `value` is the worst over the seeds, `spread` the largest minus the smallest, `seeds` how many independent runs
    there were. `reason` explains a verdict other than `holds`: what failed, or which assumption is broken at this
    size.
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
) -> Claim:
    """Judge a claim from one number per seed.

    Args:
        values: a number, or an array with one for each seed; the worst one is judged.
        relation, threshold: the claim holds if worst `relation` threshold.
        size: the size that was run.
        sizes: sizes at which the claim is asserted; elsewhere it is not applicable.
        not_applicable: why it is not, where an assumption of the paper is broken.
    """
    numbers = np.atleast_1d(np.asarray(values, dtype=float)).ravel()
    worst = float(numbers.max() if relation == "<=" else numbers.min()) if numbers.size else float("nan")
    with np.errstate(invalid="ignore"):  # all of them may be infinite
        spread = float(numbers.max() - numbers.min()) if numbers.size else 0.0
    verdict: Verdict = "fails"
    reason = ""
    if not_applicable:
        verdict, reason = "not_applicable", not_applicable
    elif size not in sizes:
        verdict, reason = "not_applicable", f"asserted at size {', '.join(sizes)}; {size} is too small to show it"
    elif not np.isfinite(numbers).all() or not numbers.size:
        reason = "a measured number is not finite"
    elif worst <= threshold if relation == "<=" else worst >= threshold:
        verdict = "holds"
    else:
        reason = f"the worst of {numbers.size} is {worst:.4g}, not {relation} {threshold:.4g}"
    return Claim(
        claim, paper, where, worst, relation, float(threshold), spread, int(numbers.size), size, verdict, reason
    )


def write_claims(claims: Sequence[Claim], file: Path) -> None:
    """Write `claims.json`: a list of objects, numbers that are not finite as null."""
    write_json(file, [_finite(asdict(claim)) for claim in claims])


def read_claims(file: Path) -> list[Claim]:
    """Read `claims.json` back."""
    empty: Any = float("nan")  # JSON has no such number: stored as null
    try:
        rows: list[dict[str, Any]] = json.loads(file.read_text("utf-8"))
        if not isinstance(rows, list):
            raise TypeError
        claims = [Claim(**{key: empty if value is None else value for key, value in row.items()}) for row in rows]
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise SaddlesError(f"{file} cannot be read as a list of claims. Compute the run again with --fresh.") from error
    for claim in claims:
        _refuse_wrong_types(claim, file)
    return claims


def _refuse_wrong_types(claim: Claim, file: Path) -> None:
    kinds = {"float": (int, float), "int": (int,), "str": (str,)}
    for item in fields(claim):
        value, kind = getattr(claim, item.name), kinds.get(getattr(item.type, "__name__", ""))
        choices = get_args(item.type)
        if (value not in choices) if choices else (kind is not None and not isinstance(value, kind)):
            raise SaddlesError.must_be(f"{item.name}` in `{file}", "what a claim has there", value)


def _finite(row: dict[str, object]) -> dict[str, object]:
    return {key: None if isinstance(value, float) and not np.isfinite(value) else value for key, value in row.items()}
