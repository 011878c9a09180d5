"""A torch module as something that can be differentiated both ways."""

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from saddles.errors import SaddlesError
from saddles.networks.differentiable import Pushed
from saddles.probe.weights.live_model import plain_name

State = dict[str, Tensor]
"""Parameters by name."""

Inputs = tuple[tuple[Tensor, ...], dict[str, Tensor]]
"""What the module is called with."""

PIECE = 1 << 24
"""Outputs that are in double precision at a time, 128 MiB of them."""


@dataclass(frozen=True, eq=False)
class TorchNetwork:
    """A module in evaluation mode, as a function of its floating-point parameters; all else stays as it is."""

    module: nn.Module
    inputs: Inputs
    samples: int
    fixed: State = field(repr=False)
    """Buffers of the start."""
    memory_errors: tuple[type[Exception], ...] = (RuntimeError,)

    @classmethod
    def on(cls, module: nn.Module, start: object, batch: object) -> "TorchNetwork":
        """The module on a batch: a tensor, a tuple of tensors, or a mapping of keywords to tensors."""
        if not [*module.parameters()]:
            raise SaddlesError(f"The network, a {type(module).__name__}, has no parameters.")
        place = next(module.parameters())
        if any(one.is_meta for one in module.parameters()):
            raise SaddlesError("The network has shapes and no numbers (device meta). Load its weights first.")
        if named := next((name for name, one in module.named_parameters() if one.is_complex()), None):
            raise SaddlesError(f"{named} is complex; only networks of real parameters are measured.")
        inputs = _inputs(batch, place.device, _wide(place.dtype))
        counts = {len(tensor) if tensor.ndim else 0 for tensor in (*inputs[0], *inputs[1].values())}
        if len(counts) != 1 or counts == {0}:
            raise SaddlesError(f"`batch` must hold at least one sample, as many in each tensor; got {sorted(counts)}.")
        early = dict(start.named_buffers()) if isinstance(start, nn.Module) else start
        given = {plain_name(str(key)): value for key, value in early.items()} if isinstance(early, Mapping) else {}
        fixed = {
            name: _widened(torch.as_tensor(given.get(plain_name(name), own)).to(own.device))
            for name, own in module.named_buffers()
        }
        return cls(module, inputs, counts.pop(), fixed)

    def parameters(self, state: object, name: str) -> State:
        """The module's floating-point parameters from a state dict (or a module), in float32 or wider.

        Args:
            name: of the argument, for messages.
        """
        state = dict(state.named_parameters()) if isinstance(state, nn.Module) else state
        if not isinstance(state, Mapping):
            raise SaddlesError.must_be(name, "a state dict of the module", state)
        tensors = {
            plain_name(str(key)): torch.as_tensor(value)
            for key, value in state.items()
            if isinstance(value, Tensor | np.ndarray)
        }
        found: State = {}
        for key, own in self.module.named_parameters():  # parameters that are tied come once
            if not own.is_floating_point():
                continue
            value = tensors.get(plain_name(key))
            if value is None:
                raise SaddlesError(f"`{name}` has no {key}, which the network has. Give a state dict of this network.")
            if value.shape != own.shape:
                raise SaddlesError(
                    f"`{name}` must have the shapes of the network; {key} has {tuple(value.shape)} and the network has "
                    f"{tuple(own.shape)}."
                )
            found[key] = value.detach().to(own.device, _wide(own.dtype))
            if not bool(torch.isfinite(found[key]).all()):
                raise SaddlesError(f"`{name}` holds numbers that are not finite, in {key}. Did the training diverge?")
        return found

    def _call(self, state: State, rows: slice) -> Tensor:
        words, named = self.inputs
        result = torch.func.functional_call(
            self.module,
            {**self.fixed, **state},
            tuple(tensor[rows] for tensor in words),
            {name: tensor[rows] for name, tensor in named.items()},
        )
        result = getattr(result, "logits", result)  # as models of transformers return them
        result = result[0] if isinstance(result, tuple) else result
        if not isinstance(result, Tensor) or result.ndim == 0 or len(result) != len(range(*rows.indices(self.samples))):
            raise SaddlesError(
                "The network must return a tensor with one row per sample, or an object with such `logits`."
            )
        if not result.is_floating_point():
            parts = " Return real and imaginary parts side by side." if result.is_complex() else ""
            raise SaddlesError(f"The network must return real floating-point numbers; got {result.dtype}.{parts}")
        return result.reshape(len(result), -1)

    def values(self, at: State, rows: slice) -> Tensor:
        """f(x; θ) of some samples."""
        with _evaluating(self.module), torch.no_grad():
            return self._call(at, rows)

    def push(self, at: State, along: State, rows: slice) -> Pushed:
        """f(x; θ) and J(x; θ) v."""
        with _evaluating(self.module), forward_mode():
            found = torch.func.jvp(lambda state: self._call(state, rows), (at,), (along,))
        return Pushed(found[0].detach(), found[1].detach())

    def pull(self, at: State, weights: np.ndarray, rows: slice) -> State:
        """Jᵀ u."""
        with _evaluating(self.module):
            leaves = {name: tensor.detach().requires_grad_() for name, tensor in at.items()}
            output = self._call(leaves, rows)
            # Turned into the outputs' type there: what travels is one byte for each output.
            seed = torch.as_tensor(weights).to(output.device).to(output.dtype).reshape(output.shape)
            parts = torch.autograd.grad(output, list(leaves.values()), seed, allow_unused=True)
        return {
            name: torch.zeros_like(at[name]) if part is None else part for name, part in zip(leaves, parts, strict=True)
        }

    def joined(self, blocks: list[Tensor]) -> Tensor:
        """The outputs of several blocks of samples."""
        return torch.cat(blocks)

    def dot(self, one: Tensor, other: Tensor) -> float:
        """Σ u v in float64, where the outputs are; in float32 on Apple's GPUs, which have nothing wider."""
        wide = torch.float32 if one.device.type == "mps" else torch.float64
        pieces = zip(one.reshape(-1).split(PIECE), other.reshape(-1).split(PIECE), strict=True)
        return float(torch.stack([first.to(wide) @ second.to(wide) for first, second in pieces]).sum())

    def array(self, values: Tensor) -> np.ndarray:
        """Outputs on the host, in float64."""
        return values.detach().to("cpu", torch.float64).numpy()

    def rounded(self, at: State) -> State:
        """θ (1 ± u), u the unit roundoff of the narrowest numbers that come up for one sample.

        Many modules compute norms and softmax in float32, whatever the type of their weights.
        """
        with _evaluating(self.module), torch.no_grad(), _Narrowest() as seen:
            self._call(at, slice(0, 1))
        changed = {}
        for number, (name, tensor) in enumerate(at.items()):
            draw = torch.Generator(tensor.device).manual_seed(number)
            signs = torch.randint(0, 2, tensor.shape, generator=draw, device=tensor.device, dtype=torch.int8) * 2 - 1
            changed[name] = tensor + tensor * signs * (seen.spacing / 2)
        return changed

    def difference(self, end: State, start: State) -> State:
        """θ − θ₀."""
        return {name: end[name] - start[name] for name in start}

    def plus(self, at: State, along: State, scale: float) -> State:
        """θ + scale·v."""
        return {name: at[name] + scale * along[name] for name in at}

    def norm(self, along: State) -> float:
        """‖v‖."""
        return float(torch.stack([part.double().square().sum() for part in along.values()]).sum().sqrt())


