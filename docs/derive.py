"""Compute the numbers that pages tell of stored trajectories, and write them into the records.

    python docs/derive.py

A record of docs/results/FILE.json that is listed here gets `derived`, what was computed of each trajectory: nobody
types it. What a trajectory does not hold (the hours of a machine, say) stays in `values`. Of a trajectory that is not
the one of docs/stores.json any more the command, machine and date are written anew, too. The claims of the
trajectories, judged at the size they were run at, go to claims-large.json in the form of claims.json. A test computes
all of it again.
"""

import datetime
import json
import runpy
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import xarray as xr

from saddles import load
from saddles.core.claim import as_row
from saddles.core.experiment import find
from saddles.diffusion import Plan
from saddles.diffusion.experiments import verdicts
from saddles.measures.concept_space import exponential_tail
from saddles.studies import order_against_sim
from saddles.transformers.experiments.verdicts import EARLY, rising, rising_together
from saddles.transformers.experiments.verdicts import growth as rank_growth

RESULTS = Path(__file__).parent / "results"
NETWORKS = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("derive_networks.py"))))
STORES = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("stores.py"))))
Derive = Callable[[xr.Dataset], dict[str, Any]]


def growth(experiment: str, epochs: tuple[float, ...], size: str = "gpu") -> Derive:
    """Stable ranks by layer, mean over heads, of every scale and seed, with losses and claims."""

    def derive(run: xr.Dataset) -> dict[str, Any]:
        found: dict[str, Any] = {"seconds": run.attrs["wall_time_s"], "steps": int(run["step"][-1])}
        seen = [int(np.abs(run["epoch"].values - epoch).argmin()) for epoch in epochs]
        for product in ("KQ", "VO"):
            parts = rank_growth(run, product)
            rank = run["stable_rank"].sel(product=product).mean("head")
            parts |= {"initial": run["initial_stable_rank"].sel(product=product).mean("head")}
            parts |= {f"after epoch {run['epoch'].values[k]:.3g}": rank.isel(time=k) for k in seen}
            for words, value in parts.items():
                rows = value.transpose("scale", "seed", "layer")
                found |= {f"{product}, {words}, {label}": row for label, row in _runs(rows)}
            order, late = rising(run, product)
            for share, ratio in zip(order, late, strict=True):
                # An older store does not have them of every seed.
                place = run["seed"].values.tolist().index(share["seed"]) + 1
                seed = f", seed {place}" if run.sizes["seed"] > 1 else ""
                found[f"{product}, leading singular values that rise in order, share by scale{seed}"] = share
                found[f"{product}, step of the fifth over that of the first, by scale{seed}"] = ratio
        for name in ("train_loss", "test_loss", "test_accuracy"):
            rows = run[name].transpose("scale", "seed", "time")
            for label, row in _runs(rows):
                left = row.dropna("time")
                found |= (
                    {f"{name}, {label}: last, highest, lowest": [left[-1], left.max(), left.min()]} if left.size else {}
                )
        found["leading singular values of weights that diffuse that rise in order, share"] = rising_together(run)
        judged = find(experiment).claims(run, size)
        holds = sum(claim.verdict == "holds" for claim in judged)
        return (
            found | {claim.claim: claim.value for claim in judged} | {"claims that hold": holds, "claims": len(judged)}
        )

    return derive


