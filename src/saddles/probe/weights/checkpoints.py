"""Weights wherever they are: a live model, a Hugging Face folder, a safetensors or torch file.

Names, shapes and places in the file are read once; a tensor is read when it is needed, whole or by rows, from its
place, so that time is linear in the number of tensors and memory does not grow with the model. A pickle is opened with
`weights_only` or not at all.
"""

import json
import math
import os
import pickle
import pickletools
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from saddles.errors import SaddlesError
from saddles.probe.layouts.head_counts import Config
from saddles.probe.weights import live_model
from saddles.probe.weights.distributed import METADATA, read_tensor, tensors_in
from saddles.probe.weights.folders import (
    MOST_STEPS,
    config_in,
    explain_foreign,
    few,
    holds_weights,
    shards,
    step_of,
    weight_map,
)
from saddles.probe.weights.grid import Grid
from saddles.probe.weights.live_model import full_shape, plain_name

TORCH_ENDINGS = (".pt", ".pth", ".bin", ".ckpt")
NESTS = ("state_dict", "model_state_dict", "model", "module", "app")
"""Keys under which training scripts put the weights."""

FACTS = ("config", "model_config", "hyper_parameters", "model_args")
"""Keys under which they put the settings of the model (nanoGPT the last one, Lightning the third); the last wins."""

COUNTERS = ("global_step", "iter_num", "step")
"""Keys under which they count steps."""

FLOATS = ("float64", "float32", "float16", "bfloat16")
"""Types of numbers whose changes can be measured."""

OPEN_FILES = 4
"""Torch files that are kept open: one of the old format is in memory as a whole. A pair of them is opened once each."""

FSDP_PART = "pytorch_model_fsdp_0"
"""Where the Trainer of transformers puts a sharded model of FSDP inside a checkpoint."""

ALL = slice(None)

SAFE_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
"""Types of safetensors files that are read; names and shapes of others are shown."""

Source = str | os.PathLike[str] | torch.nn.Module
"""What `open_weights` takes."""

_Facts = tuple[Config, int | None]
"""Settings of a model, and its step."""


@dataclass(frozen=True, eq=False)
class Weights:
    """Named tensors of one model at one instant, read one by one.

    Attributes:
        place: where they are, in words.
        shapes: name -> shape, of every tensor.
        types: name -> how the numbers are stored, as torch spells it (`bfloat16`).
        reader: (name, rows) -> tensor; called by `read`.
        config: the model's config.json, empty where there is none.
        step: the training step, where the place tells it.
        notes: what is odd about it, one sentence each.
        model: the live model, where it is one.
        files: name -> the file that holds it, where they lie in files.
        quantised: name -> how it is quantised, where `saddles.probe.weights.quantised` has read it as numbers.
    """

    place: str
    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, str]
    reader: Callable[[str, slice], Tensor] = field(repr=False)
    config: Config = field(default_factory=dict, repr=False)
    step: int | None = None
    notes: tuple[str, ...] = ()
    model: torch.nn.Module | None = field(default=None, repr=False)
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    quantised: Mapping[str, Grid] = field(default_factory=dict, repr=False)

    def read(self, name: str, rows: slice = ALL) -> Tensor:
        """One tensor, or some of its rows, on the CPU as it is stored."""
        return self.reader(name, rows)


def open_weights(source: Source) -> Weights:
    """Open a live model, a Hugging Face folder, or a .safetensors or torch file; reads names and shapes only."""
    if isinstance(source, torch.nn.Module):
        return _open_model(source)
    place = Path(source)
    if place.is_dir():
        return _open_folder(place)
    if not place.exists():
        raise SaddlesError(f"{place} does not exist. Check the path: nothing is downloaded.")
    return _open_files(place, [place], config_in(place.parent))


def _open_model(model: torch.nn.Module) -> Weights:
    tensors = live_model.parameters(model)
    if not tensors:
        raise SaddlesError(f"The model, a {type(model).__name__}, has no weights.")
    read = live_model.reader(tensors)
    return Weights(
        place=f"a live {type(model).__name__}",
        shapes={name: full_shape(tensor) for name, tensor in tensors.items()},
        types={name: _type_name(tensor) for name, tensor in tensors.items()},
        reader=lambda name, rows: (whole[rows] if (whole := read(name)).ndim else whole).cpu(),
        config=live_model.configuration(model),
        model=model,
    )


