"""Measure a model against a reference, layer by layer and matrix by matrix.

Only the tensors of one product of one layer, or one matrix, are held at a time, each now and at the start: peak memory
stays below two copies of the largest tensor pair (in float32).

Blocks may differ in their number of heads, and matrices in size: shorter ones are padded with NaN along `head` and
`index`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from saddles.core.status import FINISHED, Status
from saddles.core.trajectory import make_trajectory
from saddles.errors import SaddlesError
from saddles.measures.factored import (
    chained,
    change_and_floor,
    matrix_floor,
    product_spectrum,
    rank_measures,
    spectrum,
)
from saddles.probe.layouts.layout import PRODUCTS, Array, Factor, Head, Layout, Module
from saddles.probe.layouts.no_heads import need_heads
from saddles.runtime.files import new_file
from saddles.runtime.threads import torch_pool

if TYPE_CHECKING:
    import torch

Read = Callable[[str], Array]
"""Parameter name -> tensor."""

Row = dict[str, np.ndarray]
"""Arrays of one measurement, without names for their axes."""

Metrics = dict[str, float]
"""Headline ranks, by the names under which trackers show them."""

Job = tuple[Sequence[Head], tuple[str, str]]
"""The heads of a layer, and the factors of a product."""

Map = Callable[[Callable[[Job], Row], Iterable[Job]], Iterable[Row]]
"""`map`, or the method of that name of a pool."""

CPU_STACK = 4
"""Heads that are stacked at a time on a CPU, where a larger stack gains nothing and leaves the cache."""

HEAD_AXES = ("layer", "head", "product")


WITHOUT_SPECTRUM = ("stable_rank", "frobenius_norm", "noise_floor")
"""What a measurement holds that leaves the spectra out: it can be had without them."""


def measure(
    layout: Layout,
    now: Read,
    start: Read,
    step: int = 0,
    *,
    modules: bool = True,
    initial: bool = True,
    workers: int = 1,
) -> xr.DataTree:
    """Spectra and ranks of the change of every head and every matrix, as one labelled row.

    Args:
        layout: where the heads lie.
        now, start: give a tensor by its parameter's name; each is read when its turn comes.
        step: the training step, the coordinate `step` of the result.
        modules: measure the plain matrices too; they cost more than the heads.
        initial: add the spectrum of the products at the start, `initial_singular_value` and `initial_stable_rank`.
        workers: threads for the heads, one core each; each holds the tensors of one layer's product.
    """
    need_heads(layout)
    with torch_pool(workers) as pool:
        row = measure_row(layout, now, start, modules=modules, mapping=pool.map)
        first = measure_initial(layout, start, pool.map) if initial else {}
    return to_trajectory(layout, [step], [row], first)


def measure_row(layout: Layout, now: Read, start: Read, *, modules: bool, mapping: Map = map) -> Row:
    """Arrays `heads/…` and, where wanted, `modules/…` of one measurement."""
    heads = measure_heads(layout, now, start, mapping) if layout.heads else {}
    row = {f"heads/{name}": values for name, values in heads.items()}
    if modules:
        row |= {f"modules/{name}": values for name, values in measure_modules(layout, now, start).items()}
    return row


def measure_heads(layout: Layout, now: Read, start: Read, mapping: Map = map) -> Row:
    """Arrays (layer, head, product, …) of the heads' changes.

    Args:
        mapping: how the jobs, one per layer and product, are run; the `map` of a thread pool runs several at once.
    """

    def one(job: Job) -> Row:
        pairs = [change_and_floor(*factors, noises=noises) for factors, noises in _batches(job, (now, start))]  # pyright: ignore[reportArgumentType]
        values, floors = (np.concatenate([_numpy(part) for part in column]) for column in zip(*pairs, strict=True))
        return {"singular_value": values, "noise_floor": floors}

    return _with_ranks(_by_layer(layout, one, mapping))


def measure_initial(layout: Layout, start: Read, mapping: Map = map) -> Row:
    """Arrays (layer, head, product, …) of the products W_K W_Qᵀ and W_V W_Oᵀ at the start."""

    def one(job: Job) -> Row:
        rows = [_numpy(product_spectrum(*factors)) for factors, _ in _batches(job, (start,))]  # pyright: ignore[reportArgumentType]
        return {"singular_value": np.concatenate(rows)}

    values = _by_layer(layout, one, mapping)["singular_value"]
    return {"singular_value": values, "stable_rank": rank_measures(values)["stable_rank"]}


def measure_modules(layout: Layout, now: Read, start: Read) -> Row:
    """Arrays (module, …) of the plain matrices' changes."""
    rows = []
    for module in layout.modules:
        one, other = module.cut(now(module.parameter)), module.cut(start(module.parameter))
        check_pair(module.name, one, other)
        floor = float(matrix_floor(one, other))  # pyright: ignore[reportArgumentType]
        values = _numpy(spectrum(_difference(one, other)))  # pyright: ignore[reportArgumentType]
        rows.append({"singular_value": values, "noise_floor": np.asarray(floor)})
    if not rows:
        return {}
    return _with_ranks({name: pad([row[name] for row in rows]) for name in rows[0]})


