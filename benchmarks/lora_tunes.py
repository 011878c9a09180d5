"""Loss against parameters for every rule that picks LoRA ranks, on three fine-tunes.

    python -m benchmarks.lora_tunes TOKENS FOLDER OUT.json [--device cuda] [--small]     # of benchmarks.finetunes
    python -m benchmarks.lora_tunes --figure FIGURE.png OUT.json

In every comparison norms, embeddings, biases and heads are the tuned model's; only the matrices are W₀ + BA.
Parameters are those of the factors; each rule gets what one rank for all modules takes.

Rules of other programs, written down from their sources: kohya's resize (`sv_ratio`: σ > σ₁/x; `sv_fro`: a share of
each module's own norm; at least rank 1) and mergekit's extraction (`--sv-epsilon`: σ > ε for all modules).

What ΔW is multiplied with before it is cut ("kind"): nothing; C^½ with C = E[xxᵀ] of the module's inputs; or that and,
from the left, D^½ with D the mean squares of the gradient of −log p(y) with respect to each output, for labels y that
the tuned model draws itself. The last is the loss's second-order change, with the cross terms left out.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.finetunes import LARGE, SMALL, PackageFeed, Scale, measured, text_feed
from saddles.figures.style import COLOURS, GREY, INK, look, sheet
from saddles.probe.lora.adapter import lora_extract
from saddles.probe.lora.budget import allocate
from saddles.probe.lora.planning import lora_plan
from saddles.probe.lora.running import open_pair

RANKS = (1, 2, 4, 8, 16, 32, 64)
BLOCKS = 128
"""Blocks of training text from which C and D are taken."""


@dataclass(frozen=True, eq=False)
class Cut:
    """ΔW's approximations of every rank: `left[:, :r] @ right[:r]`, and the σ² that each rank captures."""

    left: Tensor
    right: Tensor
    squares: np.ndarray


@dataclass(frozen=True, eq=False)
class Facts:
    """A module's inputs, and the gradients at its outputs."""

    inputs: Tensor
    outputs: Tensor


def conv1d_modules(model: nn.Module) -> list[str]:
    """GPT-2's matrices."""
    return [name for name, one in model.named_modules() if type(one).__name__ == "Conv1D"]


def weight_of(model: nn.Module, module: str) -> Tensor:
    """W (outputs, inputs)."""
    return model.get_submodule(module).weight.detach().T  # pyright: ignore[reportCallIssue, reportReturnType]


def facts_of(model: nn.Module, modules: Sequence[str], blocks: Tensor) -> dict[str, Facts]:
    """C and D of each module, from one pass forwards and one backwards."""
    device = blocks.device
    draw = torch.Generator(device).manual_seed(0)
    moments = {m: torch.zeros(2 * [weight_of(model, m).shape[1]], dtype=torch.float64, device=device) for m in modules}
    squares = {m: torch.zeros(weight_of(model, m).shape[0], dtype=torch.float64, device=device) for m in modules}

    def hook(name: str) -> Callable[..., None]:
        def after(_module: object, args: tuple[Tensor, ...], output: Tensor) -> None:
            rows = args[0].detach().reshape(-1, args[0].shape[-1]).double()
            moments[name].addmm_(rows.T, rows)

            def back(gradient: Tensor) -> None:
                squares[name].add_(gradient.detach().double().pow(2).reshape(-1, gradient.shape[-1]).sum(0))

            output.register_hook(back)

        return after

    handles = [model.get_submodule(m).register_forward_hook(hook(m)) for m in modules]
    for part in blocks.split(8):
        logits = model(input_ids=part).logits.float()
        chance = logits.log_softmax(-1).flatten(0, -2)
        labels = torch.multinomial(chance.detach().exp(), 1, generator=draw)
        (-chance.gather(1, labels).sum()).backward()
    model.zero_grad(set_to_none=True)
    for handle in handles:
        handle.remove()
    count = blocks.numel()
    return {m: Facts(moments[m] / count, squares[m] / count) for m in modules}


def cut(change: Tensor, moment: Tensor | None, rows: Tensor | None) -> Callable[[], Cut]:
    """All approximations of D^½ ΔW C^½, divided by D^½ again; products here, the eigenvectors in the call, on the host.

    A 768-wide eigenvalue problem takes a GPU longer than a core, and a host has many cores.
    """
    scale = torch.ones(len(change), dtype=torch.float64, device=change.device)
    if rows is not None:
        # A row that no gradient reached must not be divided by 0.
        scale = rows.clamp_min(1e-6 * float(rows.mean())).sqrt()
    scaled = scale[:, None] * change
    basis, small = torch.linalg.qr(scaled) if len(change) > change.shape[1] else (None, scaled)
    product = small @ small.T if moment is None else small @ moment @ small.T
    host = ((product + product.T) / 2).cpu()

    def solve() -> Cut:
        values, vectors = torch.linalg.eigh(host)
        turned = vectors.flip(1).to(change.device)
        left = turned if basis is None else basis @ turned
        squares = values.flip(0).clamp_min(0).numpy()
        return Cut((left / scale[:, None]).float(), (left.T @ scaled).float(), squares)

    return solve