def _open_folder(folder: Path) -> Weights:
    config = config_in(folder)
    safe = [file for file in sorted(folder.glob("*.safetensors")) if not file.name.startswith("adapter_")]
    # safetensors win over torch files: a folder often holds both, and nothing in the former can run code.
    indexes = sorted(folder.glob("*.safetensors.index.json")) or (not safe and sorted(folder.glob("*.bin.index.json")))
    if indexes:
        homes = weight_map(indexes[0])
        return _open_files(folder, shards(indexes[0], homes), config, homes)
    files = safe or [f for f in sorted(folder.iterdir()) if f.suffix in TORCH_ENDINGS and holds_weights(f)]
    if len(files) == 1:
        return _open_files(folder, files, config)
    explain_foreign(folder)
    parts = next((one for one in (folder, folder / FSDP_PART) if (one / METADATA).is_file()), None)
    if parts is not None:
        return _open_distributed(folder, parts, config or config_in(folder.parent))
    if files:
        shards_ = [f for f in files if re.search(r"-\d+-of-\d+\.", f.name)]
        if shards_:
            raise SaddlesError(
                f"{folder} holds {len(shards_)} shards and no index. Copy model.safetensors.index.json, which says "
                "what is where, from the source of the shards."
            )
        raise SaddlesError(
            f"{folder} holds several models ({', '.join(f.name for f in files[:4])}). Give the path of one file."
        )
    if (folder / "adapter_config.json").is_file():
        raise SaddlesError(
            f"{folder} holds a PEFT adapter and no weights of a model. Merge it first: "
            "PeftModel.from_pretrained(base, folder).merge_and_unload().save_pretrained(...)."
        )
    raise SaddlesError(f"{folder} holds no weights (.safetensors, .pt, .bin). Give the folder of a saved model.")


def _open_distributed(place: Path, folder: Path, config: Config) -> Weights:
    found = {plain_name(name): facts for name, facts in tensors_in(folder, NESTS).items()}
    if not found:
        raise SaddlesError(f"{place} holds no tensors of a model. Give the folder of a saved model.")
    step, notes = step_of(place)
    return Weights(
        str(place),
        {name: shape for name, (_, shape, _) in found.items()},
        {name: str(kind).removeprefix("torch.") for name, (_, _, kind) in found.items()},
        partial(_read_distributed, folder, found),
        config,
        step,
        notes,
    )


def _read_distributed(
    folder: Path, found: Mapping[str, tuple[str, tuple[int, ...], torch.dtype]], name: str, rows: slice
) -> Tensor:
    return read_tensor(folder, *found[name])[rows]


def of_tensors(tensors: Mapping[str, Tensor], place: str) -> Weights:
    """Tensors in memory, such as a state dict."""
    return Weights(
        place,
        {name: full_shape(tensor) for name, tensor in tensors.items()},
        {name: _type_name(tensor) for name, tensor in tensors.items()},
        lambda name, rows: tensors[name].detach()[rows].cpu(),
    )


def _open_files(place: Path, files: list[Path], config: Config, index: Mapping[str, str] = {}) -> Weights:
    shapes: dict[str, tuple[int, ...]] = {}
    types: dict[str, str] = {}
    homes: dict[str, _Home] = {}
    facts: list[_Facts] = []
    for file in files:
        for stored, shape, kind, home in _contents(file, facts):
            name = plain_name(stored)
            if name in shapes:
                raise SaddlesError(f"{place} holds {name} twice. Save the model again.")
            shapes[name], types[name], homes[name] = shape, kind, home
    lost = [name for name, file in index.items() if _file_of(homes.get(plain_name(name))) != file]
    if lost:
        raise SaddlesError(
            f"The index and the shards of {place} must agree; the shards lack {len(lost)} tensors of the index "
            f"({few(lost)}). Save or copy the model again."
        )
    if not shapes:
        raise SaddlesError(f"{place} holds no tensors. Give a saved model.")
    step, notes = step_of(place)
    for said, counted in facts[:1]:
        config, step = {**said, **config}, counted if step is None else step
    where = {name: home.file.name for name, home in homes.items()}
    return Weights(str(place), shapes, types, partial(_read, homes), config, step, notes, files=where)


def _facts(stored: object) -> _Facts:
    """What a training script wrote beside the weights: settings of the model, and the step."""
    if not isinstance(stored, dict):
        return {}, None
    settings: dict[str, object] = {}
    for key in FACTS:
        part = stored.get(key)
        inner = [part, *part.values()] if isinstance(part, dict) else []  # Lightning keeps arguments by their names
        for one in reversed([row for row in inner if isinstance(row, dict)]):
            settings |= {str(name): value for name, value in one.items() if isinstance(value, str | int | float | dict)}
    steps = (stored.get(key) for key in COUNTERS)
    return settings, next((n for n in steps if type(n) is int and 0 <= n <= MOST_STEPS), None)


@dataclass(frozen=True)
class _Home:
    """Where a tensor is stored: in a safetensors file from byte `begin` on, or under a name in a torch file."""

    file: Path
    stored: str
    begin: int | None = None
    kind: torch.dtype | None = None
    shape: tuple[int, ...] = ()


def _file_of(home: _Home | None) -> str:
    return home.file.name if home else ""


def _contents(file: Path, facts: list[_Facts]) -> list[tuple[str, tuple[int, ...], str, _Home]]:
    """Name, shape, type and place of each tensor of a file; no tensor is read. Torch files add their facts."""
    if file.suffix == ".safetensors":
        rows = []
        for name, (kind, shape, begin) in _safe_header(file).items():
            home = _Home(file, name, begin, SAFE_TYPES.get(kind), shape)
            rows.append((name, shape, _safe_type(kind), home))
        return rows
    if file.suffix in TORCH_ENDINGS:
        tensors = _torch_tensors(file, facts)
        return [(name, tuple(t.shape), _type_name(t), _Home(file, name)) for name, t in tensors.items()]
    raise SaddlesError(f"{file} must end in .safetensors, {' or '.join(TORCH_ENDINGS)}. Convert it to safetensors.")


