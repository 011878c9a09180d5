"""Live models: their parameters by name, whole even where they are sharded, and what modules know about heads.

FSDP2 and tensor parallelism keep a DTensor, which gives its full tensor to every process that asks at the same time.
ZeRO-3 keeps an empty tensor and gathers inside a context of DeepSpeed. FSDP1 flattens parameters, so that heads cannot
be separated.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
import xarray as xr
from torch import Tensor
from torch.nn.parameter import is_lazy

from saddles.errors import SaddlesError
from saddles.probe.layouts.find_heads import find_layout
from saddles.probe.layouts.head_counts import COUNT_NAMES
from saddles.probe.layouts.layout import Layout
from saddles.probe.measuring import measure
from saddles.runtime.threads import spare_cores

Reference = torch.nn.Module | Mapping[str, Tensor]
"""A model, or its state dict."""

_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""What torch.compile, FSDP and activation checkpointing put into names."""


def heads(model: torch.nn.Module) -> Layout:
    """The heads of a live model, its plain matrices, and what was skipped with the reasons; print it for a table.

    Args:
        model: only names, shapes, the configuration and head counts are read.
    """
    shapes = {name: full_shape(tensor) for name, tensor in parameters(model).items() if tensor.is_floating_point()}
    return find_layout(shapes, configuration(model), module_counts(model), bare_norms(model))


def spectra(
    model: torch.nn.Module,
    reference: torch.nn.Module | Mapping[str, Tensor],
    step: int = 0,
    *,
    inputs: object = None,
) -> xr.DataTree:
    """Spectra and ranks of a live model's change against a reference: `time` has length 1.

    Args:
        model: the model now.
        reference: the model at the start, or its state dict.
        step: the coordinate `step` of the result.
        inputs: what the model is called with, to check that its heads are read right (see `saddles.probe.verify`);
            the coordinate `verdict` then says what was found for each layer, and "unconfirmed" otherwise.
    """
    now, start, layout = parameters(model), state_of(reference), measurable(model)
    if inputs is not None:
        from saddles.probe.verification import verify_layout  # which needs this module

        verdicts = verify_layout(model, layout, inputs)["verdict"].values
        layout = dataclasses.replace(layout, verdicts=tuple(map(str, verdicts)))
    start, layout, notes = _matched(model, reference, start, layout)
    check_types({name: now[name] for name in layout.parameters()})
    # One thread where processes must gather in the same order, and on a GPU: it has all heads of a layer at once, and
    # torch fails where several threads are the first to use its linear algebra there.
    alone = any(is_sharded(tensor) or tensor.device.type != "cpu" for tensor in (*now.values(), *start.values()))
    workers = 1 if alone else spare_cores()
    tree = measure(layout, reader(now), reader(start, beside=now), step, workers=workers)
    if notes:
        tree.attrs["notes"] = json.dumps(notes, ensure_ascii=False)
    return tree


def _matched(
    model: torch.nn.Module, reference: Reference, start: dict[str, Tensor], layout: Layout
) -> tuple[dict[str, Tensor], Layout, list[str]]:
    """A reference's tensors under the model's names, what both have, and notes; nothing is done where all is there."""
    now = parameters(model)
    if all(name in start and full_shape(start[name]) == full_shape(now[name]) for name in layout.parameters()):
        return start, layout, []
    from saddles.probe.weights.checkpoints import of_tensors, open_weights  # which need this module
    from saddles.probe.weights.matching import paired, shared

    early = open_weights(reference) if isinstance(reference, torch.nn.Module) else of_tensors(start, "The reference")
    pairing = paired(open_weights(model), early)
    layout, notes = shared(layout, pairing.start, [pairing.point])
    tensors = {name: start[pairing.stored.get(name, name)] for name in layout.parameters()}
    return tensors, layout, [*pairing.notes, *notes]


