"""Where the heads of a transformer lie: names and slices, never tensors.

A layout is made from parameter names, their shapes and a configuration, so it serves a live model and a checkpoint
whose tensors have not been read alike.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable


@runtime_checkable
class Array(Protocol):
    """A NumPy array or a torch tensor, as far as the probe needs it; its methods return the same kind."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, part: int | slice | tuple[slice, slice | int], /) -> Any: ...

    def swapaxes(self, first: int, second: int, /) -> Any: ...


SomeArray = TypeVar("SomeArray", bound=Array)

PRODUCTS = {"KQ": ("K", "Q"), "VO": ("V", "O")}
"""The two products of a head: W_K W_Qᵀ and W_V W_Oᵀ."""


@dataclass(frozen=True)
class Factor:
    """One d × d_h factor of one head inside a named tensor.

    Args:
        parameter: the tensor's name.
        rows: the first row and the one after the last, None for all.
        columns: the same for columns.
        transposed: the slice is stored as d_h × d.
        index: for a tensor with three axes: which matrix along `axis`.
        axis: the first (0) or the second (1).
        through: the factor before it, d × r, where a head reads a narrow latent of width r: the whole is `through`
            times this one, which is r × d_h.
    """

    parameter: str
    rows: tuple[int, int] | None = None
    columns: tuple[int, int] | None = None
    transposed: bool = False
    index: int | None = None
    through: "Factor | None" = None
    axis: int = 0

    @property
    def links(self) -> "tuple[Factor, ...]":
        """The chain of factors, the one that the block's input meets first."""
        return (*(self.through.links if self.through else ()), self)

    def cut(self, tensor: SomeArray) -> SomeArray:
        """The d × d_h factor (r × d_h behind a latent), cut from its tensor (a view where the tensor allows one)."""
        part = tensor
        if self.index is not None:
            part = tensor[:, self.index] if self.axis else tensor[self.index]
        if self.rows is not None:
            part = part[self.rows[0] : self.rows[1]]
        if self.columns is not None:
            part = part[:, self.columns[0] : self.columns[1]]
        return part.swapaxes(-1, -2) if self.transposed else part

    def shape(self, stored: tuple[int, ...]) -> tuple[int, int]:
        """(d, d_h) for a tensor stored with this shape; (r, d_h) behind a latent."""
        rows, columns = stored[-2:] if self.axis == 0 else (stored[0], stored[2])
        rows = rows if self.rows is None else self.rows[1] - self.rows[0]
        columns = columns if self.columns is None else self.columns[1] - self.columns[0]
        return (columns, rows) if self.transposed else (rows, columns)


@dataclass(frozen=True)
class Head:
    """One query head.

    Args:
        layer: which attention block, from 0 in the natural order of their names.
        head: which query head, from 0.
        factors: the four factors W_K, W_Q, W_V, W_O under "K", "Q", "V", "O".
        attention: the name of the attention block.
        family: the adapter that found it.
        rotary: a rotary embedding acts between W_Q and W_K; the product is the one at offset 0.
        normalised: a norm of queries and keys acts between them; it is not part of the product.
        beside: further parameters of the block, such as gates; what they do is not part of the products either.
        turned: how many columns, from the first, a rotary embedding turns; 0 where that is not known.
        neighbours: the two columns that turn together are next to each other, not half of `turned` apart.
    """

    layer: int
    head: int
    factors: Mapping[str, Factor] = field(hash=False)
    attention: str
    family: str
    rotary: bool = False
    normalised: bool = False
    beside: tuple[str, ...] = ()
    turned: int = 0
    neighbours: bool = False

    def parameters(self) -> set[str]:
        """The names of the tensors that hold it."""
        return {link.parameter for factor in self.factors.values() for link in factor.links}

    @property
    def is_chained(self) -> bool:
        """Whether a factor is a product of two matrices, as in latent attention."""
        return any(factor.through for factor in self.factors.values())


