"""What lies in a folder of weights besides them: configuration, index, step; and formats of other programs.

Checkpoints that no kept library reads are refused with the command that converts them.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from saddles.errors import SaddlesError
from saddles.probe.layouts.head_counts import Config

MOST_STEPS = 2**62
"""A larger number in a name, or in a trainer's state, is not a step: a 64-bit coordinate holds it."""


_OTHERS = (
    r"(optimizer|scheduler|scaler|rng_state|training_args|adapter_"
    r"|mp_rank_|.*zero_pp_rank|model_optim_rng|distrib_optim|common\.pt)"
)
"""How files begin that hold no model by themselves: of trainers, then of DeepSpeed and Megatron."""
META_CONFIG = "params.json"
"""Where Meta's own checkpoints keep the settings of the model."""


def config_in(folder: Path) -> Config:
    """config.json, or Meta's params.json; empty where there is neither."""
    found = [name for name in ("config.json", META_CONFIG) if (folder / name).is_file()]
    return read_json(folder / found[0]) if found else {}


def holds_weights(file: Path) -> bool:
    """Whether a torch file may hold weights; a trainer's own state lies beside them, and parts of other formats."""
    return not re.match(_OTHERS, file.name)


def weight_map(index: Path) -> dict[str, str]:
    """Tensor name -> shard, as an index says."""
    found = read_json(index).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise SaddlesError(f"{index} has no weight_map. Save the model again.")
    return {str(name): str(shard) for name, shard in found.items()}


def shards(index: Path, weight_map: Mapping[str, str]) -> list[Path]:
    """The shards an index names, all present and all beside it."""
    names = sorted(set(weight_map.values()))
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise SaddlesError(f"{index} points to {outside[0]}; shards must lie beside their index. Do not trust it.")
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise SaddlesError(
            f"{index.parent} lacks {len(missing)} of {len(names)} shards ({few(missing)}). Copy them as well."
        )
    return [index.parent / name for name in names]


def step_of(place: Path) -> tuple[int | None, tuple[str, ...]]:
    """The step in a place's name or in the trainer's state, and a note where they differ."""
    named = step_of_name(place.name)
    state = place / "trainer_state.json"
    if not state.is_file():
        return named, ()
    stored = read_json(state).get("global_step")
    if not isinstance(stored, int) or isinstance(stored, bool) or not 0 <= stored <= MOST_STEPS:
        return named, ()
    if named is not None and stored != named:
        return stored, (f"{place} says step {named} in its name and {stored} in trainer_state.json: {stored} is used",)
    return stored, ()


def step_of_name(name: str) -> int | None:
    """The step in a name such as checkpoint-500, step_500.pt or model-500.safetensors."""
    stem = re.sub(r"\.(safetensors|pt|pth|bin|ckpt)$", "", name)
    forms = (r"step[-_=]?(\d+)", r"(?:checkpoint|iter|iteration|epoch)[-_=]?(\d+)", r"(\d+)$")
    match = next((hit for form in forms if (hit := re.search(form, stem, re.I))), None)
    digits = match.group(1).lstrip("0") if match else ""
    if match is None or len(digits) > len(str(MOST_STEPS)) or int(digits or 0) > MOST_STEPS:
        return None
    return int(digits or 0)


def read_json(file: Path) -> dict[str, object]:
    """A JSON object; anything else is refused."""
    try:
        stored = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SaddlesError(f"{file} cannot be read as JSON. Copy it again.") from error
    if not isinstance(stored, dict):
        raise SaddlesError(f"{file} must hold a JSON object. Copy it again.")
    return stored


def few(names: list[str], shown: int = 3) -> str:
    """Some names in a row."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def explain_foreign(folder: Path) -> None:
    """Refuse a folder of DeepSpeed, Megatron or Meta that cannot be read, with the command that converts it."""
    inner = [folder, *(child for child in folder.iterdir() if child.is_dir())]
    if any((one / "zero_to_fp32.py").is_file() for one in inner) or any(
        next(one.glob("*zero_pp_rank_*"), None) or next(one.glob("mp_rank_*_model_states.pt"), None) for one in inner
    ):
        root = folder if (folder / "latest").is_file() or not (folder.parent / "latest").is_file() else folder.parent
        raise SaddlesError(
            f"{folder} is a checkpoint of DeepSpeed, whose parts must be joined first: "
            f"python {root / 'zero_to_fp32.py'} {root} OUT --safe_serialization."
        )
    if any((one / name).is_file() for one in inner for name in ("model_optim_rng.pt", "common.pt")):
        raise SaddlesError(
            f"{folder} is a checkpoint of Megatron, which Megatron Bridge converts, given the name of the same model "
            'at Hugging Face: python -c "from megatron.bridge import AutoBridge; '
            f"AutoBridge.from_hf_pretrained('NAME').export_ckpt('{folder}', 'OUT')\"."
        )
    parts = sorted(folder.glob("consolidated.*.pth"))
    if len(parts) > 1:
        raise SaddlesError(
            f"{folder} holds {len(parts)} parts of one model of Meta, each with a part of every matrix. Join them with "
            f"the script of transformers 4: python convert_llama_weights_to_hf.py --input_dir {folder} --model_size 7B "
            "--output_dir OUT, with the size of your model."
        )
