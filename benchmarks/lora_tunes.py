"""Loss against parameters for every rule that picks LoRA ranks, on three fine-tunes made here, and 7B shapes.

    python -m benchmarks.lora_tunes TEXTS OUT.json [--device cuda] [--small]

TEXTS is a folder that `--prepare` makes: enwik8, Shakespeare, and Python sources of eight packages, in bytes. A GPT-2
of bytes is trained on enwik8, then tuned to Shakespeare, to Python, and to telling the eight packages apart. In every
comparison norms, embeddings, biases and heads are the tuned model's; only the matrices are W₀ + BA. Parameters are
those of the factors; each rule gets what one rank for all modules takes.

Rules of other programs, written down from their sources: kohya's resize (`sv_ratio`: σ > σ₁/x; `sv_fro`: a share of
each module's own norm; at least rank 1) and mergekit's extraction (`--sv-epsilon`: σ > ε for all modules).
"""

import argparse
import copy
import importlib.util
import json
import lzma
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from saddles.probe.lora.adapter import lora_extract
from saddles.probe.lora.budget import allocate
from saddles.probe.lora.match import Names, Target
from saddles.probe.lora.planning import lora_plan
from saddles.probe.lora.ranks import Sized
from saddles.probe.lora.reshape import lora_compress
from saddles.probe.lora.running import open_pair
from saddles.probe.lora.truncation import Truncation
from saddles.probe.weights.checkpoints import Weights
from saddles.probe.weights.weight_change import spectrum_of

PACKAGES = ("numpy", "scipy", "jax", "torch", "matplotlib", "pandas", "transformers", "networkx")
LENGTH = 256
RANKS = (1, 2, 4, 8, 16, 32, 64)
LAYERS, WIDTH = 32, 4096
SHAPES = {
    **{f"{layer}.{name}": (WIDTH, WIDTH) for layer in range(LAYERS) for name in "qkvo"},
    **{f"{layer}.{name}": (11008, WIDTH) for layer in range(LAYERS) for name in ("gate", "up")},
    **{f"{layer}.down": (WIDTH, 11008) for layer in range(LAYERS)},
    "lm_head": (32000, WIDTH),
}
"""The matrices of Llama 7B."""


def prepare(folder: Path) -> None:
    """Write the texts: 24 MB of enwik8, Shakespeare, and at most 1.5 MB of each package's sources."""
    folder.mkdir(parents=True, exist_ok=True)
    data = Path(os.environ["SADDLES_DATA"])
    with lzma.open(data / "enwik8.xz") as stream:
        (folder / "text.bin").write_bytes(stream.read(24_000_000))
    (folder / "shakespeare.bin").write_bytes((data / "tinyshakespeare.txt").read_bytes())
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        files = sorted(Path(spec.origin).parent.rglob("*.py"))
        order = np.random.default_rng(0).permutation(len(files))
        parts, size = [], 0
        for place in order:
            parts.append(files[place].read_bytes())
            size += len(parts[-1])
            if size > 1_500_000:
                break
        (folder / f"package-{name}.bin").write_bytes(b"\n".join(parts)[:1_500_000])


