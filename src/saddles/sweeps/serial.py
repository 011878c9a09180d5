"""Cells one after another in this process: for a debugger, and for what cannot be imported elsewhere."""

from concurrent.futures import Future

from saddles.sweeps.cells import Outcome, Refusal, Task, compute
from saddles.sweeps.engine import Engine, EngineError


class Serial(Engine):
    """Computes a task when it is submitted.

    Bit for bit what the other engines give, if this process has not used JAX before: XLA takes its number of threads
    from the environment when it starts, and some sums depend on it in the last digit.
    """

    slots = 1

    def submit(self, task: Task) -> "Future[list[Outcome]]":
        """Compute now."""
        made = compute(task)
        if isinstance(made, Refusal):
            raise EngineError(f"{made.worker} is refused: {made.reason}.")
        done: Future[list[Outcome]] = Future()
        done.set_result(made)
        return done

    def close(self) -> None:
        """Nothing to stop."""
