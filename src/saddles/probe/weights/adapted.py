"""Models that PEFT trains: low-rank factors on frozen weights, known by their names and shapes without importing PEFT.

The change of a matrix is s·BA, s the adapter's scaling, minus the same at the start. Its spectrum is taken from the
factors (QR of each, then a small matrix), and the product is never formed. Heads need the whole weights,
W = W₀ + s·BA; of DoRA, m·W/‖W‖ row by row. What is frozen is read a layer at a time, and no copy is kept.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from saddles.errors import SaddlesError
from saddles.measures.factored import product_spectrum, rank_measures
from saddles.probe.layouts.find_heads import find_layout
from saddles.probe.layouts.layout import Layout, Module, natural_order
from saddles.probe.measuring import Map, Row, measure_heads, pad
from saddles.probe.weights.live_model import (
    bare_norms,
    configuration,
    full_shape,
    module_counts,
    parameters,
    plain_name,
)

USED = "energy_rank_99"
"""The used rank: how many singular values carry 99 % of ‖ΔW‖². Rounding and noise fill all ranks that were given."""

INT8_MOST = 127
"""The largest number in 8 bits: what a row's scale stands for in bitsandbytes."""

Tensors = Mapping[str, Tensor]

_PREFIX = "base_model.model."
_ADAPTER = re.compile(r"\.(lora_|modules_to_save\.|original_module\.)")
_PRODUCTS = ("Dora", "ALora", "Velora", "Monteclora", "MiCA")
"""How the names of PEFT's variants begin that change weights by s·BA, as plain LoRA does, DoRA before it scales."""
_UNREAD = "its base is quantised and cannot be read here: heads are left out, its ΔW is measured from the factors"


@dataclass(frozen=True)
class Factors:
    """One low-rank pair of a module: B (out, r), A (r, in), the scaling, and DoRA's magnitudes where there are some."""

    left: str
    right: str
    scaling: float
    magnitude: str | None = None

    def names(self) -> list[str]:
        """The parameters that training changes."""
        return [self.left, self.right] + ([] if self.magnitude is None else [self.magnitude])