class Texts:
    """Bytes of the texts, the last tenth of each held out."""

    def __init__(self, folder: Path, device: str) -> None:
        self.device = device
        read = {p.stem: np.frombuffer(p.read_bytes(), dtype=np.uint8).copy() for p in sorted(folder.glob("*.bin"))}
        self.packages = [read[f"package-{name}"] for name in PACKAGES]
        # Blocks of all packages take turns, so that each of them is in what is held out.
        blocks = [part[k : k + 2**15] for k in range(0, 15 * 10**5, 2**15) for part in self.packages]
        read["python"] = np.concatenate(blocks)
        self.read = read

    def batch(self, name: str, size: int, draw: np.random.Generator, held: bool = False) -> torch.Tensor:
        """Random blocks of a text."""
        text = self.read[name]
        edge = int(0.9 * len(text))
        low, high = (edge, len(text)) if held else (0, edge)
        starts = draw.integers(low, high - LENGTH, size)
        return torch.from_numpy(np.stack([text[s : s + LENGTH] for s in starts])).long().to(self.device)

    def labelled(self, size: int, draw: np.random.Generator, held: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Blocks of sources, and the package that each is from."""
        labels = draw.integers(0, len(PACKAGES), size)
        rows = []
        for label in labels:
            text = self.packages[label]
            edge = int(0.9 * len(text))
            start = draw.integers(*((edge, len(text) - LENGTH) if held else (0, edge - LENGTH)))
            rows.append(text[start : start + LENGTH])
        return torch.from_numpy(np.stack(rows)).long().to(self.device), torch.from_numpy(labels).to(self.device)


def loss_of(model: Any, tokens: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
    logits = model(tokens).logits.float()
    if labels is not None:
        return torch.nn.functional.cross_entropy(logits, labels)
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def train(
    model: Any, batches: Callable[[], tuple[torch.Tensor, torch.Tensor | None]], steps: int, rate: float, device: str
) -> float:
    """AdamW with a cosine; returns the mean loss of the last tenth."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=min(0.1, 50 / steps))
    losses = []
    for _ in range(steps):
        with torch.autocast(device.split(":")[0], torch.bfloat16, enabled=device != "cpu"):
            loss = loss_of(model, *batches())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    model.eval()
    return float(torch.stack(losses[-max(1, steps // 10) :]).mean())


def kohya_ratio(values: np.ndarray, x: float) -> int:
    return max(1, int(np.count_nonzero(values > values[0] / x)))


def kohya_fro(values: np.ndarray, x: float) -> int:
    kept = np.cumsum(values**2) / np.sum(values**2)
    return max(1, min(int(np.searchsorted(kept, x**2)) + 1, len(values)))


def mergekit(values: np.ndarray, x: float) -> int:
    return int(np.count_nonzero(values > x))


def fitted(rule: Callable[[np.ndarray, float], int], sized: Sequence[Sized], budget: int, grid: Iterable[float]):
    """The ranks of a rule with the setting that spends most of a budget."""
    best = None
    for x in grid:
        ranks = [rule(one.values, x) for one in sized]
        spent = sum(k * one.cost for k, one in zip(ranks, sized, strict=True))
        if spent <= budget and (best is None or spent > best[0]):
            best = (spent, ranks)
    return None if best is None else best[1]


class Tune:
    """One fine-tune, and the loss of base + adapter for any factors and ranks."""

    def __init__(self, base: Any, tuned: Any, device: str, value: Callable[[Any], float], data: torch.Tensor) -> None:
        self.base, self.tuned, self.value = base, tuned, value
        self.plain = open_pair(base, tuned, device=device)
        self.weighted = open_pair(base, tuned, data=data, device=device)
        self.model = copy.deepcopy(tuned)
        self.start = {t.module: base.get_submodule(t.module).weight.detach() for t in self.plain.pairs.targets}

    def factors(self, truncation: Truncation) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        most = {t.module: min(t.shape) for t in truncation.pairs.targets}
        return {
            t.module: (one.left.to(self.start[t.module].device), one.right.to(self.start[t.module].device))
            for t, (one,) in truncation.factors(most)
        }

    def loss(self, pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor]], ranks: Sequence[int]) -> float:
        with torch.no_grad():
            for target, rank in zip(self.plain.pairs.targets, ranks, strict=True):
                left, right = pairs[target.module]
                start = self.start[target.module]
                weight = start.double() + left[:, :rank] @ right[:rank]
                self.model.get_submodule(target.module).weight.data.copy_(weight)
            return self.value(self.model)


def compare(tune: Tune) -> dict[str, Any]:
    """Loss at each size, by rule."""
    plain, weighted = tune.plain.sizes(), tune.weighted.sizes()
    pairs = {"plain": tune.factors(tune.plain), "weighted": tune.factors(tune.weighted)}
    costs = [one.cost for one in plain]
    rows: list[dict[str, Any]] = []
    largest = max(float(one.values[0]) for one in plain)
    # E‖δy‖² itself, or relative to the mean square of the module's inputs.
    means = {
        m: float(c.diagonal().mean())
        for m, c in tune.weighted.inputs.moments([t.module for t in tune.plain.pairs.targets])
    }
    scale = [max(means[t.module], 1e-30) for t in tune.plain.pairs.targets]
    for rank in RANKS:
        budget = rank * sum(costs)
        uniform = [min(rank, len(one.values)) for one in plain]
        rules: dict[str, tuple[str, Any]] = {
            "uniform": ("plain", uniform),
            "budget": ("plain", list(allocate([one.squares for one in plain], costs, budget).ranks)),
            "kohya sv_ratio": ("plain", fitted(kohya_ratio, plain, budget, np.geomspace(1.0, 1e3, 400))),
            "kohya sv_fro": ("plain", fitted(kohya_fro, plain, budget, np.linspace(0.02, 0.9999, 400))),
            "mergekit sv-epsilon": ("plain", fitted(mergekit, plain, budget, largest * np.geomspace(1e-3, 1, 400))),
            "data, uniform": ("weighted", uniform),
            "data, budget": ("weighted", list(allocate([one.squares for one in weighted], costs, budget).ranks)),
            "data, budget, scaled": (
                "weighted",
                list(allocate([o.squares / s for o, s in zip(weighted, scale, strict=True)], costs, budget).ranks),
            ),
        }
        for name, (kind, ranks) in rules.items():
            if ranks is None:
                continue
            spent = sum(k * cost for k, cost in zip(ranks, costs, strict=True))
            rows.append(
                {"rule": name, "rank": rank, "parameters": spent, "loss": tune.loss(pairs[kind], ranks),
                 "modules": sum(k > 0 for k in ranks)}
            )  # fmt: skip
    none = [0] * len(plain)
    full = [len(one.values) for one in plain]
    return {
        "base": tune.loss(pairs["plain"], none), "tuned": tune.value(tune.tuned),
        "full": tune.loss(pairs["plain"], full), "full_weighted": tune.loss(pairs["weighted"], full),
        "matrices": int(sum(t.shape[0] * t.shape[1] for t in tune.plain.pairs.targets)), "rows": rows,
    }  # fmt: skip


def equality(base: Any, tuned: Any, tokens: torch.Tensor) -> float:
    """Largest difference of logits: tuned, and base + adapter of full ranks with saved modules, through PEFT."""
    from peft import PeftModel

    base, tuned = copy.deepcopy(base).cpu(), copy.deepcopy(tuned).cpu()
    with tempfile.TemporaryDirectory() as folder:
        plan = lora_plan(base, tuned, energy=1.0, save_modules=True)
        made = lora_extract(base, tuned, plan, Path(folder) / "adapter")
        adapted = PeftModel.from_pretrained(base, str(made.folder)).eval()
        with torch.no_grad():
            return float((adapted(tokens.cpu()).logits - tuned(tokens.cpu()).logits).abs().max())


def tunes(texts: Texts, device: str, small: bool) -> dict[str, Any]:
    """Train the base and the three fine-tunes, and compare."""
    from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel

    torch.manual_seed(0)
    draw = np.random.default_rng(0)
    sizes: dict[str, Any] = (
        {"n_layer": 6, "n_head": 6, "n_embd": 384} if not small else {"n_layer": 2, "n_head": 2, "n_embd": 64}
    )
    config = GPT2Config(
        vocab_size=257, n_positions=LENGTH, bos_token_id=256, eos_token_id=256, pad_token_id=256,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, num_labels=len(PACKAGES), **sizes,
    )  # fmt: skip
    batch, steps, tuning = (64, 4000, 800) if not small else (8, 60, 30)
    base = GPT2LMHeadModel(config).to(device)
    began = time.perf_counter()
    found: dict[str, Any] = {
        "settings": {"base_steps": steps, "tune_steps": tuning, "batch": batch, "length": LENGTH, **sizes},
        "base_parameters": sum(p.numel() for p in base.parameters()),
        "base_loss": train(base, lambda: (texts.batch("text", batch, draw), None), steps, 1e-3, device),
    }  # fmt: skip
    found["base_seconds"] = time.perf_counter() - began
    fixed = np.random.default_rng(1)
    blocks = 128 if not small else 8
    for name in ("shakespeare", "python", "packages"):
        began = time.perf_counter()
        if name == "packages":
            start = GPT2ForSequenceClassification(config).to(device)
            start.transformer.load_state_dict(base.transformer.state_dict())
            held, labels = texts.labelled(4 * blocks, fixed, held=True)
            data = texts.labelled(blocks, fixed)[0]
        else:
            start, labels = base, None
            held, data = texts.batch(name, blocks, fixed, held=True), texts.batch(name, blocks, fixed)
        start = start.eval()
        tuned = copy.deepcopy(start)

        def batches(name: str = name) -> tuple[torch.Tensor, torch.Tensor | None]:
            return texts.labelled(batch, draw) if name == "packages" else (texts.batch(name, batch, draw), None)

        last = train(tuned, batches, tuning, 3e-4, device)

        def value(model: Any, held: torch.Tensor = held, labels: torch.Tensor | None = labels) -> float:
            with torch.no_grad():
                parts = [
                    float(loss_of(model, held[i : i + 64], None if labels is None else labels[i : i + 64]))
                    for i in range(0, len(held), 64)
                ]
            return float(np.mean(parts))

        row = compare(Tune(start, tuned, device, value, data))
        row |= {"untuned": value(start), "train_loss": last, "logits_apart": equality(start, tuned, held[:4])}
        found[name] = row | {"seconds": time.perf_counter() - began}
        print(name, {k: v for k, v in found[name].items() if k != "rows"}, flush=True)
    return found


def seven_billion(device: str, leading: int, most: int | None) -> dict[str, Any]:
    """All matrices of a 7B pair in bfloat16: leading factors of `most` of them, whole spectra of one of each shape."""
    shapes = dict(list(SHAPES.items())[:most])
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
        spent(lambda: truncation._leading(truncation.changes(targets[0])[0]))  # libraries are loaded
        torch.cuda.reset_peak_memory_stats()
    wall, used, sized = spent(truncation.sizes)
    ranks = {t.module: min(64, leading) for t in targets}
    more = spent(lambda: sum(1 for _ in truncation.factors(ranks)))
    result: dict[str, Any] = {
        "modules": len(targets), "leading": leading, "plan_seconds": wall, "plan_processor_seconds": used,
        "factor_seconds": more[0], "factor_processor_seconds": more[1],
        "share": [1 - one.rest / one.norm**2 for one in sized[:1]],
    }  # fmt: skip
    counts = {shape: sum(s == shape for s in SHAPES.values()) for shape in pools}
    whole = {}
    for shape in pools if device != "cpu" else []:
        target = next(t for t in targets if t.shape == shape)
        whole[f"{shape[0]}x{shape[1]}"] = spent(lambda t=target: spectrum_of(truncation.changes(t)[0], rounding=True))[
            0
        ]
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
    """For `python -m benchmarks`: only says how it is run, because it needs texts."""
    print("python -m benchmarks.lora_tunes TEXTS OUT.json")


def command() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--shapes", type=int, default=None, help="only so many matrices of 7B; 0: none")
    parser.add_argument("--conversion", action="store_true", help="also lora_compress beside PEFT's convert_to_lora")
    parser.add_argument("--only-shapes", action="store_true")
    given = parser.parse_args()
    if given.prepare:
        prepare(given.texts)
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if given.device != "cpu" else "cpu",
        "torch": torch.__version__,
    }
    if given.shapes != 0:
        found["7B"] = seven_billion(given.device, 128, given.shapes)
        print(found["7B"], flush=True)
        given.out.write_text(json.dumps(found, indent=1))
    if given.conversion:
        found["conversion"] = conversion()
        print(found["conversion"], flush=True)
    if not given.only_shapes:
        found["tunes"] = tunes(Texts(given.texts, given.device), given.device, given.small)
    given.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    command()
