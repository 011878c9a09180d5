"""Settings of the probe's tests: two shared cores, no hub."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _calm_and_seeded():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)
