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
    over: str = text("over it", "more runs on the same axes", kind="several")
    instant: float = clock("share of the saved instants that has passed")
    variable: str = text("variable", "of a trajectory; — is chosen for you", still=True, kind="one")
    at: str = text("other axes", "the longest axis that is left free is drawn as lines, others at their first position",
                   still=True, kind="positions")  # fmt: skip
    measure: str = choice("stable_rank", "rank of the heads' change", MEASURES, still=True)
    product: str = choice(
        "KQ", "product", {"KQ": "keys and queries, W_K W_Qᵀ", "VO": "values and outputs, W_V W_Oᵀ"}, still=True
    )
    layer: int = number(0, "layer", 0, 199, 1, still=True)
    head: int = number(0, "head", 0, 199, 1, still=True)