class _Narrowest(TorchDispatchMode):
    """The largest spacing at 1 of the floating-point types that operations return."""

    spacing = 0.0

    def __torch_dispatch__(
        self, func: Callable[..., object], types: object, args: tuple[object, ...] = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        for one in tree_leaves(result):
            if isinstance(one, Tensor) and one.is_floating_point():
                self.spacing = max(self.spacing, float(torch.finfo(one.dtype).eps))
        return result


def _wide(kind: torch.dtype) -> torch.dtype:
    """The type in which parameters of this type are worked on."""
    return torch.float64 if kind == torch.float64 else torch.float32


def _widened(buffer: Tensor) -> Tensor:
    """Numbers of 16 bits as float32, as parameters are; all else as it is."""
    return buffer.float() if buffer.dtype in (torch.float16, torch.bfloat16) else buffer


def _inputs(batch: object, device: torch.device, wide: torch.dtype) -> Inputs:
    if isinstance(batch, Mapping):
        words, named = (), dict(batch)
    else:
        words, named = tuple(batch) if isinstance(batch, tuple | list) else (batch,), {}
    given = [torch.as_tensor(one) if isinstance(one, np.ndarray) else one for one in (*words, *named.values())]
    tensors = [one for one in given if isinstance(one, Tensor)]
    if len(tensors) < len(given) or not given:
        wrong = next((one for one in given if not isinstance(one, Tensor)), None)
        raise SaddlesError.must_be("batch", "a tensor, a tuple of tensors, or a mapping of keywords to tensors", wrong)
    if any(one.is_floating_point() and not bool(torch.isfinite(one).all()) for one in tensors):
        raise SaddlesError("`batch` holds numbers that are not finite. Leave those samples out.")
    placed = [one.to(device, wide) if one.is_floating_point() else one.to(device) for one in tensors]
    return tuple(placed[: len(words)]), dict(zip(named, placed[len(words) :], strict=True))


@contextlib.contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Without dropout, attention by plain matrix products, and derivatives also where a program has turned them off."""
    fast = torch.backends.mha.get_fastpath_enabled()
    training = {part for part in module.modules() if part.training}
    module.eval()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        with contextlib.ExitStack() as stack:
            stack.enter_context(plain_attention())
            stack.enter_context(_plain_experts(module))
            stack.enter_context(_plain_recurrence(module))
            stack.enter_context(_without_checkpointing(module))
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for part in training:
            part.training = True


@contextlib.contextmanager
def _plain_experts(module: nn.Module) -> Iterator[None]:
    """Experts of models of transformers one after the other: their grouped products have no forward derivative."""
    read, write = (getattr(module, f"{verb}_experts_implementation", None) for verb in ("get", "set"))
    before = read() if callable(read) else {}
    if not callable(write) or not isinstance(before, dict) or {*before.values()} <= {None, "eager"}:
        yield
        return
    write("eager")
    try:
        yield
    finally:
        write(before)


@contextlib.contextmanager
def _plain_recurrence(module: nn.Module) -> Iterator[None]:
    """Recurrent layers step by step: those of oneDNN and cuDNN have no forward derivative."""
    if not any(isinstance(part, nn.RNNBase) for part in module.modules()):
        yield
        return
    with warnings.catch_warnings():
        # Switching oneDNN off speaks of Intel's GPUs where torch was built without them.
        warnings.filterwarnings("ignore", "TF32 acceleration on top of oneDNN")
        with torch.backends.mkldnn.flags(enabled=False), torch.backends.cudnn.flags(enabled=False):
            yield


@contextlib.contextmanager
def _without_checkpointing(module: nn.Module) -> Iterator[None]:
    """Without the hook by which gradient checkpointing of transformers and PEFT asks for gradients of embeddings.

    There it has nothing to do, and forward derivatives do not allow it.
    """
    taken = [
        (part._forward_hooks, key, hook)
        for part in module.modules()
        for key, hook in part._forward_hooks.items()
        if getattr(hook, "__name__", "") == "make_inputs_require_grads"
    ]
    for hooks, key, _ in taken:
        del hooks[key]
    try:
        yield
    finally:
        for hooks, key, hook in taken:
            hooks[key] = hook


def plain_attention() -> contextlib.AbstractContextManager[object]:
    """Attention by plain matrix products: the fused kernels have no forward derivative."""
    return sdpa_kernel(SDPBackend.MATH)


@contextlib.contextmanager
def forward_mode() -> Iterator[None]:
    """Name the operation that has no forward derivative."""
    try:
        with warnings.catch_warnings():
            # Its first use compiles some derivatives by torch.jit, which torch itself has deprecated.
            warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
            warnings.filterwarnings("ignore", "`torch.jit", FutureWarning)  # its name from Python 3.14 on
            yield
    except (NotImplementedError, RuntimeError) as error:
        words = str(error)
        named = re.search(r"forward AD with ([\w:]+)", words)
        if named is None and not re.search(r"forward[- ](mode )?(AD|autograd|derivative)|\bjvp\b", words):
            raise
        which = named.group(1) if named else _own_function(error.__traceback__)
        raise SaddlesError(
            f"The network uses the operation {which}, which torch cannot differentiate forward, so its linearity "
            "cannot be computed. In a network of your own, replace it by plain operations."
        ) from error


def _own_function(place: TracebackType | None) -> str:
    """The autograd.Function that was being applied, which torch's message does not tell.

    By its name; since torch 2.14, which applies it outside of Python, by the place of the call.
    """
    found = ""
    while place is not None:
        owner = place.tb_frame.f_locals.get("cls")
        if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
            found = owner.__name__
        last, place = place, place.tb_next
        if place is None and not found:
            found = f"in line {last.tb_lineno} of {Path(last.tb_frame.f_code.co_filename).name}"
    return found
