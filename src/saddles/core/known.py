"""What is known of the shipped experiments without running them: papers, and the claims that a run judges.

`known.json` is written by `docs/collect.py` from the stored verdicts and the references.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("known.json")


@cache
def _known() -> dict[str, Any]:
    return json.loads(FILE.read_text("utf-8"))


def known_claims(experiment: str) -> list[dict[str, Any]]:
    """Claims of an experiment with where the paper makes them, the relation and the threshold; [] if none is stored."""
    return _known()["claims"].get(experiment, [])


def paper_title(key: str) -> str:
    """Authors, title, year and address of a paper, or its key alone."""
    return _known()["papers"].get(key, key)
