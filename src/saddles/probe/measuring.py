"""Measure a model against a reference, layer by layer and matrix by matrix.

Only the tensors of one product of one layer, or one matrix, are held at a time, each now and at
the start: peak memory stays below two copies of the largest tensor pair (in float32).

Blocks may differ in their number of heads, and matrices in size: shorter ones are padded with
NaN along `head` and `index`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from saddles.core.trajectory import FINISHED, make_trajectory
from saddles.errors import SaddlesError
from saddles.measures.factored import (
    change_and_floor,
    matrix_floor,
    product_spectrum,
    rank_measures,
    spectrum,
)
from saddles.probe.layouts.layout import PRODUCTS, Factor, Head, Layout, Module
from saddles.probe.threads import calm_pool

Read = Callable[[str], Any]
"""Parameter name -> tensor."""

Each = Callable[..., Iterable[Any]]
"""`map`, or the method of that name of a pool."""

Row = dict[str, np.ndarray]
"""Arrays of one measurement, without names for their axes."""

TOGETHER = 4
"""Heads that are stacked at a time on a CPU, where a larger stack gains nothing and leaves the cache."""

HEAD_AXES = ("layer", "head", "product")


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
    """Spectra and ranks of every head's and every matrix' change, as one labelled row.

    Args:
        layout: where the heads lie.
        now, start: give a tensor by its parameter's name; each is asked for when its turn comes.
        step: the training step, the coordinate `step` of the result.
        modules: measure the plain matrices too; they cost more than the heads.
        initial: add the spectrum of the products at the start, `initial_singular_value` and
            `initial_stable_rank`.
        workers: threads for the heads, one core each; each holds the tensors of one layer's product.
    """
    need_heads(layout)
    with calm_pool(workers) as pool:
        row = {f"heads/{name}": value for name, value in measure_heads(layout, now, start, pool.map).items()}
        first = measure_initial(layout, start, pool.map) if initial else {}
    if modules:
        row |= {f"modules/{name}": value for name, value in measure_modules(layout, now, start).items()}
    return label(layout, [step], [row], first)


def measure_heads(layout: Layout, now: Read, start: Read, each: Each = map) -> Row:
    """Arrays (layer, head, product, …) of the heads' changes.

    Args:
        each: how the layers' products are gone through; the `map` of a thread pool does several at once.
    """

    def one(heads: Sequence[Head], kinds: tuple[str, str]) -> Row:
        pairs = [change_and_floor(*factors) for factors in _batches(heads, kinds, (now, start))]
        values, floors = (np.concatenate([_array(part) for part in column]) for column in zip(*pairs, strict=True))
        return {"singular_value": values, "noise_floor": floors}

    return _complete(_by_layer(layout, one, each))


def measure_initial(layout: Layout, start: Read, each: Each = map) -> Row:
    """Arrays (layer, head, product, …) of the products W_K W_Qᵀ and W_V W_Oᵀ at the start."""

    def one(heads: Sequence[Head], kinds: tuple[str, str]) -> Row:
        rows = [_array(product_spectrum(*factors)) for factors in _batches(heads, kinds, (start,))]
        return {"singular_value": np.concatenate(rows)}

    values = _by_layer(layout, one, each)["singular_value"]
    return {"singular_value": values, "stable_rank": rank_measures(values)["stable_rank"]}


def measure_modules(layout: Layout, now: Read, start: Read) -> Row:
    """Arrays (module, …) of the plain matrices' changes."""
    rows = []
    for module in layout.modules:
        one, other = now(module.parameter), start(module.parameter)
        check_pair(module.parameter, one, other)
        floor = float(matrix_floor(one, other))
        values = _array(spectrum(_difference(one, other)))
        rows.append({"singular_value": values, "noise_floor": np.asarray(floor)})
    if not rows:
        return {}
    return _complete({name: pad([row[name] for row in rows]) for name in rows[0]})


def _complete(row: Row) -> Row:
    return row | rank_measures(row["singular_value"])


def _by_layer(layout: Layout, work: Callable[[Sequence[Head], tuple[str, str]], Row], each: Each) -> Row:
    """Go through layers and products; they and the heads become axes."""
    jobs = [(heads, kinds) for heads in layout.layers().values() for kinds in PRODUCTS.values()]
    done = list(each(lambda job: work(*job), jobs))
    pairs = [done[at : at + len(PRODUCTS)] for at in range(0, len(done), len(PRODUCTS))]
    names = done[0]
    layers = [{name: np.moveaxis(pad([part[name] for part in pair]), 0, 1) for name in names} for pair in pairs]
    return {name: pad([layer[name] for layer in layers]) for name in names}


def _batches(heads: Sequence[Head], kinds: tuple[str, str], reads: Sequence[Read]) -> Iterator[list[Any]]:
    """Left and right factors (head, d, d_h) of some heads at a time, for each reader."""
    names = dict.fromkeys(head.factors[kind].parameter for kind in kinds for head in heads)
    sources = [{name: read(name) for name in names} for read in reads]
    for name in names:
        check_pair(name, sources[0][name], sources[-1][name])
    first = next(iter(sources[0].values()))
    on_cpu = isinstance(first, np.ndarray) or first.device.type == "cpu"
    size = TOGETHER if on_cpu else len(heads)
    for at in range(0, len(heads), size):
        group = heads[at : at + size]
        yield [_stack([head.factors[kind] for head in group], source) for source in sources for kind in kinds]


