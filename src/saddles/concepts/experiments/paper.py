"""The paper of this lab, and the sizes at which its experiments run."""

from saddles.core.experiment import S, Size

PAPER = "yang2025concepts"

EVERY_SIZE = ("tiny", "laptop", "gpu", "paper")
"""For claims that are asserted at every size."""


def sizes(tiny: Size[S], laptop: Size[S], paper: Size[S], gpu_seconds: float) -> dict[str, Size[S]]:
    """Settings at each size; `gpu` has the paper's, with its seconds on one H200, compilation included."""
    return {"tiny": tiny, "laptop": laptop, "gpu": Size(gpu_seconds, paper.settings), "paper": paper}
