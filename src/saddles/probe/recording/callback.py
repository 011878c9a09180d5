"""What the callbacks of Lightning and of transformers share: settings, resuming, and the result."""

import contextlib
import os
import shlex
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path

import torch
import xarray as xr

from saddles.core.validation import check_count
from saddles.errors import SaddlesError
from saddles.probe.recording.journal import Journal
from saddles.probe.recording.measures import Measure, check_measures
from saddles.probe.recording.recorder import Recorder, record
from saddles.probe.weights.live_model import Reference

_recording: weakref.WeakValueDictionary[Path, Recorder] = weakref.WeakValueDictionary()
"""What callbacks of this process record, by folder. The Trainer of transformers does not say that a training failed,
and a notebook keeps the failed trainer and its callback: the next training in the folder ends that recording."""


class RecordingCallback:
    """A recorder that a trainer starts, steps and ends.

    Args:
        every: optimiser steps from one measurement to the next.
        out: a folder for the recording.
        modules: measure the plain matrices too.
        reference: the model at the start, or its state dict, where that is not the model as training begins.
        log: whether headline ranks are logged.
        measures: numbers of the whole model, as for `saddles.probe.record`; they are logged too, of arrays of heads the
            median by product.
    """

    def __init__(
        self,
        every: int = 50,
        out: str | os.PathLike[str] | None = None,
        modules: bool = False,
        reference: Reference | None = None,
        log: bool = True,
        measures: Sequence[Measure] = (),
    ) -> None:
        check_count("every", every, 1)
        self.every, self.out, self.modules, self.reference, self.log = every, out, modules, reference, log
        self.measures = check_measures(measures)
        self.run: Recorder | None = None

    @property
    def result(self) -> xr.DataTree:
        """The finished recording, after training."""
        if self.run is None:
            raise SaddlesError("No training was recorded. Let the trainer train first.")
        return self.run.result

    def finish(self) -> None:
        """End the recording, and say once where it is, how to look at it, and what was seen."""
        if self.run is None or self.run.finished:
            return
        self.run.finish()
        with contextlib.suppress(SaddlesError):  # only the first of several processes has a result
            print(f"saddles: {self._sentence(self.run.result)}", file=sys.stderr)

    def _sentence(self, tree: xr.DataTree) -> str:
        heads = tree["heads"].to_dataset()
        out = self.run.out if self.run is not None else None
        if "stable_rank" not in heads:  # a model without heads
            return f"{heads.sizes['time']} measurements{f', the recording is in {out}' if out else ''}."
        last, start = heads["stable_rank"].isel(time=-1), heads["initial_stable_rank"]
        seen = ", ".join(
            f"Δ{product} {float(last.sel(product=product).mean()):.1f} "
            f"(initial product {float(start.sel(product=product).mean()):.1f})"
            for product in heads["product"].values
        )
        command = f"saddles report {shlex.quote(str(out))}"
        where = f"the recording is in {out}; `{command}` shows it" if out else "result.plot() shows it"
        return f"{heads.sizes['time']} measurements, {where}; mean stable rank at the end: {seen}."

    def begin(self, model: torch.nn.Module, out: Path | None, step: int) -> None:
        """Start to record training that begins at this step; refused where the reference cannot be known."""
        known = self.reference is not None or (out is not None and Journal(out).exists())
        if step > 0 and not known:
            raise SaddlesError(
                f"Training resumes at step {step}, and {out or 'no folder'} holds no recording of its start. Pass out= "
                "as in the first run, or reference= with the weights at the start."
            )
        place = None if out is None else out.resolve()
        for failed in (self.run, _recording.get(place) if place is not None else None):
            if failed is not None:  # of a training that ended with an error; its folder is still locked
                failed.finish(RuntimeError)
        self.run = record(
            model,
            self.every,
            out=out,
            step=step,
            reference=self.reference,
            modules=self.modules,
            measures=self.measures,
        )
        self.run.__enter__()
        if place is not None:
            _recording[place] = self.run