def parameters(model: object) -> dict[str, Tensor]:
    """A model's parameters under their plain names; refused where they are flattened or absent."""
    if not isinstance(model, torch.nn.Module):
        raise SaddlesError.must_be("model", "a torch.nn.Module", model, "Pass the model, not its path or weights")
    named: dict[str, Tensor] = {}
    for stored, tensor in model.named_parameters():
        name = plain_name(stored)
        if is_lazy(tensor):
            _refuse(name, "has no shape yet", "Call the model once first")
        # Some models are built with an empty tensor, for instance of (1, 0, width), or of nothing: it is left out. What
        # sharding empties is a weight with one axis.
        if not tensor.numel() and not (tensor.ndim == 1 and (name.endswith("weight") or hasattr(tensor, "ds_id"))):
            continue
        _check_readable(name, tensor)
        if name in named:  # one of the two would stand for both without a word
            raise SaddlesError(
                f"{name} and {stored} of the model are one name, for `module.` is taken for what DataParallel adds. "
                "Call the attribute `module` something else."
            )
        named[name] = tensor
    return named


def check_types(measured: Mapping[str, Tensor]) -> None:
    """Refuse numbers of 8 bits: what the model computes with has a scale, too, which lies elsewhere."""
    narrow = next((name for name, tensor in measured.items() if tensor.dtype.itemsize < 2), None)
    if narrow is not None:
        kind = str(measured[narrow].dtype).removeprefix("torch.")
        raise SaddlesError(
            f"The parameter {narrow} must have 16 bits or more; it is {kind}. Give the model before quantisation."
        )


def measurable(model: torch.nn.Module) -> Layout:
    """`heads` of a model that is to be measured; refused where they would leave out weights of 8-bit integers."""
    check_types(
        {
            name: tensor
            for name, tensor in parameters(model).items()
            if name.endswith("weight") and tensor.ndim > 1 and tensor.dtype in (torch.int8, torch.uint8)
        }
    )
    return heads(model)


def live_parameters(model: torch.nn.Module) -> dict[str, Tensor]:
    """A model's parameters as they are now, under all of their names; nothing is refused."""
    return {plain_name(name): tensor for name, tensor in model.named_parameters(remove_duplicate=False)}


def state_of(source: Reference) -> dict[str, Tensor]:
    """The tensors of a model or of a state dict, under their plain names."""
    if isinstance(source, Mapping):
        return {plain_name(name): tensor for name, tensor in source.items()}
    if not isinstance(source, torch.nn.Module):
        raise SaddlesError.must_be("reference", "a model or its state dict", source, "Load it first")
    return parameters(source)


