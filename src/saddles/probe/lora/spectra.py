"""Spectra and factors of all changes, one piece for each module: here or on other processes, kept as they are made.

A piece travels as names and places in files, and a worker reads both models itself, under the same paths. Kept pieces
are named by what they were made from, so that a folder can serve several plans and a changed file is computed anew.
"""

import hashlib
import os
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

from saddles.errors import SaddlesError
from saddles.probe.lora.leading import dense, leading_split
from saddles.probe.lora.match import Target
from saddles.probe.lora.on_base import TIMES
from saddles.probe.lora.ranks import Sized
from saddles.probe.measuring import Row, read_row, write_row
from saddles.probe.pieces import Made, Make, Piece, carry_out, made, opened
from saddles.probe.weights.checkpoints import Weights
from saddles.probe.weights.weight_change import (
    WeightChange,
    effort,
    factors,
    rounding_floor,
    smaller_half,
    spectrum_of,
    weight_change,
)
from saddles.runtime.files import explained
from saddles.runtime.progress import bar


@dataclass(frozen=True)
class Workshop:
    """Where spectra and factors are computed.

    Attributes:
        device: of this process.
        on: "embedded" for worker processes, or the address of a Dask scheduler; None: this process.
        workers: how many worker processes.
        parts: a folder that keeps finished ones; None keeps none.
        scratch: a folder for factors that are not kept, which whoever made it removes.
    """

    device: str = "cpu"
    on: str | None = None
    workers: int | None = None
    parts: Path | None = None
    scratch: Path | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether pieces leave this process, to workers or to files."""
        return self.on is not None or self.parts is not None

    @property
    def kept(self) -> str:
        """What is left where the work ends early."""
        if self.parts is None:
            return "Nothing is kept: give `parts` (--parts), a folder that keeps what is finished."
        return f"What is finished is kept in {self.parts}: the same command resumes."

    def check(self, *models: Weights) -> None:
        """Refuse to keep pieces of models that cannot be recognised."""
        if self.parts is not None and not all(map(in_files, models)):
            raise SaddlesError("`parts` needs models in files, which it can recognise. Save them, or leave it out.")

    def carry_out(self, pieces: Sequence[Piece], what: str = "singular values") -> dict[str, Row]:
        """All pieces by their names, in memory; those that are kept already are read."""
        rows = dict(self._kept(pieces))

        def keep(one: Made) -> None:
            rows[one.name] = one.row
            if self.parts is not None:
                self._write(self.parts, one)

        self._make(pieces, rows, keep, what)
        return rows

    def one_by_one(self, pieces: Sequence[Piece], what: str) -> Iterator[Row]:
        """All pieces in their order, in files until their turn comes: one is held at a time, and few more on arrival.

        All are made before the first is given.
        """
        folder = self.scratch if self.parts is None else self.parts
        assert folder is not None
        there = {piece.name for piece in pieces if _file(folder, piece.name).is_file()}
        self._make(pieces, there, partial(self._write, folder), what)
        return (self._taken(_file(folder, piece.name)) for piece in pieces)

    def _taken(self, file: Path) -> Row:
        """Read a piece, and remove it where pieces are not kept."""
        row = read_row(file)
        if self.parts is None:
            file.unlink()
        return row

    def _make(self, pieces: Sequence[Piece], there: Container[str], keep: Callable[[Made], None], what: str) -> None:
        """Make the pieces that are not there yet."""
        missing = [piece for piece in pieces if piece.name not in there]
        if self.parts is not None:
            with explained(self.parts):
                self.parts.mkdir(parents=True, exist_ok=True)
        with bar(f"{what} of ΔW, by module", sum(piece.effort for piece in pieces)) as progress:
            progress.skip(sum(piece.effort for piece in pieces if piece.name in there))
            if self.on is not None and missing:
                with opened(self.on, self.workers, self.kept) as engine:
                    carry_out(engine, missing, keep, progress)
                return
            for piece in missing:
                one = made(piece, self.device)
                if one.error:
                    raise SaddlesError(one.error)
                keep(one)
                progress.advance(piece.effort)

    def _kept(self, pieces: Sequence[Piece]) -> Iterator[tuple[str, Row]]:
        for piece in pieces:
            if self.parts is not None and _file(self.parts, piece.name).is_file():
                yield piece.name, read_row(_file(self.parts, piece.name))

    def _write(self, folder: Path, one: Made) -> None:
        again = "What is computed is kept: make room and give the same command again"
        with explained(folder, again if self.parts is not None else "Make room, and give the same command again"):
            write_row(_file(folder, one.name), one.row)


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.npz"


def piece_of(target: Target, late: Weights, early: Weights, leading: int | None, exact: bool) -> Piece:
    """The spectrum of one module's change."""
    sides = [replace(one, model=None, config={}) for one in (late, early)]
    return _piece(target, late, early, (leading, exact), partial(_spectrum, target, *sides, leading, exact))


