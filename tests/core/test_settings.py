"""Settings are read as the types that they and their annotations tell."""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import pytest
import toy_experiment

from saddles.core.experiment import LARGEST, Size, Within
from saddles.errors import SaddlesError


@dataclass(frozen=True)
class Settings:
    words: Annotated[tuple[str, ...], "an empty list of words"] = ()
    counts: Annotated[list[int] | None, "an empty list of whole numbers"] = None
    levels: Annotated[tuple[float, ...], "an empty list of numbers"] = ()
    offsets: Annotated[tuple[float, ...], "whole numbers stand for numbers"] = (1, 2)
    rate: Annotated[float, "a whole number stands for one"] = 1
    limit: Annotated[int | None, "a number or none"] = None
    mixed: tuple = (1, 2.5)
    near: Annotated[tuple[float, ...], "bounded", Within(-1, 1)] = ()
    anything: tuple = ()
    name: str = "plain"


ROW = replace(toy_experiment.ROW, sizes={"tiny": Size(1, Settings()), "laptop": Size(1, Settings())})


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("words", "a,b", ("a", "b")),
        ("words", "a", ("a",)),
        ("words", "a, b", ("a", "b")),
        ("levels", np.array([1, 2]), (1.0, 2.0)),
        ("words", ["a", "b"], ("a", "b")),
        ("counts", "3,4", [3, 4]),
        ("counts", "0", [0]),
        ("counts", "none", None),
        ("counts", None, None),
        ("levels", "-0.5,2", (-0.5, 2.0)),
        ("levels", [], ()),
        ("offsets", "0.5,2", (0.5, 2.0)),
        ("rate", "0.5", 0.5),
        ("limit", "3", 3),
        ("limit", "None", None),
        ("mixed", "0.5,1", (0.5, 1.0)),
        ("anything", [1, "a"], (1, "a")),
        ("name", "a,b", "a,b"),
    ],
)
def test_a_value_is_read_by_the_annotation_where_the_default_does_not_tell(key, text, value):
    found = getattr(ROW.settings("tiny", {key: text}), key)
    assert (found, type(found)) == (value, type(value))
    members = (found, value) if isinstance(value, list | tuple) else ([found], [value])
    assert [type(one) for one in members[0]] == [type(one) for one in members[1]]


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        ("counts", "3,x", "`counts` must be a value like 1,2; got '3,x'"),
        ("levels", "a", "`levels` must be a value like 1.0,2.0; got 'a'"),
        ("limit", "2.5", "`limit` must be a value like 1; got '2.5'"),
        ("rate", "-1", "`rate` must be positive; got -1.0"),
        ("levels", str(10 * LARGEST), "`levels` must be at most 1,000,000,000"),
        ("near", "0.5,2", "`near` must be between -1 and 1; got 2.0"),
        ("anything", "1,2", "`anything` must be a list in Python: its default is empty, .* such as tuple"),
        ("name", ["a", "b"], r"`name` must be a value like plain; got \['a', 'b'\]"),
        ("name", None, "`name` must be a value like plain; got None"),
    ],
)
def test_what_does_not_fit_is_refused(key, text, told):
    with pytest.raises(SaddlesError, match=told):
        ROW.settings("tiny", {key: text})


def test_a_value_that_is_the_present_one_changes_nothing():
    assert repr(ROW.settings("tiny", {"rate": "1.0", "offsets": [1.0, 2.0]})) == repr(Settings())


def test_annotations_that_cannot_be_read_are_named():
    @dataclass(frozen=True)
    class Lost:
        rate: "Nowhere" = 1.0  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

    row = replace(ROW, sizes={"tiny": Size(1, Lost())}, default="tiny")
    with pytest.raises(
        SaddlesError, match=r"annotations of Lost, the settings of toy/decay, cannot be read: .*Nowhere"
    ):
        row.settings("tiny", {"rate": 2.0})