def _safe_header(file: Path) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """Type, shape and first byte of each tensor; the library has checked the header before it is read here."""
    with _safe(file), file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    return {
        str(name): (row["dtype"], tuple(row["shape"]), 8 + length + int(row["data_offsets"][0]))
        for name, row in header.items()
    }


def _safe_type(word: str) -> str:
    return {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}.get(word, word)


def _read(homes: Mapping[str, _Home], name: str, rows: slice) -> Tensor:
    home = homes[name]
    if home.begin is not None:
        return _read_safe(home, rows)
    whole = _torch_tensors(home.file)[home.stored]
    if whole.is_meta or whole.layout != torch.strided:
        kind = "no values (it is on the meta device)" if whole.is_meta else "a sparse layout"
        raise SaddlesError(f"{home.stored} of {home.file} has {kind}. Save the loaded, dense model again.")
    return (whole if rows == ALL else whole[rows]).clone()


def _read_safe(home: _Home, rows: slice) -> Tensor:
    """Rows of a tensor straight from their bytes: opening the file through the library reads all its names again."""
    if home.kind is None:
        raise SaddlesError(f"{home.stored} of {home.file} has numbers of a type that cannot be read.")
    first, last, _ = rows.indices(home.shape[0]) if home.shape else (0, 1, 1)
    shape = (max(last - first, 0), *home.shape[1:]) if home.shape else ()
    row = math.prod(home.shape[1:]) * home.kind.itemsize
    raw = torch.empty(math.prod(shape) * home.kind.itemsize, dtype=torch.uint8)
    try:
        with home.file.open("rb") as stream:
            stream.seek((home.begin or 0) + first * row)
            if raw.numel() and stream.readinto(raw.numpy().data) != raw.numel():
                raise _broken(home.file, EOFError("the file ends too early"))
    except OSError as error:
        raise _broken(home.file, error) from error
    return raw.view(home.kind).reshape(shape)


def _safe(file: Path) -> safe_open:
    """Open a safetensors file; its header is checked against the file's length by the library."""
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise _broken(file, error) from error


def _broken(file: Path, error: Exception) -> SaddlesError:
    return SaddlesError(
        f"{file} is truncated or damaged ({error}). Compare its size and checksum with the source and copy it again."
    )


def _torch_tensors(file: Path, facts: list[_Facts] | None = None) -> dict[str, Tensor]:
    """The tensors of a torch file, opened when it was not among the last few."""
    try:
        state = file.stat()
    except OSError as error:
        raise _broken(file, error) from error
    tensors, said = _opened(file, state.st_mtime_ns, state.st_size)
    if facts is not None:
        facts.append(said)
    return tensors


@lru_cache(maxsize=OPEN_FILES)
def _opened(file: Path, changed: int, size: int) -> tuple[dict[str, Tensor], _Facts]:
    """Tensors and facts of a torch file, mapped where the format allows; nothing in it is executed."""
    try:
        stored = _load(file)
    except Exception as error:  # of bytes that are no pickle, torch's reader raises anything
        if isinstance(error, pickle.UnpicklingError) and _is_pickle(file):
            raise SaddlesError(
                f"{file} is a pickle that wants to run code when it is opened, and was not opened. Where you trust it, "
                f"two lines convert it: `weights = torch.load({str(file)!r}, weights_only=False)` (then its "
                "state_dict, if that is inside) and "
                f"`safetensors.torch.save_file(weights, {file.stem + '.safetensors'!r})`."
            ) from error
        words = str(error).splitlines()[0] if str(error) else type(error).__name__
        words = "its bytes are not a pickle" if isinstance(error, pickle.UnpicklingError) else words
        raise SaddlesError(f"{file} cannot be read as a torch file ({words}). Copy it again.") from error
    facts = _facts(stored)
    for key in NESTS:
        if isinstance(stored, dict) and isinstance(stored.get(key), dict):
            stored = stored[key]
    tensors = {str(k): v for k, v in stored.items() if isinstance(v, Tensor)} if isinstance(stored, dict) else {}
    if not tensors:
        raise SaddlesError(f"{file} holds no state_dict, neither itself nor under {' or '.join(NESTS)}.")
    return tensors, facts


def _is_pickle(file: Path) -> bool:
    """Whether a file is a pickle, or an archive with one; it is only looked at."""
    if zipfile.is_zipfile(file):
        return True
    try:
        with file.open("rb") as stream:
            return all(True for _ in pickletools.genops(stream))
    except Exception:  # the first byte that is no instruction
        return False


def _load(file: Path) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about pickles that it then refuses
        try:
            return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # the old format cannot be mapped
            return torch.load(file, map_location="cpu", weights_only=True)


def _type_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
