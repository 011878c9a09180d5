"""What the torch labs share to train a model.

- `loop`: `Loop` takes the steps, measures, stores, and defers interruptions.
- `checkpoint`: `History` is what a run has seen so far; `Checkpoint` stores it with the state of model and optimiser.
- `device`: random draws by number, mixed precision, a sentence where memory runs out.
- `update`: `Update` is one step of an optimiser, kernel by kernel or as one CUDA graph.
- `graphs`: `captured` makes a CUDA graph of a function of tensors of fixed shapes.
- `processes`: the share of a process that a launcher such as torchrun started.
- `grid`: one run for every point of a grid of settings and seeds, and all of them as one dataset.
"""

from typing import TYPE_CHECKING

from saddles.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from saddles.training import processes as processes
    from saddles.training.checkpoint import Checkpoint as Checkpoint
    from saddles.training.checkpoint import History as History
    from saddles.training.graphs import captured as captured
    from saddles.training.grid import run_grid as run_grid
    from saddles.training.grid import stack_runs as stack_runs
    from saddles.training.loop import Loop as Loop
    from saddles.training.update import Update as Update
    from saddles.training.update import set_rate as set_rate

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