def factors_piece(target: Target, late: Weights, early: Weights, leading: int | None, rank: int) -> Piece:
    """The factors of one module's change, of each expert where it has several."""
    sides = [replace(one, model=None, config={}) for one in (late, early)]
    facts = (leading, f"rank {rank}")
    return _piece(target, late, early, facts, partial(_factors, target, *sides, leading, rank))


def _piece(target: Target, late: Weights, early: Weights, asked: tuple[object, ...], make: Make) -> Piece:
    facts = (target.module, target.weight, target.shape, target.experts, *asked, _state(late), _state(early))
    return Piece(
        f"{target.module[-80:]}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}",
        max(target.experts, 1) * effort(target.shape),
        make,
        0,
        "×".join(map(str, target.shape)),
    )


def in_files(weights: Weights) -> bool:
    """Whether a model, and the adapter on it, can be recognised by its files."""
    return weights.model is None and all(Path(place).exists() for place in weights.place.split(TIMES))


def _state(weights: Weights) -> object:
    """What tells whether the files of a model are the same as before."""
    if not in_files(weights):
        return weights.place  # nothing of it is kept
    places = [Path(place) for place in weights.place.split(TIMES)]
    files = [file for place in places for file in (sorted(place.iterdir()) if place.is_dir() else [place])]
    return [(str(file.absolute()), (facts := os.stat(file)).st_size, facts.st_mtime_ns) for file in files]


def sized(target: Target, row: Row) -> Sized:
    """What rules need to know of a module, from its piece."""
    count = max(target.experts, 1)
    return Sized(
        row["values"], float(row["floor"]), count * target.inputs, count * target.outputs, rest=float(row["rest"])
    )


def changes_of(target: Target, late: Weights, early: Weights, device: str) -> list[WeightChange]:
    """ΔW of a target as it is stored, or of each of its experts."""
    name, start = target.weight.tuned, target.weight.base
    assert name is not None
    if not target.experts:
        return [weight_change(name, late, early, start, device=device)]
    return [
        WeightChange(
            target.module, target.shape,
            partial(_of_expert, late, name, k), partial(_of_expert, early, start or name, k), device,
        )
        for k in range(target.experts)
    ]  # fmt: skip


def _of_expert(weights: Weights, name: str, expert: int, rows: slice) -> Tensor:
    return weights.read(name, slice(expert, expert + 1))[0][rows]


def _spectrum(
    target: Target, late: Weights, early: Weights, leading: int | None, exact: bool, *, device: str = "cpu"
) -> Row:
    """Singular values; of experts, which share a rank, the k-th is the root of the sum of their k-th squares."""
    parts = [one_spectrum(change, leading, exact) for change in changes_of(target, late, early, device)]
    return {
        "values": np.sqrt(np.sum([values**2 for values, _, _ in parts], axis=0)),
        "floor": np.array(np.linalg.norm([floor for _, floor, _ in parts])),
        "rest": np.array(sum(rest for _, _, rest in parts)),
    }


def _factors(
    target: Target, late: Weights, early: Weights, leading: int | None, rank: int, *, device: str = "cpu"
) -> Row:
    pairs = [best_pair(change, rank, leading) for change in changes_of(target, late, early, device)]
    return {
        f"{side}_{k}": factor.cpu().numpy()
        for k, pair in enumerate(pairs)
        for side, factor in zip(("left", "right"), pair, strict=True)
    }


def best_pair(change: WeightChange, rank: int, leading: int | None) -> tuple[Tensor, Tensor]:
    """The best L (rows, rank) and R (rank, columns) of ΔW, among its leading directions where these are asked for."""
    return leading_split(dense(change), leading).cut(rank) if leading else factors(change, rank)


def one_spectrum(change: WeightChange, leading: int | None, exact: bool) -> tuple[np.ndarray, float, float]:
    """Singular values of one matrix, the largest that rounding gives, and the energy beyond the values."""
    if leading is None:
        whole = spectrum_of(change, rounding=not exact)
        return whole.values, whole.rounding, 0.0
    split = leading_split(dense(change), leading)
    tail = smaller_half(split.values, min(change.shape), split.rest)
    return split.values, 0.0 if exact else rounding_floor(change, tail), split.rest
