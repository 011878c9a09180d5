"""LoRA factors of the matrices of a 7B model, and PEFT's `convert_to_lora` beside `lora_compress`.

    python -m benchmarks lora_shapes            one matrix on the CPU, and the conversion
    python -m benchmarks.lora_shapes OUT.json [--device cuda]    all 225 matrices; half an hour of one core
    python -m benchmarks.lora_shapes OUT.json --layers 1         the eight of one layer and the head

Numbers are made on the device: reading the files is not measured.
"""

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from saddles.probe.lora.match import Names, Target
from saddles.probe.lora.reshape import lora_compress
from saddles.probe.lora.spectra import changes_of, one_spectrum
from saddles.probe.lora.truncation import Truncation
from saddles.probe.weights.checkpoints import Weights
from saddles.probe.weights.weight_change import spectrum_of

LAYERS, WIDTH = 32, 4096
SHAPES = {
    **{f"{layer}.{name}": (WIDTH, WIDTH) for layer in range(LAYERS) for name in "qkvo"},
    **{f"{layer}.{name}": (11008, WIDTH) for layer in range(LAYERS) for name in ("gate", "up")},
    **{f"{layer}.down": (WIDTH, 11008) for layer in range(LAYERS)},
    "lm_head": (32000, WIDTH),
}
"""The matrices of Llama 7B."""


ONE = {"0.q": (WIDTH, WIDTH)}


def of_layers(count: int) -> dict[str, tuple[int, int]]:
    """The matrices of the first layers, and the head."""
    return {name: shape for name, shape in SHAPES.items() if name == "lm_head" or int(name.split(".")[0]) < count}


def seven_billion(device: str, leading: int, shapes: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    """Matrices of a 7B pair in bfloat16: leading factors of all, on a GPU whole spectra of one of each shape."""
    pools: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
    for shape in set(shapes.values()):
        draw = torch.Generator(device).manual_seed(0)
        start = 0.02 * torch.randn(shape, generator=draw, device=device)
        left, right = (torch.randn(side, 256, generator=draw, device=device) / side**0.5 for side in shape)
        falling = 1 / torch.arange(1, 257, device=device)
        pools[shape] = ((start + 3 * (left * falling) @ right.T).bfloat16(), start.bfloat16())
    early, late = (
        Weights(
            "shapes of 7B",
            shapes,
            dict.fromkeys(shapes, "bfloat16"),
            lambda name, rows, k=k: pools[shapes[name]][k][rows],
        )
        for k in (1, 0)
    )
    targets = tuple(Target(name, Names(name, name, name), False, shape) for name, shape in shapes.items())
    pairs: Any = SimpleNamespace(targets=targets)
    truncation = Truncation(pairs, early, late, None, leading, device)

    def spent(work: Callable[[], Any]) -> tuple[float, float, Any]:
        if device != "cpu":
            torch.cuda.synchronize()
        began, used = time.perf_counter(), time.process_time()
        result = work()
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - began, time.process_time() - used, result

    if device != "cpu":
        spent(lambda: one_spectrum(changes_of(targets[0], late, early, device)[0], leading, False))  # loads libraries
        torch.cuda.reset_peak_memory_stats()
    wall, used, sized = spent(truncation.sizes)
    ranks = {t.module: min(64, leading) for t in targets}
    more = spent(lambda: sum(1 for _ in truncation.factors(ranks)))
    result: dict[str, Any] = {
        "modules": len(targets), "entries": sum(s[0] * s[1] for s in shapes.values()), "leading": leading,
        "plan_seconds": wall, "plan_processor_seconds": used,
        "factor_seconds": more[0], "factor_processor_seconds": more[1],
        "share": [1 - one.rest / one.norm**2 for one in sized[:1]],
    }  # fmt: skip
    counts = {shape: sum(s == shape for s in SHAPES.values()) for shape in pools}
    whole = {}
    for shape in pools if device != "cpu" else []:
        target = next(t for t in targets if t.shape == shape)
        (change,) = changes_of(target, late, early, device)
        whole[f"{shape[0]}x{shape[1]}"] = spent(lambda one=change: spectrum_of(one, rounding=True))[0]
        result["whole_seconds_extrapolated"] = sum(
            whole[f"{s[0]}x{s[1]}"] * counts[s] for s in pools if f"{s[0]}x{s[1]}" in whole
        )
    result["whole_seconds_by_shape"] = whole
    result["peak_memory_GiB"] = (
        torch.cuda.max_memory_allocated() / 2**30
        if device != "cpu"
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    )
    result["weights_held_GiB"] = sum(2 * 2 * s[0] * s[1] for s in pools) / 2**30
    return result


def conversion(shape: tuple[int, int] = (1024, 2752), modules: int = 4, rank: int = 64, to: int = 16) -> dict[str, Any]:
    """An adapter of rank 64 to rank 16: `lora_compress` beside PEFT's `convert_to_lora`, seconds and relative error."""
    from peft import LoraConfig, convert_to_lora, get_peft_model
    from safetensors.torch import load_file

    torch.manual_seed(0)
    layers = {f"m{k}": torch.nn.Linear(shape[1], shape[0], bias=False) for k in range(modules)}
    model: Any = torch.nn.ModuleDict(layers)
    model.config = {"model_type": "none"}
    adapted: Any = get_peft_model(model, LoraConfig(r=rank, lora_alpha=rank, target_modules=list(layers)))
    falling = 1 / torch.arange(1, rank + 1)
    for name, part in adapted.named_parameters():
        if "lora_" in name:
            part.data = torch.randn_like(part) * (falling[None] if "lora_B" in name else 1)
    with tempfile.TemporaryDirectory() as folder:
        adapted.save_pretrained(f"{folder}/adapter")
        stored = load_file(f"{folder}/adapter/adapter_model.safetensors")
        began = time.perf_counter()
        lora_compress(f"{folder}/adapter", f"{folder}/smaller", max_rank=to)
        ours = time.perf_counter() - began
        made = load_file(f"{folder}/smaller/adapter_model.safetensors")
        began = time.perf_counter()
        _, theirs = convert_to_lora(adapted, to)
        peft = time.perf_counter() - began

    def apart(found: Mapping[str, torch.Tensor]) -> float:
        found = {name.removeprefix("base_model.model."): t for name, t in found.items()}
        missed, whole = 0.0, 0.0
        for k in range(modules):
            products = [
                one[f"m{k}.lora_B.weight"].double() @ one[f"m{k}.lora_A.weight"].double()
                for one in ({n.removeprefix("base_model.model."): t for n, t in stored.items()}, found)
            ]
            missed += float((products[0] - products[1]).norm()) ** 2
            whole += float(products[0].norm()) ** 2
        return (missed / whole) ** 0.5

    facts = {"shape": shape, "modules": modules, "rank": [rank, to], "compress_seconds": ours, "peft_seconds": peft}
    return facts | {"compress_error": apart(made), "peft_error": apart(theirs)}


def main(full: bool = False) -> None:
    print(seven_billion("cpu", 128, ONE), flush=True)
    print(conversion(), flush=True)


def command() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=LAYERS, help="only so many, and the head")
    given = parser.parse_args()
    given.out.write_text(json.dumps(seven_billion(given.device, 128, of_layers(given.layers)), indent=1))


if __name__ == "__main__":
    command()