class Tune:
    """One fine-tune, and the held-out loss of base + adapter for any ranks."""

    def __init__(self, base: nn.Module, tuned: nn.Module, feed: Any, blocks: Tensor) -> None:
        self.feed, self.model, self.modules = feed, tuned, conv1d_modules(base)
        self.tuned_loss = measured(feed, tuned)["test_loss"]
        self.start = {m: weight_of(base, m).clone() for m in self.modules}
        self.change = {m: weight_of(tuned, m).double() - self.start[m].double() for m in self.modules}
        self.facts = facts_of(tuned, self.modules, blocks)
        self.costs = [sum(self.change[m].shape) for m in self.modules]
        # E‖Wx‖² of each module, against which an error of its outputs may be measured.
        self.signal = [float((weight_of(tuned, m).double() @ self.facts[m].inputs).mul(weight_of(tuned, m)).sum())
                       for m in self.modules]  # fmt: skip
        self.cuts = {
            kind: self._cuts([(None, None), (1, None), (1, 1)][place])
            for place, kind in enumerate(("plain", "data", "sensitivity"))
        }

    def _cuts(self, which: tuple[int | None, int | None]) -> list[Cut]:
        work = [
            cut(self.change[m], self.facts[m].inputs if which[0] else None, self.facts[m].outputs if which[1] else None)
            for m in self.modules
        ]
        threads, pool = torch.get_num_threads(), ThreadPoolExecutor(torch.get_num_threads())
        torch.set_num_threads(1)
        try:
            return list(pool.map(lambda solve: solve(), work))
        finally:
            torch.set_num_threads(threads)

    def loss(self, kind: str, ranks: Sequence[int]) -> float:
        """Held-out loss of the tuned model with its matrices replaced."""
        with torch.no_grad():
            for module, one, rank in zip(self.modules, self.cuts[kind], ranks, strict=True):
                new = self.start[module] + one.left[:, :rank] @ one.right[:rank]
                self.model.get_submodule(module).weight.copy_(new.T)  # pyright: ignore[reportCallIssue]
            return measured(self.feed, self.model)["test_loss"]


def kohya_ratio(values: np.ndarray, x: float) -> int:
    return max(1, int(np.count_nonzero(values > values[0] / x)))


def kohya_fro(values: np.ndarray, x: float) -> int:
    kept = np.cumsum(values**2) / np.sum(values**2)
    return max(1, min(int(np.searchsorted(kept, x**2)) + 1, len(values)))


def mergekit(values: np.ndarray, x: float) -> int:
    return int(np.count_nonzero(values > x))


def fitted(rule: Callable[[np.ndarray, float], int], tune: Tune, budget: int, grid: Iterable[float]):
    """The ranks of a rule with the setting that spends most of a budget."""
    best = None
    for x in grid:
        ranks = [rule(np.sqrt(one.squares), x) for one in tune.cuts["plain"]]
        spent = sum(k * cost for k, cost in zip(ranks, tune.costs, strict=True))
        if spent <= budget and (best is None or spent > best[0]):
            best = (spent, ranks)
    return None if best is None else best[1]


def best(tune: Tune, kind: str, budget: int, floor: int = 0, scale: Sequence[float] | None = None) -> list[int]:
    """The allocation that captures the most, after `floor` ranks for every module; σ² may be scaled by module."""
    scale = scale or [1.0] * len(tune.costs)
    gains = [one.squares[floor:] * s for one, s in zip(tune.cuts[kind], scale, strict=True)]
    return [floor + k for k in allocate(gains, tune.costs, budget - floor * sum(tune.costs)).ranks]


