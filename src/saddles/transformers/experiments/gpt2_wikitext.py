"""GPT-2 on WikiText with Adam: Figure 20 of the paper. Thresholds are explained in `verdicts`."""

from typing import Any

from saddles.core.claim import Claim
from saddles.core.experiment import Context
from saddles.core.trajectory import Trajectory
from saddles.figures.transformers import growth as figure
from saddles.transformers.experiments.common import Prepare, Setup, recipe_for, run_all
from saddles.transformers.experiments.verdicts import LARGE, growth_claims

__all__ = ["claims", "figure", "run"]


def run(settings: dict[str, Any], context: Context) -> Trajectory:
    """Train once a seed, from scratch."""
    return run_all("transformers/gpt2-wikitext", settings, context, _prepare(settings))


def _prepare(settings: dict[str, Any]) -> Prepare:
    from saddles.training.processes import device
    from saddles.transformers.feed import TextFeed
    from saddles.transformers.text import load_text
    from saddles.transformers.vit import make_gpt2

    text = load_text(settings["source"], units=settings["units"], most=settings["most"] or None)
    sizes = {"n_layer": settings["layers"], "n_head": settings["heads"], "n_embd": settings["width"]}
    sizes |= {"n_positions": settings["block"], "vocab_size": text.vocabulary}

    def prepare(scale: float, seed: int) -> Setup:
        place = device()
        feed = TextFeed(text, settings["block"], settings["batch"], seed, place, settings["test"])
        recipe = recipe_for(settings, "adam", "linear", feed.steps)
        return Setup(make_gpt2(sizes, scale, seed).to(place), feed, recipe, text.vocabulary)

    return prepare


def claims(trajectory: Trajectory, size: str) -> list[Claim]:
    """Judge rank, growth and learning."""
    return growth_claims(trajectory, size, "Figure 20", rises=LARGE)
