"""Add the seeds or scales of finished runs to a stored trajectory and draw its figure anew, or store first runs.

    python docs/join.py RUN [RUN ...] NAME --machine "one NVIDIA H200, torch 2.11.0" [--note "exact images"]

RUN is the folder of a run, NAME that of docs/results/NAME.zarr and of docs/figures/NAME.png. Runs must be of one
experiment, size and settings, but for those that change how a run is made and not what it is (FREE). Runs at other
scales of the initialisation must have the seeds of the store: give the runs of all seeds at once, in any order. Whole
spectra stay those of the first seed of the store, or of the first run where there is none. Then `python docs/derive.py`
computes the records and the verdicts over all seeds.
"""

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from PIL import Image

from saddles import load
from saddles.core.drawings import save_drawing
from saddles.core.experiment import Experiment, as_dict, find
from saddles.core.status import Status, status_of
from saddles.core.store import write_zarr
from saddles.errors import SaddlesError
from saddles.transformers.experiments.runs import LEADING, spectrum_excess

DOCS = Path(__file__).parent
FREE = ("seeds", "scales", "store", "tests", "accumulate")
"""Settings in which joined runs may differ; the first two are axes."""
SINGLE = ("singular_value", "initial_singular_value")
"""Kept of the first seed alone."""


def described(folder: Path, machine: str, note: str) -> xr.Dataset:
    """The trajectory of a run's folder with the command that made it, its machine and a note."""
    run = load(folder)
    if not isinstance(run, xr.Dataset) or not {"experiment", "size", "seed", "settings"} <= run.attrs.keys():
        raise SaddlesError.must_be("RUN", "the folder of one run, as `saddles run --out` makes it", str(folder))
    row, size = find(run.attrs["experiment"]), run.attrs["size"]
    usual, mine = (as_dict(row.settings(size, given)) for given in ({}, json.loads(run.attrs["settings"])))
    changed = "".join(f" --set {key}={_word(value)}" for key, value in mine.items() if value != usual[key])
    command = f"saddles run {row.name} --size {size} --seed {run.attrs['seed']}{changed}"
    return run.assign_attrs(command=command, machine=machine, **({"note": note} if note else {}))


