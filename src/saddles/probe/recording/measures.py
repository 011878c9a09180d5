"""Numbers of the whole model that are recorded beside the ranks.

A measure is any object that is called with the model and its parameters at the start, and returns numbers by name:

    def norm(model, start):
        return {"distance": sum((part - start[name]).square().sum() for name, part in model.named_parameters()) ** 0.5}

    saddles.probe.record(model, measures=[norm, saddles.networks.LiveRegime(batch)])

Measures run in the thread of training, between two steps, because only one thread may call the model; the attribute
`measures_s` of the result says how long training stood still for them.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from saddles.errors import SaddlesError
from saddles.probe.layouts.layout import PRODUCTS, Layout
from saddles.probe.measuring import Metrics, Row
from saddles.probe.recording.journal import Journal
from saddles.probe.recording.rows import Rows, in_words
from saddles.probe.weights.live_model import Reference, is_sharded, parameters, part_of, same_weights, unwrapped

OF_HEADS = ("singular_value", "noise_floor", "stable_rank", "effective_rank", "frobenius_norm")
"""Beginnings of names that the recorder has for heads already; `energy_rank_90` and so on begin with another."""


@runtime_checkable
class Measure(Protocol):
    """Numbers of a model against its start."""

    def __call__(self, model: torch.nn.Module, start: Mapping[str, Tensor]) -> Mapping[str, object]:
        """Numbers by name, or arrays (layer, head, product); a number that has no value now is NaN.

        Args:
            model: as it is now, without wrappers; it must be left as it was.
            start: its parameters at the start, by their plain names.
        """
        ...


class Measures:
    """The measures of one recording.

    Args:
        model: that is trained.
        given: what is to be measured of it.
        layout: where its heads lie.

    Attributes:
        given: the measures.
        seconds: that training has waited for them.
    """

    def __init__(self, model: torch.nn.Module, given: Sequence[Measure], layout: Layout) -> None:
        self.seconds = 0.0
        self.given, self._model = check_measures(given), unwrapped(model)
        self._known: list[Row] = []  # what each gave at the start, as NaN
        blocks = layout.layers()
        self._heads = (len(blocks), max(map(len, blocks.values()), default=0), len(PRODUCTS))
        self.start: dict[str, Tensor] = {}
        """Parameters at the start; empty where nothing is measured."""

    def begin(self, reference: Reference | None, resumed: Journal | None) -> None:
        """Keep the start, and measure once: what cannot be measured is told before the first step.

        Args:
            reference: the start, where it was given.
            resumed: an earlier recording that is resumed; without it and a reference, the start is the model now.
        """
        if not self.given:
            return
        if reference is None and resumed is not None:
            reference = resumed.start()
        now = parameters(self._model)
        sharded = next((name for name, tensor in now.items() if is_sharded(tensor)), None)
        if sharded:
            raise SaddlesError(f"`measures` need the whole model in one process; {sharded} is sharded. Leave them out.")
        early = now if reference is None else part_of(reference, now)
        self.start = {name: tensor.detach().to(now[name].device, copy=True) for name, tensor in early.items()}
        self.take()
        self.seconds = 0.0

    def starts_at(self, journal: Journal, reference: Reference | None) -> bool:
        """Whether the start is that of an earlier recording, where both have one."""
        if not self.given or not journal.has_start():
            return True
        now, then = parameters(self._model), journal.start()
        return set(then) == set(now) and same_weights(then, part_of(now if reference is None else reference, now))

    def take(self) -> Row:
        """All numbers now, `measures/…`, and arrays of heads, `heads/…`; the first measure that fails is told."""
        row: Row = {}
        self._known = []
        for one in self.given:
            found = self._taken(one, row)
            self._known.append({name: np.full_like(array, np.nan) for name, array in found.items()})
            row |= found
        return row

    def take_at(self, step: int, rows: Rows) -> Row:
        """All numbers now; those of a measure that fails are NaN, the recording has a gap, and training goes on."""
        row: Row = {}
        for one, missing in zip(self.given, self._known, strict=True):
            try:
                row |= missing | self._taken(one, row)
            except Exception as error:
                row |= missing
                rows.add_gap(step, in_words(error))
        return row

    def _taken(self, measure: Measure, beside: Row) -> Row:
        """The numbers of one measure; refused where another one has given the same."""
        began = time.perf_counter()
        try:
            found = _called(measure, self._model, self.start)
        finally:
            self.seconds += time.perf_counter() - began
        row = dict(self._labelled(measure, name, value) for name, value in found.items())
        for key in row:
            if key in beside:
                raise SaddlesError(f"Two measures give `{key.partition('/')[2]}`. Leave one of them out.")
        return row

    def _labelled(self, measure: Measure, name: str, value: object) -> tuple[str, np.ndarray]:
        tensor = value.detach().cpu() if isinstance(value, Tensor) else value
        try:
            array = np.asarray(tensor, dtype=float)
        except (TypeError, ValueError):
            array = None
        if array is not None and array.ndim == 0:
            return f"measures/{name}", array
        if array is None or array.shape != self._heads:
            size = "not a number" if array is None else f"of shape {array.shape}"
            raise SaddlesError(
                f"The measure {_word(measure)} must give numbers, or arrays (layer, head, product) of shape "
                f"{self._heads}; its `{name}` is {size}."
            )
        if name.startswith((*OF_HEADS, "energy_rank")):
            raise SaddlesError(f"The measure {_word(measure)} gives `{name}`, which is recorded already. Rename it.")
        return f"heads/{name}", array


def check_measures(given: object) -> tuple[Measure, ...]:
    """What was given as `measures`; refused where it is not a list of them."""
    what = "a list of objects that are called with (model, start)"
    if not isinstance(given, Iterable):
        raise SaddlesError.must_be("measures", what, given, "Put it into a list")
    listed = tuple(given)
    if wrong := [one for one in listed if isinstance(one, type) or not callable(one)]:
        hint = f"Write {wrong[0].__name__}(…)" if isinstance(wrong[0], type) else ""
        raise SaddlesError.must_be("measures", what, wrong[0], hint)
    return listed


def medians(row: Row) -> Metrics:
    """Of arrays of heads, the median over the heads that have a number, by product; left out where none has."""
    metrics: Metrics = {}
    for key, array in row.items():
        for at, product in enumerate(PRODUCTS if key.startswith("heads/") else ()):
            values = array[..., at][np.isfinite(array[..., at])]
            if values.size:
                metrics[f"saddles/{product}/{key.partition('/')[2]}"] = float(np.median(values))
    return metrics


def _called(measure: Measure, model: torch.nn.Module, start: Mapping[str, Tensor]) -> Mapping[str, object]:
    try:
        found = measure(model, start)
    except SaddlesError:
        raise
    except Exception as error:  # a user's own object may raise anything
        first = (str(error).splitlines() or [""])[0]
        raise SaddlesError(f"The measure {_word(measure)} fails ({type(error).__name__}: {first}).") from error
    if not isinstance(found, Mapping):
        raise SaddlesError(
            f"The measure {_word(measure)} must return a mapping of names to numbers; got {found!r:.60}."
        )
    return {str(name): value for name, value in found.items()}


def _word(measure: Measure) -> str:
    return str(getattr(measure, "__name__", type(measure).__name__))
