"""A series of checkpoints: found, put in order, and checked before anything is measured.

Each problem of a series is explained in one sentence. Refused, because every number would be wrong: a single checkpoint
without a reference; a first checkpoint that equals a later one while those between differ; a series in which nothing
changes; two different checkpoints of one step; measured tensors whose names or shapes change. Noted in the result,
because the numbers stay right: steps given out of order (they are sorted), identical checkpoints, places without a
step, a series that does not begin at step 0, tensors other than the measured ones that come and go.
"""

import hashlib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from saddles.errors import SaddlesError
from saddles.probe.layouts.head_counts import Config
from saddles.probe.layouts.layout import Layout
from saddles.probe.weights.checkpoints import (
    FLOATS,
    TORCH_ENDINGS,
    Source,
    Weights,
    open_weights,
)
from saddles.probe.weights.folders import holds_weights, step_of_name
from saddles.probe.weights.matching import layout_of, paired, shared
from saddles.runtime.progress import bar


@dataclass(frozen=True, eq=False)
class Series:
    """Checkpoints in order of their steps.

    Attributes:
        start: the reference they are measured against.
        points: the checkpoints.
        steps: their steps.
        layout: where their heads lie.
        notes: what is odd about them, one sentence each.
        fingerprints: of the numbers of the start and of each point.
    """

    start: Weights
    points: tuple[Weights, ...]
    steps: tuple[int, ...]
    layout: Layout
    notes: tuple[str, ...]
    fingerprints: tuple[str, ...]


def open_series(
    paths: Source | Sequence[Source], reference: Source | None = None, config: Config | None = None
) -> Series:
    """Open checkpoints and check them.

    Args:
        paths: a folder of checkpoints (`checkpoint-500/`, `step_500.pt`, …), one checkpoint, or a list of them.
        reference: the model at the start; None takes the first checkpoint.
        config: what the checkpoints do not state, such as num_attention_heads; it goes before what they state.
    """
    places, notes = find_places(paths)
    opened = [open_weights(place) for place in places]
    notes += [note for weights in opened for note in weights.notes]
    points, steps = _in_order(opened, notes)
    if reference is None:
        if len(points) < 2:
            raise SaddlesError(
                f"A change needs two checkpoints; got {points[0].place} alone. Give the model before training as the "
                "reference (--reference), or more checkpoints."
            )
        start, points, first, steps = points[0], points[1:], steps[0], steps[1:]
        if first != 0:
            notes.append(f"the reference is step {first}, the first of the series, not the start of training")
    else:
        start = open_weights(reference)
    pairings = [paired(start, point) for point in points]
    if (running := next((one.start for one in pairings if one.start is not start), None)) is not None:
        # Single experts are one tensor in the running model: the start is then seen as that, and so is every point.
        start, pairings = running, [paired(running, point) for point in points]
    notes += [note for pairing in pairings for note in pairing.notes]
    points = [pairing.point for pairing in pairings]
    layout, left_out = shared(layout_of(start, config or {}), start, points)
    notes += left_out
    for point in points:
        _check_types(start, point, layout, notes)
    notes += _mixed_types([start, *points], layout)
    marks = _fingerprints([start, *points], layout)
    fingerprints = [hashlib.sha256("".join(one.values()).encode()).hexdigest()[:16] for one in marks]
    notes += _repeats(start, points, steps, fingerprints, layout, implicit=reference is None)
    begin = 0 if start.step is None else start.step
    notes += _strays([start, *points], [begin, *steps], marks)
    return Series(start, tuple(points), tuple(steps), layout, tuple(notes), tuple(fingerprints))


def find_places(paths: Source | Sequence[Source]) -> tuple[list[Source], list[str]]:
    """The checkpoints (those in a folder of them, else the places as given), and notes."""
    if isinstance(paths, str | Path | torch.nn.Module) or not isinstance(paths, Sequence):
        paths = [paths]
    if not paths:
        raise SaddlesError("`paths` must name at least one checkpoint. Give a folder of checkpoints, or a list.")
    places: list[Source] = []
    notes = []
    for place in paths:
        inner = [] if isinstance(place, torch.nn.Module) else _inside(Path(place))
        places += inner or [place]
        if inner and any(Path(str(place)).glob("*.safetensors")):
            notes.append(f"the model beside the checkpoints in {place} has no step and was left out")
    return places, notes


