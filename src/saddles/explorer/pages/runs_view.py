"""The settings of the page of runs, which its two kinds of panels read."""

from dataclasses import dataclass

from saddles.explorer.view import View, choice, clock, number, text

MEASURES = {
    "stable_rank": "stable rank", "effective_rank": "effective rank", "energy_rank_90": "rank of 90 % of the energy",
    "energy_rank_99": "rank of 99 % of the energy", "frobenius_norm": "Frobenius norm",
}  # fmt: skip


@dataclass(frozen=True)
class Runs(View):
    """A run, perhaps another beside it, and where to look in them."""

    run: str = text("run")
    other: str = text("beside it")
    instant: float = clock("share of the saved instants that has passed")
    variable: str = text("variable", "of a trajectory; empty is chosen for you", still=True)
    at: str = text("other axes", "positions along further axes, such as seed=1; 0 where nothing is said", still=True)
    measure: str = choice("stable_rank", "rank of the heads' change", MEASURES, still=True)
    product: str = choice(
        "KQ", "product", {"KQ": "keys and queries, W_K W_Qᵀ", "VO": "values and outputs, W_V W_Oᵀ"}, still=True
    )
    layer: int = number(0, "layer", 0, 199, 1, still=True)
    head: int = number(0, "head", 0, 199, 1, still=True)
