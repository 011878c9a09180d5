"""How far a model's prediction depends on each output of each module: D, the diagonal of its Fisher information.

Replace a module's output y by y + δ. To second order the model's prediction moves by KL ≈ ½ Σ (gᵀδ)², with g the
gradient of −log p at y for labels that the model itself draws. With cross terms left out that is ½ Σ_i D_i E[δ_i²],
D_i = E[g_i²]: one pass forwards and one backwards, and a vector for each module.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from saddles.errors import SaddlesError

SEED = 21
"""Of the labels; they are drawn on the host, so that every device has the same."""


class Sensitivities:
    """Sums of squared gradients, while a model runs."""

    def __init__(self, model: torch.nn.Module, modules: Sequence[str]) -> None:
        self.model = model
        self.sums: dict[str, Tensor] = {}
        self.labels = 0
        self.draw = torch.Generator().manual_seed(SEED)
        self.modules = modules

    def over(self, run: Callable[[torch.nn.Module], object]) -> dict[str, Tensor] | None:
        """D of each module, per label; None where `run` does not call the whole model, or forbids gradients.

        Where a module sees several rows for each label D is their sum, so that it fits the mean of squares δ over rows.
        """
        flags = [(weight, weight.requires_grad) for weight in self.model.parameters()]
        handles = [self.model.get_submodule(m).register_forward_hook(self._module(m)) for m in self.modules]
        handles.append(self.model.register_forward_hook(self._whole))
        try:
            for weight, _ in flags:  # gradients of the weights would take as much memory as the model
                weight.requires_grad_(False)
            with torch.enable_grad(), warnings.catch_warnings():
                # Gradients are computed by a thread of torch's own, which says that CUDA is new to it.
                warnings.filterwarnings("ignore", "Attempting to run cuBLAS")
                run(self.model)
        finally:
            for handle in handles:
                handle.remove()
            for weight, flag in flags:
                weight.requires_grad_(flag)
        if not self.labels:
            return None
        if not all(bool(torch.isfinite(one).all()) for one in self.sums.values()):
            raise SaddlesError("The tuned model has gradients that are not finite on `data`.")
        return {module: one / self.labels for module, one in self.sums.items()}

    def _module(self, name: str) -> Callable[..., Tensor | None]:
        def square(gradient: Tensor) -> None:
            rows = gradient.detach().double().reshape(-1, gradient.shape[-1])
            self.sums[name] = self.sums.get(name, 0) + rows.pow(2).sum(0)

        def after(_module: object, _args: object, output: Tensor) -> Tensor | None:
            if not torch.is_grad_enabled():
                return None
            if not output.requires_grad:  # the first module: no weight asks for gradients
                output.requires_grad_()
            output.register_hook(square)
            return output.clone()  # what follows may write into it

        return after

    def _whole(self, _model: object, _args: object, output: object) -> None:
        for tensor, is_logits in _predictions(output):
            if tensor.requires_grad:
                rows = tensor.reshape(-1, tensor.shape[-1]).float()
                self.labels += len(rows)
                # Retained, because one output may hold several predictions (start and end of an answer) over the same
                # graph.
                rows.backward(self._scores(rows.detach()) if is_logits else self._noise(rows), retain_graph=True)

    def _scores(self, logits: Tensor) -> Tensor:
        """∂(−log p)/∂logits = p − 1 at the label, for labels drawn from p."""
        chance = logits.softmax(-1)
        level = torch.rand(len(logits), 1, generator=self.draw).to(logits.device)
        label = torch.searchsorted(chance.cumsum(-1), level).clamp_max(logits.shape[-1] - 1)
        return chance.scatter_add(1, label, -torch.ones_like(level))

    def _noise(self, rows: Tensor) -> Tensor:
        """The same for a model without logits, whose outputs are taken as means of unit Gaussians."""
        return torch.randn(rows.shape, generator=self.draw).to(rows)


def _predictions(output: object) -> list[tuple[Tensor, bool]]:
    """Logits by name, or else the first tensor of floating point."""
    named = output if isinstance(output, Mapping) else {}
    logits = [value for key, value in named.items() if str(key).endswith("logits") and isinstance(value, Tensor)]
    if logits:
        return [(value, True) for value in logits]
    parts = list(named.values()) or (list(output) if isinstance(output, tuple) else [output])
    return [(part, False) for part in parts if isinstance(part, Tensor) and part.is_floating_point()][:1]
