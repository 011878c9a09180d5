"""A recording on disk: written row by row, so that a crash loses nothing, and picked up again.

layout.json              where the heads lie
reference.safetensors    the watched weights at the start
rows/step-N.npz          one measurement, whole or absent
superseded/N/            rows after the checkpoint from which training went on for the Nth time
trajectory.zarr          all rows, written when the recording ends
"""

import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from saddles.core.store import save
from saddles.errors import SaddlesError
from saddles.probe.layouts.layout import Layout
from saddles.probe.measuring import Row, label


class Journal:
    """The folder of one recording."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def exists(self) -> bool:
        """Whether a recording was begun here."""
        return (self.folder / "layout.json").exists()

    def begin(self, layout: Layout, reference: Mapping[str, Any], initial: Row) -> None:
        """Write what all rows share; the layout last, as the sign that all of it is there."""
        from safetensors.torch import save_file

        try:
            (self.folder / "rows").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SaddlesError.about(
                f"{self.folder} cannot be written ({error.strerror})", "recordings need a folder", "choose another out="
            ) from error
        draft = self.folder / ".reference"
        save_file(dict(reference), draft)
        os.replace(draft, self.folder / "reference.safetensors")
        self._write(self.folder / "initial.npz", initial)
        draft.write_text(layout.to_json())
        os.replace(draft, self.folder / "layout.json")

    def layout(self) -> Layout:
        """The layout that was written."""
        if not self.exists():
            raise SaddlesError.about(
                f"{self.folder} holds no recording", "a folder given as out= is needed", "was it written elsewhere?"
            )
        return Layout.from_json((self.folder / "layout.json").read_text())

    def reference(self) -> dict[str, Any]:
        """The watched weights at the start."""
        from safetensors.torch import load_file

        return load_file(self.folder / "reference.safetensors")

    def initial(self) -> Row:
        """The spectra of the products at the start."""
        return self._read(self.folder / "initial.npz")

    def add(self, step: int, row: Row) -> None:
        """Write one measurement, all or nothing."""
        self._write(self._file(step), row)

    def rows(self) -> dict[int, Row]:
        """All measurements by step, in order."""
        return {step: self._read(self._file(step)) for step in self.steps()}

    def steps(self) -> list[int]:
        """The steps that were measured, in order."""
        return sorted(int(file.stem.removeprefix("step-")) for file in (self.folder / "rows").glob("step-*.npz"))

    def go_back_to(self, step: int) -> None:
        """Put rows after a step aside: training went on from there."""
        late = [later for later in self.steps() if later > step]
        if not late:
            return
        before = self.folder / "superseded"
        aside = before / str(1 + len(list(before.glob("*"))))
        aside.mkdir(parents=True)
        for later in late:
            os.replace(self._file(later), aside / self._file(later).name)

    def finish(self, tree: xr.DataTree) -> None:
        """Write the trajectory, in the place of an older one of the same recording; not where Zarr is missing."""
        if importlib.util.find_spec("zarr") is None:
            return
        target, draft = self.folder / "trajectory.zarr", self.folder / ".trajectory.zarr"
        shutil.rmtree(draft, ignore_errors=True)
        save(tree, draft)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(draft, target)

    def _file(self, step: int) -> Path:
        return self.folder / "rows" / f"step-{step}.npz"

    @staticmethod
    def _write(file: Path, row: Row) -> None:
        draft = file.with_name(f".{file.name}")
        with open(draft, "wb") as stream:
            np.savez(stream, allow_pickle=False, **{name.replace("/", "."): array for name, array in row.items()})
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, file)

    @staticmethod
    def _read(file: Path) -> Row:
        with np.load(file, allow_pickle=False) as stored:
            return {name.replace(".", "/"): stored[name] for name in stored.files}


def recorded(out: str | os.PathLike[str]) -> xr.DataTree:
    """What a recording holds so far: while it runs, after a crash, or when it has ended."""
    journal = Journal(out)
    layout, rows = journal.layout(), journal.rows()
    return label(
        layout, list(rows), list(rows.values()), journal.initial(), status=f"recorded so far: {len(rows)} rows"
    )
