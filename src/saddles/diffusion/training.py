"""Train a diffusion model, look at it in concept space while it learns, and be able to stop anywhere.

What a step sees (images, times, noise) is a function of (seed, step), so a run that goes on from a checkpoint is the
run that was not interrupted.
"""

import contextlib
import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saddles.core.trajectory import DIVERGED, FINISHED, Trajectory, make_trajectory
from saddles.diffusion.evaluation import Evaluation, Seen
from saddles.diffusion.graphs import Replay
from saddles.diffusion.images import CLASSES, CONCEPTS, Circles, training_set
from saddles.diffusion.vdm import TERMS, VDM, times
from saddles.errors import SaddlesError
from saddles.runtime.progress import bar
from saddles.training.stepping import fitting, generator_of, patient, within_memory, write_checkpoint

CURVES = (*TERMS, "gamma_min", "gamma_max")


@dataclass(frozen=True)
class Plan:
    """One training run; the defaults are the paper's.

    Args:
        steps, batch: how long, how many images a step.
        rate, decay: of AdamW.
        images: a class in the training set (the public code of Park et al. has 2048; the paper does not say).
        evaluations: how many, at steps that are equally spaced in their square root, as there.
        first: step of the first one, as a share of all steps.
    """

    steps: int = 20_000
    batch: int = 128
    rate: float = 1e-3
    decay: float = 0.01
    images: int = 2048
    evaluations: int = 60
    first: float = 0.005

    def __post_init__(self) -> None:
        if min(self.steps, self.batch, self.images, self.evaluations) < 1 or self.rate <= 0 or self.decay < 0:
            raise SaddlesError.about(
                f"{self} came", "counts are at least 1, the rate is positive, the decay not negative", "check them"
            )
        if not 0 < self.first <= 1:
            raise SaddlesError.about(f"first={self.first} came", "it is a share of the steps", "try 0.005")

    def moments(self) -> list[int]:
        """Steps at which the model is looked at."""
        roots = np.linspace(math.sqrt(self.first * self.steps), math.sqrt(self.steps), self.evaluations)
        return sorted({max(1, round(root**2)) for root in roots} | {self.steps})


@dataclass
class _State:
    """Everything a run needs to go on."""

    model: VDM
    optimiser: Any
    sums: torch.Tensor
    step: int = 0
    since: int = 0
    curves: dict[int, list[float]] = field(default_factory=dict)
    seen: dict[int, list[torch.Tensor]] = field(default_factory=dict)

    def store(self, file: Path | None, identity: str) -> None:
        if file is None:
            return
        parts = {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict(), "sums": self.sums}
        rest = {"step": self.step, "since": self.since, "curves": self.curves, "seen": self.seen, "of": identity}
        write_checkpoint(parts | rest, file)

    def restore(self, file: Path, identity: str) -> None:
        with fitting(file):
            stored = torch.load(file, map_location=self.sums.device, weights_only=True)
            if stored["of"] != identity:
                raise ValueError("it is of another run")
            self.model.load_state_dict(stored["model"])
            self.optimiser.load_state_dict(stored["optimiser"])
            self.sums = stored["sums"].to(self.sums.device)
            self.step, self.since, self.curves = stored["step"], stored["since"], stored["curves"]
            self.seen = {step: [value.cpu() for value in row] for step, row in stored["seen"].items()}


def train(
    model: VDM,
    circles: Circles,
    look: Evaluation,
    plan: Plan | None = None,
    *,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    store_every: float = 60.0,
    until: float = math.inf,
    title: str = "training",
) -> Trajectory:
    """Train and return how the four classes moved through concept space, with the terms of the bound beside it.

    Args:
        model: on its device already; on a GPU it runs in bfloat16 as a CUDA graph, its weights stay float32.
        look: the evaluation, at the plan's moments.
        seed: of the training set, of the order of images, of times and of noise.
        folder: holds the checkpoint; what is there already is gone on with.
        store_every: seconds from one checkpoint to the next; they are written at evaluations.
        until: seconds after which the run stops at the next evaluation, as it is.

    Returns `output` (time, point, coordinate), `accuracy` (time, point), the terms of the bound in bits per
    dimension (means since the evaluation before), `gamma_min` and `gamma_max` (time), and `image` (time, point, row,
    column, channel). A loss that is not a number stops the run; what was seen until then is kept, and the status
    says so. The first Ctrl-C is held back until the step is whole and stored.
    """
    plan = plan or Plan()
    device = model.offset.device
    gpu = device.type == "cuda"
    model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    settings: Any = {"fused": True, "capturable": True} if gpu else {}
    optimiser = torch.optim.AdamW(model.parameters(), lr=plan.rate, weight_decay=plan.decay, **settings)
    state = _State(model, optimiser, torch.zeros(len(TERMS), device=device))
    file = None if folder is None else Path(folder) / "checkpoint.pt"
    identity = f"{circles} {plan} {seed} {look.shown} {look.sampling} {look.seed}"
    if file is not None and file.exists():
        state.restore(file, identity)
    began = time.perf_counter()
    with within_memory(f"lower batch below {plan.batch}"):
        loop = _Loop(state, circles, look, plan, seed, identity)
        if gpu:
            loop.capture()
        status = loop.go(file, store_every, began + until, title)
    return _labelled(state, circles, plan, seed, status, time.perf_counter() - began)


