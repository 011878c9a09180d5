"""Is a network's change lazy or active? Numbers that need no theory to be true, for torch modules and JAX functions.

    saddles.networks.linearity(model, before, after, batch)        # 0: lazy; about 1: the linear part explains nothing
    saddles.networks.regime(model, before, after, batch)           # the same with the drift of the tangent kernel
    saddles.networks.regime(f, before, after, batch)               # f(parameters, batch) in JAX, parameters a pytree

`f` is a torch module (start and end are its state dicts) or a JAX function f(parameters, batch) (start and end are
pytrees). The batch is a tensor or array whose first axis is the sample; for torch also a tuple of tensors or a mapping
of keywords, for JAX any pytree. Modules are evaluated without dropout.

Cost: linearity takes one forward pass and one Jacobian-vector product (about two forward passes), regime one forward
pass more; each probe of the kernel takes two backward passes and two such products. Memory: the parameters and three
directions of their size, beside the activations of one block of samples; blocks are halved where memory runs out.
Outputs of torch modules stay on the module's device. What is compared is one function of the parameters: buffers, such
as the running means of a batch norm, are those of the start.
"""

from typing import Any

import numpy as np
import xarray as xr
from scipy.special import ndtr, stdtrit

from saddles.errors import SaddlesError
from saddles.networks.differentiable import Differentiable, Outputs, Point, in_blocks, network_of

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
    if network.norm(change) == 0:
        raise SaddlesError(
            "The weights at `start` and `end` are the same: the linearity of their change is undefined. A state_dict() "
            "holds the tensors that training changes; copy it before, copy.deepcopy(model.state_dict())."
        )
    e = _linearity(network, first, network.parameters(end, "end"), change)["linearity"]
    if np.isnan(e):
        raise SaddlesError(
            "The outputs on this batch are the same at `start` and `end`: the linearity of their change is undefined."
        )
    return e


def regime(f: object, start: Any, end: Any, batch: object, *, probes: int = PROBES, seed: int = 0) -> xr.Dataset:
    """Lazy or active: linearity of the change and drift of the tangent kernel.

    - `linearity`: e of `saddles.networks.linearity`; NaN where the outputs did not change.
    - `linearity_floor`: what rounding alone gives, ‖f(x; θ₀(1 ± u)) − f₀‖/‖Δf‖ with the unit roundoff u of the
      narrowest numbers that the network computes with; an e of about that size or less is not resolved.
    - `kernel_drift`: 1 − ⟨Θ, Θ₀⟩/(‖Θ‖‖Θ₀‖) of the empirical tangent kernel Θ = JJᵀ on the batch (all outputs of all
      samples). With at least as many `probes` as outputs of the batch it is exact. Otherwise ⟨Θ, Θ₀⟩ = E[(Θv)·(Θ₀v)] is
      averaged over so many v with entries of ±1 at random; `kernel_drift_error` is the half width of its 68 % interval,
      the jackknife's standard error times Student's factor (1.2 with 4 probes, 1.03 with 16).
    - `kernel_growth`: ‖Θ‖/‖Θ₀‖, from the same products.
    - `output_change`: ‖Δf‖/‖f₀‖; `parameter_change`: ‖Δθ‖/‖θ₀‖.

    Args:
        probes: directions for the kernel; 0 leaves it out.
        seed: draws them.
    """
    if not isinstance(probes, int) or probes < 0:
        raise SaddlesError.must_be("probes", "a whole number from 0 on", probes)
    network, first, change = _opened(f, start, end, batch)
    last = network.parameters(end, "end")
    found = _linearity(network, first, last, change, network.rounded(first))
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


def _linearity(
    network: Differentiable, start: Point, end: Point, change: Point, rounded: Point | None = None
) -> dict[str, float]:
    """Sums over blocks of samples."""
    squares = np.zeros(4)  # of the remainder, of the change, of the outputs at the start, of what rounding does
    outputs = 0

    def block(rows: slice) -> tuple[np.ndarray, int]:
        before, linear = network.push(start, change, rows)
        after = network.values(end, rows)
        size = network.dot(before, before)
        for name, square in (("start", size), ("end", network.dot(after, after))):
            if not np.isfinite(square):
                raise SaddlesError(f"The network's outputs at `{name}` are not finite. Did the training diverge?")
        moved = after - before
        rest = moved - linear
        noise = before - before if rounded is None else network.values(rounded, rows) - before
        terms = [network.dot(rest, rest), network.dot(moved, moved), size, network.dot(noise, noise)]
        return np.array(terms), int(np.prod(before.shape))

    for part, count in in_blocks(network, block):
        squares, outputs = squares + part, outputs + count
    remainder, moved, before, noise = np.sqrt(squares)
    return {
        "linearity": _ratio(float(remainder), float(moved)),
        "linearity_floor": _ratio(float(noise), float(moved)),
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
        direction = _unit(number, outputs) if exact else _signs(draw, outputs)
        late, early = (_kernel_times(network, at, direction.reshape(-1, width)) for at in (end, start))
        pairs = ((late, early), (late, late), (early, early))
        products.append([network.dot(one, other) for one, other in pairs])
    rows = np.array(products)
    drift, error = _drift(rows.sum(0)), 0.0 if exact else drift_error(rows)
    growth = float(np.sqrt(_ratio(*rows.sum(0)[1:])))
    return {"kernel_drift": drift, "kernel_drift_error": error, "kernel_growth": growth}


def drift_error(rows: np.ndarray) -> float:
    """Half width of the 68 % interval of the drift from (Θv·Θ₀v, |Θv|², |Θ₀v|²) of each probe; NaN of one probe.

    The jackknife's variance is (n − 1)/n Σ (left out − mean)². From few probes it is itself uncertain, which Student's
    t with n − 1 degrees of freedom takes into account: the plain standard error of 4 probes covers 61 %.
    """
    n = len(rows)
    if n < 2:
        return float("nan")
    left_out = np.array([_drift(rows.sum(0) - row) for row in rows])
    standard_error = np.sqrt((n - 1) / n * np.sum((left_out - left_out.mean()) ** 2))
    return float(standard_error * stdtrit(n - 1, ndtr(1.0)))


def _drift(sums: np.ndarray) -> float:
    size = float(np.sqrt(sums[1] * sums[2]))
    return 1.0 - float(sums[0]) / size if size > 0 else float("nan")


def _unit(number: int, size: int) -> np.ndarray:
    direction = np.zeros(size, dtype=np.int8)
    direction[number] = 1
    return direction


def _signs(draw: np.random.Generator, size: int) -> np.ndarray:
    """±1 at random, a byte each: E[vvᵀ] = I as for Gaussian numbers, with a smaller spread and at a bit for each."""
    bits = np.unpackbits(np.frombuffer(draw.bytes((size + 7) // 8), dtype=np.uint8), count=size)
    return 2 * bits.astype(np.int8) - 1


def _kernel_times(network: Differentiable, at: Point, direction: np.ndarray) -> Outputs:
    """Θv = J(Jᵀv), blocks of samples one after the other both ways."""
    gradient = None
    for part in in_blocks(network, lambda rows: network.pull(at, direction[rows], rows)):
        gradient = part if gradient is None else network.plus(gradient, part, 1.0)
    return network.joined(list(in_blocks(network, lambda rows: network.push(at, gradient, rows).tangent)))