def part_of(reference: Reference, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The recorded part of a reference, copied to the CPU."""
    tensors = state_of(reference)
    wrong = [name for name, own in like.items() if name not in tensors or tensors[name].shape != own.shape]
    if wrong:
        raise SaddlesError(f"`reference` must be the same model; it has no {wrong[0]} of the model's shape.")
    return {name: tensors[name].detach().to("cpu", copy=True) for name in like}


def same_weights(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two sets of weights are equal, bit for bit."""
    return set(one) == set(other) and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def plain_name(name: str) -> str:
    """A parameter's name without what wrappers add to it."""
    for word in _WRAPPERS:
        name = name.replace(word, "")
    return name.removeprefix("module.")


def configuration(model: torch.nn.Module) -> dict[str, object]:
    """The model's configuration as a dictionary, empty where it has none.

    A module around a model, such as Lightning's, may have none, or one that says nothing of heads: then it is that of
    the model inside, where all models inside have the same.
    """
    own = _configuration_of(unwrapped(model))
    if _speaks_of_heads(own):
        return own
    inner: dict[str, dict[str, object]] = {}
    for name, part in model.named_modules():  # outer modules come before what they contain
        told = _configuration_of(part)
        if _speaks_of_heads(told) and not any(name.startswith(f"{outer}.") for outer in inner):
            inner[name] = told
    found = [*inner.values()]
    return found[0] if found and all(told == found[0] for told in found) else own


def _speaks_of_heads(config: Mapping[str, object]) -> bool:
    parts = [config, *(part for part in config.values() if isinstance(part, Mapping))]
    return any(str(name).endswith(COUNT_NAMES) for part in parts for name in part)  # encoder_attention_heads, too


def _configuration_of(module: torch.nn.Module) -> dict[str, object]:
    config: Any = getattr(module, "config", None)  # of any library, or the user's own
    if isinstance(config, type):  # a class, of which the module has no instance
        return {}
    if hasattr(config, "to_dict"):
        return dict(config.to_dict())
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return dataclasses.asdict(config)
    return dict(config) if isinstance(config, Mapping) else dict(getattr(config, "__dict__", {}))


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside torch.compile and (Distributed)DataParallel."""
    for name in ("_orig_mod", "module"):
        inner = model._modules.get(name)
        # A model of the user's own may have a part called `module` beside others.
        if inner is not None and len(model._modules) == 1 and not model._parameters:
            return unwrapped(inner)
    return model


def without_wrappers(copied: torch.nn.Module) -> torch.nn.Module:
    """A copy of a model, whose modules get the names that `plain_name` gives their parameters; the copy is changed."""
    model = unwrapped(copied)
    for parent in [*model.modules()]:
        for name, part in parent._modules.items():
            parent._modules[name] = _inside(part)
    return model


def _inside(part: torch.nn.Module | None) -> torch.nn.Module | None:
    inner = (part._modules.get(word.rstrip(".")) for word in _WRAPPERS) if part is not None else ()
    found = next((one for one in inner if one is not None), None)
    return part if found is None else _inside(found)


def module_counts(model: torch.nn.Module) -> dict[str, int]:
    """Head counts that modules carry themselves, by any of the usual names."""
    counts = {}
    for name, module in model.named_modules():
        values = (getattr(module, word, None) for word in COUNT_NAMES)
        number = next((value for value in values if isinstance(value, int) and value > 0), None)
        if number is not None:
            counts[plain_name(f"{name}.").rstrip(".")] = number
    return counts


def bare_norms(model: torch.nn.Module) -> list[str]:
    """Modules that are called norms and have no parameters, which shapes do not show."""
    return [
        plain_name(name)
        for name, part in model.named_modules()
        if "norm" in name and not isinstance(part, torch.nn.Identity) and not [*part.parameters()]
    ]


def reader(tensors: Mapping[str, Tensor], beside: Mapping[str, Tensor] | None = None) -> Callable[[str], Tensor]:
    """A function that gives a whole tensor by name, gathered where it is sharded, on the device of `beside`."""
    places = beside or tensors

    def read(name: str) -> Tensor:
        with gathered(name, tensors[name]) as tensor:
            return tensor.detach().to(places[name].device)

    return read


@contextmanager
def gathered(name: str, tensor: Tensor) -> Iterator[Tensor]:
    """The whole tensor; every process must ask for it, in the same order."""
    _check_readable(name, tensor)
    if hasattr(tensor, "ds_id"):
        with _deepspeed(name).zero.GatheredParameters([tensor]):
            yield tensor.detach().clone()
    elif full_tensor := getattr(tensor.detach(), "full_tensor", None):
        yield full_tensor()
    else:
        yield tensor


def full_shape(tensor: Tensor) -> tuple[int, ...]:
    """The shape of the whole parameter, also where only a part of it is here."""
    return tuple(getattr(tensor, "ds_shape", tensor.shape))


def is_sharded(tensor: Tensor) -> bool:
    """Whether processes must gather it together."""
    return hasattr(tensor, "ds_id") or hasattr(tensor, "full_tensor")


def _check_readable(name: str, tensor: Tensor) -> None:
    """Refuse a parameter whose values cannot be read."""
    if "_flat_param" in name:
        _refuse(name, "is flattened by FSDP1", "Use FSDP2 (fully_shard), whose parameters can be gathered")
    if hasattr(tensor, "ds_id"):
        _deepspeed(name)
    elif tensor.device.type == "meta":
        _refuse(name, "is on the meta device and has no values", "Load the weights first")
    elif tensor.numel() == 0:
        _refuse(name, "is empty here", "Gather sharded parameters first, or start recording before they are sharded")


def _deepspeed(name: str) -> Any:  # a module that is not installed where types are checked
    try:
        import deepspeed  # pyright: ignore[reportMissingImports]
    except ImportError:
        _refuse(name, "is sharded by ZeRO-3 and DeepSpeed cannot be imported", "Install deepspeed in this process")
    return deepspeed


def _refuse(name: str, state: str, hint: str) -> NoReturn:
    raise SaddlesError(f"The parameter {name} {state}, and only whole parameters can be measured. {hint}.")