def _inside(folder: Path) -> list[Source]:
    """Checkpoints in a folder, by step; empty where it is a checkpoint itself.

    A checkpoint holds numbered things of its own (shards, the state of each process, DeepSpeed's global_step500/):
    folders called checkpoint-N make a series, others only where there is no config.json beside them, and files where
    all of them are numbered.
    """
    if not folder.is_dir():
        return []
    inner = [(step, child) for child in folder.iterdir() if (step := step_of_name(child.name)) is not None]
    lost = sorted(child for _, child in inner if child.is_symlink() and not child.exists())
    if lost:  # the series would be told with a row less, as if the checkpoint had never been saved
        raise SaddlesError(
            f"{lost[0]} is a link to {os.readlink(lost[0])}, and nothing is there. Bring the checkpoint back, or "
            "remove the link to inspect the others."
        )
    kept = [(step, child) for step, child in inner if child.is_dir() and child.name.startswith("checkpoint")]
    if not kept and not (folder / "config.json").is_file():
        kept = [(step, child) for step, child in inner if child.is_dir() or _is_model(child)]
    elif not kept and not any(holds_weights(file) and step_of_name(file.name) is None for file in _models(folder)):
        # Beside a configuration lie the files of a series, or a model whose one file happens to have a number.
        files = [(step, child) for step, child in inner if child in _models(folder)]
        kept = files if len(files) > 1 else []
    return [child for _, child in sorted(kept, key=lambda row: (row[0], row[1].name))]


def _models(folder: Path) -> list[Path]:
    return [child for child in folder.iterdir() if _is_model(child)]


def _is_model(file: Path) -> bool:
    ending = file.suffix in (".safetensors", *TORCH_ENDINGS)
    return ending and holds_weights(file) and not re.search(r"-\d+-of-\d+\.|^consolidated\.", file.name)


def _in_order(opened: list[Weights], notes: list[str]) -> tuple[list[Weights], list[int]]:
    steps = [weights.step for weights in opened]
    if all(step is None for step in steps):
        if len(opened) > 1:
            notes.append("no checkpoint states its step: they are counted 0, 1, 2, … in the order given")
        return opened, list(range(len(opened)))
    if steps[0] is None and None not in steps[1:]:
        steps[0] = 0
        notes.append(f"{opened[0].place} states no step and is taken as step 0")
    unknown = [weights.place for weights, step in zip(opened, steps, strict=True) if step is None]
    if unknown:
        raise SaddlesError(f"{unknown[0]} states no step and the others do. Leave it out, or name it step-N.")
    known = [int(step) for step in steps if step is not None]
    order = sorted(range(len(known)), key=known.__getitem__)
    if order != list(range(len(known))):
        fall = next(i for i in range(1, len(known)) if known[i] < known[i - 1])
        notes.append(f"steps were out of order ({known[fall - 1]} before {known[fall]}) and have been sorted")
    return [opened[i] for i in order], [known[i] for i in order]


def _check_types(start: Weights, point: Weights, layout: Layout, notes: list[str]) -> None:
    """Refuse a measured tensor that is quantised; note unmeasured tensors that come and go."""
    for name in layout.parameters():
        if point.types[name] not in FLOATS:
            raise SaddlesError(
                f"{name} of {point.place} must be stored as {' or '.join(FLOATS)}; it is {point.types[name]}. Give the "
                "model before quantisation."
            )
    apart = sorted(set(point.shapes) ^ set(start.shapes))
    if apart:
        notes.append(f"{point.place} and {start.place} differ in {len(apart)} unmeasured tensors ({apart[0]})")


def _mixed_types(every: list[Weights], layout: Layout) -> list[str]:
    """A note where measured tensors are not stored alike along the series: the coarsest type sets the noise."""
    kinds = {weights.place: frozenset(weights.types[name] for name in layout.parameters()) for weights in every}
    if len(set(kinds.values())) < 2:
        return []
    first = next(iter(kinds.values()))
    place, other = next((place, kind) for place, kind in kinds.items() if kind != first)
    words = " and ".join(sorted(first)), " and ".join(sorted(other))
    return [f"{every[0].place} is stored as {words[0]} and {place} as {words[1]}: rounding differs along the series"]


