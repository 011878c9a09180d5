"""Live models: their parameters by name, and what their modules know about heads."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import xarray as xr

from saddles.errors import SaddlesError
from saddles.probe.layouts.find_heads import find_layout
from saddles.probe.layouts.head_counts import COUNT_NAMES
from saddles.probe.layouts.layout import Layout
from saddles.probe.measuring import measure
from saddles.probe.threads import spare_cores
from saddles.probe.weights.sharding import check_present, full_shape, gathered, is_sharded

_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""What torch.compile, FSDP and activation checkpointing put into names."""


def heads(model: Any) -> Layout:
    """The heads of a live model, its plain matrices, and what was skipped with the reasons; print it for a table.

    Args:
        model: a torch.nn.Module; nothing is read but names, shapes, the configuration and head counts.
    """
    shapes = {name: full_shape(tensor) for name, tensor in parameters(model).items() if tensor.is_floating_point()}
    return find_layout(shapes, configuration(model), module_counts(model))


def spectra(model: Any, reference: Any, step: int = 0) -> xr.DataTree:
    """Spectra and ranks of a model's change against a reference: `time` has length 1.

    Args:
        model: a torch.nn.Module.
        reference: the model at the start, or its state dict.
        step: the coordinate `step` of the result.
    """
    now = parameters(model)
    start = reference if isinstance(reference, Mapping) else parameters(reference)
    start = {plain_name(name): tensor for name, tensor in start.items()}
    layout = heads(model)
    missing = [name for name in layout.parameters() if name not in start]
    if missing:
        raise SaddlesError.about(
            f"the reference has no {missing[0]}" + (f" and {len(missing) - 1} more" if missing[1:] else ""),
            "model and reference must have the same parameters",
            "compare two states of one model",
        )
    together = any(is_sharded(tensor) for tensor in (*now.values(), *start.values()))
    workers = 1 if together else spare_cores()  # processes must gather in the same order
    return measure(layout, reader(now), reader(start, beside=now), step, workers=workers)


def reader(tensors: Mapping[str, Any], beside: Mapping[str, Any] | None = None) -> Callable[[str], Any]:
    """A function that gives a whole tensor by name, gathered where it is sharded, on the device of `beside`."""
    places = beside or tensors

    def read(name: str) -> Any:
        with gathered(name, tensors[name]) as tensor:
            return tensor.detach().to(places[name].device)

    return read


def parameters(model: Any) -> dict[str, Any]:
    """A model's parameters under their plain names; refused where they are flattened or absent."""
    if not hasattr(model, "named_parameters"):
        raise SaddlesError.about(
            f"{type(model).__name__} came", "a torch.nn.Module is needed", "pass the model, not its path or weights"
        )
    found = {plain_name(name): tensor for name, tensor in model.named_parameters()}
    check_present(found)
    return found


def plain_name(name: str) -> str:
    """A parameter's name without what wrappers add to it."""
    for word in _WRAPPERS:
        name = name.replace(word, "")
    return name.removeprefix("module.")


def configuration(model: Any) -> dict[str, Any]:
    """The model's configuration as a dictionary, empty where it has none."""
    config: Any = getattr(unwrapped(model), "config", None)
    if hasattr(config, "to_dict"):
        return dict(config.to_dict())
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return dataclasses.asdict(config)
    return dict(config) if isinstance(config, Mapping) else dict(getattr(config, "__dict__", {}))


def unwrapped(model: Any) -> Any:
    """The model inside torch.compile and (Distributed)DataParallel."""
    for name in ("_orig_mod", "module"):
        inner = getattr(model, "_modules", {}).get(name)
        if inner is not None:
            return unwrapped(inner)
    return model


def module_counts(model: Any) -> dict[str, int]:
    """Head counts that modules carry themselves, by any of the usual names."""
    found = {}
    for name, module in model.named_modules():
        values = (getattr(module, word, None) for word in COUNT_NAMES)
        number = next((value for value in values if isinstance(value, int) and value > 0), None)
        if number is not None:
            found[plain_name(f"{name}.").rstrip(".")] = number
    return found
