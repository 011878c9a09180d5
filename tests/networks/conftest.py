"""One thread for torch: its products here are tiny, and threads that wait for each other take most of the time."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)
