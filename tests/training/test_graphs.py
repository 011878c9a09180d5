import warnings

import pytest

from saddles.training.graphs import _without_remarks

ONLINE_SOFTMAX = """
Online softmax is disabled on the fly since Inductor decides to
split the reduction. Cut an issue to PyTorch if this is an
important use case and you want to speed it up with online
softmax.
"""
"""As torch 2.11 words it when it compiles the loss of a ViT for a GPU."""


def test_remarks_of_torch_about_itself_are_dropped_and_other_warnings_stay():
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with _without_remarks():
            warnings.warn(ONLINE_SOFTMAX, stacklevel=1)
            warnings.warn("This instance was constructed with capturable=True", stacklevel=1)
        assert not heard
    with pytest.warns(UserWarning, match="the loss is odd"), _without_remarks():
        warnings.warn("the loss is odd", stacklevel=1)
