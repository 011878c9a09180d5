"""Adapters as files: written for PEFT, vLLM or llama.cpp, and loaded back through PEFT before they are called written.

How a factor pair BA is scaled, by program:

- PEFT: alpha/r of the module, with `rank_pattern` and `alpha_pattern` (alpha/√r with `use_rslora`).
- vLLM: `lora_alpha`/`r` for all modules; patterns are not read; slots are sized by `r`, and the server's
  `--max-lora-rank` must be at least `r`. `modules_to_save` and bias tensors are rejected.
- llama.cpp: `lora_alpha` over the rank of each tensor, as it is stored. Only lora_A, lora_B and norms are converted.

With one rank for all modules and alpha equal to it all three apply BA itself.
"""

import copy
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from saddles.errors import SaddlesError
from saddles.probe.lora.tensor_files import write_tensors
from saddles.runtime.files import explained, new_file, new_folder, write_json

PREFIX = "base_model.model."
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
ROWS = ".token_adapter.trainable_tokens_delta"
"""How PEFT names the rows of an embedding that are trained whole (`trainable_token_indices`)."""


def write_adapter(
    folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, object], model: torch.nn.Module | None
) -> None:
    """Write an adapter whole or not at all.

    Args:
        tensors: by their names in the file; one is held at a time.
        config: arguments of `LoraConfig`; only what differs from PEFT's defaults is written, so that old and new
            versions of PEFT read it.
        model: the model that it is for, without memory; the adapter is loaded into a copy of it. None: not known.
    """
    kept = {key: value for key, value in config.items() if value not in (None, False, {})}
    facts = {"peft_type": "LORA", "inference_mode": True, "lora_dropout": 0.0, "bias": "none", **kept}
    with explained(folder), new_folder(folder) as draft:
        with new_file(draft / WEIGHTS) as stream:
            write_tensors(stream, tensors)
        write_json(draft / CONFIG, facts)
        if model is not None:
            check_loads(draft, model, tensors)


def check_loads(folder: Path, model: torch.nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load an adapter through PEFT into a copy of the model, and see that every tensor has its place there.

    The copy has no memory, and PEFT moves what it loads to the copy's device: names and shapes are compared.
    """
    from peft import PeftModel, get_peft_model_state_dict

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what was not found is judged below
            adapted = PeftModel.from_pretrained(copy.deepcopy(model), str(folder), low_cpu_mem_usage=True)
            found = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    except Exception as error:  # PEFT raises whatever its layers raise
        words = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SaddlesError(
            f"PEFT cannot load the adapter ({words}). Nothing was written; please report this."
        ) from error
    lost = [name for name, t in tensors.items() if name not in found or found[name].shape != t.shape]
    lost += [name for name in found if name not in tensors and "lora_" in name]
    if lost:
        raise SaddlesError(
            f"PEFT does not find {len(lost)} of the adapter's {len(tensors)} tensors in {type(model).__name__} "
            f"({lost[0]}). Nothing was written; please report this."
        )