def _stack(factors: Sequence[Factor], tensors: Mapping[str, Any]) -> Any:
    parts = [factor.cut(tensors[factor.parameter]) for factor in factors]
    if isinstance(parts[0], np.ndarray):
        return np.stack(parts)
    import torch

    return torch.stack(parts)


def _difference(one: Any, other: Any) -> Any:
    if isinstance(one, np.ndarray):
        return np.subtract(one, other, dtype=np.result_type(one, other, np.float32))
    import torch

    wide = torch.promote_types(torch.promote_types(one.dtype, other.dtype), torch.float32)
    return one.to(wide, copy=True).sub_(other)


def _array(values: Any) -> np.ndarray:
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


def check_pair(name: str, one: Any, other: Any) -> None:
    """Refuse two tensors that cannot be one weight at two times."""
    if tuple(one.shape) != tuple(other.shape):
        raise SaddlesError.about(
            f"{name} has shape {tuple(one.shape)} in the model and {tuple(other.shape)} in the reference",
            "both must be the same model at two times",
            "compare checkpoints of one architecture and vocabulary",
        )


def need_heads(layout: Layout) -> None:
    """Refuse a model in which no head was found."""
    if layout.heads:
        return
    reasons = "; ".join(f"{name}: {reason}" for name, reason in layout.skipped if "attention" in reason)[:300]
    refused = next((f"{name}: {reason}" for name, reason in layout.skipped if "vector" not in reason), "")
    raise SaddlesError.about(
        f"no attention head was found ({reasons or refused or 'no parameter looks like attention'})",
        "the heads of a transformer are measured",
        "register an adapter with saddles.probe.register if it has attention",
    )


def label(
    layout: Layout,
    steps: Sequence[int],
    rows: Sequence[Row],
    initial: Mapping[str, np.ndarray] | None = None,
    status: str = FINISHED,
) -> xr.DataTree:
    """Name the axes of measured rows, in order of their steps: groups `heads` and `modules` along `time`."""
    columns = {name: pad([row[name] for row in rows]) for name in (rows[0] if rows else ())}
    groups = {
        group: {name.partition("/")[2]: array for name, array in columns.items() if name.startswith(f"{group}/")}
        for group in ("heads", "modules")
    }
    tree = xr.DataTree.from_dict(
        {
            "/": xr.Dataset(attrs=_attributes(layout, steps, status)),
            "heads": _heads_dataset(layout, steps, groups["heads"], initial or {}, status),
            "modules": _modules_dataset(layout.modules, steps, groups["modules"], status),
        }
    )
    return tree


def _attributes(layout: Layout, steps: Sequence[int], status: str) -> dict[str, Any]:
    return make_trajectory({}, steps, unit="step", status=status, skipped=list(layout.skipped)).attrs


def _heads_dataset(
    layout: Layout, steps: Sequence[int], columns: Row, initial: Mapping[str, np.ndarray], status: str
) -> xr.Dataset:
    def dims(array: np.ndarray, *before: str) -> tuple[str, ...]:
        return (*before, *HEAD_AXES, "index")[: array.ndim]

    variables = {name: (dims(array, "time"), array) for name, array in columns.items()}
    width = columns["singular_value"].shape[-1] if columns else None
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
    }
    return make_trajectory(variables, steps, unit="step", coords=coords, status=status)


def _modules_dataset(modules: Sequence[Module], steps: Sequence[int], columns: Row, status: str) -> xr.Dataset:
    if not columns:
        return xr.Dataset(attrs={"note": "plain matrices were not measured"})
    variables = {name: (("time", "module", "index")[: array.ndim], array) for name, array in columns.items()}
    coords = {
        "step": ("time", np.asarray(steps, dtype=int)),
        "module": [module.parameter for module in modules],
    }
    return make_trajectory(variables, steps, unit="step", coords=coords, status=status)


def join(trees: Sequence[xr.DataTree]) -> xr.DataTree:
    """Join measurements of one model along `time`, in the order given; the start is taken from the first."""
    if not trees:
        raise SaddlesError.about("no measurement came", "at least one is joined", "measure one first")
    parts: dict[str, xr.Dataset] = {"/": trees[0].to_dataset()}
    for group in trees[0].children:
        sets = [tree[group].to_dataset() for tree in trees]
        if not sets[0].data_vars:
            parts[group] = sets[0]
            continue
        kept = [part.drop_vars([n for n in part.data_vars if "time" not in part[n].dims]) for part in sets]
        joined = xr.concat(kept, "time", coords="minimal", compat="override", join="outer", combine_attrs="override")
        parts[group] = joined.assign({n: v for n, v in sets[0].data_vars.items() if "time" not in v.dims})
    return xr.DataTree.from_dict(parts)
