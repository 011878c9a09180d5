"""A GPT-2 trained on enwik8 and its fine-tunes: what `lora_tunes` and `merging` measure.

    python -m benchmarks.finetunes TOKENS --prepare           # where the texts and GPT-2's vocabulary are
    python -m benchmarks.finetunes TOKENS FOLDER [--device cuda] [--small]

TOKENS holds the texts in GPT-2's tokens: enwik8 (its first 50 MB), Shakespeare, the sources of Python's standard
library, and sources of eight packages. FOLDER gets the base, the attention weights of the base along its training,
three fine-tunes (Shakespeare, Python, telling the packages apart), and shorter ones of several rates for `merging`.
A training step is one CUDA graph on a GPU; a graph is captured once and used for every fine-tune of a model class.
"""

import argparse
import copy
import importlib.util
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from saddles.training.graphs import Work
from saddles.training.update import Update, put_rate_on_device, set_rate
from saddles.transformers.feed import Shuffled, TextFeed
from saddles.transformers.recipe import Recipe
from saddles.transformers.text import END, Text, load_text

PACKAGES = ("numpy", "scipy", "jax", "torch", "matplotlib", "pandas", "transformers", "networkx")
RATES = (3e-5, 1e-4, 3e-4)
"""Learning rates of the fine-tunes that are merged."""


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    shape: dict[str, int]
    length: int
    batch: int
    steps: int
    rate: float
    looks: tuple[int, ...]
    """Steps of the base at which its attention weights are kept."""
    tuning: dict[str, tuple[float, int]]
    """Rate and steps of each fine-tune."""
    merged: tuple[int, ...]
    """Steps at which the fine-tunes to be merged are kept."""


LARGE = Scale(
    {"n_layer": 12, "n_head": 12, "n_embd": 768}, 256, 16, 11_000, 6e-4, (0, 1, 10, 100, 1_000, 4_000, 11_000),
    {"shakespeare": (1e-4, 220), "python": (2e-4, 900), "packages": (5e-5, 600)}, (30, 100, 300),
)  # fmt: skip
SMALL = Scale(
    {"n_layer": 2, "n_head": 2, "n_embd": 32}, 32, 8, 60, 3e-3, (0, 1, 10, 60),
    {"shakespeare": (1e-3, 20), "python": (1e-3, 20), "packages": (1e-3, 20)}, (3, 6, 9),
)  # fmt: skip


def prepare(folder: Path) -> None:
    """Write the tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, most in (("shakespeare", None), ("python", None), ("enwik8", 50_000_000)):
        text = load_text(name, most=most)
        valid = text.valid[:300_000]
        np.savez(folder / f"{name}.npz", train=text.train.astype(np.uint16), valid=valid.astype(np.uint16))
    found = {}
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
        (folder / "sources.txt").write_bytes(b"\n".join(parts)[:1_500_000])
        text = load_text(str(folder / "sources.txt"))
        found[name] = np.concatenate([text.train, text.valid]).astype(np.uint16)
    (folder / "sources.txt").unlink()
    np.savez(folder / "packages.npz", **found)


def text_feed(tokens: Path, name: str, scale: Scale, device: str, valid: int) -> TextFeed:
    """Blocks of a text."""
    with np.load(tokens / f"{name}.npz") as read:
        text = Text(name, read["train"].astype(np.int64), read["valid"].astype(np.int64), END + 1)
    return TextFeed(text, scale.length, scale.batch, 0, device, valid)


class PackageFeed:
    """Blocks of sources, and the package that each is from; the last tenth of each package validates."""

    def __init__(self, tokens: Path, scale: Scale, device: str, valid: int) -> None:
        length, parts = scale.length // 2, {"train": [], "valid": []}
        with np.load(tokens / "packages.npz") as read:
            for label, name in enumerate(PACKAGES):
                whole = read[name].astype(np.int64)
                edge = int(0.9 * len(whole))
                for kind, text in (("train", whole[:edge]), ("valid", whole[edge:])):
                    rows = text[: len(text) // length * length].reshape(-1, length)
                    rows = rows if kind == "train" else rows[: valid // len(PACKAGES)]
                    parts[kind].append((rows, np.full(len(rows), label)))
        joined = {
            kind: [torch.as_tensor(np.concatenate(one), device=device) for one in zip(*rows, strict=True)]
            for kind, rows in parts.items()
        }
        self.train, self.labels = joined["train"]
        self.valid, self.valid_labels = joined["valid"]
        self._rows = Shuffled(len(self.train), 2 * scale.batch, 0, device)
        self.size = self._rows.batch

    def batch(self, step: int, share: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Blocks and labels of a step."""
        rows = self._rows(step)[share]
        return self.train[rows], self.labels[rows]

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        """Cross-entropy."""
        tokens, labels = batch
        return nn.functional.cross_entropy(model(input_ids=tokens).logits.float(), labels)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """On the held-out blocks."""
        parts = zip(self.valid.split(64), self.valid_labels.split(64), strict=True)
        sums = [self.loss(model, *part).double() * len(part[1]) for part in parts]
        hits = [
            (model(input_ids=part).logits.argmax(-1) == labels).sum()
            for part, labels in zip(self.valid.split(64), self.valid_labels.split(64), strict=True)
        ]
        count = len(self.valid)
        return {"test_loss": float(torch.stack(sums).sum()) / count, "accuracy": float(sum(hits)) / count}


