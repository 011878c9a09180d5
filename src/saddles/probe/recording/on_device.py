"""Measure heads where their weights are, on a GPU, and send only small matrices to the host.

A copy of the weights is made on the GPU; from it, on a stream of its own while training continues, the matrices of
`saddles.measures.factored.change_grams`, 2 d_h × 2 d_h for each head and product. Ranks and norms follow from them on
the GPU. For whole spectra they are transferred, and threads on the host find their eigenvalues: LAPACK takes a tenth
of a millisecond for what the solvers of a GPU do one after the other.
"""

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from saddles.measures.factored import change_gram, change_grams, gram_ranks, gram_spectrum, grams_floor, rank_measures
from saddles.probe.layouts.layout import Factor, Layout
from saddles.probe.measuring import Job, Row, check_pair, jobs_of, joined
from saddles.probe.recording.snapshot import Copier, Place
from saddles.runtime.threads import spare_cores

WORKING = 1 << 28
"""Bytes of factors, and of small matrices, in float64 that are worked on at a time: enough to fill a GPU."""


@dataclass
class Readings:
    """Memory for the results of one measurement, used over and over.

    Args:
        grams: for each group of equal shapes the matrices (product of a head, 2 d_h, 2 d_h), on the host.
        numbers: the same for stable rank, Frobenius norm and noise floor, (3, product of a head).
        arrived: the event after which they are there.
        whole: whether the matrices are wanted, and not the numbers alone.
    """

    grams: list[Tensor]
    numbers: list[Tensor]
    arrived: list[torch.cuda.Event] = field(default_factory=list)
    whole: bool = True

    def wait(self) -> None:
        """Return when the results have arrived."""
        while self.arrived:
            self.arrived.pop().synchronize()

    def close(self) -> None:
        """Nothing is held."""


Views = list[Tensor]
"""Factors (head, d, d_h) of some heads at a time, one after the other."""


