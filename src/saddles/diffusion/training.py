"""Train a diffusion model and follow it through concept space; a run may be stopped anywhere and resumed exactly.

What a step sees (images, times, noise) is a function of (seed, step), so a resumed run equals the uninterrupted one.
"""

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from saddles.core.status import Status
from saddles.core.trajectory import Trajectory, make_trajectory
from saddles.diffusion.evaluation import Evaluation
from saddles.diffusion.images import CLASSES, CONCEPTS, Circles, training_set
from saddles.diffusion.vdm import TERMS, VDM, Denoiser, times
from saddles.errors import SaddlesError
from saddles.training.checkpoint import Checkpoint, History, Row
from saddles.training.device import generator_of, mixed_precision, within_memory
from saddles.training.graphs import Work, captured
from saddles.training.loop import STORE_EVERY, Loop
from saddles.training.update import Update

BATCH = 45
"""Purpose of the random draws of a step, beside the seed."""
COMPILED_FROM = 4000
"""Steps from which a run on a GPU is compiled: that takes 55 s once per machine, and saves 6.8 ms of each step."""
ENDS = ("gamma_min", "gamma_max")
"""The ends of the learned schedule, γ(0) and γ(1)."""


@dataclass(frozen=True)
class Plan:
    """One training run; the defaults are the paper's.

    Args:
        steps, batch: how long, how many images per step.
        rate, decay: of AdamW.
        images: per class in the training set (the public code of Park et al. has 2048; the paper does not say).
        evaluations: how many, at steps that are equally spaced in their square root, as there.
        first: step of the first one, as a share of all steps.
        every, until: more of them, every so many steps up to that one; 0 for none.
    """

    steps: int = 20_000
    batch: int = 128
    rate: float = 1e-3
    decay: float = 0.01
    images: int = 2048
    evaluations: int = 60
    first: float = 0.005
    every: int = 0
    until: int = 2000

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "images", "evaluations"):
            if getattr(self, name) < 1:
                raise SaddlesError.must_be(name, "at least 1", getattr(self, name))
        for name, right, what in (
            ("rate", self.rate > 0, "positive"),
            ("decay", self.decay >= 0, "at least 0"),
            ("first", 0 < self.first <= 1, "a share of the steps, in (0, 1]"),
            ("every", self.every >= 0, "at least 0"),
        ):
            if not right:
                raise SaddlesError.must_be(name, what, getattr(self, name))

    def moments(self) -> list[int]:
        """Steps after which the model is evaluated."""
        roots = np.linspace(math.sqrt(self.first * self.steps), math.sqrt(self.steps), self.evaluations)
        dense = range(self.every, min(self.until, self.steps) + 1, self.every) if self.every else ()
        return sorted({max(1, round(root**2)) for root in roots} | {self.steps, *dense})


def train(
    model: VDM,
    circles: Circles,
    look: Evaluation,
    plan: Plan | None = None,
    *,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    store_every: float = STORE_EVERY,
    until: float = math.inf,
    compiled: bool | None = None,
    title: str = "training",
) -> Trajectory:
    """Train and return how the four classes moved through concept space, with the terms of the bound beside it.

    Args:
        model: on its device already; on a GPU it runs in bfloat16 as a CUDA graph, its weights stay float32.
        look: the evaluation, at the plan's moments.
        seed: of the training set, of the order of images, of times and of noise.
        folder: holds the checkpoint; a run that is there already is resumed.
        store_every: seconds from one checkpoint to the next; they are written at evaluations.
        until: seconds after which the run stops at the next evaluation; it can be resumed.
        compiled: fuses the small kernels of a step; None does so on a GPU, in runs of at least 4,000 steps.
        title: of the progress bar.

    Returns `output` (time, point, coordinate), `accuracy` (time, point), the terms of the bound in bits per
    dimension (means since the evaluation before), `gamma_min` and `gamma_max` (time), and `image` (time, point, row,
    column, channel). A loss that is not a number stops the run; what was seen until then is kept, and the status
    says so. The first Ctrl-C is deferred until the step is whole and stored.
    """
    plan = plan or Plan()
    device = model.offset.device
    gpu = device.type == "cuda"
    model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    # A capturable optimiser keeps its step count on the device, where a CUDA graph can advance it.
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=plan.rate, weight_decay=plan.decay, fused=gpu or None, capturable=gpu
    )
    run = f"{circles} {plan} {seed} {look.shown} {look.sampling} {look.seed}"
    file = None if folder is None else Path(folder) / "checkpoint.pt"
    checkpoint = Checkpoint(file, {"model": model, "optimiser": optimiser}, run)
    history = checkpoint.restore(device)
    began = time.perf_counter()
    with within_memory(f"lower batch below {plan.batch}"):
        compiled = gpu and plan.steps >= COMPILED_FROM if compiled is None else compiled
        stepper = _Stepper(model, optimiser, circles, look, plan, seed, compiled)
        if gpu:
            stepper.capture()
        moments = set(plan.moments())
        loop = Loop(
            plan.steps, stepper.step, stepper.observe, moments, checkpoint, store_every, budget=until, title=title
        )
        status = loop.run(history)
    return _to_trajectory(history, circles, plan, seed, status, time.perf_counter() - began)


