"""Functions of saddles are checked while tests run: types by beartype, shapes by jaxtyping."""

import numpy as np
import pytest
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import TypeCheckError

from saddles.measures.margins import combine
from saddles.measures.spectra import stable_rank


def test_a_wrong_type_is_told():
    with pytest.raises(BeartypeCallHintViolation, match="stable_rank"):
        stable_rank(np.zeros(3))  # type: ignore[arg-type]


def test_shapes_that_differ_are_told():
    with pytest.raises(TypeCheckError, match="combine"):
        combine(np.ones(3), np.ones((2, 4)), np.ones((2, 4)), True)