class Trainer:
    """A model whose weights are set and trained again and again by one captured step."""

    def __init__(self, model: nn.Module, feed: Any, device: str, compiled: bool) -> None:
        self.model, gpu = model, device != "cpu"
        self.optimiser = Recipe("adam", 1e-4, 1).build(model.parameters(), gpu)
        work = torch.compile(feed.loss, dynamic=False) if compiled and gpu else feed.loss
        update = Update(lambda *batch: work(model, *batch), self.optimiser, torch.device(device))
        self.step: Work = update
        if gpu:
            put_rate_on_device(self.optimiser)
            self.step = update.captured(list(feed.batch(0, slice(None))))

    def run(self, feed: Any, rate: float, steps: int, keep: Callable[[int], None] | None = None) -> list[float]:
        """Train from the weights that the model has now; returns the mean loss of each tenth."""
        recipe = Recipe("adam", rate, steps, warm_up=max(1, min(300, steps // 10)))
        with torch.no_grad():
            for state in self.optimiser.state.values():
                for value in state.values():
                    if isinstance(value, Tensor):
                        value.zero_()
        losses = []
        for number in range(steps):
            set_rate(self.optimiser, recipe.rate_at(number))
            losses.append(self.step(*feed.batch(number, slice(None))).clone())
            if keep is not None:
                keep(number + 1)
        means = torch.stack(losses).float().cpu().numpy()
        return [float(part.mean()) for part in np.array_split(means, min(10, steps))]

    def set(self, state: dict[str, Tensor]) -> None:
        """Put weights in place, where the graph finds them."""
        self.model.load_state_dict(state)


def weights(model: nn.Module, only: Sequence[str] = ()) -> dict[str, Tensor]:
    """Copies of the parameters on the host, or of those whose name has one of some words."""
    return {
        name: value.detach().float().cpu().clone()
        for name, value in model.named_parameters()
        if not only or any(word in name for word in only)
    }


def config_of(scale: Scale) -> Any:
    """The configuration of every model here."""
    import transformers

    library: Any = transformers
    return library.GPT2Config(
        vocab_size=END + 1, n_positions=scale.length, pad_token_id=END, num_labels=len(PACKAGES),
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, summary_first_dropout=0.0, **scale.shape,
    )  # fmt: skip


def measured(feed: Any, model: nn.Module) -> dict[str, float]:
    """Held-out loss, in float32."""
    model.eval()
    with torch.no_grad():
        return {key: value for key, value in feed.evaluate(model).items() if value == value}


def make(tokens: Path, folder: Path, scale: Scale, device: str, seed: int = 0) -> None:
    """Train everything and write it, the most wanted first."""
    import transformers

    library: Any = transformers
    torch.manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    began, log = time.perf_counter(), {}

    def note(name: str, **found: object) -> None:
        log[name] = found | {"at_seconds": round(time.perf_counter() - began, 1)}
        print(name, log[name], flush=True)
        (folder / "training.json").write_text(json.dumps(log, indent=1))

    config = config_of(scale)
    model = library.GPT2LMHeadModel(config).to(device)
    feeds = {name: text_feed(tokens, name, scale, device, 128) for name in ("enwik8", "shakespeare", "python")}
    trainer = Trainer(model, feeds["enwik8"], device, compiled=True)
    note("start", parameters=sum(p.numel() for p in model.parameters()), steps_per_epoch=feeds["enwik8"].steps)

    def keep(step: int) -> None:
        if step in scale.looks:
            save_file(weights(model, (".attn.",)), folder / f"heads-{step}.safetensors")
            print(step, round(time.perf_counter() - began, 1), flush=True)

    keep(0)
    curve = trainer.run(feeds["enwik8"], scale.rate, scale.steps, keep)
    note("base", curve=curve, **measured(feeds["enwik8"], model))
    model.save_pretrained(folder / "base")
    base = copy.deepcopy(model.state_dict())
    for name in ("shakespeare", "python"):
        trainer.set(base)
        before = measured(feeds[name], model)
        curve = trainer.run(feeds[name], *scale.tuning[name])
        note(name, before=before, curve=curve, **measured(feeds[name], model))
        model.save_pretrained(folder / name)
    for name in ("shakespeare", "python"):
        for rate in RATES:
            trainer.set(base)

            def store(step: int, name: str = name, rate: float = rate) -> None:
                if step in scale.merged:
                    save_file(weights(model), folder / f"merge-{name}-{rate:g}-{step}.safetensors")
                    note(f"{name}-{rate:g}-{step}", **measured(feeds[name], model))

            trainer.run(feeds[name], rate, max(scale.merged), store)
    del trainer
    _classifier(tokens, folder, scale, device, config, base, note)


def _classifier(
    tokens: Path, folder: Path, scale: Scale, device: str, config: Any, base: dict[str, Tensor], note: Any
) -> None:
    """The fine-tune that tells the packages apart, and its start: the base with a new head."""
    import transformers

    library: Any = transformers
    feed = PackageFeed(tokens, scale, device, 512)
    model = library.GPT2ForSequenceClassification(config).to(device)
    inner = {name.removeprefix("transformer."): value for name, value in base.items() if name != "lm_head.weight"}
    model.transformer.load_state_dict(inner)
    start = copy.deepcopy(model)
    trainer = Trainer(model, feed, device, compiled=False)
    before = measured(feed, model)
    curve = trainer.run(feed, *scale.tuning["packages"])
    start.save_pretrained(folder / "packages-start")
    note("packages", before=before, curve=curve, **measured(feed, model))
    model.save_pretrained(folder / "packages")


def main(full: bool = False) -> None:
    """For `python -m benchmarks`: only says how it is run, because it needs texts."""
    print("python -m benchmarks.finetunes TOKENS FOLDER")


def command() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--prepare", action="store_true", help="write TOKENS")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--small", action="store_true", help="a tiny model, to try it out")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights")
    given = parser.parse_args()
    if given.prepare:
        prepare(given.tokens)
    if given.folder is not None:
        make(given.tokens, given.folder, SMALL if given.small else LARGE, given.device, given.seed)


if __name__ == "__main__":
    command()
