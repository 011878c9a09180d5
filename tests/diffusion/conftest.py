"""One thread for torch: several on a busy machine wait for each other."""

import pytest
import torch

from saddles.diffusion import Circles, ClassifierPlan, Evaluation, Plan, UNetShape, concept_classifier, make_vdm

torch.set_num_threads(1)  # sums of several threads differ in their last bits from run to run

CIRCLES = Circles(0.7, side=8, size_spread=0.1)
CLASSIFIER = ClassifierPlan((8, 8), 8, steps=60, batch=32, held_out=32)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def parts():
    """Model, images, evaluation and plan of a small run: 20 steps of 8 images."""

    def make(**changes):
        classifier, _ = concept_classifier(CIRCLES, CLASSIFIER)
        settings = {"steps": 20, "batch": 8, "images": 16, "evaluations": 5} | changes
        look = Evaluation(CIRCLES, classifier, shown=2, sampling=3)
        return make_vdm(UNetShape(8, (4, 8), 1, 1), seed=1), CIRCLES, look, Plan(**settings)

    return make
