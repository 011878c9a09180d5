"""GPT-2 on WikiText with Adam: Figure 20 of the paper. Thresholds are explained in `verdicts`."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from saddles import training, transformers
from saddles.core.experiment import Context, Experiment, Size
from saddles.core.trajectory import Trajectory
from saddles.transformers.experiments.runs import PAPER, Prepare, Training, growth_figure, need_torch, train_all
from saddles.transformers.experiments.verdicts import LARGE, growth_claims

NAME = "transformers/gpt2-wikitext"


@dataclass(frozen=True, kw_only=True)
class Settings(Training):
    """A language model from scratch."""

    units: Annotated[str, "bpe for the tokens of GPT-2, bytes for 256"] = "bpe"
    most: Annotated[int, "bytes that are used of each part of the text, 0 for all"] = 0
    block: Annotated[int, "tokens that are read at once"]
    layers: Annotated[int, "number of blocks"]
    heads: Annotated[int, "heads per block"]
    width: Annotated[int, "width of the embedding"]
    test: Annotated[int, "blocks of validation text that are used"] = 200


def run(settings: Settings, context: Context) -> Trajectory:
    """Train once per seed, from scratch."""
    need_torch()
    return train_all(NAME, settings, context, _prepare(settings))


def _prepare(settings: Settings) -> Prepare:
    text = transformers.load_text(settings.source, units=settings.units, most=settings.most or None)
    sizes = {"n_layer": settings.layers, "n_head": settings.heads, "n_embd": settings.width}
    sizes |= {"n_positions": settings.block, "vocab_size": text.vocabulary}

    def prepare(scale: float, seed: int) -> "transformers.Setup":
        device = training.processes.device()
        feed = transformers.TextFeed(text, settings.block, settings.batch, seed, device, settings.test)
        recipe = settings.recipe("adam", "linear", feed.steps)
        return transformers.Setup(transformers.make_gpt2(sizes, scale, seed).to(device), feed, recipe, text.vocabulary)

    return prepare


_SMALL = Settings(
    source="wikitext2", block=256, layers=12, heads=12, width=768, epochs=3.0, batch=16, rate=3e-4, warm_up=0.0,
    every=25, spectra=10, tests=20,
)  # fmt: skip

EXPERIMENT = Experiment(
    NAME,
    "GPT-2 on WikiText with Adam",
    PAPER,
    sizes={
        "tiny": Size(10, Settings(source="made", units="bytes", most=20_000, block=32, layers=2, heads=2, width=24,
                                  test=8, epochs=2.0, batch=16, rate=3e-3, warm_up=0.0, every=4)),
        "laptop": Size(32, Settings(source="wikitext2", units="bytes", most=512_000, block=128, layers=4, heads=4,
                                    width=128, test=20, epochs=1.0, batch=8, rate=3e-4, warm_up=0.0, every=10,
                                    tests=10), {"source": "python", "layers": 2, "most": 400_000}),
        "gpu": Size(120, _SMALL),
        "paper": Size(7200, replace(_SMALL, source="hf:Salesforce/wikitext:wikitext-103-v1", every=100, tests=10)),
    },
    needs=("source",),
    run=run,
    claims=partial(growth_claims, where="Figure 20", rises=LARGE),
    figure=growth_figure,
)  # fmt: skip
