"""Cells one after another in this process: for a debugger, and for experiments that other processes cannot import."""

from concurrent.futures import Future

from saddles.core.engines.engine import Engine, EngineError, Refusal, Task
from saddles.sweeps.cells import Outcome


class Serial(Engine[Outcome]):
    """Computes a task when it is submitted.

    The results have the same bytes as those of the other engines, provided this process has not used JAX before: XLA
    takes its number of threads from the environment when it starts, and some sums depend on it in the last digit.
    """

    slots = 1

    def submit(self, task: Task[Outcome]) -> "Future[list[Outcome]]":
        """Compute now."""
        result = task.compute()
        if isinstance(result, Refusal):
            raise EngineError(f"This process cannot compute the cells: {result.reason}.")
        future: Future[list[Outcome]] = Future()
        future.set_result(result)
        return future

    def close(self) -> None:
        """Nothing to stop."""
