"""The Zarr folder of a sweep: every variable of a cell, with the grid as further axes.

A variable over time has the axes (time, grid …, rest), any other (grid …, rest). Cells that are shorter than others
are padded with NaN. A coordinate on which all cells agree, as far as each goes, stays a coordinate; where they do
not, it becomes `own_NAME` of every cell. A name that the grid has too gets `inner_` before it. Chunks hold several
small cells or one large one; Zarr replaces each as a whole, by a rename.

Readers open the consolidated metadata (`.zmetadata`) first, so an array exists for them once it is listed there. What
changes the layout is therefore done in an order that a crash cannot harm: new arrays are written, then listed, and
old ones are removed from the list before they are removed from the disk.
"""

import itertools
import json
import math
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import zarr

from saddles.core.checked import CheckedStore
from saddles.core.codecs import check_arrays
from saddles.errors import SaddlesError
from saddles.runtime.checksums import Checksums, condense
from saddles.runtime.files import sync, write_text
from saddles.sweeps.cells import Packed
from saddles.sweeps.half_made import DIMS, remove_half_made

SMALL = 2**16
"""Bytes that a chunk of small cells holds: a commit rewrites whole chunks, and many files are slow to open."""

LARGE = 2**24
"""Bytes above which a cell is cut along its first axis."""

ITEM = 8
"""Bytes of a number; text is laid out as if it had the same."""

DONE, SECONDS = "cell_done", "cell_seconds"

Place = tuple[int, ...]
Sizes = Mapping[str, int]
Values = tuple[tuple[str, ...], np.ndarray]


class MisfitError(SaddlesError):
    """A cell whose arrays do not fit those of the other cells."""