class _Loop:
    def __init__(self, state: _State, circles: Circles, look: Evaluation, plan: Plan, seed: int, identity: str) -> None:
        self.state, self.look, self.plan, self.seed, self.identity = state, look, plan, seed, identity
        self.device = state.sums.device
        self.images, self.described = training_set(circles, plan.images, seed, self.device)
        self.moments = set(plan.moments())
        self.advance: Callable[..., torch.Tensor] = self._advance
        self.denoiser: Callable[..., torch.Tensor] = self._denoise

    def capture(self) -> None:
        """Replay the training step and the denoiser as CUDA graphs from here on; where that fails, go on without."""
        model, optimiser = self.state.model, self.state.optimiser

        def made() -> list[torch.Tensor]:
            return [value for row in optimiser.state.values() for value in row.values() if torch.is_tensor(value)]

        try:
            self.advance = Replay(self._advance, self._batch(0), [*model.parameters(), *made()], made)
            self.denoiser = Replay(self._denoise, self.look.inputs(self.device))
        except RuntimeError as error:
            words = str(error).splitlines()[0]
            warnings.warn(f"training goes on without CUDA graphs, some times slower ({words})", stacklevel=3)
            self.advance, self.denoiser = self._advance, self._denoise

    def go(self, file: Path | None, store_every: float, end: float, title: str) -> str:
        """Step until the end; returns the status."""
        state, stored = self.state, time.monotonic()
        with bar(title, self.plan.steps) as progress, patient() as asked:
            while state.step < self.plan.steps:
                self._step()
                progress.reach(state.step)
                if state.step in self.moments:
                    if not self._look():
                        return f"{DIVERGED} at step {state.step}: the loss is not a number; try a smaller rate"
                    if time.monotonic() - stored > store_every:
                        state.store(file, self.identity)
                        stored = time.monotonic()
                    if time.perf_counter() > end and state.step < self.plan.steps:
                        state.store(file, self.identity)
                        return f"stopped: the time was up at step {state.step} of {self.plan.steps}"
                if asked:
                    state.store(file, self.identity)
                    raise KeyboardInterrupt
        state.store(file, self.identity)
        return FINISHED

    def _batch(self, step: int) -> tuple[torch.Tensor, ...]:
        """Images, descriptions, times and noise of a step."""
        count, generator = self.plan.batch, generator_of(self.device, self.seed, 45, step)
        rows = torch.randint(0, len(self.images), (count,), generator=generator, device=self.device)
        moments = times(count, generator)
        noise = torch.randn((count, *self.images.shape[1:]), generator=generator, device=self.device)
        return self.images[rows], self.described[rows], moments, noise

    def _step(self) -> None:
        state = self.state
        state.sums += self.advance(*self._batch(state.step))
        state.step, state.since = state.step + 1, state.since + 1

    def _advance(self, x: torch.Tensor, described: torch.Tensor, moments: torch.Tensor, noise: torch.Tensor) -> Any:
        """One step of the optimiser; returns the terms of the bound, means over the batch."""
        state = self.state
        state.optimiser.zero_grad(set_to_none=True)
        with self._precision():
            terms = state.model.bound(x, described, moments, noise)
        means = torch.stack([terms[name].mean() for name in TERMS])
        means.sum().backward()
        state.optimiser.step()
        return means.detach()

    @torch.no_grad()
    def _denoise(self, z: torch.Tensor, level: torch.Tensor, described: torch.Tensor) -> torch.Tensor:
        with self._precision():
            return self.state.model.denoiser(z, level, described)

    def _precision(self) -> Any:
        """The cache of casts is off, for it does not go into graphs."""
        gpu = self.device.type == "cuda"
        return torch.autocast("cuda", torch.bfloat16, cache_enabled=False) if gpu else contextlib.nullcontext()

    def _look(self) -> bool:
        """Write a row; False where the loss is not a number."""
        state = self.state
        means = (state.sums / max(state.since, 1)).tolist()
        if not math.isfinite(sum(means)):
            return False
        ends = [float(state.model.gamma(torch.tensor(t, device=self.device)).detach()) for t in (0.0, 1.0)]
        found: Seen = self.look(state.model, self.denoiser)
        state.curves[state.step] = [*means, *ends]
        state.seen[state.step] = [torch.from_numpy(part) for part in (found.concepts, found.accuracy, found.images)]
        state.sums.zero_()
        state.since = 0
        return True


def _labelled(state: _State, circles: Circles, plan: Plan, seed: int, status: str, wall: float) -> Trajectory:
    steps = np.array(sorted(state.curves), dtype=int)
    curves = np.array([state.curves[step] for step in steps]).reshape(len(steps), len(CURVES))
    shapes = ((len(CLASSES), 2), (len(CLASSES),), (len(CLASSES), circles.side, circles.side, 3))
    parts = [
        np.stack([state.seen[step][k].numpy() for step in steps]) if len(steps) else np.zeros((0, *shape))
        for k, shape in enumerate(shapes)
    ]
    variables: dict[str, tuple[tuple[str, ...], Any]] = {
        "output": (("time", "point", "coordinate"), parts[0]),
        "accuracy": (("time", "point"), parts[1]),
        "image": (("time", "point", "row", "column", "channel"), parts[2].astype(np.uint8)),
    }
    variables |= {name: (("time",), curves[:, k]) for k, name in enumerate(CURVES)}
    return make_trajectory(
        variables,
        steps,
        unit="step",
        coords={"step": ("time", steps), "point": list(CLASSES), "coordinate": list(CONCEPTS)},
        status=status,
        wall_time=wall,
        gradient_evaluations=state.step,
        lab="diffusion",
        kind="recorded",
        task=circles,
        method=plan,
        seed=seed,
    )