@dataclass(frozen=True)
class Module:
    """One plain weight matrix.

    Args:
        parameter: its name.
        shape: as stored.
        conv1d: stored as (in, out), as the Conv1D of GPT-2 does, instead of (out, in).
        given_rank: the rank of the low-rank factors that train it; None where it is trained itself.
        expert: which matrix of a tensor that holds those of all experts; None where the tensor is one matrix.
    """

    parameter: str
    shape: tuple[int, int]
    conv1d: bool = False
    given_rank: int | None = None
    expert: int | None = None

    @property
    def name(self) -> str:
        """The parameter's name, and the expert's number where it holds several matrices."""
        return self.parameter if self.expert is None else f"{self.parameter}[{self.expert}]"

    def cut(self, tensor: SomeArray) -> SomeArray:
        """The matrix in its tensor."""
        return tensor if self.expert is None else tensor[self.expert]

    @property
    def module(self) -> str:
        """The name of the module that owns it."""
        return self.parameter.removesuffix(".weight")


@dataclass(frozen=True)
class Layout:
    """The heads, plain matrices and skipped tensors of one model.

    Args:
        heads: by layer, then by head.
        modules: every matrix with more than one row and column, in natural order of names; of a tensor of experts each.
        skipped: (name, reason) of what is neither.
        verdicts: what `saddles.probe.verify` said of each layer; empty where it was not asked.
    """

    heads: tuple[Head, ...]
    modules: tuple[Module, ...]
    skipped: tuple[tuple[str, str], ...]
    verdicts: tuple[str, ...] = ()

    def layers(self) -> dict[int, list[Head]]:
        """Heads by layer."""
        layers: dict[int, list[Head]] = {}
        for head in self.heads:
            layers.setdefault(head.layer, []).append(head)
        return layers

    def head_parameters(self) -> tuple[str, ...]:
        """The tensors that hold heads, each once."""
        links = (link for head in self.heads for factor in head.factors.values() for link in factor.links)
        return tuple(dict.fromkeys(link.parameter for link in links))

    def parameters(self) -> tuple[str, ...]:
        """Every tensor that a measurement reads."""
        return tuple(dict.fromkeys([*self.head_parameters(), *(module.parameter for module in self.modules)]))

    def to_json(self) -> str:
        """The layout as text."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Layout":
        """The layout that `to_json` wrote."""
        data = json.loads(text, object_hook=_with_tuples)
        heads = (row | {"factors": {kind: _factor(f) for kind, f in row["factors"].items()}} for row in data["heads"])
        modules = tuple(Module(**row) for row in data["modules"])
        skipped, verdicts = tuple(tuple(row) for row in data["skipped"]), tuple(data.get("verdicts", ()))
        return cls(tuple(Head(**row) for row in heads), modules, skipped, verdicts)

    def __str__(self) -> str:
        """A table of heads by block, and of what was skipped."""
        lines = []
        for layer, heads in self.layers().items():
            first = heads[0]
            notes = [first.family] + ["rotary, at offset 0"] * first.rotary + ["norm left out"] * first.normalised
            notes += ["through a latent, without its rotary part"] * first.is_chained
            notes += [f"also in the block, and left out: {', '.join(first.beside)}"] * bool(first.beside)
            lines.append(f"layer {layer}: {len(heads)} heads in {first.attention} ({', '.join(notes)})")
        reasons: dict[str, list[str]] = {}
        for name, reason in self.skipped:
            reasons.setdefault(reason, []).append(name)
        lines += [f"skipped {len(names)}: {reason} ({names[0]}, …)" for reason, names in reasons.items()]
        return "\n".join([f"{len(self.heads)} heads, {len(self.modules)} matrices", *lines])


def _factor(row: Mapping[str, Any]) -> Factor:
    before = row.get("through")
    return Factor(**{**row, "through": None if before is None else _factor(before)})


def _with_tuples(row: dict[str, object]) -> dict[str, object]:
    """JSON has lists only: the fields that are tuples of numbers become tuples again."""
    pairs = ("rows", "columns", "shape", "beside")
    return {key: tuple(value) if key in pairs and isinstance(value, list) else value for key, value in row.items()}


def natural_order(name: str) -> list[tuple[int, int | str]]:
    """Sort key under which layers.10 comes after layers.9."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part]


def factor_names(heads: Iterable[Head]) -> set[str]:
    """All tensors that hold some of these heads."""
    return set().union(*(head.parameters() for head in heads))