def _with_ranks(row: Row) -> Row:
    return row | rank_measures(row["singular_value"])


def _by_layer(layout: Layout, work: Callable[[Job], Row], mapping: Map) -> Row:
    """Run the work for every layer and product; they and the heads become axes."""
    return joined(list(mapping(work, jobs_of(layout))))


def jobs_of(layout: Layout) -> list[Job]:
    """What is measured of the heads, a layer's product at a time."""
    return [(heads, kinds) for heads in layout.layers().values() for kinds in PRODUCTS.values()]


def joined(done: Sequence[Row]) -> Row:
    """Rows (head, …) in the order of the jobs as one (layer, head, product, …)."""
    # All products of the first layer, then of the second.
    pairs = [done[at : at + len(PRODUCTS)] for at in range(0, len(done), len(PRODUCTS))]
    names = done[0]
    layers = [{name: np.moveaxis(pad([part[name] for part in pair]), 0, 1) for name in names} for pair in pairs]
    return {name: pad([layer[name] for layer in layers]) for name in names}


def _batches(job: Job, reads: Sequence[Read]) -> Iterator[tuple[list[Array], list[Any] | None]]:
    """Left and right factors (head, d, d_h) of some heads at a time, for each reader; the noise of chains of them."""
    heads, kinds = job
    names = dict.fromkeys(link.parameter for kind in kinds for head in heads for link in head.factors[kind].links)
    # Each tensor is read once for all heads in it, and let go with the job.
    sources = [{name: read(name) for name in names} for read in reads]
    for name in names:
        check_pair(name, sources[0][name], sources[-1][name])
    device = getattr(next(iter(sources[0].values())), "device", "cpu")  # of NumPy a word, of torch an object
    size = CPU_STACK if getattr(device, "type", device) == "cpu" else len(heads)
    for at in range(0, len(heads), size):
        group = heads[at : at + size]
        sides = [([head.factors[kind] for head in group], source) for source in sources for kind in kinds]
        if not any(head.is_chained for head in group):
            yield [_stack(factors, source) for factors, source in sides], None
            continue
        # A product of two matrices is made in float64: in float32 its change would be lost in its rounding.
        pairs: list[tuple[Array, Any]] = [chained(_links(factors, source)) for factors, source in sides]  # pyright: ignore[reportArgumentType]
        yield [product for product, _ in pairs], [noise for _, noise in pairs]


def _links(factors: Sequence[Factor], tensors: Mapping[str, Array]) -> list[Array]:
    """The chains of some heads, link by link."""
    return [_stack(links, tensors) for links in zip(*(factor.links for factor in factors), strict=True)]


def _stack(factors: Sequence[Factor], tensors: Mapping[str, Array]) -> Array:
    parts = [factor.cut(tensors[factor.parameter]) for factor in factors]
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if arrays:
        return np.stack(arrays)
    import torch

    return torch.stack([part for part in parts if isinstance(part, torch.Tensor)])


