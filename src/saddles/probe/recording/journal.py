"""A recording on disk: written row by row, so that a crash loses nothing, and resumed.

layout.json              where the heads lie
reference.safetensors    the recorded weights at the start
start.safetensors        all weights at the start, where measures of the whole model are recorded
initial.npz              spectra of the products at the start
rows/step-N.npz          one measurement, whole or absent
gaps.json                steps at which something is missing, and why
superseded/N/            rows after the checkpoint from which training was resumed for the Nth time
trajectory.zarr          all rows, written when the recording ends
"""

import contextlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import xarray as xr

from saddles.core.status import Ending, Status, status_of
from saddles.core.store import load, write_zarr
from saddles.errors import SaddlesError
from saddles.probe.layouts.layout import PRODUCTS, Layout
from saddles.probe.measuring import Row, mark_gaps, read_row, to_trajectory, write_row
from saddles.runtime.files import LOCK, explained, hold, new_file, write_text
from saddles.runtime.records import read_record, write_record

if TYPE_CHECKING:
    from torch import Tensor


STEP = re.compile(r"step-(0|[1-9]\d{0,17})\.npz")
"""Names of rows: a step that a 64-bit number holds."""


class Journal:
    """The folder of one recording."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def exists(self) -> bool:
        """Whether a recording was begun here."""
        return (self.folder / "layout.json").exists()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """A block in which no other recorder writes here."""
        with explained(self.folder, "Choose another out="):
            self.folder.mkdir(parents=True, exist_ok=True)
        with hold(self.folder, keep=False):
            yield

    def begin(
        self,
        layout: Layout,
        reference: "Mapping[str, Tensor]",
        initial: Row,
        start: "Mapping[str, Tensor] | None" = None,
    ) -> None:
        """Write what all rows share; the layout last, as the sign that all of it is there.

        Args:
            start: all weights at the start, where something needs them.
        """
        from safetensors.torch import save_file

        with explained(self.folder, "Choose another out="):
            (self.folder / "rows").mkdir(parents=True, exist_ok=True)
            for name, tensors in (("reference", reference), ("start", start or None)):
                if tensors is not None:  # the reference is empty where measures alone are recorded
                    with new_file(self.folder / f"{name}.safetensors") as stream:
                        save_file(dict(tensors), stream.name)
            write_row(self.folder / "initial.npz", initial)
            write_text(self.folder / "layout.json", layout.to_json())

    def layout(self) -> Layout:
        """The layout that was written."""
        if not self.exists():
            raise SaddlesError(f"{self.folder} holds no recording. Give the folder that was passed as out=.")
        with _damage_told(self.folder / "layout.json", "Restore it from a copy, or record again in another folder"):
            return Layout.from_json((self.folder / "layout.json").read_text("utf-8"))

    def reference(self) -> "dict[str, Tensor]":
        """The recorded weights at the start."""
        from safetensors.torch import load_file

        file = self.folder / "reference.safetensors"
        with _damage_told(file, "Restore it from a copy, or record again in another folder"):
            return load_file(file)

    def has_start(self) -> bool:
        """Whether all weights at the start were kept."""
        return (self.folder / "start.safetensors").exists()

    def start(self) -> "dict[str, Tensor]":
        """All weights at the start; refused where they were not kept."""
        from safetensors.torch import load_file

        file = self.folder / "start.safetensors"
        if not self.has_start():
            raise SaddlesError(
                f"{self.folder} was recorded without measures, so it has no weights of the whole model at the start. "
                "Pass reference= with them, or leave measures out."
            )
        with _damage_told(file, "Pass reference= with the weights at the start"):
            return load_file(file)

    def initial(self) -> Row:
        """The spectra of the products at the start."""
        row = read_row(self.folder / "initial.npz")
        _check({f"heads/{name}": array for name, array in row.items()}, self.layout(), self.folder / "initial.npz")
        return row

    def add(self, step: int, row: Row) -> None:
        """Write one measurement, all or nothing."""
        write_row(self._file(step), row, durable=True)

    def rows(self) -> dict[int, Row]:
        """All measurements by step, in order."""
        layout, rows = self.layout(), {step: read_row(self._file(step)) for step in self.steps()}
        for step, row in rows.items():
            _check(row, layout, self._file(step))
        return rows

    def steps(self) -> list[int]:
        """The steps that were measured, in order."""
        files = sorted((self.folder / "rows").glob("step-*.npz"))
        found = {file: STEP.fullmatch(file.name) for file in files}
        odd = [file for file, match in found.items() if match is None]
        if odd:
            name = odd[0].name if len(odd[0].name) < 60 else f"{odd[0].name[:50]}…"
            raise SaddlesError(
                f"{odd[0].parent / name} is not a row of a recording: its name is not that of a step. Remove it."
            )
        return sorted(int(match[1]) for match in found.values() if match is not None)

    def gaps(self) -> dict[int, str]:
        """Steps at which something is missing, and why."""
        file, hint = self.folder / "gaps.json", "Remove it; what it says of missing steps is then lost"
        try:
            stored = read_record(file, {"gaps": dict}, hint)["gaps"]
        except FileNotFoundError:
            return {}
        with _damage_told(file, hint):
            return {int(step): str(why) for step, why in stored.items()}

    def note_gaps(self, gaps: Mapping[int, str]) -> None:
        """Write which steps are missing."""
        write_record(self.folder / "gaps.json", {"gaps": {str(step): why for step, why in sorted(gaps.items())}})

    def ended_well(self) -> bool:
        """Whether the recording reached the end of its training."""
        stored = self.folder / "trajectory.zarr"
        return stored.is_dir() and status_of(load(stored)).ok

    def ending(self) -> Status | None:
        """How the recording ended; None while it runs, after a crash, and where that cannot be read."""
        stored = self.folder / "trajectory.zarr"
        if not stored.is_dir() or (self.folder / LOCK).exists():
            return None
        try:
            return status_of(load(stored))
        except SaddlesError:  # the rows are in their own files
            return None

    def begin_again(self, starts_there: "Callable[[Mapping[str, Tensor]], bool]") -> None:
        """Make room for a training that starts at step 0; one that may be another training's is refused.

        Args:
            starts_there: whether training starts from the weights of an earlier recording.
        """
        # A recording without rows was begun and died before the first one: it is begun again.
        last = max(self.steps(), default=0)
        if last and (self.ended_well() or not starts_there(self.reference())):
            raise SaddlesError(
                f"{self.folder} holds a recording up to step {last}, and training starts at step 0. Recordings are "
                "never overwritten: resume the training (step= in a loop of your own), or choose another out=."
            )
        if last:
            self.go_back_to(0)  # the same training, which died before its first checkpoint

    def resume(self, step: int, layout: Layout, now: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
        """Go back to a step, and return the weights at the start; another model's recording is refused."""
        reference = self.reference()
        stored = self.layout()
        if (stored.heads or stored.modules) != (layout.heads or layout.modules) or set(reference) != set(now):
            raise SaddlesError(
                f"{self.folder} holds a recording of another model or of other matrices. Choose another out=."
            )
        self.go_back_to(step)
        return reference

    def go_back_to(self, step: int) -> None:
        """Put rows after a step aside: training resumes there."""
        gaps = self.gaps()
        if any(later > step for later in gaps):
            self.note_gaps({earlier: why for earlier, why in gaps.items() if earlier <= step})
        late = [later for later in self.steps() if later > step]
        if not late:
            return
        before = self.folder / "superseded"
        # Moved, not removed: a wrong `step` must not cost what was measured.
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