class _Stepper:
    """Takes steps and evaluates the model."""

    def __init__(
        self,
        model: VDM,
        optimiser: torch.optim.Optimizer,
        circles: Circles,
        look: Evaluation,
        plan: Plan,
        seed: int,
        compiled: bool = False,
    ) -> None:
        self.model, self.optimiser, self.look, self.plan, self.seed = model, optimiser, look, plan, seed
        self.device = model.offset.device
        self.images, self.described = training_set(circles, plan.images, seed, self.device)
        losses = torch.compile(self._losses, dynamic=False) if compiled else self._losses
        self.advance: Work = Update(losses, optimiser, self.device)
        self.denoiser: Denoiser = self._denoise

    def capture(self) -> None:
        """Replay the training step and the denoiser as CUDA graphs from here on."""
        assert isinstance(self.advance, Update)
        self.advance = self.advance.captured(self.batch(0))
        self.denoiser = captured(self._denoise, self.look.inputs(self.device))

    def step(self, number: int) -> Tensor:
        """Update the model once; returns the terms of the bound, means over the batch."""
        return self.advance(*self.batch(number))

    def batch(self, step: int) -> tuple[Tensor, ...]:
        """Images, descriptions, times and noise of a step."""
        count, generator = self.plan.batch, generator_of(self.device, self.seed, BATCH, step)
        rows = torch.randint(0, len(self.images), (count,), generator=generator, device=self.device)
        moments = times(count, generator)
        noise = torch.randn((count, *self.images.shape[1:]), generator=generator, device=self.device)
        return self.images[rows], self.described[rows], moments, noise

    def _losses(self, x: Tensor, described: Tensor, moments: Tensor, noise: Tensor) -> Tensor:
        terms = self.model.bound(x, described, moments, noise)
        return torch.stack([terms[name].mean() for name in TERMS])

    @torch.no_grad()
    def _denoise(self, z: Tensor, level: Tensor, described: Tensor | None) -> Tensor:
        with mixed_precision(self.device, cached=False):
            return self.model.denoiser(z, level, described)

    def observe(self, steps: int) -> Row:
        """Where the model's images lie in concept space, and the ends of its schedule."""
        seen = self.look(self.model, self.denoiser)
        ends = [float(self.model.gamma(torch.tensor(t, device=self.device)).detach()) for t in (0.0, 1.0)]
        arrays = {"output": seen.concepts, "accuracy": seen.accuracy, "image": seen.images}
        return {name: torch.from_numpy(array) for name, array in arrays.items()} | dict(zip(ENDS, ends, strict=True))


def _to_trajectory(
    history: History, circles: Circles, plan: Plan, seed: int, status: Status, wall: float
) -> Trajectory:
    steps = np.array(sorted(history.rows), dtype=int)
    side = (circles.side, circles.side, 3)
    shapes: Mapping[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
        "output": (("point", "coordinate"), (len(CLASSES), len(CONCEPTS))),
        "accuracy": (("point",), (len(CLASSES),)),
        "image": (("point", "row", "column", "channel"), (len(CLASSES), *side)),
        **dict.fromkeys(ENDS, ((), ())),
    }
    variables = {
        # Reshaped, so that a run that stopped before its first evaluation has the right axes too.
        name: (("time", *dims), np.array([np.asarray(history.rows[step][name]) for step in steps]).reshape(-1, *shape))
        for name, (dims, shape) in shapes.items()
    }
    losses = np.array([history.losses[step] for step in steps]).reshape(-1, len(TERMS))
    variables |= {name: (("time",), losses[:, k]) for k, name in enumerate(TERMS)}
    variables["image"] = (variables["image"][0], variables["image"][1].astype(np.uint8))
    return make_trajectory(
        variables,
        steps,
        unit="step",
        coords={"step": ("time", steps), "point": list(CLASSES), "coordinate": list(CONCEPTS)},
        status=status,
        wall_time=wall,
        gradient_evaluations=history.step,
        lab="diffusion",
        kind="recorded",
        task=circles,
        method=plan,
        seed=seed,
    )
