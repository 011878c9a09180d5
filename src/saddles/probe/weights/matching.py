"""Which tensors of two models belong together, and which head counts are theirs.

A base and a fine-tuned model may differ in their head, in a prefix, in the vocabulary, and in the names that
transformers 5 converts when it loads a model. They are matched as for LoRA: transformers' own renamings, then the
prefix that pairs most names with equal endings and shapes.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Tensor

from saddles.errors import SaddlesError
from saddles.probe.layouts.find_heads import find_layout
from saddles.probe.layouts.head_counts import Config, is_plain
from saddles.probe.layouts.layout import Layout
from saddles.probe.lora.experts import fused
from saddles.probe.lora.match import ancestors, canonical
from saddles.probe.lora.skeleton import Skeleton, skeleton_of
from saddles.probe.weights.checkpoints import FLOATS, Weights
from saddles.probe.weights.live_model import bare_norms, configuration, module_counts

_LAYER = re.compile(r"\.\d+\.")
"""In the names of a layer's tensors; a vocabulary and a head lie outside."""


def layout_of(weights: Weights, config: Config) -> Layout:
    """Where the heads of stored or live weights lie.

    Args:
        config: what the weights do not state; it goes before what they state.

    Where one head count does not serve all blocks (towers, stages), or blocks could not be read, the counts are taken
    from the modules of the model that config.json describes, built without memory.
    """
    shapes = {name: shape for name, shape in weights.shapes.items() if weights.types[name] in FLOATS}
    stated = {**weights.config, **config}
    if weights.model is not None:
        counts = {} if config else module_counts(weights.model)
        return find_layout(shapes, stated, counts, bare_norms(weights.model))
    layout = find_layout(shapes, stated)
    refused = [name for name, _ in layout.skipped if name not in shapes]
    if is_plain(stated) and not refused:
        return layout
    whole = replace(weights, config=stated)
    skeleton = skeleton_of(whole, whole)
    if skeleton.model is None:
        return layout
    counts = module_counts(skeleton.model)
    homes = _stored_modules(weights, skeleton, {*counts, *(norms := bare_norms(skeleton.model))})
    own = {stored: counts[run] for stored, run in homes.items() if run in counts}
    known = {**configuration(skeleton.model), **config}
    return find_layout(shapes, known, own, [stored for stored, run in homes.items() if run in norms])


def _stored_modules(weights: Weights, skeleton: Skeleton, modules: Collection[str]) -> dict[str, str]:
    """Module in the names of the file -> in those of the running model, for some of the latter."""
    found = {}
    for run, stored in canonical(weights, skeleton).items():
        for module in (one for one in ancestors(run) if one in modules):
            inside = run[len(module) :]
            if stored.endswith(inside):
                found[stored.removesuffix(inside)] = module
    # Norms without parameters hold no tensors: they are found through the module around them.
    for bare in modules:
        above, _, last = bare.rpartition(".")
        for stored, run in list(found.items()):
            if run == above:
                found.setdefault(f"{stored}.{last}", bare)
    return found


@dataclass(frozen=True)
class Pairing:
    """Two models under the names of the first.

    Attributes:
        start, point: the same tensors, those of the second renamed.
        notes: what was matched, one sentence; none where the names agree.
        stored: the second's own names, of those that were renamed.
    """

    start: Weights
    point: Weights
    notes: tuple[str, ...] = ()
    stored: Mapping[str, str] = field(default_factory=dict)


def paired(start: Weights, point: Weights) -> Pairing:
    """Name the tensors of one model as those of another; where names agree, nothing is done."""
    matrices = [name for name, shape in start.shapes.items() if len(shape) > 1]
    # A layer's matrix that is missing tells of other names; a head that is missing need not.
    if all(name in point.shapes for name in matrices if _LAYER.search(f".{name}.")):
        return Pairing(start, point)
    # Only now: building the skeleton imports transformers, which most series of checkpoints do not need.
    skeleton = skeleton_of(start, point)
    start, point = fused(start, skeleton.model), fused(point, skeleton.model)
    ours, theirs = canonical(start, skeleton), canonical(point, skeleton)
    names = {ours[run]: theirs[run] for run in ours if run in theirs}
    other = {mine: stored for mine, stored in names.items() if mine != stored}
    if not other:
        return Pairing(start, point)
    first = next((name for name in other if _LAYER.search(f".{name}.")), next(iter(other)))
    note = (
        f"{point.place} and {start.place} were matched by structure: {len(names)} tensors, {len(other)} of them under "
        f"other names ({first} is {other[first]})"
    )
    return Pairing(start, _renamed(point, names), (note,), other)


def _renamed(weights: Weights, names: Mapping[str, str]) -> Weights:
    """Weights under new names (new -> stored); what has none keeps its own where that is free."""
    kept = {name: name for name in weights.shapes if name not in set(names.values()) and name not in names}
    homes = {**names, **kept}
    return replace(
        weights,
        shapes={name: weights.shapes[stored] for name, stored in homes.items()},
        types={name: weights.types[stored] for name, stored in homes.items()},
        files={name: weights.files[stored] for name, stored in homes.items() if stored in weights.files},
        reader=partial(_read_as, weights, homes),
    )


def _read_as(weights: Weights, homes: Mapping[str, str], name: str, rows: slice) -> Tensor:
    return weights.read(homes[name], rows)


def shared(layout: Layout, start: Weights, points: Sequence[Weights]) -> tuple[Layout, list[str]]:
    """The part of a layout that all models have, and notes on what was left out.

    Heads and whatever else belongs to a layer must be there in its shape. A vocabulary may grow and a head may be
    another one: these matrices are left out.
    """
    heads, absent, reshaped = set(layout.head_parameters()), {}, {}
    for point in points:
        for name in layout.parameters():
            fixed = name in heads or bool(_LAYER.search(f".{name}."))
            if name not in point.shapes:
                if fixed:
                    raise SaddlesError(
                        f"{point.place} must have the names of {start.place}; it has no {name}, nor a tensor that "
                        "could be it. Is it the same model?"
                    )
                absent[name] = point.place
            elif point.shapes[name] != start.shapes[name]:
                if fixed or point.shapes[name][1:] != start.shapes[name][1:]:
                    raise SaddlesError(
                        f"{name} has shape {start.shapes[name]} in {start.place} and {point.shapes[name]} in "
                        f"{point.place}. Give checkpoints of one model; only a vocabulary or a head may differ."
                    )
                reshaped[name] = point.shapes[name]
    kept = tuple(one for one in layout.modules if one.parameter not in absent and one.parameter not in reshaped)
    notes = [f"{name} is left out: {place} has no such matrix" for name, place in absent.items()]
    notes += [
        f"{name} is left out: its shape {start.shapes[name]} became {shape}"
        for name, shape in reshaped.items()
        if name not in absent
    ]
    return replace(layout, modules=kept), notes
