"""Functions of saddles are checked while tests run: types by beartype, shapes by jaxtyping."""

import jaxtyping
import numpy as np
import pytest
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float, TypeCheckError
from typecheck import checked

from saddles.measures.spectra import stable_rank


def test_a_wrong_type_is_told():
    with pytest.raises(BeartypeCallHintViolation, match="stable_rank"):
        stable_rank(np.zeros(3))  # type: ignore[arg-type]


def test_shapes_that_differ_are_told():
    # One of our own, for only the first calls of a function have their shapes checked.
    @jaxtyping.jaxtyped(typechecker=checked)
    def dot(one: Float[np.ndarray, " n"], other: Float[np.ndarray, " n"]) -> float:
        return float(one @ other)

    assert dot(np.ones(3), np.ones(3)) == 3
    with pytest.raises(TypeCheckError, match="dot"):
        dot(np.ones(3), np.ones(4))


def test_what_triton_compiles_stays_as_it_is():
    """It reads the source, and a function around it has another."""

    def kernel(x: int) -> int:
        return x

    kernel.__module__ = "saddles.transformers.attention_kernels"
    assert jaxtyping.jaxtyped(typechecker=checked)(kernel) is kernel
