"""Peak memory and time of `inspect` on a series with the shapes of a 7B model.

    python -m benchmarks inspect [--full]      --full: all 32 layers (about 15 minutes on two idle cores); else 1

First: a series with the shapes of Pythia-1.4B on one and two worker processes, and what all of it would take.

That of the 7B model is written sparsely: the files have their full length (13.5 GB each in bfloat16) and almost no
blocks on disk. Low-rank regions move in every 32nd layer and in the output matrix, all else stays; what stays is read
and compared like any numbers, but a matrix or a layer's heads in which nothing changed need no decomposition. What is
asked for: a peak below two copies of the largest pair of tensors (beside what Python and the libraries take), whatever
the number of layers and checkpoints.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

WIDTH, INNER, VOCABULARY, HEADS = 4096, 11008, 32000, 32
PER_SHARD = 8
"""Layers in a shard."""


def shapes_of(layers: range) -> dict[str, tuple[int, ...]]:
    """Llama-7B's tensors of some layers."""
    found: dict[str, tuple[int, ...]] = {}
    for i in layers:
        base = f"model.layers.{i}"
        found |= {f"{base}.self_attn.{x}_proj.weight": (WIDTH, WIDTH) for x in "qkvo"}
        found |= {f"{base}.mlp.{x}_proj.weight": (INNER, WIDTH) for x in ("gate", "up")}
        found |= {f"{base}.mlp.down_proj.weight": (WIDTH, INNER)}
        found |= {f"{base}.{x}_layernorm.weight": (WIDTH,) for x in ("input", "post_attention")}
    return found