def jump(run: xr.Dataset) -> dict[str, Any]:
    """The highest loss of an epoch after the second, the rate at which it comes, and ΔVO before it and at the end."""
    found: dict[str, Any] = {}
    flat = run.isel(scale=0) if "scale" in run.dims else run
    axis = "variant" if "variant" in flat.dims else "seed"
    for place, name in enumerate(flat[axis].values):
        one = flat.isel({axis: place})
        label = name if axis == "variant" else f"seed {place + 1}"
        seen = one[["train_loss", "rate"]].isel(time=slice(2, None)).dropna("time")  # all that one that diverged has
        worst = seen.isel(time=int(seen["train_loss"].values.argmax())) if seen.sizes["time"] else None
        rank = one["stable_rank"].mean("head")
        found[f"{label}: highest training loss of an epoch after the second, that epoch, its last rate"] = [
            np.nan if worst is None else worst[name] for name in ("train_loss", "epoch", "rate")
        ]
        for product in ("KQ", "VO"):
            ranks = rank.sel(product=product).transpose("time", "layer")
            found[f"{label}: {product} after epochs 6, 11, 26, 61, 100"] = ranks.sel(
                time=ranks["time"].values[[5, 10, 25, 60, 99]]
            )
            over = ranks[-1] / ranks[5]
            found[f"{label}: {product}, layers that end above epoch 6; at the end over epoch 6, lowest, highest"] = [
                (over > 1).sum(), over.min(), over.max()
            ]  # fmt: skip
        tested = one["test_accuracy"].dropna("time")
        last = tested[-1] if tested.size else np.nan
        found[f"{label}: last training loss, test accuracy"] = [one["train_loss"][-1], last]
    return found


def long_growth(experiment: str, steps: tuple[int, ...]) -> Derive:
    """The same of a long run with its means over seeds, and how long it takes until layers stay above their early rank.

    Args:
        steps: at which ranks are told.
    """

    def derive(run: xr.Dataset) -> dict[str, Any]:
        each = run["epoch"].values[-1] / run["step"].values[-1]
        found = growth(experiment, tuple(each * step for step in steps))(run)
        for product in ("KQ", "VO"):
            rank = run["stable_rank"].sel(product=product, scale=1).mean("head")
            later = rank.sel(time=slice(EARLY, None))
            above = later >= later.isel(time=0)
            for step in steps:
                found[f"{product}, mean of seeds, after {step} steps"] = rank.sel(time=step).mean("seed")
                if step > EARLY:
                    found[f"{product}, layers above their early rank after {step} steps"] = above.sel(time=step).sum(
                        "layer"
                    )
            below = later["time"].where(~above).max("time").fillna(0.0)
            for k in range(run.sizes["seed"]):
                path = later.isel(seed=k)
                found[f"{product}, last step below the early rank by layer, seed {k + 1}"] = below.isel(seed=k)
                found[f"{product}, lowest from early on, seed {k + 1}"] = path.min("time")
                found[f"{product}, step of the lowest, seed {k + 1}"] = path["time"][path.argmin("time")]
        found["train_loss, mean of the last 100 whole steps"] = run["train_loss"].sel(scale=1).isel(time=-2)
        return found

    return derive


def growth_by_scale(experiment: str) -> Derive:
    """The same at the end, and what a scale gives over all seeds: its mean, the lowest, the highest."""

    def derive(run: xr.Dataset) -> dict[str, Any]:
        last = run.isel(time=-1)
        told = {f"{name} at the end": last[name] for name in ("train_loss", "test_accuracy")}
        for product in ("KQ", "VO"):
            share, ratio = rising(run, product)
            told |= {
                f"{product} at the end": last["stable_rank"].sel(product=product).mean("head"),
                f"{product}, leading singular values that rise in order, share": share,
                f"{product}, step of the fifth over that of the first": ratio,
            }
        found = growth(experiment, ())(run)
        for words, values in told.items():
            for scale, rows in zip(run["scale"].values, values.transpose("scale", ...), strict=True):
                found[f"{words}, scale {scale:g}, mean over seeds"] = rows.mean("seed")
                found[f"{words}, scale {scale:g}, lowest, highest"] = _extremes(rows)
            if "layer" in values.dims:
                found[f"{words}, one seed over the mean of all, lowest, highest"] = _extremes(
                    values / values.mean("seed")
                )
        nulls = {f"{c.claim}: {c.against}": c.null for c in find(experiment).claims(run, "gpu") if c.null is not None}
        initial = _extremes(run["initial_stable_rank"].mean("head"))
        return found | nulls | {"initial products, mean over heads, lowest, highest": initial}

    return derive


