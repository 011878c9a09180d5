"""Is a network's change lazy or active? Numbers that need no theory to be true, for torch modules and JAX functions.

    saddles.networks.linearity(model, before, after, batch)        # 0: lazy; about 1: the linear part explains nothing
    saddles.networks.regime(model, before, after, batch)           # the same with the drift of the tangent kernel
    saddles.networks.regime(f, before, after, batch)               # f(parameters, batch) in JAX, parameters a pytree

`f` is a torch module (start and end are its state dicts) or a JAX function f(parameters, batch) (start and end are
pytrees). The batch is a tensor or array whose first axis is the sample; for torch also a tuple of tensors or a mapping
of keywords, for JAX any pytree. Modules are evaluated without dropout.

Cost: linearity takes one forward pass and one Jacobian-vector product (about two forward passes); each probe of the
kernel takes two backward passes and two such products. Memory: the parameters and three directions of their size,
beside the activations of one block of samples; blocks are halved where memory runs out.
"""

from typing import Any

import numpy as np
import xarray as xr

from saddles.errors import SaddlesError
from saddles.networks.differentiable import Differentiable, Point, in_blocks, network_of

PROBES = 16
"""Random directions in output space from which the kernel's drift is estimated."""


def linearity(f: object, start: Any, end: Any, batch: object) -> float:
    """How far a network's change is from linear in its parameters.

        e = ‖f(x; θ) − f(x; θ₀) − J(x; θ₀)(θ − θ₀)‖ / ‖f(x; θ) − f(x; θ₀)‖

    0 in the lazy (kernel) regime; about 1 where the linear part explains nothing; above 1 where it misleads: e is not
    bounded. It does not by itself make scaling or adding changes safe: two changes with e = 0 can interact. For that,
    measure e at the scaled or at the joint change.

    Args:
        f: a torch module, or a JAX function f(parameters, batch).
        start: θ₀, a state dict or a pytree.
        end: θ, in the same form.
        batch: x, at least one sample.
    """
    network, first, change = _opened(f, start, end, batch)
    e = _linearity(network, first, network.parameters(end, "end"), change)["linearity"]
    if np.isnan(e):
        raise SaddlesError(
            "The outputs on this batch are the same at `start` and `end`: the linearity of their change is undefined."
        )
    return e


def regime(f: object, start: Any, end: Any, batch: object, *, probes: int = PROBES, seed: int = 0) -> xr.Dataset:
    """Lazy or active: linearity of the change and drift of the tangent kernel.

    - `linearity`: e of `saddles.networks.linearity`; NaN where the outputs did not change.
    - `linearity_floor`: what rounding alone gives, ε‖f‖/‖Δf‖; a smaller e is not resolved.
    - `kernel_drift`: 1 − ⟨Θ, Θ₀⟩/(‖Θ‖‖Θ₀‖) of the empirical tangent kernel Θ = JJᵀ on the batch (all outputs of all
      samples). With at least as many `probes` as outputs of the batch it is exact. Otherwise ⟨Θ, Θ₀⟩ = E[(Θv)·(Θ₀v)] is
      averaged over so many Gaussian v; `kernel_drift_error` is its standard error by the jackknife.
    - `kernel_growth`: ‖Θ‖/‖Θ₀‖, from the same products.
    - `output_change`: ‖Δf‖/‖f₀‖; `parameter_change`: ‖Δθ‖/‖θ₀‖.

    Args:
        probes: directions for the kernel; 0 leaves it out.
        seed: draws them.
    """
    if probes < 0:
        raise SaddlesError.must_be("probes", "at least 0", probes)
    network, first, change = _opened(f, start, end, batch)
    last = network.parameters(end, "end")
    found = _linearity(network, first, last, change)
    found["parameter_change"] = _ratio(network.norm(change), network.norm(first))
    if probes:
        found |= _kernel(network, first, last, probes, seed, outputs=int(found.pop("outputs")))
    found.pop("outputs", None)
    return xr.Dataset({name: ((), value) for name, value in found.items()}, attrs={"samples": network.samples})


def _opened(f: object, start: Any, end: Any, batch: object) -> tuple[Differentiable, Point, Point]:
    network = network_of(f, start, batch)
    first = network.parameters(start, "start")
    return network, first, network.difference(network.parameters(end, "end"), first)


def _ratio(one: float, other: float) -> float:
    return one / other if other > 0 else float("nan")


def _linearity(network: Differentiable, start: Point, end: Point, change: Point) -> dict[str, float]:
    """Sums over blocks of samples."""
    squares = np.zeros(3)  # of the remainder, of the change, of the outputs at the start
    outputs = 0

    def block(rows: slice) -> tuple[np.ndarray, int]:
        before, linear = network.push(start, change, rows)
        after = network.values(end, rows)
        for name, values in (("start", before), ("end", after)):
            if not np.isfinite(values).all():
                raise SaddlesError(f"The network's outputs at `{name}` are not finite. Did the training diverge?")
        moved = after - before
        return np.array([np.sum((moved - linear) ** 2), np.sum(moved**2), np.sum(before**2)]), before.size

    for part, count in in_blocks(network, block):
        squares, outputs = squares + part, outputs + count
    remainder, moved, before = np.sqrt(squares)
    return {
        "linearity": _ratio(float(remainder), float(moved)),
        "linearity_floor": network.epsilon * _ratio(float(before), float(moved)),
        "output_change": _ratio(float(moved), float(before)),
        "outputs": outputs,
    }


def _kernel(
    network: Differentiable, start: Point, end: Point, probes: int, seed: int, outputs: int
) -> dict[str, float]:
    exact = probes >= outputs
    draw = np.random.default_rng([seed, 24])
    width = outputs // network.samples
    products = []
    for number in range(outputs if exact else probes):
        direction = np.zeros(outputs) if exact else draw.normal(size=outputs)
        if exact:
            direction[number] = 1.0
        late, early = (_kernel_times(network, at, direction.reshape(-1, width)) for at in (end, start))
        products.append([np.sum(late * early), np.sum(late**2), np.sum(early**2)])
    rows = np.array(products)
    drift = _drift(rows.sum(0))
    error = 0.0
    if not exact:
        left_out = np.array([_drift(rows.sum(0) - row) for row in rows])
        # The jackknife's variance, (n − 1)/n Σ (left out − mean)².
        error = (
            float(np.sqrt((probes - 1) / probes * np.sum((left_out - left_out.mean()) ** 2))) if probes > 1 else np.nan
        )
    growth = float(np.sqrt(_ratio(*rows.sum(0)[1:])))
    return {"kernel_drift": drift, "kernel_drift_error": error, "kernel_growth": growth}


def _drift(sums: np.ndarray) -> float:
    size = float(np.sqrt(sums[1] * sums[2]))
    return 1.0 - float(sums[0]) / size if size > 0 else float("nan")


def _kernel_times(network: Differentiable, at: Point, direction: np.ndarray) -> np.ndarray:
    """Θv = J(Jᵀv), blocks of samples one after the other both ways."""
    gradient = None
    for part in in_blocks(network, lambda rows: network.pull(at, direction[rows], rows)):
        gradient = part if gradient is None else network.plus(gradient, part, 1.0)
    return np.concatenate(list(in_blocks(network, lambda rows: network.push(at, gradient, rows).tangent)))
