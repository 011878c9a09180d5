"""Rank growth over a series of checkpoints: `inspect(paths)`, piece by piece, resumable, in bounded memory.

A piece is one layer's heads or one matrix of one checkpoint. At most the tensors of one layer's attention, or two
tensors of one matrix, are in memory.

    DIR/run.json          what is measured, and whether it is finished
    DIR/parts/            finished pieces, used when the work is resumed, removed at the end
    DIR/trajectory.zarr   the result; after an interruption, the checkpoints that are complete
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import xarray as xr

from saddles.core.engines.engine import Engine
from saddles.core.provenance import machine, versions
from saddles.core.status import FINISHED, Ending, Status
from saddles.core.store import load, write_zarr
from saddles.errors import SaddlesError
from saddles.measures.factored import rank_measures
from saddles.probe.layouts.head_counts import Config
from saddles.probe.layouts.layout import Head, Layout, Module
from saddles.probe.layouts.no_heads import need_heads
from saddles.probe.measuring import (
    Row,
    measure_heads,
    measure_initial,
    pad,
    read_row,
    to_trajectory,
    write_row,
)
from saddles.probe.pieces import Cost, Made, Piece, carry_out, estimate, made, opened
from saddles.probe.weights.checkpoint_series import Series, find_places, open_series
from saddles.probe.weights.checkpoints import Source, Weights
from saddles.probe.weights.weight_change import effort, spectrum_of, weight_change
from saddles.runtime.files import explained, refuse_existing
from saddles.runtime.progress import bar
from saddles.runtime.records import read_record, write_record
from saddles.runtime.threads import torch_pool


def inspect(
    paths: Source | Sequence[Source],
    reference: Source | None = None,
    *,
    modules: bool = True,
    only: str | None = None,
    config: Config | None = None,
    out: str | os.PathLike[str] | None = None,
    on: str | None = None,
    workers: int | None = None,
) -> xr.DataTree:
    """Measure ΔKQ and ΔVO of every head and ΔW of every matrix along a series of checkpoints.

    Args:
        paths: a folder of checkpoints, one checkpoint, or a list of them: Hugging Face folders, .safetensors,
            torch files. The series is checked first (see `saddles.probe.weights.checkpoint_series`).
        reference: the model at the start; None takes the first checkpoint, which is then not a row of the result.
        modules: measure the plain matrices too. Their spectra are complete and exact to the accuracy that
            `saddles.probe.weights.weight_change` states; they take most of the time, ten processor seconds and more
            for a matrix 4096 wide.
        only: a regular expression; matrices whose name it does not match are left out.
        config: what the checkpoints do not state themselves, such as {"num_attention_heads": 12}.
        out: a folder for the result. The same call resumes where an interrupted one stopped; a finished one is
            read back; a folder of anything else is refused.
        on: "embedded" measures in worker processes, one for each core or GPU, an address such as "tcp://HOST:8786" on
            a Dask cluster, whose workers see the checkpoints under the same paths; None in this process.
        workers: how many worker processes.

    Returns:
        groups `heads` and `modules` as `saddles.probe.spectra` gives them, one `time` per checkpoint; notes on the
        series in the attribute `notes`, a JSON list; pieces, their seconds and the peak memory in `cost`, another.
    """
    began = time.perf_counter()
    work = _work(paths, reference, modules, only, config, out)
    store = work.store
    if store.finished:
        return load(store.trajectory)
    try:
        # The engine first: where it does not answer, no folder is made.
        with contextlib.nullcontext() if on is None else opened(on, workers, store.kept) as engine:
            store.begin(work.series)
            work.carry_out(engine)
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        status = Status(Ending.INTERRUPTED) if interrupted else Status(Ending.FAILED, str(error))
        with contextlib.suppress(OSError, SaddlesError):  # on a full disk the error that is raised is the first one
            store.end(work.tree(status, began), status)
        raise
    tree = work.tree(FINISHED, began)
    assert tree is not None
    store.end(tree, FINISHED)
    return tree


def inspection_cost(
    paths: Source | Sequence[Source],
    reference: Source | None = None,
    *,
    modules: bool = True,
    only: str | None = None,
    config: Config | None = None,
    out: str | os.PathLike[str] | None = None,
) -> Cost:
    """What `inspect` with the same arguments would take, from one timed piece of each shape; nothing is written."""
    work = _work(paths, reference, modules, only, config, out)
    return estimate(work.pieces(), lambda name: work.store.read(name) is not None)


def _work(
    paths: Source | Sequence[Source],
    reference: Source | None,
    modules: bool,
    only: str | None,
    config: Config | None,
    out: str | os.PathLike[str] | None,
) -> "Work":
    if only is not None and not modules:
        raise SaddlesError(
            "`only` chooses among the matrices, and without `modules` none is measured. Leave one of them out."
        )
    series = open_series(paths, reference, config)
    need_heads(series.layout)
    layout = dataclasses.replace(series.layout, modules=_chosen(series.layout, only) if modules else ())
    return Work(series, layout, Store(None if out is None else Path(out), _identity(series, layout)))


def planned_folder(
    paths: Sequence[Source],
    reference: Source | None = None,
    modules: bool = True,
    only: str | None = None,
    config: Config | None = None,
) -> Path:
    """The default folder of an inspection: runs/inspect/HASH, the same for the same checkpoints and options."""
    places = [str(Path(str(place)).resolve()) for place in find_places(paths)[0]]
    words = [
        *places,
        str(reference),
        str(modules),
        str(only),
        *([json.dumps(config, sort_keys=True)] if config else []),
    ]
    return Path("runs") / "inspect" / _digest(words)[:10]


def _digest(words: Iterable[str]) -> str:
    """Of names of files and tensors, which may hold what is no Unicode."""
    return hashlib.sha256("\n".join(words).encode(errors="surrogatepass")).hexdigest()


def _chosen(layout: Layout, only: str | None) -> tuple[Module, ...]:
    if only is None:
        return layout.modules
    try:
        kept = tuple(module for module in layout.modules if re.search(only, module.name))
    except re.error as error:
        raise SaddlesError.must_be("only", f"a regular expression ({error})", only) from error
    if not kept:
        raise SaddlesError(
            f"`only` = {only!r} matches none of {len(layout.modules)} matrices; one is {layout.modules[0].name}."
        )
    return kept


def _identity(series: Series, layout: Layout) -> dict[str, object]:
    """What would be measured, by content."""
    names = _digest(module.name for module in layout.modules)[:16]
    return {"prints": list(series.fingerprints), "steps": list(series.steps), "modules": names}


@dataclasses.dataclass(frozen=True, eq=False)
class Work:
    """The pieces of an inspection, in order."""

    series: Series
    layout: Layout
    store: "Store"

    def carry_out(self, engine: Engine[Made] | None = None) -> None:
        """Make every piece that is not there yet, here or on an engine."""
        pieces = self.pieces()
        with bar("spectra of changes", sum(piece.effort for piece in pieces)) as progress:
            missing = [piece for piece in pieces if self.store.read(piece.name) is None]
            progress.skip(sum(piece.effort for piece in pieces) - sum(piece.effort for piece in missing))
            if engine is not None:
                carry_out(engine, missing, self.store.keep, progress)
                return
            with torch_pool(1):  # a second thread would hold another product's tensors
                for piece in missing:
                    one = made(piece)
                    if one.error:
                        raise SaddlesError(one.error)
                    self.store.keep(one)
                    progress.advance(piece.effort)

    def pieces(self) -> list[Piece]:
        """Every piece, in order."""
        start, found = self.series.start, []
        for layer, heads in self.layout.layers().items():
            words = f"heads of a layer, {len(heads)} × {_shape(heads[0], start)[0]} × {_shape(heads[0], start)[1]}"
            # One product instead of a change, which is two of twice the width: about a quarter of the work.
            first = Piece(f"start-{layer}", _head_effort(heads, start) / 4, partial(_initial, heads, start), -1, "")
            found.append(dataclasses.replace(first, shape=f"{words}, at the start"))
        for place, point in enumerate(self.series.points):
            for layer, heads in self.layout.layers().items():
                words = f"heads of a layer, {len(heads)} × {_shape(heads[0], start)[0]} × {_shape(heads[0], start)[1]}"
                make = partial(_heads, heads, point, start)
                found.append(Piece(f"{place}-heads-{layer}", _head_effort(heads, start), make, place, words))
            for number, module in enumerate(self.layout.modules):
                words = f"matrix {module.shape[0]} × {module.shape[1]}"
                make = partial(_module, module, point, start)
                found.append(Piece(f"{place}-module-{number}", effort(module.shape), make, place, words))
        return found

    def tree(self, status: Status, began: float) -> xr.DataTree | None:
        """The checkpoints that are complete, labelled; None where none is."""
        layers, count = range(len(self.layout.layers())), len(self.layout.modules)
        first = self._joined([f"start-{layer}" for layer in layers])
        rows, steps = [], []
        for place, step in enumerate(self.series.steps):
            heads = self._joined([f"{place}-heads-{layer}" for layer in layers])
            modules = self._joined([f"{place}-module-{number}" for number in range(count)]) if count else {}
            # Pieces are made in order, so the first gap ends what is complete.
            if first is None or heads is None or modules is None:
                break
            row = {f"heads/{name}": values[:, 0] for name, values in heads.items()}
            if modules:
                modules |= rank_measures(modules["singular_value"])
            rows.append(row | {f"modules/{name}": values for name, values in modules.items()})
            steps.append(step)
        if first is None or not rows:
            return None
        start = {name: values[:, 0] for name, values in first.items()}
        tree = to_trajectory(self.layout, steps, rows, start, status)
        tree.attrs |= {
            "kind": "inspection",
            "reference": self.series.start.place,
            "checkpoints": json.dumps([point.place for point in self.series.points[: len(steps)]], ensure_ascii=False),
            "notes": json.dumps(self.series.notes, ensure_ascii=False),
            "stored_as": ", ".join(sorted({self.series.start.types[name] for name in self.layout.parameters()})),
            "cost": json.dumps(self.store.cost),
            "wall_time_s": round(self.store.spent + time.perf_counter() - began, 3),
        }
        return tree

    def _joined(self, names: list[str]) -> Row | None:
        """Pieces along a new first axis; None where one is not there."""
        parts = [self.store.read(name) for name in names]
        whole = [part for part in parts if part is not None]
        if len(whole) < len(parts):
            return None
        return {name: pad([part[name] for part in whole]) for name in whole[0]}


def _module(module: Module, point: Weights, start: Weights, *, device: str = "cpu") -> Row:
    spectrum = spectrum_of(weight_change(module.parameter, point, start, device=device, expert=module.expert))
    return {"singular_value": spectrum.values, "noise_floor": np.asarray(spectrum.noise_floor)}


def _heads(heads: Sequence[Head], point: Weights, start: Weights, *, device: str = "cpu") -> Row:
    row = measure_heads(
        Layout(tuple(heads), (), ()), lambda n: point.read(n).to(device), lambda n: start.read(n).to(device)
    )
    if np.isnan(row["singular_value"]).any():
        raise SaddlesError(
            f"{heads[0].attention} of {point.place} or of the reference holds numbers that are not finite. Did the "
            "training diverge?"
        )
    return row


def _initial(heads: Sequence[Head], start: Weights, *, device: str = "cpu") -> Row:
    return measure_initial(Layout(tuple(heads), (), ()), lambda name: start.read(name).to(device))


def _shape(head: Head, start: Weights) -> tuple[int, int]:
    shapes = [link.shape(start.shapes[link.parameter]) for link in head.factors["Q"].links]
    return shapes[0][0], shapes[-1][1]


def _head_effort(heads: Sequence[Head], start: Weights) -> float:
    """Billions of operations, about: two QR of d × 2d_h and one 2d_h × 2d_h core for each of two products."""
    width, inner = _shape(heads[0], start)
    return len(heads) * (32.0 * width * inner**2 + 200.0 * inner**3) / 1e9


class Store:
    """Pieces in memory, or in a folder that survives interruption."""

    def __init__(self, folder: Path | None, identity: Mapping[str, object]) -> None:
        self.folder, self.identity = folder, identity
        self.memory: dict[str, Row] = {}
        self.cost: dict[str, float] = {"pieces": 0, "seconds": 0.0, "peak_mib": 0}
        self.record = self._record()
        spent = self.record.get("wall_time_s")
        self.spent = float(spent) if isinstance(spent, int | float) else 0.0
        self.finished = Status.parse(self.record.get("status", Ending.RUNNING)).ok

    @property
    def kept(self) -> str:
        """What is left where the work ends early."""
        if self.folder is None:
            return "Give `out`, a folder that keeps what is measured."
        return f"What is measured is kept in {self.folder}: the same command resumes."

    @property
    def trajectory(self) -> Path:
        """Where the result lies."""
        assert self.folder is not None
        return self.folder / "trajectory.zarr"

    def _record(self) -> dict[str, object]:
        """What run.json says of an earlier call; anything else in the folder is refused."""
        if self.folder is None:
            return {}
        file = self.folder / "run.json"
        if not file.is_file():
            refuse_existing(self.folder)
            return {}
        record = read_record(file, {"identity": dict, "status": str}, "Choose another folder")
        if record["identity"] != self.identity:
            raise SaddlesError(
                f"{self.folder} holds another run: its checkpoints or options differ. Choose another folder."
            )
        return record

    def begin(self, series: Series) -> None:
        """Make the folder and say what is measured."""
        if self.folder is None:
            return
        self.record |= {
            "kind": "inspection", "identity": self.identity, "reference": series.start.place,
            "checkpoints": [point.place for point in series.points], "notes": list(series.notes),
            "versions": versions(), "machine": machine(), "status": str(Ending.RUNNING),
        }  # fmt: skip
        with explained(self.folder):
            (self.folder / "parts").mkdir(parents=True, exist_ok=True)
            write_record(self.folder / "run.json", self.record)

    def end(self, tree: xr.DataTree | None, status: Status) -> None:
        """Write what is complete; at the end of all work, remove the pieces."""
        if self.folder is None or not (self.folder / "parts").is_dir():
            return
        if tree is not None:
            # The result before the status, and the pieces last: a crash in between leaves what the same call can resume
            # from.
            write_zarr(tree, self.trajectory, replace=True)
            self.record["wall_time_s"] = tree.attrs["wall_time_s"]
        self.record["status"] = str(status)
        write_record(self.folder / "run.json", self.record)
        if status.ok:
            shutil.rmtree(self.folder / "parts", ignore_errors=True)

    def keep(self, piece: Made) -> None:
        """Take a piece that is made."""
        self.cost["pieces"] += 1
        self.cost["seconds"] = round(self.cost["seconds"] + piece.seconds, 3)
        self.cost["peak_mib"] = max(self.cost["peak_mib"], piece.peak // 2**20)
        if self.folder is None:
            self.memory[piece.name] = piece.row
            return
        with explained(self.folder, "What is measured is kept: make room and give the same command again"):
            write_row(self._file(piece.name), piece.row)

    def read(self, name: str) -> Row | None:
        """A piece, or None where it is not there."""
        if self.folder is None:
            return self.memory.get(name)
        return read_row(self._file(name)) if self._file(name).is_file() else None

    def _file(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / "parts" / f"{name}.npz"
