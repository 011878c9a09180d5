"""`python fuzz_constructors.py COUNT SEED`: constructors of all labs under random arguments.

Outside pytest, where types are not checked at run time: a user has no such check either. Prints what was raised that is
not a SaddlesError, and how many calls were made, refused and accepted.
"""

import inspect
import random
import sys
import warnings
from collections import Counter

import numpy as np

import saddles
from saddles.errors import SaddlesError

LABS = ("linear", "diagonal", "concepts", "margin")
ODD = [
    0, 1, 2, 3, 5, -1, 10**6, 2**63, 10**30, 0.0, 0.5, -0.5, 1e-300, 1e300, float("nan"), float("inf"), True, False,
    None, "", "x", "nan", "mean", (), [], (1,), [1.0, 2.0], (3, 4), [float("nan")], ["a"], {}, {"a": 1}, b"x", 1j,
    np.zeros(0), np.ones(3), np.eye(3), np.full((2, 2), np.nan), np.ones((2, 3, 4)), np.array("x"), np.array([1, 2]),
    object,
]  # fmt: skip


def constructors():
    """Public classes of the labs that a user makes by calling them."""
    for lab in LABS:
        room = getattr(saddles, lab)
        for name in room.__all__:
            kind = getattr(room, name)
            if inspect.isclass(kind) and not inspect.isabstract(kind) and not getattr(kind, "_is_protocol", False):
                yield f"{lab}.{name}", kind


def main():
    count, draw = int(sys.argv[1]), random.Random(int(sys.argv[2]))
    kinds, seen, ours, made = list(constructors()), Counter(), 0, 0
    warnings.simplefilter("ignore")
    for _ in range(count):
        name, kind = draw.choice(kinds)
        names = [p.name for p in inspect.signature(kind).parameters.values() if p.kind == p.POSITIONAL_OR_KEYWORD]
        given = {word: draw.choice(ODD) for word in names if draw.random() < 0.8}
        try:
            kind(**given)
            made += 1
        except SaddlesError:
            ours += 1
        except Exception as error:
            if isinstance(error, TypeError) and "required positional argument" in str(error):
                ours += 1  # Python's own sentence names what is missing
            else:
                seen[f"{name}: {type(error).__name__}: {error}"[:160]] += 1
    for text, times in seen.most_common():
        print(times, text)
    print(f"{count} calls of {len(kinds)} constructors: {ours} refused, {made} accepted, {seen.total()} others")
    raise SystemExit(seen.total() > 0)


if __name__ == "__main__":
    main()