def _difference(one: Array, other: Array) -> Array:
    """One minus the other, in float32 or the wider of their types; one copy is made."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.subtract(one, other, dtype=np.result_type(one, other, np.float32))
    import torch

    assert isinstance(one, torch.Tensor)
    assert isinstance(other, torch.Tensor)
    wide = torch.promote_types(torch.promote_types(one.dtype, other.dtype), torch.float32)
    return one.to(wide, copy=True).sub_(other)


def _numpy(values: "np.ndarray | torch.Tensor") -> np.ndarray:
    """Values in double precision on the CPU."""
    if not isinstance(values, np.ndarray):
        values = values.detach().cpu().numpy()
    return values.astype(float)


def pad(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Stack arrays along a new first axis, NaN where one is shorter."""
    shape = np.max([part.shape for part in parts], axis=0).astype(int)
    stacked = np.full((len(parts), *shape), np.nan)
    for place, part in enumerate(parts):
        stacked[(place, *(slice(size) for size in part.shape))] = part
    return stacked


def _filled(parts: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """Nothing, with as many axes as the others have, where a part is missing."""
    axes = next(part.ndim for part in parts if part is not None)
    return [np.full((0,) * axes, np.nan) if part is None else part for part in parts]


def check_pair(name: str, one: Array, other: Array) -> None:
    """Refuse two tensors that cannot be one weight at two times."""
    if tuple(one.shape) != tuple(other.shape):
        raise SaddlesError(
            f"{name} has shape {tuple(one.shape)} in the model and {tuple(other.shape)} in the reference. "
            "Compare checkpoints of one architecture and vocabulary."
        )


def without_spectrum(row: Row) -> Row:
    """What is kept of a row whose turn it is not to have spectra."""
    kept = (*WITHOUT_SPECTRUM, "used_rank")
    return {name: array for name, array in row.items() if name.partition("/")[2] in kept}


def headline(row: Row) -> Metrics:
    """Ranks of both products, averaged over all heads that have not diverged (effective ones of spectra); measures."""
    metrics = {}
    for at, product in enumerate(PRODUCTS):
        for name in (name for name in ("stable_rank", "effective_rank") if f"heads/{name}" in row):
            values = row[f"heads/{name}"][..., at]
            values = values[np.isfinite(values)]
            metrics[f"saddles/{product}/{name}"] = float(values.mean()) if values.size else float("nan")
    if (used := row.get("modules/used_rank")) is not None:
        metrics |= {"saddles/lora/used_rank_mean": float(used.mean()), "saddles/lora/used_rank_max": float(used.max())}
    for name in (name for name in row if name.startswith("measures/")):
        metrics[f"saddles/{name.partition('/')[2]}"] = float(row[name])
    return metrics


def to_trajectory(
    layout: Layout,
    steps: Sequence[int],
    rows: Sequence[Row],
    initial: Mapping[str, np.ndarray] | None = None,
    status: Status = FINISHED,
) -> xr.DataTree:
    """Label the axes of measured rows, in order of their steps: groups `heads`, `modules`, and `measures` if any.

    What a row does not hold is NaN at its step.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: pad(_filled([row.get(name) for row in rows])) for name in names}
    groups = {
        group: {name.partition("/")[2]: array for name, array in columns.items() if name.startswith(f"{group}/")}
        for group in ("heads", "modules", "measures")
    }
    facts = make_trajectory({}, steps, unit="step", status=status, skipped=list(layout.skipped)).attrs
    parts = {
        "/": xr.Dataset(attrs=facts),
        "heads": _heads_dataset(layout, steps, groups["heads"], initial or {}, status),
        "modules": _modules_dataset(layout.modules, steps, groups["modules"], status),
    }
    if groups["measures"]:
        coords = {"step": ("time", np.asarray(steps, dtype=int))}
        parts["measures"] = make_trajectory(groups["measures"], steps, unit="step", coords=coords, status=status)
    return xr.DataTree.from_dict(parts)


def _heads_dataset(
    layout: Layout, steps: Sequence[int], columns: Row, initial: Mapping[str, np.ndarray], status: Status
) -> xr.Dataset:
    def dims(array: np.ndarray, *before: str) -> tuple[str, ...]:
        return (*before, *HEAD_AXES, "index")[: array.ndim]

    variables = {name: (dims(array, "time"), array) for name, array in columns.items()}
    width = columns["singular_value"].shape[-1] if "singular_value" in columns else None
    # A change has up to 2 d_h singular values and a product d_h: they share the axis `index`, padded with NaN.
    for name, array in initial.items():
        if name == "singular_value" and width is not None and array.shape[-1] < width:
            array = np.pad(array, [(0, 0)] * 3 + [(0, width - array.shape[-1])], constant_values=np.nan)
        variables[f"initial_{name}"] = (dims(array), array)
    blocks = layout.layers()
    coords = {
        "step": ("time", np.asarray(steps, dtype=int)),
        "layer": np.arange(len(blocks)),
        "head": np.arange(max((len(heads) for heads in blocks.values()), default=0)),
        "product": list(PRODUCTS),
        "attention": ("layer", [heads[0].attention for heads in blocks.values()]),
        "rotary": ("layer", [heads[0].rotary for heads in blocks.values()]),
        "verdict": ("layer", list(layout.verdicts) or ["unconfirmed"] * len(blocks)),
    }
    return make_trajectory(variables, steps, unit="step", coords=coords, status=status)


def _modules_dataset(modules: Sequence[Module], steps: Sequence[int], columns: Row, status: Status) -> xr.Dataset:
    if not columns:
        return xr.Dataset(attrs={"note": "plain matrices were not measured"})
    variables = {name: (("time", "module", "index")[: array.ndim], array) for name, array in columns.items()}
    coords = {
        "step": ("time", np.asarray(steps, dtype=int)),
        "module": [module.name for module in modules],
    }
    if given := [module.given_rank for module in modules if module.given_rank is not None]:
        coords["given_rank"] = ("module", given)
    return make_trajectory(variables, steps, unit="step", coords=coords, status=status)


def join(trees: Sequence[xr.DataTree]) -> xr.DataTree:
    """Join measurements of one model along `time`, in the order given; the start is taken from the first."""
    if not trees:
        raise SaddlesError("`trees` must hold at least one measurement; got none.")
    parts: dict[str, xr.Dataset] = {"/": trees[0].to_dataset()}
    for group in trees[0].children:
        sets = [tree[group].to_dataset() for tree in trees]
        if not sets[0].data_vars:
            parts[group] = sets[0]
            continue
        # What has no time axis (the start) is taken from the first; xarray would otherwise compare it in all of them.
        kept = [part.drop_vars([n for n in part.data_vars if "time" not in part[n].dims]) for part in sets]
        joined = xr.concat(kept, "time", coords="minimal", compat="override", join="outer", combine_attrs="override")
        parts[group] = joined.assign({n: v for n, v in sets[0].data_vars.items() if "time" not in v.dims})
    return xr.DataTree.from_dict(parts)


def write_row(file: Path, row: Row, *, durable: bool = False) -> None:
    """Write arrays as .npz, all or nothing; a slash in a name, which .npz does not allow, becomes a dot."""
    with new_file(file, durable=durable) as stream:
        np.savez(stream, allow_pickle=False, **{name.replace("/", "."): array for name, array in row.items()})


def read_row(file: Path) -> Row:
    """Read what `write_row` wrote."""
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            return {name.replace(".", "/"): stored[name] for name in stored.files}
    except FileNotFoundError:
        raise
    except Exception as error:  # a decoder that meets damage raises anything
        raise SaddlesError(f"{file} is damaged: it cannot be read as arrays. Remove it, and what it holds is missing "
                           "or is measured again.") from error  # fmt: skip


def mark_gaps(tree: xr.DataTree, gaps: Mapping[int, str]) -> xr.DataTree:
    """Say in the attribute `gaps`, a JSON object step -> reason, where something is missing; returns the tree."""
    tree.attrs["gaps"] = json.dumps({str(step): why for step, why in sorted(gaps.items())}, ensure_ascii=False)
    return tree
