"""Loss against parameters for every rule that picks LoRA ranks, on three fine-tunes made here.

    python -m benchmarks.lora_tunes TEXTS OUT.json [--device cuda] [--small] [--prepare]

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
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saddles.figures.style import COLOURS, GREY, INK, look, sheet
from saddles.probe.lora.adapter import lora_extract
from saddles.probe.lora.budget import allocate
from saddles.probe.lora.planning import lora_plan
from saddles.probe.lora.ranks import Sized
from saddles.probe.lora.running import open_pair
from saddles.probe.lora.truncation import Truncation

PACKAGES = ("numpy", "scipy", "jax", "torch", "matplotlib", "pandas", "transformers", "networkx")
RANKS = (1, 2, 4, 8, 16, 32, 64)


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

    def __init__(self, folder: Path, device: str, length: int) -> None:
        self.device, self.length = device, length
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
        starts = draw.integers(low, high - self.length, size)
        return torch.from_numpy(np.stack([text[s : s + self.length] for s in starts])).long().to(self.device)

    def labelled(self, size: int, draw: np.random.Generator, held: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Blocks of sources, and the package that each is from."""
        labels = draw.integers(0, len(PACKAGES), size)
        rows = []
        for label in labels:
            text = self.packages[label]
            edge = int(0.9 * len(text))
            start = draw.integers(*((edge, len(text) - self.length) if held else (0, edge - self.length)))
            rows.append(text[start : start + self.length])
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
    weighing = tune.weighted.inputs
    assert weighing is not None
    # E‖δy‖² itself, or relative to the mean square of the module's inputs.
    means = {m: float(c.diagonal().mean()) for m, c in weighing.moments([t.module for t in tune.plain.pairs.targets])}
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


def tunes(texts: Texts, device: str, small: bool, out: Path) -> dict[str, Any]:
    """Train the base and the three fine-tunes, and compare."""
    import transformers

    library: Any = transformers

    torch.manual_seed(0)
    draw = np.random.default_rng(0)
    sizes: dict[str, Any] = (
        {"n_layer": 6, "n_head": 6, "n_embd": 384} if not small else {"n_layer": 3, "n_head": 4, "n_embd": 96}
    )
    config = library.GPT2Config(
        vocab_size=257, n_positions=texts.length, bos_token_id=256, eos_token_id=256, pad_token_id=256,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, num_labels=len(PACKAGES), **sizes,
    )  # fmt: skip
    batch, steps, tuning, rates = (64, 4000, 800, (1e-3, 3e-4)) if not small else (8, 500, 200, (3e-3, 1e-3))
    base = library.GPT2LMHeadModel(config).to(device)
    began = time.perf_counter()
    found: dict[str, Any] = {
        "settings": {"base_steps": steps, "tune_steps": tuning, "batch": batch, "length": texts.length, **sizes},
        "base_parameters": sum(p.numel() for p in base.parameters()),
        "base_loss": train(base, lambda: (texts.batch("text", batch, draw), None), steps, rates[0], device),
    }  # fmt: skip
    found["base_seconds"] = time.perf_counter() - began
    fixed = np.random.default_rng(1)
    blocks = 128 if not small else 64
    for name in ("shakespeare", "python", "packages"):
        began = time.perf_counter()
        if name == "packages":
            start = library.GPT2ForSequenceClassification(config).to(device)
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

        last = train(tuned, batches, tuning, rates[1], device)

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
        out.write_text(json.dumps({"tunes": found}, indent=1))
    return found


def draw(found: Mapping[str, Any], place: Path) -> None:
    """Loss against parameters, one panel for each fine-tune."""
    styles = {
        "uniform": (GREY, "o"), "kohya sv_fro": (COLOURS[3], "v"), "kohya sv_ratio": (COLOURS[1], "^"),
        "mergekit sv-epsilon": (COLOURS[4], "s"), "budget": (COLOURS[0], "o"), "data, uniform": (COLOURS[5], "D"),
        "data, budget": (COLOURS[2], "D"),
    }  # fmt: skip
    titles = {"shakespeare": "Shakespeare", "python": "Python sources", "packages": "Which package? (classifier)"}
    with look():
        figure, (axes,) = sheet(1, 3, 13, 4.4)
        for axis, (name, title) in zip(axes, titles.items(), strict=True):
            tune = found[name]
            for rule, (colour, marker) in styles.items():
                rows = [row for row in tune["rows"] if row["rule"] == rule]
                x, y = [row["parameters"] for row in rows], [row["loss"] for row in rows]
                axis.plot(x, y, color=colour, marker=marker, markersize=4, linewidth=1.6, label=rule)
            axis.axhline(tune["tuned"], color=INK, linewidth=1, linestyle=":")
            axis.text(0.01, tune["tuned"], "tuned", transform=axis.get_yaxis_transform(), ha="left", va="bottom")
            axis.set(xscale="log", xlabel="parameters of the factors", title=title)
        axes[0].set_ylabel("loss on held-out text, nats")
        axes[-1].legend()
    figure.savefig(place, dpi=150)


def main(full: bool = False) -> None:
    """For `python -m benchmarks`: only says how it is run, because it needs texts."""
    print("python -m benchmarks.lora_tunes TEXTS OUT.json")


def command() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--small", action="store_true", help="a smaller model, for two cores")
    parser.add_argument("--prepare", action="store_true", help="write the texts first")
    parser.add_argument("--figure", type=Path, default=None, help="only draw OUT.json")
    given = parser.parse_args()
    if given.figure is not None:
        draw(json.loads(given.out.read_text())["tunes"], given.figure)
        return
    if given.prepare:
        prepare(given.texts)
    texts = Texts(given.texts, given.device, 64 if given.small else 256)
    tunes(texts, given.device, given.small, given.out)


if __name__ == "__main__":
    command()
