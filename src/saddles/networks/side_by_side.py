"""A network and its linearisation, trained side by side on the same batches."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from saddles.core.trajectory import make_trajectory
from saddles.errors import SaddlesError
from saddles.networks.differentiable import Differentiable, Point, in_blocks, network_of

PARTED = 0.1
"""The runs have parted where they differ by more than this share of what the real one has learned."""

Loss = Callable[[np.ndarray, np.ndarray], tuple[float, np.ndarray]]
"""(outputs, targets), one row per sample -> the mean loss and its gradient by the outputs."""


def squared(values: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """(1/2n) Σ ‖f − y‖², targets one row per sample."""
    answers = np.asarray(targets)
    if answers.dtype.kind not in "fiub" or answers.shape[:1] != values.shape[:1] or answers.size != values.size:
        raise _wrong(answers, f"one row for each of {len(values)} samples, with its {values.shape[1]} outputs")
    if not np.isfinite(answers).all():
        raise SaddlesError("Targets hold numbers that are not finite. Leave those samples out.")
    rest = values - answers.astype(float).reshape(values.shape)
    with np.errstate(over="ignore"):  # a run that diverges is told so by its loss
        return float(np.sum(rest**2)) / (2 * len(rest)), rest / len(rest)


def cross_entropy(values: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean cross-entropy of classes, targets one whole number per sample."""
    labels, classes = np.asarray(targets), values.shape[1]
    if labels.dtype.kind not in "iu" or labels.shape not in ((len(values),), (len(values), 1)):
        raise _wrong(labels, f"one whole number, its class, for each of {len(values)} samples")
    labels = labels.reshape(-1)
    if len(odd := labels[(labels < 0) | (labels >= classes)]):
        raise SaddlesError(
            f"Targets must be classes from 0 to {classes - 1}, as the network has {classes} outputs; got {odd[0]}."
        )
    shifted = values - values.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    rows = np.arange(len(labels))
    gradient = np.exp(logs)
    gradient[rows, labels] -= 1.0
    return -float(logs[rows, labels].mean()), gradient / len(labels)


def _wrong(targets: np.ndarray, what: str) -> SaddlesError:
    return SaddlesError(f"Targets must be {what}; got {targets.dtype} of shape {targets.shape}.")


def beside(
    f: object,
    start: Any,
    batches: Iterable[tuple[Any, Any]],
    watched: Any,
    *,
    rate: float,
    loss: str | Loss = "squared",
    every: int = 1,
) -> xr.Dataset:
    """Train f and f_lin(x; θ) = f(x; θ₀) + J(x; θ₀)(θ − θ₀) by gradient descent on the same batches.

    - `loss`, `linearised_loss` (time): of the batch of each step, before it;
    - `distance` (time): ‖f − f_lin‖/‖f − f₀‖ on the inputs `watched`;
    - `linearity` (time): e of the real network there (see `saddles.networks.linearity`);
    - `parting`: the first step at which the distance exceeds 0.1; NaN where they never part.

    A step takes one backward pass of the real network, and of the linearised one a Jacobian-vector product and a
    backward pass at θ₀.

    Args:
        f: a torch module, or a JAX function f(parameters, batch).
        start: θ₀, a state dict or a pytree.
        batches: (inputs, targets) of each step.
        watched: inputs on which the two are compared.
        rate: learning rate.
        loss: "squared", "cross-entropy", or a function (outputs, targets) -> (mean loss, its gradient by the outputs),
            in NumPy, one row for each sample.
        every: steps from one comparison to the next.
    """
    if not 0 < rate < float("inf"):
        raise SaddlesError.must_be("rate", "a positive learning rate", rate)
    if every < 1:
        raise SaddlesError.must_be("every", "at least 1", every)
    judge = loss_of(loss)
    seen = network_of(f, start, watched)
    first = seen.parameters(start, "start")
    real, moved = first, None
    rows: list[dict[str, float]] = []
    steps: list[int] = []
    taken = 0
    for step, (inputs, targets) in enumerate(pairs(batches)):
        network = network_of(f, start, inputs)
        answers = _array(targets, "targets")
        value, down = judge(_all(network, real), answers)
        before = _push(network, first, moved)
        linear, slope = judge(before, answers)
        if not np.isfinite(value):
            raise SaddlesError(f"The loss is not a number at step {step}. Try a smaller rate.")
        if step % every == 0:
            rows.append({"loss": value, "linearised_loss": linear, **_compared(seen, first, real, moved)})
            steps.append(step)
        real = network.plus(real, _pull(network, real, down), -rate)
        push = _pull(network, first, slope)
        moved = network.plus(network.difference(first, first) if moved is None else moved, push, -rate)
        taken = step + 1
    if not rows:
        raise SaddlesError("`batches` must hold at least one batch; it is empty.")
    rows.append({"loss": np.nan, "linearised_loss": np.nan, **_compared(seen, first, real, moved)})
    steps.append(taken)
    return _labelled(rows, steps, rate)