def _extremes(values: xr.DataArray) -> list[xr.DataArray]:
    return [values.min(), values.max()]


def _runs(rows: xr.DataArray) -> list[tuple[str, xr.DataArray]]:
    """Each scale and seed under its name."""
    scales, seeds = rows.sizes["scale"], rows.sizes["seed"]
    return [
        (f"scale {float(rows['scale'][i]):g}, seed {k + 1}", rows[i, k]) for i in range(scales) for k in range(seeds)
    ]


def order(run: xr.Dataset) -> dict[str, Any]:
    """Figure 6a: when each concept is there."""
    when = verdicts.times_learned(run)
    rows = {
        f"separation {separation:g}, {concept}": when.sel(separation=separation, coordinate=concept)
        for separation in run["separation"].values
        for concept in ("colour", "size")
    }
    rho = [verdicts.order_claims(run.isel(seed=[k]), "gpu")[2].value for k in range(run.sizes["seed"])]
    return (
        rows
        | {"separation": run["separation"], "rho of each seed": rho}
        | {c.claim: c.value for c in verdicts.order_claims(run, "gpu")}
    )


def against_sim(run: xr.Dataset) -> dict[str, Any]:
    """The study's numbers."""
    study = order_against_sim(run)
    numbers = {str(name): study[name] for name in study.data_vars if study[name].ndim == 0}
    agree = study["agrees"].astype(float)
    return numbers | {"agree": agree.sum(), "runs": agree.size, "agree by separation": agree.mean("seed")}


def memorisation(run: xr.Dataset) -> dict[str, Any]:
    """Figure 6b: transient rises."""
    whole, single = verdicts.concept_error(run), verdicts.concept_error(run, ensemble=False)
    found: dict[str, Any] = {}
    for k, separation in enumerate(run["separation"].values):
        rows = [verdicts.transient_rise(single.isel(separation=k, seed=n)) for n in range(run.sizes["seed"])]
        mean = whole.isel(separation=k)
        together = run.mean("seed").isel(separation=k)
        for words, smooth in (("", 0.0), (", smoothed", verdicts.PATH_WIDTH)):
            found[f"separation {separation:g}, excess over trained classes, and of one of them{words}"] = np.array(
                verdicts.excess(together, smooth)
            )
        found[f"separation {separation:g}, rises of seeds"] = rows
        found[f"separation {separation:g}, rise of the mean, and its top's step"] = [
            verdicts.transient_rise(mean), run["time"][verdicts.highest(mean)]]  # fmt: skip
    strong = whole.isel(separation=-1)
    return found | {"steps": run["time"], "error of the mean at the strongest": strong}


def slowing(run: xr.Dataset) -> dict[str, Any]:
    """Figure 6c: the tail's fit, of the mean over seeds and of each."""
    path, target = verdicts.unseen(run), run["target"]
    mean = exponential_tail(path.mean("seed"), target)
    single = [exponential_tail(path.isel(seed=k), target)["fit"] for k in range(run.sizes["seed"])]
    fits = {f"R² of seed {k + 1}": fit for k, fit in enumerate(single)}
    smooth = exponential_tail(path.mean("seed"), target, smooth=verdicts.SPEED_WIDTH)
    judged = verdicts.slowing_claims(run, "gpu")[:3]
    fits |= {f"speeds in random order: {claim.claim}": claim.null for claim in judged}
    fits |= {claim.claim: claim.value for claim in judged} | {"speed smoothed by": verdicts.SPEED_WIDTH}
    fits |= {f"{name}, smoothed": smooth[name] for name in ("rate", "low", "high", "fit")}
    return {str(name): mean[name] for name in mean.data_vars} | fits | {"separation": run["separation"]}


