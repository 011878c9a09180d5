"""Weights that are stored in few bits, as the numbers that the model computes with; and quantised once more.

bitsandbytes stores a matrix as NF4 or FP4: two codes of 4 bits in a byte, the first in the upper half, in blocks of
consecutive entries; an entry is the code's value times the largest size in its block, and with double quantisation
these sizes are quantised in the same way, in 8 bits around their mean. LLM.int8() has the integer times the largest
size in its row, over 127. Other formats are refused.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from saddles.errors import SaddlesError
from saddles.probe.weights.checkpoints import ALL, FLOATS, Weights
from saddles.probe.weights.grid import Grid

_STATE = ".quant_state.bitsandbytes__"
_PARTS = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map")
_LEVELS = 127
"""The largest integer of LLM.int8()."""


@dataclass(frozen=True, eq=False)
class Blocks(Grid):
    """NF4 or FP4.

    Attributes:
        name: of the matrix in the file.
        weights: the file.
        facts: what bitsandbytes wrote beside it.
    """

    name: str
    weights: Weights = field(repr=False)
    facts: Mapping[str, object]

    @property
    def words(self) -> str:
        """The format."""
        return str(self.facts["quant_type"]).upper() + (" with double quantisation" if self._nested else "")

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the matrix."""
        shape = self.facts["shape"]
        assert isinstance(shape, list)
        return tuple(int(size) for size in shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of the numbers that the model computes with."""
        return getattr(torch, str(self.facts["dtype"]))

    @property
    def _nested(self) -> bool:
        return f"{self.name}.nested_absmax" in self.weights.shapes

    def read(self, rows: slice = ALL) -> Tensor:
        """Some rows as numbers."""
        codes, sizes, shape = self._codes(rows)
        return (self._part("quant_map")[codes] * sizes).to(self.dtype).reshape(shape)

    def variance(self, rows: slice = ALL) -> Tensor:
        """h²/12 of each entry in some rows."""
        codes, sizes, shape = self._codes(rows)
        values, place = self._part("quant_map").double().unique(return_inverse=True)  # FP4 has two zeros
        # Beyond the outermost codes nothing is rounded: the largest entry of a block is one of them.
        widths = torch.cat([values[:1], (values[1:] + values[:-1]) / 2, values[-1:]]).diff()
        return (widths[place][codes] * sizes).square().reshape(shape) / 12

    def again(self, matrix: Tensor) -> Tensor:
        """Other numbers, quantised in the same way."""
        flat, size = matrix.float().flatten(), self._number("blocksize")
        sizes = _largest(flat, size)
        if self._nested:
            mean, inner = sizes.mean(), self._number("nested_blocksize")
            around = sizes - mean
            sizes = _nearest(around, _largest(around, inner), inner, self._part("nested_quant_map")) + mean
        return _nearest(flat, sizes, size, self._part("quant_map")).reshape(matrix.shape).to(self.dtype)

    def _part(self, end: str) -> Tensor:
        return self.weights.read(f"{self.name}.{end}").float()

    def _number(self, key: str) -> int:
        return int(str(self.facts[key]))

    def _codes(self, rows: slice) -> tuple[Tensor, Tensor, tuple[int, ...]]:
        """Number of the code and largest size of the block of each entry in some rows, and their shape."""
        height, *others = self.shape
        first, last, _ = rows.indices(height)
        width = torch.Size(others).numel()
        begin, end = first * width, max(last, first) * width
        # Two codes in a byte: rows of odd width begin or end in the middle of one.
        held = slice(begin // 2, (end + 1) // 2)
        if self.weights.types[self.name] in ("uint8", "U8"):
            packed = self.weights.read(self.name, held).flatten()
        else:  # bytes in the disguise of another type, for FSDP
            packed = self.weights.read(self.name).flatten().view(torch.uint8)[held]
        codes = torch.stack([packed >> 4, packed & 15], dim=1).flatten()[begin % 2 :][: end - begin].long()
        block = torch.arange(begin, end) // self._number("blocksize")
        return codes, self._sizes()[block], (max(last - first, 0), *others)

    def _sizes(self) -> Tensor:
        if not self._nested:
            return self._part("absmax")
        codes = self.weights.read(f"{self.name}.absmax").flatten().long()
        inner = torch.arange(len(codes)) // self._number("nested_blocksize")
        values = self._part("nested_quant_map")[codes] * self._part("nested_absmax")[inner]
        return values + float(str(self.facts["nested_offset"]))


@dataclass(frozen=True, eq=False)
class Rows(Grid):
    """LLM.int8().

    Attributes:
        name: of the matrix in the file.
        sizes: name of the largest size in each row.
        weights: the file.
    """

    name: str
    sizes: str
    weights: Weights = field(repr=False)

    @property
    def words(self) -> str:
        """The format."""
        return "LLM.int8()"

    @property
    def dtype(self) -> torch.dtype:
        """Of the numbers that the model computes with."""
        return torch.float32

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the matrix."""
        return self.weights.shapes[self.name]

    def read(self, rows: slice = ALL) -> Tensor:
        """Some rows as numbers."""
        return self.weights.read(self.name, rows).float() * self._steps(rows)

    def variance(self, rows: slice = ALL) -> Tensor:
        """h²/12 of each entry in some rows."""
        steps = self._steps(rows).double().square() / 12
        return steps.expand(len(steps), self.shape[1])

    def again(self, matrix: Tensor) -> Tensor:
        """Other numbers, quantised in the same way."""
        steps = matrix.float().abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / _LEVELS
        return (matrix.float() / steps).round() * steps

    def _steps(self, rows: slice) -> Tensor:
        return self.weights.read(self.sizes, rows).float()[:, None] / _LEVELS


def _blocks(flat: Tensor, size: int) -> Tensor:
    return torch.nn.functional.pad(flat, (0, -len(flat) % size)).reshape(-1, size)


def _largest(flat: Tensor, size: int) -> Tensor:
    return _blocks(flat, size).abs().amax(dim=1)


def _nearest(flat: Tensor, sizes: Tensor, size: int, code: Tensor) -> Tensor:
    """Each entry as the nearest code's value times the size of its block."""
    values = code.sort().values
    tiny = torch.finfo(torch.float32).tiny
    scaled = _blocks(flat, size) / sizes.clamp_min(tiny)[:, None]
    found = torch.bucketize(scaled, (values[1:] + values[:-1]) / 2)
    return (values[found] * sizes[:, None]).flatten()[: len(flat)]


def dequantised(weights: Weights) -> Weights:
    """The same weights, quantised matrices as the numbers that the model computes with; `quantised` says how.

    Raises:
        SaddlesError: a format other than bitsandbytes', or a live model.
    """
    integers = [name for name, kind in weights.types.items() if kind not in FLOATS]
    if weights.model is not None:
        if any(name.endswith(".weight") for name in integers):
            raise SaddlesError(
                f"{weights.place} is quantised ({integers[0]}). Save it with save_pretrained, and give the folder."
            )
        return weights
    grids = _grids(weights, integers)
    if not grids:
        _refuse_others(weights)
        return weights
    inside = {f"{name}{end}" for name in grids for end in _PARTS}
    inside |= {name for name in integers if name not in grids} | {
        g.sizes for g in grids.values() if isinstance(g, Rows)
    }
    kept = {name: shape for name, shape in weights.shapes.items() if name not in inside}
    types = {name: str(grid.dtype).removeprefix("torch.") for name, grid in grids.items()}
    return replace(
        weights,
        shapes={name: grids[name].shape if name in grids else shape for name, shape in kept.items()},
        types={name: types.get(name, weights.types[name]) for name in kept},
        reader=partial(_read, weights, grids),
        quantised=grids,
    )


def _grids(weights: Weights, integers: list[str]) -> dict[str, Grid]:
    grids: dict[str, Grid] = {}
    for name in integers:
        module = name.removesuffix(".weight")
        if _STATE in name:
            home = name.split(_STATE)[0]
            try:
                facts = json.loads(bytes(weights.read(name).tolist()))
                grids[home] = Blocks(home, weights, {"quant_type": name.split(_STATE)[1], **facts})
                lacking = {"blocksize", "dtype", "shape"} - set(facts)
            except (ValueError, TypeError) as error:
                raise SaddlesError(f"{name} of {weights.place} is damaged ({error}). Save the model again.") from error
            if lacking or home not in weights.shapes or f"{home}.quant_map" not in weights.shapes:
                raise SaddlesError(f"{name} of {weights.place} lacks what it needs to be read. Save the model again.")
        elif f"{module}.SCB" in weights.shapes and weights.types[name] in ("int8", "I8"):
            grids[name] = Rows(name, f"{module}.SCB", weights)
    return grids


def _read(weights: Weights, grids: Mapping[str, Grid], name: str, rows: slice) -> Tensor:
    return grids[name].read(rows) if name in grids else weights.read(name, rows)


def _refuse_others(weights: Weights) -> None:
    """One sentence about formats that are not read, with what to do."""
    settings = weights.config.get("quantization_config")
    method = settings.get("quant_method") if isinstance(settings, Mapping) else None
    if method is None:
        return
    raise SaddlesError(
        f"{weights.place} is quantised by {method}; of quantised models those of bitsandbytes are read. Give the model "
        "before quantisation, or load this one with its own library, convert it to bfloat16 and save that."
    )