def pairs(batches: object) -> Iterator[tuple[Any, Any]]:
    """Inputs and targets of each step, checked."""
    if not isinstance(batches, Iterable):
        raise SaddlesError.must_be("batches", "pairs (inputs, targets), one for each step", batches)
    for batch in batches:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise SaddlesError.must_be("batches", "pairs (inputs, targets), one for each step", batch)
        yield batch[0], batch[1]


def loss_of(loss: object) -> Loss:
    """A loss by its name, or the user's own."""
    known: dict[str, Loss] = {"squared": squared, "cross-entropy": cross_entropy}
    if isinstance(loss, str):
        if loss not in known:
            raise SaddlesError.unknown("loss", loss, known)
        return known[loss]
    if not callable(loss):
        raise SaddlesError.must_be("loss", "'squared', 'cross-entropy' or a function (outputs, targets)", loss)
    return partial(_own, loss)


def _own(loss: Callable[..., object], values: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """What a user's loss gives, checked."""
    try:
        found = loss(values, targets)
    except SaddlesError:
        raise
    except Exception as error:  # a user's own function may raise anything
        raise SaddlesError(
            f"`loss` fails on outputs and targets, which it gets as arrays of NumPy ({type(error).__name__}: "
            f"{next(iter(str(error).splitlines()), '')})."
        ) from error
    parts = [_array(part, "loss") for part in found] if isinstance(found, tuple | list) else []
    kinds = all(part.dtype.kind in "fiu" for part in parts)
    if not kinds or [part.shape for part in parts] != [(), values.shape]:
        got = ", ".join(f"{part.dtype} of shape {part.shape}" for part in parts) or type(found).__name__
        raise SaddlesError(
            f"`loss` must return the mean loss and its gradient by the outputs, an array of shape {values.shape}; got "
            f"{got}."
        )
    return float(parts[0]), parts[1].astype(float)


def _labelled(rows: list[dict[str, float]], steps: list[int], rate: float) -> xr.Dataset:
    apart = np.array([row["distance"] for row in rows])
    late = np.flatnonzero(apart > PARTED)
    variables: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    parting = float(steps[late[0]]) if late.size else float("nan")
    return make_trajectory(variables | {"parting": ((), parting)}, steps, unit="step", lab="networks", rate=rate)


def _array(given: Any, name: str) -> np.ndarray:
    """An array, or a tensor of torch, as NumPy has it."""
    try:
        host = given.detach().cpu() if hasattr(given, "detach") else given
        array = np.asarray(host.float() if str(getattr(host, "dtype", "")) == "torch.bfloat16" else host)
        # JAX has narrow types that NumPy knows as bytes.
        return array.astype(float) if array.dtype.kind == "V" else array
    except (TypeError, ValueError) as error:
        raise SaddlesError.must_be(name, "an array of numbers", given) from error


def _all(network: Differentiable, at: Point) -> np.ndarray:
    return np.concatenate(list(in_blocks(network, lambda rows: network.array(network.values(at, rows)))))


def _push(network: Differentiable, at: Point, along: Point | None) -> np.ndarray:
    if along is None:
        return _all(network, at)

    def moved(rows: slice) -> np.ndarray:
        values, tangent = network.push(at, along, rows)
        return network.array(values) + network.array(tangent)

    return np.concatenate(list(in_blocks(network, moved)))


def _pull(network: Differentiable, at: Point, weights: np.ndarray) -> Point:
    total = None
    for part in in_blocks(network, lambda rows: network.pull(at, weights[rows], rows)):
        total = part if total is None else network.plus(total, part, 1.0)
    return total


def _compared(network: Differentiable, first: Point, real: Point, moved: Point | None) -> dict[str, float]:
    start, now = _all(network, first), _all(network, real)
    change = float(np.linalg.norm(now - start))
    if moved is None or change == 0:
        return {"distance": 0.0, "linearity": np.nan}
    own = _push(network, first, network.difference(real, first))
    return {
        "distance": float(np.linalg.norm(now - _push(network, first, moved))) / change,
        "linearity": float(np.linalg.norm(now - own)) / change,
    }
