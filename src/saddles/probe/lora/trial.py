"""An adapter on its base as one model that runs: for ranks that are chosen by what they cost on a text."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from saddles.errors import SaddlesError
from saddles.probe.lora.peft_files import CONFIG, PREFIX, ROWS
from saddles.probe.lora.quality import Evaluation, measure_of
from saddles.probe.lora.running import model_of
from saddles.probe.lora.stored import Adapter, Pair
from saddles.probe.weights.checkpoints import Source, Weights, open_weights

BIAS = ".lora_B.bias"
"""How the name of a bias that PEFT adds with its factors ends."""


class Trial:
    """Base + adapter, for any factors of the adapter's modules.

    Args:
        adapter: with PEFT's names; modules that it saves whole are used as they are.
        base: its base; None: the folder that its config names.
        evaluate: a text file, token ids (block, token), or a function of a model, as for `lora_plan`.
    """

    def __init__(self, adapter: Adapter, base: Source | None, evaluate: Evaluation) -> None:
        weights = _open_base(adapter, base)
        self._model = model_of(weights)
        self._starts: dict[str, Tensor] = {}
        for module, pair in adapter.pairs.items():
            self._keep(f"{module.removeprefix(PREFIX)}.weight", pair, adapter.place, weights.place)
        with torch.no_grad():
            for name, tensor in adapter.others.items():
                plain = name.removeprefix(PREFIX).replace(".base_layer.", ".")
                if plain.endswith(BIAS):
                    self._parameter(plain.removesuffix(BIAS) + ".bias", adapter.place, weights.place).add_(tensor)
                else:
                    parameter = self._parameter(plain, adapter.place, weights.place)
                    if parameter.shape != tensor.shape:
                        raise SaddlesError(
                            f"{adapter.place} holds {plain} of {tuple(tensor.shape)}, where {weights.place} has "
                            f"{tuple(parameter.shape)}, so that `loss` cannot be measured. Choose the ranks by "
                            "`energy`."
                        )
                    parameter.copy_(tensor)
        self._set(adapter.pairs)
        causal = adapter.config.get("task_type") == "CAUSAL_LM"
        self._measure = measure_of(evaluate, self._model, (adapter.place, weights.place), causal)
        self.whole = self._measure(self._model)
        """Loss of the adapter as it is given; 0 where what is measured is the divergence from it."""

    def value(self, pairs: Mapping[str, Pair]) -> float:
        """Loss with other factors."""
        self._set(pairs)
        return self._measure(self._model)

    def _set(self, pairs: Mapping[str, Pair]) -> None:
        with torch.no_grad():
            for module, pair in pairs.items():
                name = f"{module.removeprefix(PREFIX)}.weight"
                change = pair.scale * pair.outer.double() @ pair.inner.double()
                start, parameter = self._starts[name], self._model.get_parameter(name)
                parameter.copy_(start.double() + (change.T if self._is_conv1d(name) else change))

    def _keep(self, name: str, pair: Pair, place: str, base: str) -> None:
        parameter = self._parameter(name, place, base)
        size = (pair.outer.shape[0], pair.inner.shape[1])
        if tuple(parameter.shape) != (size[::-1] if self._is_conv1d(name) else size):
            raise SaddlesError(f"{place} adapts {name} of {size[0]}×{size[1]}, which {base} does not have.")
        self._starts[name] = parameter.detach().clone()

    def _parameter(self, name: str, place: str, base: str) -> Tensor:
        try:
            return self._model.get_parameter(name)
        except AttributeError as error:
            words = "Choose the ranks by `energy`." if name.endswith(ROWS) else "Is it the adapter's base?"
            raise SaddlesError(f"{place} has {name}, which {base} does not have. {words}") from error

    def _is_conv1d(self, name: str) -> bool:
        return type(self._model.get_submodule(name.removesuffix(".weight"))).__name__ == "Conv1D"


def _open_base(adapter: Adapter, base: Source | None) -> Weights:
    if adapter.kohya:
        raise SaddlesError(f"`loss` needs an adapter with PEFT's names; {adapter.place} has kohya's.")
    named = adapter.config.get("base_model_name_or_path") if base is None else base
    if named is None or (isinstance(named, str) and not Path(named).exists()):
        raise SaddlesError(
            f"{adapter.place} is an adapter on {named or 'a base that it does not name'}, which is not here. Give "
            f"`base` (--base), or put its path into {CONFIG} as base_model_name_or_path."
        )
    return open_weights(named if isinstance(named, torch.nn.Module) else Path(str(named)))
