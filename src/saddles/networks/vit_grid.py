"""Stacked ViTs, trained until each has a given loss, and how lazy they then are.

Plain descent with full batches, each network at its own rate, by Armijo's rule: a step must gain half of what the slope
promises, which it does up to the inverse of the curvature along it. So no step raises a loss, also where a network
leaves a saddle and its curvature grows a thousandfold.
"""

import numpy as np
import torch

from saddles.networks.heads import closure
from saddles.networks.vits import State, ViTs, centred, chosen, norms, plus, squares

GAIN = 0.5
"""What a step must gain of what its slope promises."""
LONGER, SHORTER = 1.1, 0.5
"""The rate after a step that does, and after one that does not and is taken back."""
FIRST = 0.1
"""The share of the loss that the first step would take if the loss were a line."""


def trained(vits: ViTs, *, until: float, steps: int) -> tuple[State, np.ndarray, np.ndarray]:
    """Train every network until its loss is at most `until`: their ends, their losses, the steps that each tried.

    Args:
        steps: most steps, also for a network whose loss is still above.
    """
    ends = {name: part.clone() for name, part in vits.start.items()}
    final, taken = np.ones(len(vits.first)), np.full(len(vits.first), steps)
    here, first, states = torch.arange(len(vits.first), device=vits.first.device), vits.first, vits.start
    learned, slopes = vits.slopes(states, first)
    losses = vits.losses(learned)
    rates = FIRST * losses / squares(slopes)
    for step in range(1, steps + 1):
        there = plus(states, slopes, -rates)
        learned, turned = vits.slopes(there, first)
        tried = vits.losses(learned)
        good = tried <= losses - GAIN * rates * squares(slopes)
        states, slopes = chosen(good, there, states), chosen(good, turned, slopes)
        losses, rates = torch.where(good, tried, losses), rates * torch.where(good, LONGER, SHORTER)
        over = losses <= until if step < steps else torch.ones_like(good)
        if not bool(over.any()):
            continue
        which, left = here[over], ~over
        for name, part in states.items():
            ends[name][which] = part[over]
        final[which.cpu().numpy()], taken[which.cpu().numpy()] = losses[over].double().cpu().numpy(), step
        if not bool(left.any()):
            break
        # Networks that are done leave, so that the others are not slowed by them.
        here, first, losses, rates = here[left], first[left], losses[left], rates[left]
        states, slopes = ({name: part[left] for name, part in one.items()} for one in (states, slopes))
    return ends, final, taken


def measured(vits: ViTs, ends: State) -> dict[str, np.ndarray]:
    """How lazy each network is, how well it tests, and the rank of what its heads have learned.

    - `linearity`: e of P(f − f₀), what the loss sees, on the training images; `test_linearity` on unseen ones;
    - `test_accuracy`; `agreement`: the share of unseen images to which the linear part alone gives the same class;
    - `stable_rank` of ΔKQ, the median over heads (see `saddles.networks.closure`);
    - `moved`: ‖θ − θ₀‖/‖θ₀‖.
    """
    pictures = vits.pictures
    change = {name: end - vits.start[name] for name, end in ends.items()}
    with torch.no_grad():
        seen = vits.outputs(ends, pictures.inputs) - vits.first
        unseen = vits.outputs(ends, pictures.unseen) - vits.outputs(vits.start, pictures.unseen)
    near, far = (vits.along(change, inputs) for inputs in (pictures.inputs, pictures.unseen))
    # The mean over the training images is what is subtracted everywhere.
    unseen, far = unseen - seen.mean(1, keepdim=True), far - near.mean(1, keepdim=True)
    classes, linear = ((part + pictures.shares).argmax(-1) for part in (unseen, far))
    found = {
        "linearity": norms(centred(seen - near)) / norms(centred(seen)),
        "test_linearity": norms(unseen - far) / norms(unseen),
        "test_accuracy": (classes == pictures.labels).double().mean(1),
        "agreement": (classes == linear).double().mean(1),
        "moved": (squares(change) / squares(vits.start)).sqrt(),
    }
    rows = {name: part.double().cpu().numpy() for name, part in found.items()}
    return rows | {"stable_rank": np.array([_rank(vits, ends, at) for at in range(len(seen))])}


def _rank(vits: ViTs, ends: State, at: int) -> float:
    first, last = ({name: part[at] for name, part in one.items()} for one in (vits.start, ends))
    found = closure(first, last, {"num_attention_heads": vits.heads})["stable_rank"].sel(product="KQ")
    return float(found.median())