class Arrays:
    """The arrays of one sweep, opened for writing by one process."""

    def __init__(self, folder: Path, axes: Mapping[str, int]) -> None:
        self._folder, self._axes = folder, dict(axes)
        self._checksums = Checksums(folder)
        try:
            self._read()
        except BaseException:
            self._checksums.close()
            raise
        self._repair()

    def _read(self) -> None:
        """Open what is on disk."""
        remove_half_made(self._folder, self._checksums)
        place = CheckedStore(self._folder, checksums=self._checksums)
        self._root = zarr.open_group(place, mode="r+", zarr_format=2, use_consolidated=False)
        check_arrays(self._root, self._folder)
        self._arrays: dict[str, zarr.Array[Any]] = dict(self._root.arrays())
        attrs = {name: cast(dict[str, Any], dict(array.attrs)) for name, array in self._arrays.items()}
        self._dims: dict[str, tuple[str, ...]] = {name: tuple(row[DIMS]) for name, row in attrs.items()}
        self._taken = {*self._axes, DONE, SECONDS, *(name for name, row in attrs.items() if row.get("grid"))}
        self._shared = {name: np.asarray(self._arrays[name][...]) for name, row in attrs.items() if row.get("shared")}
        self._touched: set[Path] = set()
        self._dropped: list[str] = []
        self._changed = False

    def _repair(self) -> None:
        """Finish, or undo, what a crash left half done while a coordinate became every cell's own.

        Both arrays are there. As long as the coordinate is still marked as shared, its copies may be incomplete.
        """
        for name in [name for name in self._arrays if f"own_{name}" in self._arrays]:
            self._drop(f"own_{name}" if name in self._shared else name)
        self._flush()

    def _drop(self, name: str) -> None:
        """Take an array out of the published list, and off the disk once that list is written."""
        del self._arrays[name], self._dims[name]
        self._dropped.append(name)
        self._changed = True

    def write(self, cells: Mapping[Place, Packed], done: Callable[[], dict[Place, Sizes]]) -> dict[Place, str]:
        """Write cells to disk, for good; returns those that do not fit, and why.

        Args:
            cells: place on the grid -> what was computed there.
            done: gives the places that hold cells already and how long they are; rarely needed.
        """
        misfits: dict[Place, str] = {}
        batches: dict[str, dict[Place, Values]] = {}
        for place, packed in cells.items():
            try:
                fitting = self._fit(self._renamed(packed), partial(_others, place, cells, misfits, done))
            except MisfitError as error:
                misfits[place] = str(error)
                continue
            for name, values in fitting.items():
                batches.setdefault(name, {})[place] = values
        for name, batch in batches.items():
            self._write_batch(name, batch)
        self._flush()
        return misfits

    def mark(self, name: str, numbers: np.ndarray, places: Sequence[Place]) -> None:
        """Write one number per cell, from an array over the whole grid, where `places` changed."""
        if name not in self._arrays:
            self._create(name, (), (), False, {})
        array = self._arrays[name]
        for block in {tuple(p // c for p, c in zip(place, array.chunks, strict=True)) for place in places}:
            region = _region(block, array.chunks, array.shape)
            array[region] = numbers[region]
            self._note(array, region)
        self._flush()

    def describe(self, facts: Mapping[str, str | float]) -> None:
        """Change attributes of the whole folder."""
        self._root.attrs.update(facts)
        self._changed = True
        self._flush()

    def close(self) -> None:
        """Let go of the folder."""
        self._checksums.close()
        condense(self._folder)

    def cells_in(self, file: str) -> "list[slice] | None":
        """The part of the grid that a chunk covers, as a slice of each axis; None for what is not of single cells."""
        name, _, key = file.rpartition("/")
        if name not in self._arrays or key.startswith(".") or not set(self._axes) <= set(self._dims[name]):
            return None
        spans = dict(
            zip(self._dims[name], zip(map(int, key.split(".")), self._arrays[name].chunks, strict=True), strict=True)
        )
        return [slice(spans[axis][0] * spans[axis][1], (spans[axis][0] + 1) * spans[axis][1]) for axis in self._axes]

    def forget(self, file: str) -> None:
        """Remove a damaged chunk: its cells are missing then."""
        self._checksums.note(file, None)
        (self._folder / file).unlink(missing_ok=True)
        self._checksums.commit()

    def _renamed(self, packed: Packed) -> Packed:
        def name(word: str) -> str:
            return f"inner_{word}" if word in self._taken or word.startswith("own_") else word

        def all_of(arrays: Mapping[str, Values]) -> dict[str, Values]:
            return {name(key): (tuple(map(name, dims)), values) for key, (dims, values) in arrays.items()}

        notes = {name(key): value for key, value in packed.notes.items()}
        return Packed(all_of(packed.variables), all_of(packed.coords), notes)

    def _fit(self, packed: Packed, others: Callable[[], dict[Place, Sizes]]) -> dict[str, Values]:
        """Make room for a cell; returns its variables with the coordinates that are its own."""
        fitting = dict(packed.variables)
        sizes = packed.sizes
        for name, (dims, values) in fitting.items():
            self._check(name, dims, values)
        # A cell without a coordinate that all others share disagrees with them too.
        expected = [name for name in self._shared if set(self._dims[name]) <= set(sizes)]
        for name in dict.fromkeys([*packed.coords, *expected]):
            mine = packed.coords.get(name)
            if f"own_{name}" in self._arrays:
                pass
            elif name not in self._arrays and mine is not None:
                self._share(name, *mine, packed.notes.get(name, {}))
            elif not self._agree(name, mine):
                self._demote(name, others())
            if f"own_{name}" in self._arrays and mine is not None:
                fitting[f"own_{name}"] = (mine[0], _stored(mine[1]))
        for dim, size in sizes.items():
            self._grow(dim, size)
        for name, (dims, values) in fitting.items():
            if name not in self._arrays:
                text = values.dtype.kind == "U"
                self._create(name, dims, values.shape, text, packed.notes.get(name.removeprefix("own_"), {}))
        return fitting

    def _check(self, name: str, dims: tuple[str, ...], values: np.ndarray) -> None:
        if name not in self._arrays:
            return
        array = self._arrays[name]
        inner = tuple(dim for dim in self._dims[name] if dim not in self._axes)
        text = values.dtype.kind == "U"
        if inner != dims or text != (array.dtype.kind != "f"):
            here, others = (
                f"{'text' if t else 'numbers'} over {', '.join(d) or 'no axis'}"
                for t, d in ((text, dims), (array.dtype.kind != "f", inner))
            )
            raise MisfitError(f"`{name}` is {here}, and {others} in other cells. Put such cells in separate sweeps.")

    def _agree(self, name: str, mine: Values | None) -> bool:
        """Whether a cell's coordinate is that of the others as far as both go; the longer one is kept."""
        shared = self._shared[name]
        if mine is None or self._dims[name] != mine[0]:
            return False
        dims, own = mine
        if len(dims) != 1:
            return shared.shape == own.shape and bool((shared == own).all())
        short = min(len(shared), len(own))
        if not bool((shared[:short] == own[:short]).all()):
            return False
        if len(own) > short:
            self._extend(name, dims, own, short)
        return True

    def _extend(self, name: str, dims: tuple[str, ...], values: np.ndarray, start: int) -> None:
        """Lengthen a shared coordinate, in place where its type allows, so that readers keep what they have."""
        array = self._arrays[name]
        if values.dtype != array.dtype:
            self._share(name, dims, values, self._notes(name))
            return
        array.resize(values.shape)
        array[start:] = values[start:]
        self._shared[name] = values
        self._note(array, (slice(start, len(values)),))
        self._changed = True

    def _notes(self, name: str) -> dict[str, object]:
        return {key: value for key, value in self._arrays[name].attrs.items() if key not in (DIMS, "shared")}

    def _share(self, name: str, dims: tuple[str, ...], values: np.ndarray, notes: Mapping[str, object]) -> None:
        values = values.astype(str) if values.dtype.kind == "O" else values
        self._arrays[name] = self._root.create_array(
            name, data=values, chunks=values.shape or "auto", fill_value=None, overwrite=True,
            attributes=_json({**notes, DIMS: list(dims), "shared": 1}),
        )  # fmt: skip
        self._dims[name] = dims
        self._shared[name] = values
        self._note(self._arrays[name], tuple(slice(0, n) for n in values.shape))
        self._changed = True

    def _demote(self, name: str, done: Mapping[Place, Sizes]) -> None:
        """Cells disagree: each gets its own; those that are done had the shared one."""
        dims, values, notes = self._dims[name], self._shared.pop(name), self._notes(name)
        stored = _stored(values)
        self._create(f"own_{name}", dims, values.shape, stored.dtype.kind == "U", notes)
        ends = {p: [slice(sizes.get(dim.removeprefix("inner_"))) for dim in dims] for p, sizes in done.items()}
        had = {place: (dims, stored[tuple(row)]) for place, row in ends.items()}
        self._write_batch(f"own_{name}", had)
        self._arrays[name].attrs["shared"] = 0  # its copies are whole: `_repair` keeps them from here on
        self._drop(name)

    def _grow(self, dim: str, size: int) -> None:
        for name, array in list(self._arrays.items()):
            dims = self._dims[name]
            if dim not in dims or array.shape[dims.index(dim)] >= size:
                continue
            array.resize(tuple(size if d == dim else n for d, n in zip(dims, array.shape, strict=True)))
            self._changed = True

    def _create(
        self, name: str, dims: tuple[str, ...], shape: tuple[int, ...], text: bool, notes: Mapping[str, object]
    ) -> None:
        """An empty array with the grid's axes after `time`, if it has that, and before all others."""
        lead = 1 if dims[:1] == ("time",) else 0
        sizes = {dim: max(n, self._length(dim)) for dim, n in zip(dims, shape, strict=True)}
        inner = [max(n, 1) for n in shape]
        width = ITEM * math.prod(inner)
        if inner and width > LARGE:
            inner[0] = max(1, inner[0] * LARGE // width)
        outer = _spread(list(self._axes.values()), max(1, SMALL // width))
        names = [*dims[:lead], *self._axes, *dims[lead:]]
        full = [sizes[dim] if dim in sizes else self._axes[dim] for dim in names]
        self._arrays[name] = self._root.create_array(
            name, shape=full, chunks=(*inner[:lead], *outer, *inner[lead:]),
            dtype="str" if text else "float64", fill_value=None if text else float("nan"),
            attributes=_json({**notes, DIMS: names}),
        )  # fmt: skip
        self._dims[name] = tuple(names)
        self._changed = True

    def _length(self, dim: str) -> int:
        sizes = (self._arrays[name].shape[dims.index(dim)] for name, dims in self._dims.items() if dim in dims)
        return max(sizes, default=0)

    def _write_batch(self, name: str, batch: Mapping[Place, Values]) -> None:
        """Write cells chunk by chunk: what else is in a chunk is read first and stays."""
        array, dims = self._arrays[name], self._dims[name]
        where = [dims.index(axis) for axis in self._axes]
        chunks = [array.chunks[i] for i in where]
        blocks: dict[Place, list[Place]] = {}
        for place in batch:
            blocks.setdefault(tuple(p // c for p, c in zip(place, chunks, strict=True)), []).append(place)
        for block, places in blocks.items():
            corner = [p * c for p, c in zip(block, chunks, strict=True)]
            region: list[slice] = [slice(0, n) for n in array.shape]
            for i, first, chunk in zip(where, corner, chunks, strict=True):
                region[i] = slice(first, min(first + chunk, array.shape[i]))
            if math.prod(chunks) == 1:  # the cell has its chunks to itself: nothing to read
                values = batch[places[0]][1]
                inner = iter(values.shape)
                region = [part if i in where else slice(0, next(inner)) for i, part in enumerate(region)]
                array[tuple(region)] = values.reshape([part.stop - part.start for part in region])
            else:
                held = np.array(array[tuple(region)])
                for place in places:
                    self._put(held, where, [p - c for p, c in zip(place, corner, strict=True)], batch[place][1])
                array[tuple(region)] = held
            self._note(array, tuple(region))

    @staticmethod
    def _put(held: np.ndarray, where: Sequence[int], place: Sequence[int], values: np.ndarray) -> None:
        """Write one cell into a block of several; what it does not fill is missing."""
        cell: list[slice | int] = [slice(None)] * held.ndim
        for i, p in zip(where, place, strict=True):
            cell[i] = p
        if not values.ndim:
            held[tuple(cell)] = values[()]
            return
        room = held[tuple(cell)]
        room[...] = np.nan if held.dtype.kind == "f" else ""
        room[tuple(slice(0, n) for n in values.shape)] = values

    def _note(self, array: zarr.Array, region: tuple[slice, ...]) -> None:
        """Remember the files of a region, which `_flush` puts on disk for good."""
        home = self._folder / array.basename
        spans = [range(part.start // c, -(-part.stop // c)) for part, c in zip(region, array.chunks, strict=True)]
        keys = itertools.product(*spans)
        self._touched |= {home, *(home / (".".join(map(str, key)) or "0") for key in keys)}

    def _flush(self) -> None:
        """Publish new axes and arrays in one file, and wait until all that was written is on disk."""
        if self._changed:
            labels = [name for name, dims in self._dims.items() if self._is_label(name, dims)]
            self._root.attrs["coordinates"] = " ".join(labels)
            self._publish()
            self._touched |= {self._folder / name for name in ("", ".zattrs", ".zmetadata")}
            self._touched |= {self._folder / name / ".zarray" for name in self._arrays}
            self._changed = False
        for path in sorted(self._touched):
            if path.exists():  # Zarr leaves out chunks that hold nothing but missing values
                sync(path)
        if self._touched:
            self._checksums.commit()
        self._touched.clear()
        while self._dropped:
            home = self._folder / self._dropped.pop()
            for file in home.iterdir():
                self._checksums.note(file.relative_to(self._folder).as_posix(), None)
            shutil.rmtree(home, ignore_errors=True)

    def _publish(self) -> None:
        """Write the list of arrays that readers open first (Zarr's consolidated metadata), by a rename."""
        files = [".zgroup", ".zattrs", *(f"{name}/{kind}" for name in self._arrays for kind in (".zarray", ".zattrs"))]
        metadata = {file: json.loads((self._folder / file).read_text("utf-8")) for file in files}
        whole = {"metadata": metadata, "zarr_consolidated_format": 1}
        text = json.dumps(whole)
        with self._checksums.changing(".zmetadata", text.encode()):
            write_text(self._folder / ".zmetadata", text)

    def _is_label(self, name: str, dims: tuple[str, ...]) -> bool:
        """Whether xarray must be told that this is a coordinate: it guesses those named like their axis."""
        return name.startswith("own_") or ((name in self._shared or name in self._taken) and name not in dims
                                           and name not in (DONE, SECONDS))  # fmt: skip


def _json(attributes: Mapping[str, object]) -> dict[str, Any]:
    """Attributes of an array, as Zarr declares them."""
    return dict(attributes)


def _others(
    place: Place, batch: Mapping[Place, Packed], misfits: Collection[Place], done: Callable[[], dict[Place, Sizes]]
) -> dict[Place, Sizes]:
    """Cells besides this one that are on disk or about to be, and how long each of their axes is."""
    every = done() | {p: packed.sizes for p, packed in batch.items()}
    return {p: sizes for p, sizes in every.items() if p != place and p not in misfits}


def _stored(values: np.ndarray) -> np.ndarray:
    return values.astype(str) if values.dtype.kind in "UOS" else values.astype(np.float64)


def _region(block: Place, chunks: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(b * c, min((b + 1) * c, n)) for b, c, n in zip(block, chunks, shape, strict=True))


def _spread(sizes: list[int], cells: int) -> list[int]:
    """How many cells of each axis a chunk holds, the last axis first."""
    chunks = []
    for size in reversed(sizes):
        take = min(size, cells)
        chunks.append(max(1, take))
        cells = cells // max(1, take)
    return chunks[::-1]