def dense(run: xr.Dataset) -> dict[str, Any]:
    """Figures 6a to 6c with evaluations every 50 steps, and at the evaluations of the older runs alone."""
    moments = Plan(int(run["time"][-1]), evaluations=40).moments()
    found: dict[str, Any] = {}
    for words, seen in (("", run), (" at 40 evaluations", run.sel(time=np.array(moments, dtype=float)))):
        when = verdicts.times_learned(seen)
        found |= {f"{one}, seed by seed{words}": when.sel(coordinate=one) for one in ("colour", "size")}
        for judge in (verdicts.order_claims, verdicts.memorisation_claims, verdicts.slowing_claims):
            for claim in judge(seen, "gpu"):
                found[f"{claim.claim}{words}"] = [claim.value, np.nan if claim.null is None else claim.null]
    path = verdicts.unseen(run)
    late = path.sel(time=slice(1000, 2000))
    found["colour and size, largest step from one evaluation to the next after step 1,000, mean over runs"] = (
        np.abs(late.diff("time")).max("time").mean(["separation", "seed"])
    )
    return found | {
        "separation": run["separation"],
        "evaluations": run.sizes["time"],
        "seconds": run.attrs["wall_time_s"],
    }


PHASES = {name: f"networks-phase-diagram-{name}" for name in ("linear", "relu", "tanh")}
VIT, SGD = "transformers/vit-cifar10-adam", "transformers/vit-cifar10-sgd"
GPT2 = "transformers/gpt2-wikitext"
SWEEP, LONG, DENSE = "diffusion-figure-6a", "diffusion-figure-6b", "diffusion-dense"
DERIVED: dict[str, Mapping[str, Any]] = {
    "transformers.json#h200": {"transformers-vit-cifar10-adam": growth(VIT, (1, 5, 126, 500), "paper")},
    "transformers.json#init-scale": {"transformers-vit-init-scale": growth_by_scale("transformers/vit-init-scale")},
    "transformers.json#sgd": {"transformers-vit-cifar10-sgd": growth(SGD, (1, 6, 26, 100))},
    "transformers.json#sgd-paper": {"transformers-vit-cifar10-sgd-paper": growth(SGD, (1, 6, 26, 100, 500), "paper")},
    "transformers.json#sgd-jump": {
        "transformers-vit-cifar10-sgd": jump,
        "transformers-vit-cifar10-sgd-paper": jump,
        "transformers-vit-cifar10-sgd-variants": jump,
    },
    "transformers.json#gpt2": {"transformers-gpt2-wikitext2": growth(GPT2, (0.034, 3))},
    "transformers.json#enwik8": {"transformers-gpt2-enwik8": growth(GPT2, (0.001, 0.0036, 0.0046, 0.1))},
    "transformers.json#enwik8-tokens": {
        "transformers-gpt2-enwik8-tokens": long_growth(GPT2, (100, 1_000, 2_000, 5_000, 10_000, 15_000, 20_000, 22_001))
    },
    "networks.json#slopes-gpu": dict.fromkeys(PHASES.values(), NETWORKS.diagram),
    "networks.json#depth-gpu": {"networks-depth": NETWORKS.borders},
    "networks.json#fine-tune-gpu": {"networks-fine-tune": NETWORKS.merges},
    "networks.json#vit-regime-gpu": {"networks-vit-regime": NETWORKS.grid},
    "networks.json#linearised-vit-gpu": {"networks-linearised-vit": NETWORKS.parting},
    "diffusion.json#figure-6a": {SWEEP: order},
    "diffusion.json#sim": {SWEEP: against_sim},
    "diffusion.json#figure-6b": {SWEEP: memorisation, LONG: memorisation},
    "diffusion.json#figure-6c": {SWEEP: slowing, LONG: slowing},
    "diffusion.json#dense": {DENSE: dense},
    "diffusion.json#dense-sim": {DENSE: against_sim},
}


