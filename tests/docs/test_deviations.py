"""Each deviation names evidence that exists; those that no lab tests are shown here."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from doc_pages import ROOT

import saddles
from saddles.concepts.theory import paper_field
from saddles.core.experiment import registry
from saddles.diagonal import AttentionHead, Incremental, TeacherStudent
from saddles.linear import Denoising, GradientDescent, TwoLayer

PAGE = (ROOT / "docs" / "deviations.md").read_text("utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and "| evidence |" not in line]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:50])
def test_evidence_exists(row):
    _, _, evidence = (cell for cell in re.split(r"(?<!\\)\|", row) if cell.strip())
    names = re.findall(r"`([^`]+)`", evidence)
    assert names, "no evidence"
    for name in names:
        file, _, test = name.partition("::")
        if test:
            assert f"def {test}(" in (ROOT / file).read_text("utf-8"), name
        else:
            assert name in registry(), name


@pytest.mark.parametrize(("c", "ending"), [(2.0, "diverged"), (5.0, "finished")])
def test_the_smallest_constant_of_the_learning_rate_diverges_below_the_boundary(c, ending):
    """Just below σ²w = d the rate is d²/(c‖A*‖), so the lazy multiplier is 1 − 4d/(c‖A*‖), and ‖A*‖ is below d."""
    task = Denoising(dim=40, rank=5)
    norm = float(np.linalg.norm(task.target, 2))
    model = TwoLayer(width=10**6, variance=0.98 * task.dim / 10**6)
    run = saddles.simulate(model, task, GradientDescent(rate=task.dim**2 / (c * norm), steps=400))
    assert ending in run.attrs["status"]


def test_a_coordinate_leaves_the_support_of_a_head():
    head = AttentionHead(4)
    path = saddles.predict(head, TeacherStudent(head, 40, 4, 50), Incremental(4))
    assert path["stage_left"].values.tolist() == [0, 0, 0, 1]


def test_eulers_method_on_the_product_loses_positive_semidefiniteness():
    """A step of U keeps W = U Uᵀ in the cone; the same step of W lacks the square of its change, and leaves it."""
    factor = jnp.array([[0.3], [0.1]])
    start = factor @ factor.T
    after = start + 0.1 * paper_field(start, jnp.diag(jnp.array([1.0, 4.0])))
    assert np.linalg.eigvalsh(start)[0] > -1e-15
    assert np.linalg.eigvalsh(after)[0] < -1e-5
