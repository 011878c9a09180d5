"""Stacked ViTs and their linearisations, trained side by side by descent with full batches."""

import numpy as np
import torch
from torch import Tensor

from saddles.networks.vits import ViTs, centred, norms, plus, squares

POWER_STEPS = 30
"""For the largest eigenvalue at the start; the rate is a factor of two below where descent becomes unstable."""


def beside_vits(vits: ViTs, steps: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Train every network and f₀ + J(θ₀)(θ − θ₀) with the same rate, 1/λ_max of the loss linearised at the start.

    Args:
        seed: draws the first vector of the power steps.

    Returns:
        (time, network) each: `loss`, `linearised_loss`, and `distance` ‖P(f − f_lin)‖/‖P(f − f₀)‖ on the training
        images, 0 at the start.
    """
    inputs, targets = vits.pictures.inputs, vits.pictures.targets
    size = targets.square().sum()
    rates = 1 / curvature(vits, seed)
    real, moved = vits.start, {name: torch.zeros_like(part) for name, part in vits.start.items()}
    rows: dict[str, list[np.ndarray]] = {"loss": [], "linearised_loss": [], "distance": []}
    for step in range(steps + 1):
        now, slopes = vits.slopes(real, vits.first)
        linear = centred(vits.along(moved, inputs))
        rows["loss"].append(_array(vits.losses(now)))
        rows["linearised_loss"].append(_array(vits.losses(linear)))
        rows["distance"].append(_array(norms(now - linear) / norms(now)) if step else np.zeros(len(now)))
        if step < steps:
            real = plus(real, slopes, -rates)
            moved = plus(moved, vits.back(vits.start, 2 * (linear - targets) / size), -rates)
    return {name: np.stack(values) for name, values in rows.items()}


def curvature(vits: ViTs, seed: int = 0) -> Tensor:
    """λ_max of 2JᵀPJ/‖y‖² at the start, the Hessian of the linearised loss, of every network, by power steps."""
    draw = torch.Generator().manual_seed(seed)
    vector = {name: torch.randn(part.shape, generator=draw).to(part.device) for name, part in vits.start.items()}
    size = vits.pictures.targets.square().sum()
    value = squares(vector).sqrt()
    for _ in range(POWER_STEPS):
        unit = plus({name: torch.zeros_like(part) for name, part in vector.items()}, vector, 1 / value)
        vector = vits.back(vits.start, 2 * centred(vits.along(unit, vits.pictures.inputs)) / size)
        value = squares(vector).sqrt()
    return value


def _array(values: Tensor) -> np.ndarray:
    return values.double().cpu().numpy()