class _Group:
    """Heads whose factors have the same shapes.

    Args:
        jobs: the numbers of the jobs that they belong to, and how many heads each has.
        now: left and right factors in the copy of the weights.
        start: the same at the start of training.
    """

    def __init__(self, jobs: Mapping[int, int], now: tuple[Views, Views], start: tuple[Views, Views]) -> None:
        self.jobs, self.now = jobs, now
        self.start = [torch.cat(side) for side in start]
        stored = [now[0][0], now[1][0], *self.start]
        self.rows, self.width = (stored[0].shape[-2], stored[1].shape[-2]), 2 * stored[0].shape[-1]
        self.units = [float(torch.finfo(part.dtype).eps) for part in stored]
        self.size = len(self.start[0])
        # 8 bytes a number: both sides of a head, [dL, L₀] and [R, dR], in float64.
        self.step = max(1, WORKING // (8 * self.width * sum(self.rows)))
        self.span = max(1, WORKING // (8 * 8 * self.width**2))  # about eight such matrices are held at once

    def measure(self) -> tuple[Tensor, Tensor]:
        """Matrices whose eigenvalues are squared singular values, and the numbers, on the device."""
        left, right = (torch.cat(side) for side in self.now)
        parts = [slice(at, at + self.step) for at in range(0, self.size, self.step)]
        pairs = [change_grams(left[one], right[one], self.start[0][one], self.start[1][one]) for one in parts]
        first, second = (torch.cat([pair[side] for pair in pairs]) for side in (0, 1))
        grams, numbers = [], []
        for at in range(0, self.size, self.span):
            one, two = first[at : at + self.span], second[at : at + self.span]
            grams.append(change_gram(one, two))
            floor = grams_floor(one, two, self.rows, self.units)
            numbers.append(torch.stack([*gram_ranks(grams[-1]), floor]))
        return torch.cat(grams), torch.cat(numbers, -1)


class DeviceBackend:
    """Measures on the device that holds the weights; a copy of them and one of their start are held there.

    Args:
        layout: where the heads lie.
        copier: gives the weights, all on one device.
        reference: the start of training.
        pool: threads that find eigenvalues.
    """

    def __init__(self, layout: Layout, copier: Copier, reference: Mapping[str, Tensor], pool: ThreadPoolExecutor):
        self._copier, self._pool = copier, pool
        self._device = next(iter(copier.devices.values()))
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._copy = {place.name: self._room(place) for place in copier.places}
        self._groups = self._grouped(layout, reference)

    def _room(self, place: Place) -> Tensor:
        return torch.empty(place.shape, dtype=place.dtype, device=self._device)

    def _grouped(self, layout: Layout, reference: Mapping[str, Tensor]) -> list[_Group]:
        start = {name: tensor.to(self._device) for name, tensor in reference.items()}
        for name, tensor in start.items():
            check_pair(name, self._copy[name], tensor)
        groups: dict[tuple[object, ...], list[int]] = {}
        jobs = jobs_of(layout)
        found = [(_factors(job, self._copy), _factors(job, start)) for job in jobs]
        for number, pairs in enumerate(found):
            key = tuple((tuple(side[0].shape[1:]), side[0].dtype) for pair in pairs for side in pair)
            groups.setdefault(key, []).append(number)
        return [
            _Group({k: len(jobs[k][0]) for k in those}, *(_chained([found[k][time] for k in those]) for time in (0, 1)))
            for those in groups.values()
        ]

    def readings(self) -> Readings:
        """Memory for one measurement."""
        pinned = self._stream is not None
        sizes = [(group.size, group.width) for group in self._groups]
        return Readings(
            [torch.empty((size, width, width), dtype=torch.float64, pin_memory=pinned) for size, width in sizes],
            [torch.empty((3, size), dtype=torch.float64, pin_memory=pinned) for size, _ in sizes],
        )

    def copy_to(self, readings: Readings) -> None:
        """Begin to measure the weights as they are now; training may go on when this returns."""
        self.begin(self._copier.gather(), readings)

    def begin(self, weights: Iterable[tuple[Place, Tensor]], readings: Readings) -> None:
        """The same for weights that are given."""
        if self._stream is not None:  # the last measurement still reads the copy
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        for place, tensor in weights:
            self._copy[place.name].copy_(tensor)
        with self._beside():
            for group, grams, numbers in zip(self._groups, readings.grams, readings.numbers, strict=True):
                found = group.measure()
                numbers.copy_(found[1], non_blocking=True)
                if readings.whole:
                    grams.copy_(found[0], non_blocking=True)
            if self._stream is not None:
                # Blocking events let the waiting thread sleep; others spin, and take a core from the training loop.
                event = torch.cuda.Event(blocking=True)
                event.record(self._stream)
                readings.arrived = [event]

    @contextlib.contextmanager
    def _beside(self) -> Iterator[None]:
        """A block whose work follows the copy and runs beside training."""
        with torch.no_grad():
            if self._stream is None:
                yield
                return
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._stream):
                yield

    def measure(self, copy: Readings) -> Row:
        """What has arrived as a row: `heads/…`."""
        rows: dict[int, Row] = {}
        for group, grams, numbers in zip(self._groups, copy.grams, copy.numbers, strict=True):
            stable, norm, floor = numbers.numpy().copy()
            columns = {"stable_rank": stable, "frobenius_norm": norm, "noise_floor": floor}
            if copy.whole:
                columns = {"singular_value": self._spectra(grams, min(group.width, *group.rows)), "noise_floor": floor}
            at = 0
            for job, heads in group.jobs.items():
                rows[job] = {name: array[at : at + heads] for name, array in columns.items()}
                at += heads
        row = joined([rows[job] for job in sorted(rows)])
        if copy.whole:
            row |= rank_measures(row["singular_value"])
        return {f"heads/{name}": values for name, values in row.items()}

    def _spectra(self, grams: Tensor, count: int) -> np.ndarray:
        parts = grams.split(-(-len(grams) // spare_cores()))
        return np.concatenate([part.numpy() for part in self._pool.map(lambda part: gram_spectrum(part, count), parts)])

    def close(self) -> None:
        """Wait for what is under way."""
        if self._stream is not None:
            self._stream.synchronize()


def _factors(job: Job, tensors: Mapping[str, Tensor]) -> tuple[Views, Views]:
    """Left and right factors of a job, as views of the tensors that hold them."""
    heads, (left, right) = job
    return _views([head.factors[left] for head in heads], tensors), _views(
        [head.factors[right] for head in heads], tensors
    )


def _views(factors: Sequence[Factor], tensors: Mapping[str, Tensor]) -> Views:
    parts = [factor.cut(tensors[factor.parameter]) for factor in factors]
    first, offsets = parts[0], [part.storage_offset() for part in parts]
    steps = {later - before for before, later in itertools.pairwise(offsets)}
    one = len({factor.parameter for factor in factors}) == 1
    if one and len(steps) == 1 and len({part.stride() for part in parts}) == 1:
        # Heads at equal distances, as almost always: one view of all of them, and later one copy instead of many.
        return [first.as_strided((len(parts), *first.shape), (steps.pop(), *first.stride()))]
    return [part[None] for part in parts]


def _chained(pairs: Sequence[tuple[Views, Views]]) -> tuple[Views, Views]:
    left, right = ([view for pair in pairs for view in pair[side]] for side in (0, 1))
    return left, right