def write_shard(file: Path, shapes: dict[str, tuple[int, ...]], regions: dict[str, np.ndarray]) -> None:
    """A safetensors file of bfloat16 zeros, with some top left corners filled; zeros take no disk."""
    header, at, starts = {}, 0, {}
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        starts[name], at = at, at + size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + at)
        for name, corner in regions.items():
            if name not in shapes:
                continue
            rounded = (corner.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            for row, values in enumerate(rounded):
                out.seek(8 + len(text) + starts[name] + 2 * row * shapes[name][1])
                out.write(values.tobytes())


def write_model(folder: Path, layers: int, moved: float, seed: int = 0) -> None:
    """A sharded Hugging Face folder; the corners of every 32nd layer's matrices move by rank 4 with `moved`."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(seed)
    groups = [range(first, min(first + PER_SHARD, layers)) for first in range(0, layers, PER_SHARD)]
    weight_map, count = {}, len(groups) + 1
    ends = {
        "model.embed_tokens.weight": (VOCABULARY, WIDTH),
        "lm_head.weight": (VOCABULARY, WIDTH),
        "model.norm.weight": (WIDTH,),
    }
    regions = {}
    for name, shape in {**shapes_of(range(0, layers, 32)), **ends}.items():
        if len(shape) == 2:
            start = 0.02 * draw.normal(size=(256, 256))
            change = draw.normal(size=(256, 4)) @ draw.normal(size=(4, 256)) * 1e-3
            regions[name] = start + (moved * change if "embed" not in name else 0)
    for number, shapes in enumerate([*(shapes_of(group) for group in groups), ends], start=1):
        file = f"model-{number:05d}-of-{count:05d}.safetensors"
        write_shard(folder / file, shapes, regions)
        weight_map |= dict.fromkeys(shapes, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": INNER,
        "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "num_hidden_layers": layers,
        "vocab_size": VOCABULARY,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


CHILD = """
import resource, sys, time, json
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
import saddles, numpy, xarray, zarr, torch, scipy.sparse.linalg
from saddles.probe.inspection import inspect
from saddles.core.store import save
torch.linalg.eigvalsh(torch.eye(64, dtype=torch.float64)); before = peak()
began, spent = time.perf_counter(), time.process_time()
tree = inspect(sys.argv[1], modules=sys.argv[2] == "all")
heads, modules = tree["heads"].sizes, tree["modules"].sizes
print(json.dumps({
  "before": before, "peak": peak(), "wall": time.perf_counter() - began, "cpu": time.process_time() - spent,
  "heads": heads["layer"] * heads["head"], "modules": modules.get("module", 0), "steps": heads["time"]}))
"""


def measure(folder: Path, what: str) -> None:
    """Inspect in a process of its own, and print its peak against the promise."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder), what],
        capture_output=True,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    facts = json.loads(done.stdout.splitlines()[-1])
    promise = 4 * 2 * VOCABULARY * WIDTH / 2**20
    added = facts["peak"] - facts["before"]
    print(
        f"{what}: {facts['steps']} checkpoints, {facts['heads']} heads, {facts['modules']} matrices: "
        f"peak {facts['peak']:.0f} MiB, {facts['before']:.0f} before the work, {added:.0f} added; two copies of the "
        f"largest pair are {promise:.0f}; {facts['wall']:.0f} s, {facts['cpu']:.0f} processor seconds",
        flush=True,
    )


def write_series(folder: Path, checkpoints: int) -> None:
    """A few checkpoints with the shapes of one layer and both embeddings of Pythia-1.4B, random in float16."""
    import torch
    from safetensors.torch import save_file

    width, words, draw = 2048, 50304, torch.Generator().manual_seed(0)
    names = {"gpt_neox.embed_in": (words, width), "embed_out": (words, width)}
    names |= {f"gpt_neox.layers.0.attention.{x}": s for x, s in
              (("query_key_value", (3 * width, width)), ("dense", (width, width)))}  # fmt: skip
    names |= {"gpt_neox.layers.0.mlp.dense_h_to_4h": (4 * width, width)}
    names |= {"gpt_neox.layers.0.mlp.dense_4h_to_h": (width, 4 * width)}
    weights = {f"{name}.weight": 0.02 * torch.randn(shape, generator=draw) for name, shape in names.items()}
    for step in range(checkpoints):
        place = folder / f"checkpoint-{step}"
        place.mkdir(parents=True)
        save_file({name: weight.half() for name, weight in weights.items()}, place / "model.safetensors")
        (place / "config.json").write_text(json.dumps({"num_attention_heads": 16, "rotary_pct": 0.25}))
        for weight in weights.values():
            weight += 1e-3 * torch.randn(weight.shape, generator=draw)


def on_workers(checkpoints: int = 3) -> None:
    """The same series on one and two worker processes, and the plan of 154 checkpoints of the whole model."""
    import time

    from saddles.probe.inspection import inspect, inspection_cost

    with tempfile.TemporaryDirectory() as place:
        write_series(Path(place), checkpoints)
        for workers in (1, 2):
            began = time.perf_counter()
            tree = inspect(place, on="embedded", workers=workers)
            print(f"{workers} workers: {time.perf_counter() - began:.0f} s, {tree.attrs['cost']}", flush=True)
        cost = inspection_cost(place)
        print(cost, flush=True)
        # 24 layers and both embeddings; the first of 154 checkpoints is the reference.
        once = sum(seconds for shape, (_, seconds) in cost.timed.items() if "at the start" in shape)
        outer = sum(2 * seconds for shape, (_, seconds) in cost.timed.items() if "50304" in shape)
        inner = sum(s for shape, (_, s) in cost.timed.items() if "50304" not in shape and "at the start" not in shape)
        total = 24 * once + 153 * (24 * inner + outer)
        pieces = 24 + 153 * (24 * 5 + 2)
        print(f"154 checkpoints of the whole model: {pieces} pieces, {total / 3600:.1f} hours of one core", flush=True)


def main(full: bool = False) -> None:
    on_workers()
    layers = 32 if full else 1
    with tempfile.TemporaryDirectory() as place:
        for step in range(2 if full else 3):
            write_model(Path(place) / f"checkpoint-{step}", layers, moved=float(step))
        files = [f for f in Path(place).rglob("*") if f.is_file()]
        length, disk = (sum(getattr(f.stat(), x) for f in files) for x in ("st_size", "st_blocks"))
        print(f"{layers} layers: {length / 1e9:.1f} GB in files, {disk * 512 / 1e6:.0f} MB on disk", flush=True)
        measure(Path(place), "all")


if __name__ == "__main__":
    main("--full" in sys.argv)