def recorded(out: str | os.PathLike[str], *restarts: str | os.PathLike[str]) -> xr.DataTree:
    """What a recording holds so far: while it runs, after a crash, or when it has ended.

    Args:
        out: the folder of the recording.
        restarts: folders of later recordings of the same training, in order, that were begun with the same reference
            (`record(…, step=…, reference=…)`), on however many machines. From the first step of a restart on, the rows
            of those before it are left out: that training was given up.
    """
    journal = Journal(out)
    layout, rows, gaps = journal.layout(), journal.rows(), journal.gaps()
    for place in restarts:
        later = Journal(place)
        _check_same(journal, later)
        if first := later.steps()[:1]:
            rows = {step: row for step, row in rows.items() if step < first[0]}
            gaps = {step: why for step, why in gaps.items() if step < first[0]}
        rows, gaps = rows | later.rows(), gaps | later.gaps()
    last = Journal(restarts[-1]) if restarts else journal
    status = last.ending() or Status(Ending.RUNNING, f"{len(rows)} rows so far")
    return mark_gaps(to_trajectory(layout, list(rows), list(rows.values()), journal.initial(), status), gaps)


def _check_same(journal: Journal, later: Journal) -> None:
    """Refuse two recordings that are not of one training."""
    if (journal.layout().heads, journal.layout().modules) != (later.layout().heads, later.layout().modules):
        raise SaddlesError(f"{later.folder} and {journal.folder} are recordings of different models.")
    import torch

    one, other = journal.reference(), later.reference()
    if set(one) != set(other) or not all(torch.equal(tensor, other[name]) for name, tensor in one.items()):
        raise SaddlesError(
            f"{later.folder} counts changes from other weights than {journal.folder}. Record a restart with reference= "
            "the weights at the start of training, or in the folder of the first recording with step=."
        )


def _check(row: Row, layout: Layout, file: Path) -> None:
    """Refuse arrays that cannot be a row of this model."""
    with _damage_told(file, "Remove it, and its step is missing"):
        blocks = layout.layers()
        axes = {
            "heads": (len(blocks), max(map(len, blocks.values()), default=0), len(PRODUCTS)),
            "modules": (len(layout.modules),),
            "measures": (),
        }
        for name, array in row.items():
            first = axes[name.partition("/")[0]]
            if array.dtype.kind != "f" or array.shape[: len(first)] != first or array.ndim > len(first) + 1:
                raise ValueError(f"`{name}` has type {array.dtype} and shape {array.shape}")


@contextlib.contextmanager
def _damage_told(file: Path, hint: str) -> Iterator[None]:
    """Say which file is damaged, whatever a reader raises."""
    try:
        yield
    except Exception as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise SaddlesError(f"{file} is damaged ({why[:200]}). {hint}.") from error