def rules_of(tune: Tune, rank: int) -> dict[str, tuple[str, list[int] | None]]:
    """Rule -> what is cut, and the ranks."""
    budget, uniform = rank * sum(tune.costs), [min(rank, len(one.squares)) for one in tune.cuts["plain"]]
    largest = max(float(one.squares[0]) for one in tune.cuts["plain"]) ** 0.5
    facts = [tune.facts[m] for m in tune.modules]
    isotropic = [float(one.inputs.diagonal().mean() * one.outputs.mean()) for one in facts]
    changes = [1 / float(one.squares.sum()) ** 0.5 for one in tune.cuts["plain"]]
    return {
        "uniform": ("plain", uniform),
        "kohya sv_ratio": ("plain", fitted(kohya_ratio, tune, budget, np.geomspace(1.0, 1e3, 400))),
        "kohya sv_fro": ("plain", fitted(kohya_fro, tune, budget, np.linspace(0.02, 0.9999, 400))),
        "mergekit sv-epsilon": ("plain", fitted(mergekit, tune, budget, largest * np.geomspace(1e-3, 1, 400))),
        "budget": ("plain", best(tune, "plain", budget)),
        "budget, half uniform": ("plain", best(tune, "plain", budget, rank // 2)),
        "budget, relative to ΔW": ("plain", best(tune, "plain", budget, scale=changes)),
        "budget, scaled by sensitivity": ("plain", best(tune, "plain", budget, scale=isotropic)),
        "data, uniform": ("data", uniform),
        "data, budget": ("data", best(tune, "data", budget)),
        "data, half uniform": ("data", best(tune, "data", budget, rank // 2)),
        "data, relative to Wx": ("data", best(tune, "data", budget, scale=[1 / s for s in tune.signal])),
        "sensitivity, uniform": ("sensitivity", uniform),
        "sensitivity, budget": ("sensitivity", best(tune, "sensitivity", budget)),
        "sensitivity, half uniform": ("sensitivity", best(tune, "sensitivity", budget, rank // 2)),
    }


def compare(tune: Tune) -> dict[str, Any]:
    """Loss at each size, by rule."""
    rows: list[dict[str, Any]] = []
    for rank in RANKS:
        for name, (kind, ranks) in rules_of(tune, rank).items():
            if ranks is None or max(ranks) > min(len(one.squares) for one in tune.cuts["plain"]):
                continue
            spent = sum(k * cost for k, cost in zip(ranks, tune.costs, strict=True))
            rows.append(
                {"rule": name, "rank": rank, "parameters": spent, "loss": tune.loss(kind, ranks),
                 "modules": sum(k > 0 for k in ranks), "largest": max(ranks)}
            )  # fmt: skip
            if rank in (1, 8) and name in ("budget", "data, budget", "sensitivity, budget"):
                rows[-1]["ranks"] = ranks
    full = [len(one.squares) for one in tune.cuts["plain"]]
    return {
        "base": tune.loss("plain", [0] * len(full)), "tuned": tune.tuned_loss,
        **{f"full_{kind}": tune.loss(kind, full) for kind in tune.cuts},
        "matrices": int(sum(one.numel() for one in tune.change.values())),
        "norms": [float(tune.change[m].norm()) for m in tune.modules], "modules": tune.modules, "rows": rows,
    }  # fmt: skip


def through_library(tune: Tune, base: Any, tuned: Any, blocks: Tensor, device: str, rank: int) -> dict[str, Any]:
    """The same as "sensitivity, budget", from the package's own spectra and factors."""
    began = time.perf_counter()
    pair = open_pair(base, tuned, data=blocks, device=device)
    sized = {t.module: one for t, one in zip(pair.pairs.targets, pair.sizes(), strict=True)}
    ranks = allocate([sized[m].squares for m in tune.modules], tune.costs, rank * sum(tune.costs)).ranks
    with torch.no_grad():
        for module in tune.modules:
            tune.model.get_submodule(module).weight.copy_(tune.start[module].T)  # pyright: ignore[reportCallIssue]
        for target, (one,) in pair.factors(dict(zip(tune.modules, ranks, strict=True))):
            product = (one.left @ one.right).to(device, torch.float32)
            tune.model.get_submodule(target.module).weight.add_(product)  # pyright: ignore[reportCallIssue]
    loss = measured(tune.feed, tune.model)["test_loss"]
    return {"rank": rank, "loss": loss, "ranks": list(ranks), "seconds": time.perf_counter() - began}


def equality(base: Any, tuned: Any, tokens: Tensor, device: str) -> dict[str, float]:
    """Largest differences of logits: tuned, and base + adapter of full ranks with saved modules, through PEFT.

    Beside float32 also in float64, where only the stored weights differ, and what float32 alone does to the tuned
    model's logits.
    """
    from peft import PeftModel

    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        began = time.perf_counter()
        plan = lora_plan(base, tuned, energy=1.0, save_modules=True, device=device)
        made = lora_extract(base, tuned, plan, Path(folder) / "adapter", device=device)
        seconds = time.perf_counter() - began
        adapted = PeftModel.from_pretrained(base, str(made.folder)).eval()
        first = [model(tokens).logits for model in (adapted, tuned)]
        exact = [model.double()(tokens).logits for model in (adapted, tuned)]
        return {
            "float32": float((first[0] - first[1]).abs().max()),
            "float64": float((exact[0] - exact[1]).abs().max()),
            "rounding_of_tuned": float((first[1] - exact[1]).abs().max()),
            "largest_logit": float(exact[1].abs().max()),
            "seconds": seconds,
        }


def run(tokens: Path, folder: Path, out: Path, scale: Scale, device: str) -> None:
    """All three fine-tunes; what is done is written."""
    import transformers

    library: Any = transformers
    torch.manual_seed(0)
    found: dict[str, Any] = {}

    def opened(name: str) -> Any:
        kind = library.GPT2ForSequenceClassification if "packages" in name else library.GPT2LMHeadModel
        return kind.from_pretrained(folder / name, dtype=torch.float32).eval().to(device)

    for name in ("python", "shakespeare", "packages"):
        began = time.perf_counter()
        if name == "packages":
            feed = PackageFeed(tokens, scale, device, 4 * BLOCKS)
        else:
            feed = text_feed(tokens, name, scale, device, BLOCKS)
        start, tuned = opened("packages-start" if name == "packages" else "base"), opened(name)
        order = np.random.default_rng(0).permutation(len(feed.train))[: BLOCKS * (2 if name == "packages" else 1)]
        torch.backends.cuda.matmul.allow_tf32 = True  # losses to about 1e-4
        blocks = feed.train[torch.as_tensor(order, device=device)]
        tune = Tune(start, opened(name), feed, blocks)
        ready = time.perf_counter() - began
        found[name] = compare(tune) | {"untuned": measured(feed, start)["test_loss"], "ready_seconds": ready}
        found[name]["seconds"] = time.perf_counter() - began
        print(name, {k: v for k, v in found[name].items() if k not in ("rows", "norms", "modules")}, flush=True)
        out.write_text(json.dumps(found, indent=1))
        found[name]["library"] = through_library(tune, start, tuned, blocks, device, 8)
        print(name, found[name]["library"], flush=True)
        del tune
        torch.backends.cuda.matmul.allow_tf32 = False
        found[name]["logits"] = equality(start, tuned, feed.valid[:4], device)
        print(name, found[name]["logits"], flush=True)
        out.write_text(json.dumps(found, indent=1))


def draw(found: Mapping[str, Any], place: Path) -> None:
    """Loss against parameters, one panel for each fine-tune."""
    styles = {
        "uniform": (GREY, "o", "one rank for all"), "kohya sv_fro": (COLOURS[3], "v", "kohya sv_fro"),
        "kohya sv_ratio": (COLOURS[1], "^", "kohya sv_ratio"),
        "mergekit sv-epsilon": (COLOURS[4], "s", "mergekit sv-epsilon"), "budget": (COLOURS[0], "o", "budget"),
        "data, budget": (COLOURS[5], "D", "inputs alone, budget"),
        "sensitivity, budget": (COLOURS[2], "D", "data, budget"),
    }  # fmt: skip
    titles = {"shakespeare": "Shakespeare", "python": "Python sources", "packages": "Which package? (classifier)"}
    with look():
        figure, (axes,) = sheet(1, 3, 13, 4.4)
        for axis, (name, title) in zip(axes, titles.items(), strict=True):
            tune = found[name]
            for rule, (colour, marker, label) in styles.items():
                rows = [row for row in tune["rows"] if row["rule"] == rule]
                x, y = [row["parameters"] for row in rows], [row["loss"] for row in rows]
                axis.plot(x, y, color=colour, marker=marker, markersize=4, linewidth=1.6, label=label)
            axis.axhline(tune["tuned"], color=INK, linewidth=1, linestyle=":")
            axis.text(0.01, tune["tuned"], "tuned", transform=axis.get_yaxis_transform(), ha="left", va="bottom")
            axis.set(xscale="log", xlabel="parameters of the factors", title=title)
        axes[0].set_ylabel("loss on held-out text, nats")
        axes[-1].legend()
    figure.savefig(place, dpi=150)


def main(full: bool = False) -> None:
    """For `python -m benchmarks`: only says how it is run, because it needs fine-tunes."""
    print("python -m benchmarks.lora_tunes TOKENS FOLDER OUT.json")


def command() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="*", help="TOKENS and FOLDER of benchmarks.finetunes")
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--figure", type=Path, default=None, help="only draw OUT.json")
    given = parser.parse_args()
    if given.figure is not None:
        draw(json.loads(given.out.read_text()), given.figure)
    else:
        tokens, folder = given.folders
        run(tokens, folder, given.out, SMALL if given.small else LARGE, given.device)


if __name__ == "__main__":
    command()
