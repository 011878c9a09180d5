"""Arguments of constructors: what is refused before anything is computed, and which argument the sentence names."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from saddles.core.validation import arguments_explained
from saddles.errors import SaddlesError


@arguments_explained
@dataclass(frozen=True)
class Made:
    """A class of a user: its types are not checked at run time."""

    size: int
    rate: float = 0.1
    seed: int = 0
    most: int | None = None
    either: int | float = 1
    shape: tuple[int, int] = (3, 3)
    wrong: bool = False

    def __post_init__(self) -> None:
        if self.wrong:
            raise ValueError("something else")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"size": 6.5}, "`size` must be a whole number; got 6.5."),
        ({"size": 6.0}, "`size` must be a whole number; got 6.0."),
        ({"size": True}, "`size` must be a whole number; got True."),
        ({"size": 6, "most": 2.5}, "`most` must be a whole number; got 2.5."),
        ({"size": 6, "seed": -1}, "`seed` must be a whole number of at least 0; got -1."),
        ({"size": 6, "wrong": True}, "Made cannot be made of these arguments (ValueError: something else)"),
    ],
)
def test_the_argument_that_is_wrong_is_named(given, words):
    with pytest.raises(SaddlesError) as told:
        Made(**given)
    assert words in str(told.value)


def test_what_fits_is_taken():
    int_of_numpy: Any = np.int64(6)
    made = Made(int_of_numpy, rate=1, most=None, either=2.5, seed=3)
    assert (made.size, made.rate, made.most, made.either, made.seed) == (6, 1, None, 2.5, 3)
