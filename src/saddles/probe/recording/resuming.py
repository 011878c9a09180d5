"""What the trainers' callbacks share: going on with a recording."""

from pathlib import Path
from typing import Any

from saddles.errors import SaddlesError
from saddles.probe.recording.journal import Journal
from saddles.probe.recording.recorder import Recorder, watch


def resume(model: Any, every: int, out: Path | None, step: int, reference: Any, modules: bool) -> Recorder:
    """A recorder for training that begins at this step; refused where its reference cannot be known."""
    known = reference is not None or (out is not None and Journal(out).exists())
    if step > 0 and not known:
        raise SaddlesError.about(
            f"training goes on at step {step}, and {out or 'no folder'} holds no recording of its start",
            "changes are measured against the start",
            "pass out= as in the first run, or reference= with the weights at the start",
        )
    return watch(model, every, out=out, step=step, reference=reference, modules=modules)