def _fingerprints(every: list[Weights], layout: Layout) -> list[dict[str, str]]:
    """For each checkpoint a hash of one row in the middle of every measured tensor."""
    names = layout.parameters()
    fingerprints = []
    with bar("reading a row of every tensor", len(every)) as progress:
        for weights in every:
            marks = {}
            for name in names:
                # One row is cheap to read and rarely stays the same; where rows agree, all numbers are compared.
                middle = weights.shapes[name][0] // 2
                row = weights.read(name, slice(middle, middle + 1)).to(torch.float64)
                marks[name] = hashlib.sha256(row.numpy().tobytes()).hexdigest()[:16]
            fingerprints.append(marks)
            progress.advance()
    return fingerprints


def _strays(every: Sequence[Weights], steps: Sequence[int], marks: Sequence[dict[str, str]]) -> list[str]:
    """Parts of one checkpoint that belong to another: notes, or a refusal where it is a whole file.

    Numbers that change and later are the same again, all of them, were not trained: a file was saved or copied twice.
    What stays the same from one checkpoint to the next may be frozen.
    """
    notes = []
    for later in range(1, len(every)):
        for early in range(later):
            same = {name for name, mark in marks[later].items() if mark == marks[early][name]}
            moved = {n for n in same if any(marks[k][n] != marks[later][n] for k in range(early + 1, later))}
            if len(same) == len(marks[later]) or not same or (later - early > 1 and not moved):
                continue
            # So far one row of each was compared: before a file is called wrong, all numbers are.
            same = {n for n in same if torch.equal(every[early].read(n), every[later].read(n))}
            one, other = every[later], every[early]
            whole = sorted(file for file in set(one.files.values()) if _all_in(file, one, marks[later], same))
            if whole and moved & same:
                raise SaddlesError(
                    f"{whole[0]} of {one.place} (step {steps[later]}) holds the numbers of {other.place} (step "
                    f"{steps[early]}), which changed in between: one of the two is a file of another step. Copy both "
                    "again, or leave that checkpoint out."
                )
            if whole:
                notes.append(
                    f"{whole[0]} of step {steps[later]} holds the numbers of step {steps[early]}, and other files do "
                    "not: it is frozen, or a file of another step"
                )
            elif back := sorted(moved & same):
                notes.append(
                    f"{back[0]} of step {steps[later]} holds the numbers of step {steps[early]}, which changed in "
                    f"between ({len(back)} tensors)"
                )
    return notes


def _all_in(file: str, weights: Weights, measured: Mapping[str, str], same: Collection[str]) -> bool:
    inside = [name for name in measured if weights.files.get(name) == file]
    return bool(inside) and all(name in same for name in inside)


def _repeats(
    start: Weights,
    points: Sequence[Weights],
    steps: Sequence[int],
    fingerprints: list[str],
    layout: Layout,
    implicit: bool,
) -> list[str]:
    """Identical checkpoints: notes, or a refusal where the reference itself is not the start."""
    notes = []
    unchanged = [
        step
        for point, step, mark in zip(points, steps, fingerprints[1:], strict=True)
        if _same(start, point, fingerprints[0], mark, layout)
    ]
    if len(unchanged) == len(points):
        raise SaddlesError(
            f"Every checkpoint holds the same weights as {start.place}. Were they saved after training, and is the "
            "reference another model?"
        )
    # Without a reference of its own the series begins with the start of training: later states may equal it only
    # directly after it, before anything has changed.
    if unchanged and implicit and unchanged != list(steps[: len(unchanged)]):
        later = next(step for step in unchanged if step not in steps[: len(unchanged)])
        raise SaddlesError(
            f"The first checkpoint, {start.place}, holds the weights of step {later}, so it is not the start. Leave it "
            "out, or give the true start with --reference."
        )
    if unchanged:
        words = ", ".join(f"step {step}" for step in unchanged)
        notes.append(f"{words} equal{'s' if len(unchanged) == 1 else ''} the reference: the change is zero")
    for i, (one, step) in enumerate(zip(points, steps, strict=True)):
        for j in range(i + 1, len(points)):
            same = _same(one, points[j], fingerprints[i + 1], fingerprints[j + 1], layout)
            if steps[j] == step and not same:
                raise SaddlesError(
                    f"{one.place} and {points[j].place} are both step {step} and differ. Give checkpoints of one run."
                )
            if same and step not in unchanged:
                notes.append(f"step {step} and step {steps[j]} hold identical weights")
                break
    return notes


def _same(one: Weights, other: Weights, first: str, second: str, layout: Layout) -> bool:
    """Whether two checkpoints hold the same numbers in every measured tensor; all are compared where rows agree."""
    if first != second:
        return False
    return all(torch.equal(one.read(name), other.read(name)) for name in layout.parameters())