@dataclass(frozen=True, eq=False)
class AdaptedModule:
    """One matrix that is trained through low-rank factors.

    Args:
        weight: the name of the matrix, as it is without the adapter.
        layer: the module of PEFT.
        pairs: of all adapters that are active.
        turned: ΔW is stored as (BA)ᵀ, as by Conv1D of GPT-2 and by embeddings.
    """

    weight: str
    layer: torch.nn.Module
    pairs: tuple[Factors, ...]
    turned: bool

    def base(self) -> Tensor | None:
        """The frozen weights in double precision on the CPU; None where they are quantised beyond our reading."""
        return _frozen(_base_of(self.layer))

    def sides(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        """All pairs side by side, in double precision: s·B (out, r) and Aᵀ (in, r)."""
        lefts = [pair.scaling * _double(tensors[pair.left]) for pair in self.pairs]
        rights = [_double(tensors[pair.right]).T for pair in self.pairs]
        return torch.cat(lefts, 1), torch.cat(rights, 1)

    def whole(self, tensors: Tensors) -> Tensor:
        """The weights that the model computes with.

        PEFT applies active adapters one after the other, each to what those before it made. DoRA scales all of that,
        by its magnitudes over the norms of W₀ and its own change alone.
        """
        base = self.base()
        assert base is not None  # heads are looked for only where bases can be read
        start = base.T if self.turned else base
        rows = start
        for pair in self.pairs:
            change = pair.scaling * _double(tensors[pair.left]) @ _double(tensors[pair.right])
            rows = rows + change
            if pair.magnitude is not None:
                norms = torch.linalg.vector_norm(start + change, dim=1, keepdim=True)
                rows = _double(tensors[pair.magnitude])[:, None] * rows / norms
        return rows.T if self.turned else rows

    def rank(self, tensors: Tensors) -> int:
        """The rank that it was given."""
        return sum(tensors[pair.right].shape[0] for pair in self.pairs)

    def shape(self, tensors: Tensors) -> tuple[int, int]:
        """Of the matrix, as stored."""
        rows, columns = tensors[self.pairs[0].left].shape[0], tensors[self.pairs[0].right].shape[1]
        return (columns, rows) if self.turned else (rows, columns)


@dataclass(frozen=True, eq=False)
class Whole:
    """A weight that the model computes with, made each time it is asked for."""

    shape: tuple[int, ...]
    make: Callable[[], Tensor]

    def detach(self) -> Tensor:
        """Its numbers."""
        return self.make()


@dataclass(frozen=True, eq=False)
class Adapted:
    """A model with low-rank factors.

    Args:
        layout: heads and modules under the names of the model without its adapter; modules are the adapted ones.
        modules: in the order of the layout's.
        plain: weights of heads that no adapter changes, by name, read when they are asked for.
        trained: weights of heads that training changes as a whole, by name: the model's own name.
    """

    layout: Layout
    modules: tuple[AdaptedModule, ...]
    plain: Mapping[str, Callable[[], Tensor]]
    trained: Mapping[str, str]

    def parameters(self) -> list[str]:
        """All that training changes of what is measured: the factors, and matrices that are trained whole."""
        factors = [name for module in self.modules for pair in module.pairs for name in pair.names()]
        return [*factors, *self.trained.values()]

    def is_product(self) -> bool:
        """Whether the change is two factors in every module, which `saddles lora compress` needs: not of DoRA."""
        pairs = [pair for module in self.modules for pair in module.pairs]
        return all(pair.magnitude is None and "lora_embedding" not in pair.left for pair in pairs)

    def is_zero(self, tensors: Tensors) -> bool:
        """Whether the factors change nothing, as at PEFT's usual start, where B = 0."""
        pairs = [pair for module in self.modules for pair in module.pairs]
        return not any(bool(tensors[pair.left].any()) and bool(tensors[pair.right].any()) for pair in pairs)

    def measure(self, now: Tensors, start: Tensors, mapping: Map = map) -> Row:
        """Heads and modules of one measurement."""
        row = {f"modules/{name}": array for name, array in self._measure_modules(now, start).items()}
        if self.layout.heads:
            heads = measure_heads(self.layout, self.reader(now), self.reader(start), mapping)
            row |= {f"heads/{name}": array for name, array in heads.items()}
        return row

    def _measure_modules(self, now: Tensors, start: Tensors) -> Row:
        values = []
        for module in self.modules:
            left, right = module.sides(now)
            left_start, right_start = module.sides(start)
            if left_start.any():  # not so at PEFT's usual start, where B = 0
                # L Rᵀ − L₀ R₀ᵀ as one product. Factors are stored in 32 bits or fewer and this is double precision, so
                # that the cancellation that `change_spectrum` avoids does no harm here.
                left, right = torch.cat([left, -left_start], 1), torch.cat([right, right_start], 1)
            values.append(product_spectrum(left, right).numpy())
        spectra = pad(values)
        ranks = rank_measures(spectra)
        return {"singular_value": spectra, "used_rank": ranks[USED]} | ranks

    def reader(self, tensors: Tensors) -> Callable[[str], Tensor]:
        """A function that gives the weights of heads by name."""
        adapted = {module.weight: module for module in self.modules}

        def read(name: str) -> Tensor:
            if name in self.trained:
                return _double(tensors[self.trained[name]])
            return adapted[name].whole(tensors) if name in adapted else self.plain[name]()

        return read

    def state(self, tensors: Tensors) -> dict[str, Tensor | Whole]:
        """A state dict of the model without its adapter, with the weights that it computes with.

        Args:
            tensors: all parameters by name, now or at the start; packed weights, which are frozen, are read now.
        """
        state: dict[str, Tensor | Whole] = {
            _plain(name): tensor
            for name, tensor in tensors.items()
            if tensor.is_floating_point() and not _ADAPTER.search(name)
        }
        state |= {name: Whole(tuple(read().shape), read) for name, read in self.plain.items() if name not in state}
        return state | {one.weight: Whole(one.shape(tensors), partial(one.whole, tensors)) for one in self.modules}


def find_adapted(model: torch.nn.Module) -> Adapted | None:
    """What PEFT trains of a model; None where it trains nothing."""
    live = parameters(model)
    modules = tuple(sorted(_modules(model), key=lambda module: natural_order(module.weight)))
    if not modules:
        return None
    frozen = {_plain(name): tensor for name, tensor in live.items() if not _ADAPTER.search(name)}
    packed = dict(_quantised(model))
    shapes = {name: full_shape(tensor) for name, tensor in frozen.items() if tensor.is_floating_point()}
    shapes |= {name: (base.out_features, base.in_features) for name, base in packed.items()}
    counts = {_plain(f"{name}.").rstrip("."): count for name, count in module_counts(model).items()}
    unread = [module.weight for module in modules if module.base() is None]
    unread += [name for name, base in packed.items() if name not in unread and _frozen(base) is None]
    norms = [_plain(f"{name}.").rstrip(".") for name in bare_norms(model)]
    layout = find_layout({} if unread else shapes, configuration(model), counts, norms)
    given = tuple(Module(m.weight, m.shape(live), m.turned, m.rank(live)) for m in modules)
    skipped = layout.skipped + tuple((name, _UNREAD) for name in unread)
    trained = {_plain(name): name for name, one in live.items() if one.requires_grad and not _ADAPTER.search(name)}
    adapted = {module.weight for module in modules}
    if both := sorted(adapted & trained.keys()):
        raise SaddlesError(
            f"{both[0]} is trained beside its adapter, so that its change is not the adapter's. Freeze it "
            "(requires_grad_(False)), or leave it out of target_modules."
        )
    own = layout.head_parameters()
    trained = {name: trained[name] for name in own if name in trained}
    plain = {
        name: partial(_read, packed[name]) if name in packed else partial(_double, frozen[name])
        for name in own
        if name not in adapted and name not in trained
    }
    return Adapted(Layout(layout.heads, given, skipped), modules, plain, trained)


def _quantised(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Linear layers whose weights are packed numbers of a library for quantisation, by their weights' plain names."""
    for name, base in model.named_modules():
        weight = getattr(base, "weight", None)
        if isinstance(weight, Tensor) and not weight.is_floating_point() and hasattr(base, "in_features"):
            yield _plain(f"{plain_name(name)}.weight"), base


def suggestion(modules: xr.Dataset, adapted: Adapted | None, from_zero: bool) -> dict[str, str]:
    """The attribute `suggestion` of a recording: which rank would do; none where no adapter was recorded.

    Args:
        from_zero: the adapter changed nothing when the recording began, so that what is counted is all it does.
    """
    if adapted is None or "used_rank" not in modules:
        return {}
    given, used = int(modules["given_rank"].values.max()), modules["used_rank"].values[-1]
    known = used[np.isfinite(used)]
    missing = (
        f" {used.size - known.size} of {used.size} modules have no rank at the last step: see `gaps`, or NaN weights."
    )
    if not known.size:
        return {"suggestion": missing.strip()}
    most = int(known.max())
    words = "The adapter has not changed anything."
    if most:
        words = (
            f"Rank {given} given, at most {most} used (99 % of the change of every module; the median module uses "
            f"{np.median(known):g})."
        )
        if most >= given:
            words += " All are used."
        elif not from_zero:
            words += " What the adapter did before is not counted: only what has changed since the recording began."
        elif adapted.is_product():
            words += f" `saddles lora compress ADAPTER --max-rank {most}` makes it that small."
    return {"suggestion": words + missing * (known.size < used.size)}


def _modules(model: torch.nn.Module) -> Iterator[AdaptedModule]:
    for name, layer in model.named_modules():
        for left, right, turned in (("lora_B", "lora_A", False), ("lora_embedding_B", "lora_embedding_A", True)):
            there: Any = getattr(layer, right, None)  # of a layer of PEFT a dictionary by adapter
            if there is None or not (active := [one for one in getattr(layer, "active_adapters", ()) if one in there]):
                continue
            if getattr(layer, "merged", False):
                raise SaddlesError(f"The adapter is merged into {plain_name(name)}. Call unmerge_adapter() first.")
            if _base_of(layer).weight.ndim != 2:  # factors of convolutions have further axes
                continue
            for one in active:
                _refuse_other(plain_name(name), layer, one)
            pairs = tuple(_pair(plain_name(name), layer, left, right, one) for one in active)
            turned = turned or bool(getattr(layer, "fan_in_fan_out", False))
            yield AdaptedModule(f"{_plain(plain_name(name))}.weight", layer, pairs, turned)


def _refuse_other(name: str, layer: Any, adapter: str) -> None:
    """Refuse what has factors and changes weights in another way: KaSA, blocks, pooled inputs, routing; AdaLoRA."""
    variant = getattr(layer, "lora_variant", {}).get(adapter)
    known = variant is None or type(variant).__name__.startswith(_PRODUCTS)
    if not known or hasattr(layer, "lora_E"):
        raise SaddlesError(
            f"{name} is adapted by {type(variant or layer).__name__} of PEFT, whose change is not s·BA. Record LoRA, "
            "rsLoRA or DoRA."
        )


def _pair(name: str, layer: Any, left: str, right: str, adapter: str) -> Factors:
    end = "" if "embedding" in left else ".weight"
    magnitudes = getattr(layer, "lora_magnitude_vector", {})
    magnitude = f"{name}.lora_magnitude_vector.{adapter}.weight" if adapter in magnitudes else None
    return Factors(
        f"{name}.{left}.{adapter}{end}", f"{name}.{right}.{adapter}{end}", float(layer.scaling[adapter]), magnitude
    )


def _plain(name: str) -> str:
    """A parameter's name in the model without its adapter."""
    return name.removeprefix(_PREFIX).replace(".base_layer.", ".")


def _base_of(layer: Any) -> Any:  # a layer of PEFT, which need not be installed
    return layer.get_base_layer()


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float64)


def _frozen(base: torch.nn.Module) -> Tensor | None:
    """The weights of a frozen layer in double precision on the CPU; None where they are packed beyond our reading."""
    weight: Any = base.weight
    if not weight.is_floating_point():
        weight = _dequantised(base)
    return None if weight is None else _double(weight)


def _read(base: torch.nn.Module) -> Tensor:
    weight = _frozen(base)
    assert weight is not None  # heads are looked for only where bases can be read
    return weight


def _dequantised(base: torch.nn.Module) -> Tensor | None:
    """Packed weights as numbers, and the layer left as it is: training may be using it at this moment."""
    packed: Any = base.weight
    try:
        from peft.utils import integrations

        if type(packed).__name__ == "Int8Params":
            weight = _from_8_bits(packed, base.state)
        elif type(packed).__name__ == "Params4bit":
            weight = integrations.dequantize_bnb_weight(packed)
        else:
            weight = integrations.dequantize_module_weight(base)
    except Exception:  # of whatever library quantised it, or of none that PEFT knows
        return None
    return weight if weight.is_floating_point() and weight.ndim == 2 else None


def _from_8_bits(packed: Any, state: Any) -> Tensor:  # of bitsandbytes, which need not be installed
    """Rows of 8-bit numbers times their scales. PEFT's own function puts a new parameter into the layer.

    The layer's first forward pass moves the scales from the parameter to the state, perhaps at this moment.
    """
    scale = next(one for one in (state.SCB, packed.SCB, state.SCB) if one is not None)
    return packed.data.double() * scale.double()[:, None].to(packed.device) / INT8_MOST