def _word(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def joined(stored: xr.Dataset, run: xr.Dataset) -> xr.Dataset:
    """Both along the seed, or along the scale where their scales differ; refuses runs that do not belong together."""
    row = _same_experiment(stored, run)
    axis, other = (
        ("seed", "scale") if set(_labels(stored, "scale")) == set(_labels(run, "scale")) else ("scale", "seed")
    )
    if set(_labels(stored, other)) != set(_labels(run, other)):
        raise SaddlesError(
            f"{row.name}: a run of another seed must have all scales of the store, {_labels(stored, 'scale')}, and "
            f"runs at other scales all its seeds, {_labels(stored, 'seed')}; got scales {_labels(run, 'scale')} and "
            f"seeds {_labels(run, 'seed')}. Give the runs of all seeds at once."
        )
    again = sorted(set(_labels(stored, axis)) & set(_labels(run, axis)))
    if again:
        raise SaddlesError(f"{row.name}: the {axis} {again[0]} is stored already.")
    if axis == "scale" and _labels(run, "seed")[0] != _labels(stored, "seed")[0]:
        # Whole spectra have no axis of seeds: those of two seeds would stand side by side as if they were of one.
        raise SaddlesError(
            f"{row.name}: whole spectra of the store are those of the seed {_labels(stored, 'seed')[0]}. Give the run "
            "of this seed first."
        )
    longer = max((stored, run), key=lambda one: one.sizes["time"])
    known, new = stored["time"].values, run["time"].values
    least = min(len(known), len(new))  # a run that diverged has fewer
    if not np.array_equal(known[:least], new[:least]):
        raise SaddlesError(f"{row.name}: the runs were measured at other steps than each other.")
    parts = [of_every_seed(one.sel({other: stored[other]})) for one in (stored, run)]
    # Spectra of one that diverged were kept at steps of its own: those that the longer run has, too, remain.
    parts = [one.reindex(instant=longer["instant"]) if "instant" in one.dims else one for one in parts]
    names = [str(name) for name, one in parts[0].data_vars.items() if axis in one.dims and name in parts[1]]
    both = xr.concat(
        [part[names].reset_coords(drop=True) for part in parts], axis, data_vars="all", coords="minimal",
        compat="override", join="outer",
    )  # fmt: skip
    both = both.map(lambda one: one.transpose(*parts[0][one.name].dims))
    rest = parts[0].drop_vars(names).drop_dims(axis)
    whole = both.assign({name: rest[name] for name in rest.data_vars})
    steps = {name: longer[name] for name in longer.coords if longer[name].dims == ("time",)}
    others = {name: rest[name] for name in rest.coords if not {"time", "instant"} & set(rest[name].dims)}
    whole = whole.assign_coords(others | steps).assign_attrs(stored.attrs | _facts(stored, run))
    return whole.sortby("scale", ascending=False) if axis == "scale" else whole


def together(runs: Sequence[xr.Dataset]) -> xr.Dataset:
    """All of them: one after another those that fit, along the scale where they share their seeds, or along the seed.

    Whole spectra are those of the first seed of the first one, whatever the order of the others.
    """
    first_seed = _labels(runs[0], "seed")[0]
    parts = sorted(runs, key=lambda run: first_seed not in _labels(run, "seed"))
    while len(parts) > 1:
        every = [*itertools.combinations(range(len(parts)), 2)]
        pairs = [
            (one, other)
            for shared in ("seed", "scale")
            for one, other in every
            if set(_labels(parts[one], shared)) == set(_labels(parts[other], shared))
        ]
        first, second = pairs[0] if pairs else every[0]  # of which `joined` says what does not fit
        parts[first] = joined(parts[first], parts.pop(second))
    return parts[0]


def _labels(run: xr.Dataset, axis: str) -> list[Any]:
    return run[axis].values.tolist()


def _same_experiment(stored: xr.Dataset, run: xr.Dataset) -> Experiment[Any]:
    for name in ("experiment", "size"):
        if stored.attrs[name] != run.attrs[name]:
            raise SaddlesError.must_be(name, f"that of the store, {stored.attrs[name]}", run.attrs[name])
    row = find(stored.attrs["experiment"])
    first, second = (
        as_dict(row.settings(one.attrs["size"], json.loads(one.attrs["settings"]))) for one in (stored, run)
    )
    for key in first:
        if key not in FREE and first[key] != second[key]:
            raise SaddlesError.must_be(key, f"that of the store, {first[key]}", second[key])
    return row


def of_every_seed(run: xr.Dataset) -> xr.Dataset:
    """With what older trajectories do not hold of every seed: read off the spectra of the first, NaN for the others."""
    if "leading_singular_value" in run or not set(SINGLE) <= set(run):
        return run
    end, first = run["singular_value"], run["initial_singular_value"]
    leading = end.isel(index=slice(LEADING)).drop_vars("index", errors="ignore").rename(index="leading")
    found = {
        "leading_singular_value": leading,
        "spectrum_excess": spectrum_excess(end.isel(instant=-1, drop=True), first),
    }
    only = run["seed"].values[:1]
    spread = {name: one.expand_dims(seed=only).reindex(seed=run["seed"]) for name, one in found.items()}
    order = ("instant", "scale", "seed", ...)
    return run.assign({name: one.transpose(*order, missing_dims="ignore") for name, one in spread.items()})


def _facts(stored: xr.Dataset, run: xr.Dataset) -> dict[str, Any]:
    """What both say of themselves: times add up, words stand one after the other."""
    said = {
        name: [one.attrs[name] for one in (stored, run) if one.attrs.get(name)]
        for name in ("command", "machine", "note", "trained_on")
    }
    said |= {name: [word for one in said[name] for word in one.split("; ")] for name in said if name != "command"}
    words = {name: "; ".join(dict.fromkeys(parts)) for name, parts in said.items()}
    seconds = [float(one.attrs["wall_time_s"]) for one in (stored, run)]
    settings, more = (json.loads(one.attrs["settings"]) for one in (stored, run))
    if "scales" in settings:
        words["settings"] = json.dumps(settings | {"scales": sorted({*settings["scales"], *more["scales"]})[::-1]})
    facts = {"wall_time_s": round(sum(seconds), 3), "status": str(Status.all_of(map(status_of, (stored, run))))}
    return facts | {name: value for name, value in words.items() if value}


def draw(whole: xr.Dataset, file: Path) -> None:
    """The experiment's figure in 256 colours: a third of the bytes, and no difference to the eye."""
    with tempfile.TemporaryDirectory() as draft:
        save_drawing(find(whole.attrs["experiment"]).figure(whole), Path(draft) / "figure")
        Image.open(Path(draft) / "figure.png").quantize(256).save(file)


def main(arguments: list[str], docs: Path = DOCS) -> None:
    """Join, store and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="run")
    parser.add_argument("name")
    parser.add_argument("--machine", required=True)
    parser.add_argument("--note", default="")
    given = parser.parse_args(arguments)
    target = docs / "results" / f"{given.name}.zarr"
    stored = [load(target)] if target.exists() else []
    whole = together([*stored, *(described(run, given.machine, given.note) for run in given.runs)])
    draw(whole, docs / "figures" / f"{given.name}.png")  # first: what cannot be drawn is not stored either
    write_zarr(whole.drop_encoding(), target, replace=True)
    print(f"{target.name}: {whole.sizes['seed']} seeds. Next: python docs/derive.py")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SaddlesError as error:
        sys.exit(f"join.py: {error}")
