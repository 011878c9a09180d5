"""One thread for torch: several on a busy machine wait for each other."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch

from saddles.transformers import ImageFeed, Recipe, ViTShape, make_vit
from saddles.transformers.images import made


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


SHAPE = ViTShape(side=16, patch=8, width=12, layers=2, heads=2, head_width=5, hidden=8, classes=4)


@pytest.fixture(scope="session")
def images():
    return made(3, train=64, test=32)


@pytest.fixture
def parts(images):
    """Model, feed and recipe of a small run: 24 steps of 32 images."""

    def make(**changes):
        settings = {"optimiser": "adam", "rate": 1e-2, "steps": 24, "warm_up": 4} | changes
        return make_vit(SHAPE, seed=1), ImageFeed(images, 32, 7, torch.device("cpu")), Recipe(**settings)

    return make
