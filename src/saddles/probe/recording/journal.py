"""A recording on disk: written row by row, so that a crash loses nothing, and resumed.

layout.json              where the heads lie
reference.safetensors    the recorded weights at the start
initial.npz              spectra of the products at the start
rows/step-N.npz          one measurement, whole or absent
superseded/N/            rows after the checkpoint from which training was resumed for the Nth time
trajectory.zarr          all rows, written when the recording ends
"""

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import xarray as xr

from saddles.core.status import Ending, Status
from saddles.core.store import write_zarr
from saddles.errors import SaddlesError
from saddles.probe.layouts.layout import Layout
from saddles.probe.measuring import Row, read_row, to_trajectory, write_row
from saddles.runtime.files import explained, new_file, write_text

if TYPE_CHECKING:
    from torch import Tensor


class Journal:
    """The folder of one recording."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def exists(self) -> bool:
        """Whether a recording was begun here."""
        return (self.folder / "layout.json").exists()

    def begin(self, layout: Layout, reference: "Mapping[str, Tensor]", initial: Row) -> None:
        """Write what all rows share; the layout last, as the sign that all of it is there."""
        from safetensors.torch import save_file

        with explained(self.folder, "Choose another out="):
            (self.folder / "rows").mkdir(parents=True, exist_ok=True)
            with new_file(self.folder / "reference.safetensors") as stream:
                save_file(dict(reference), stream.name)
            write_row(self.folder / "initial.npz", initial)
            write_text(self.folder / "layout.json", layout.to_json())

    def layout(self) -> Layout:
        """The layout that was written."""
        if not self.exists():
            raise SaddlesError(f"{self.folder} holds no recording. Give the folder that was passed as out=.")
        return Layout.from_json((self.folder / "layout.json").read_text())

    def reference(self) -> "dict[str, Tensor]":
        """The recorded weights at the start."""
        from safetensors.torch import load_file

        return load_file(self.folder / "reference.safetensors")

    def initial(self) -> Row:
        """The spectra of the products at the start."""
        return read_row(self.folder / "initial.npz")

    def add(self, step: int, row: Row) -> None:
        """Write one measurement, all or nothing."""
        write_row(self._file(step), row, durable=True)

    def rows(self) -> dict[int, Row]:
        """All measurements by step, in order."""
        return {step: read_row(self._file(step)) for step in self.steps()}

    def steps(self) -> list[int]:
        """The steps that were measured, in order."""
        return sorted(int(file.stem.removeprefix("step-")) for file in (self.folder / "rows").glob("step-*.npz"))

    def go_back_to(self, step: int) -> None:
        """Put rows after a step aside: training resumes there."""
        late = [later for later in self.steps() if later > step]
        if not late:
            return
        before = self.folder / "superseded"
        aside = before / str(1 + len(list(before.glob("*"))))
        aside.mkdir(parents=True)
        for later in late:
            self._file(later).rename(aside / self._file(later).name)

    def finish(self, tree: xr.DataTree) -> None:
        """Write the trajectory, in the place of an older one of the same recording; not where Zarr is missing."""
        if importlib.util.find_spec("zarr") is None:
            return
        write_zarr(tree, self.folder / "trajectory.zarr", replace=True)

    def _file(self, step: int) -> Path:
        return self.folder / "rows" / f"step-{step}.npz"


def recorded(out: str | os.PathLike[str]) -> xr.DataTree:
    """What a recording holds so far: while it runs, after a crash, or when it has ended."""
    journal = Journal(out)
    layout, rows = journal.layout(), journal.rows()
    status = Status(Ending.RUNNING, f"{len(rows)} rows so far")
    return to_trajectory(layout, list(rows), list(rows.values()), journal.initial(), status)