JUDGED = [
    ("linear-figure-2", "linear/figure-2"),
    *((name, "networks/phase-diagram") for name in PHASES.values()),
    ("networks-depth", "networks/depth"),
    ("networks-fine-tune", "networks/fine-tune"),
    ("networks-vit-regime", "networks/vit-regime"),
    ("transformers-vit-cifar10-adam", VIT),
    ("transformers-vit-cifar10-sgd", SGD),
    ("transformers-vit-cifar10-sgd-paper", SGD),
    ("transformers-vit-init-scale", "transformers/vit-init-scale"),
    ("transformers-gpt2-wikitext2", GPT2),
    ("transformers-gpt2-enwik8", GPT2),
    ("transformers-gpt2-enwik8-tokens", GPT2),
    (SWEEP, "diffusion/figure-6a"),
    (SWEEP, "diffusion/figure-6b"),
    (LONG, "diffusion/figure-6b"),
    (SWEEP, "diffusion/figure-6c"),
    *((DENSE, f"diffusion/figure-6{letter}") for letter in "abc"),
]


def judged() -> dict[str, Any]:
    """Claims of the stored trajectories: a record for each pair of experiment and trajectory."""
    records: dict[str, Any] = {}
    for name, experiment in JUDGED:
        row, run = find(experiment), load(RESULTS / f"{name}.zarr").load()
        size = run.attrs["size"]
        facts = {"title": row.title, "paper": row.paper, "size": size, "stored": f"results/{name}.zarr"}
        facts |= {
            "machine": run.attrs.get("machine", run.attrs.get("device", "")),
            "wall_time_s": run.attrs["wall_time_s"],
        }
        claims = [as_row(one) for one in row.claims(run, size)]
        for one in claims:
            one |= {key: _rounded(one[key]) for key in ("value", "spread", "null") if key in one}
        records[f"{experiment}@{name}"] = facts | {"claims": claims}
    return {"records": records}


def derived(place: str) -> dict[str, Any]:
    """The numbers of one record by trajectory, to five digits."""
    found = {}
    for name, derive in DERIVED[place].items():
        values = derive(load(RESULTS / f"{name}.zarr").load())
        found[f"{name}.zarr"] = {words: _rounded(value) for words, value in values.items()}
    return found


def grown(names: Iterable[str]) -> bool:
    """Whether a store is another than the one that was told of last, as docs/stores.json has it."""
    known = STORES.listed()
    return any(known.get(f"{name}.zarr") != STORES.summary(STORES.read(RESULTS / f"{name}.zarr")) for name in names)


def _rounded(value: Any) -> Any:
    flat = np.atleast_1d(np.asarray(value, dtype=float)).ravel()
    rows = [float(f"{number:.5g}") if np.isfinite(number) else str(number) for number in flat]
    return rows if np.ndim(value) else rows[0]


def main() -> None:
    """Write all of them."""
    for place in DERIVED:
        file, _, key = place.partition("#")
        stored = RESULTS / file
        whole = json.loads(stored.read_text("utf-8"))
        told = [load(RESULTS / f"{name}.zarr").attrs for name in DERIVED[place]]
        facts = {
            "command": "; ".join(one.get("command", one.get("made_by", "saddles run")) for one in told),
            "machine": "; ".join(dict.fromkeys(one.get("machine", one.get("device", "")) for one in told)),
            "date": datetime.date.today().isoformat(),
            "values": {},
        }
        record = whole["records"].get(key, {})
        # What somebody wrote about command and machine stays until there is more than it speaks of.
        kept = {"values": record.get("values", {})} if grown(DERIVED[place]) else record
        whole["records"][key] = facts | kept | {"derived": derived(place)}
        stored.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", "utf-8")
        print(place)
    (RESULTS / "claims-large.json").write_text(json.dumps(judged(), indent=1, ensure_ascii=False) + "\n", "utf-8")
    STORES.write_list(RESULTS)


if __name__ == "__main__":
    main()
