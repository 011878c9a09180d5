"""Regular expressions that an adapter's settings bring: PEFT looks ranks and alphas up by them.

Python's matcher goes through all ways to split a name among the parts of a pattern, and a few dozen letters are enough
for one that does not end. The ways are counted first, from above.
"""

import re
from collections.abc import Mapping

from saddles.errors import SaddlesError, shown

MOST_WAYS = 10**6
"""About a second for each name; names of modules and the patterns in use need a few hundred."""


def first_match(table: Mapping[str, object], module: str) -> object | None:
    """The value of the first pattern that matches the end of a module's name, as PEFT looks it up."""
    for pattern, value in table.items():
        if _ways(pattern, module) > MOST_WAYS:
            raise SaddlesError(f"The pattern {shown(pattern)} would take too long to match. Name the modules instead.")
        try:
            if re.match(rf"(.*\.)?({pattern})$", module):
                return value
        except (re.error, OverflowError, RecursionError) as error:
            raise SaddlesError(
                f"{shown(pattern)} is not a valid pattern of names ({error}). Save the adapter again."
            ) from error
    return None


def _ways(pattern: str, name: str) -> float:
    """At most so many ways to match: repeats share the letters out, groups choose one of their branches."""
    plain = re.sub(r"\\.|\[\^?\]?[^\]]*\]", "x", pattern, flags=re.DOTALL)
    if re.search(r"\)[*+?{]", plain):  # a repeat of a group may hold another
        return float("inf")
    ways = float(name.count(".") + 1)  # of the part before
    ways *= float(len(name) + 1) ** min(len(re.findall(r"[*+{]|(?<!\()\?", plain)), 50)
    branches = [1]
    for letter in plain:
        if letter == "(":
            branches.append(1)
        elif letter == "|":
            branches[-1] += 1
        elif letter == ")" and len(branches) > 1:
            ways *= branches.pop()
    for rest in branches:
        ways *= rest
    return ways
