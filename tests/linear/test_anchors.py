"""Numbers of the authors' public code: theory and descent from the same draws."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import saddles
from saddles.linear.model import TwoLayer
from saddles.linear.task import MatrixCost
from saddles.linear.theory import SelfConsistent
from saddles.solvers.methods import GradientDescent

ANCHOR = json.loads((Path(__file__).parents[1] / "support" / "anchors" / "phase_diagram.json").read_text("utf-8"))


def truth(dim, rank, generator):
    """A* and A* + E as the notebooks draw them."""
    left, right = rank ** (-1 / 4) * torch.randn(2, dim, rank, generator=generator, dtype=torch.float64)
    noise = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    target = (left @ right.T).numpy()
    return target, target + noise.numpy()


def network(dim, cell, generator):
    """The cell's network, σ²w from the exponents, and the whole width."""
    width, variance = int(dim ** cell["gamma_w"]), dim ** cell["gamma_variance"]
    draw = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((width, dim), (dim, width))]
    return TwoLayer.from_weights(*(np.sqrt(variance) * part.numpy() for part in draw), variance=variance)


def setting(dim, cell, target, observed, slowness):
    """The task, and the learning rate for its cost ‖A − A* − E‖²/d², of which the notebooks take d²/2."""
    task = MatrixCost(lambda matrix: jnp.mean((matrix - observed) ** 2), (dim, dim), target)
    exponent = cell["gamma_w"] + cell["gamma_variance"]
    size = dim**exponent if exponent > 1 else np.linalg.norm(target, 2)
    return task, dim**2 / (2 * slowness * size)


def both(part, cell, slowness):
    """A*, A* + E, and a hundred steps of the theory and of descent."""
    generator = torch.Generator().manual_seed(0)
    target, observed = truth(part["dim"], part["rank"], generator)
    model = network(part["dim"], cell, generator)
    task, rate = setting(part["dim"], cell, target, observed, slowness)
    method = GradientDescent(rate, 100)
    theory = saddles.predict(model, task, SelfConsistent(method), keep=("matrix",))
    return target, observed, theory, saddles.simulate(model, task, method, keep=("matrix",))


@pytest.mark.parametrize("cell", ANCHOR["slow"]["cells"], ids=lambda cell: f"{cell['gamma_variance']}")
def test_descent_and_theory_of_the_authors_are_ours(cell):
    """At a small learning rate, where it does not matter that their W2 sees the new W1 and that their theory takes
    its steps in A where ours takes them in its factors."""
    target, _, theory, descent = both(ANCHOR["slow"], cell, slowness=500)
    for name, ours in (("theory", theory), ("descent", descent)):
        errors = ((ours["matrix"].values[cell["iterations"]] - target) ** 2).mean(axis=(1, 2))
        np.testing.assert_allclose(errors, cell[f"test_{name}"], rtol=2e-4)
    moved = abs(cell["test_theory"][-1] / cell["test_theory"][0] - 1)
    apart = abs(cell["test_theory"][-1] / cell["test_descent"][-1] - 1)
    assert min(moved, apart) > 3e-4, "the comparison could not tell them apart"


@pytest.mark.parametrize("cell", ANCHOR["dynamics"]["cells"], ids=lambda cell: f"{cell['gamma_variance']}")
def test_at_the_authors_rate_both_end_at_the_same_values(cell):
    """At the rate of the notebook steps are coarse: errors agree to a fifth on the way, singular values at the end."""
    target, observed, theory, descent = both(ANCHOR["dynamics"], cell, slowness=5)
    for name, ours in (("theory", theory), ("descent", descent)):
        early = ours["matrix"].values[cell["iterations"][:2]]
        for which, matrix in (("train", observed), ("test", target)):
            errors = ((early - matrix) ** 2).mean(axis=(1, 2))
            np.testing.assert_allclose(errors, cell[f"{which}_{name}"][:2], rtol=0.2)
        ends = np.linalg.svd(ours["matrix"].values[-1], compute_uv=False)[:6]
        np.testing.assert_allclose(ends, cell[f"values_{name}"], rtol=1e-4)


def test_cells_of_the_authors_diagram():
    """Five cells of the phase diagram: the best test error along descent."""
    dim, generator = ANCHOR["diagram"]["dim"], torch.Generator().manual_seed(0)
    target, observed = truth(dim, ANCHOR["diagram"]["rank"], generator)
    for cell in ANCHOR["diagram"]["cells"]:
        assert np.mean(target**2) == pytest.approx(cell["zero"], rel=1e-9)
        model = network(dim, cell, generator)
        task, rate = setting(dim, cell, target, observed, slowness=50)
        run = saddles.simulate(model, task, GradientDescent(rate, cell["steps"] + 1), keep=())
        assert float(run["test_error"].min()) == pytest.approx(cell["best_test_error"], rel=0.01)
