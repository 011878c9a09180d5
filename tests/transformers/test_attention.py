"""Attention of a class token and patches in one kernel, against torch's in float64."""

import os
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from saddles.transformers import ViTShape, attention, make_vit

SHAPES = [(3, 16, 2, 16), (2, 32, 2, 64), (4, 64, 8, 128), (5, 64, 3, 64), (5, 64, 3, 32), (5, 16, 3, 128)]
"""Samples, patches, heads, width of a head. The GPU multiplies tiles of 64 rows and smaller ones in different ways."""


def errors(shape: tuple[int, int, int, int], dtype: torch.dtype, device: str) -> list[float]:
    """Relative errors of the result and of its gradient, for the class token and for the patches."""
    samples, patches, heads, width = shape
    draw = torch.Generator().manual_seed(0)
    parts = torch.randn(samples, patches + 1, 3, heads, width, generator=draw).to(device, dtype).requires_grad_()
    slope = torch.randn(samples, patches + 1, heads, width, generator=draw).to(device, dtype)
    ours = attention.attend(parts)
    ours.backward(slope)
    exact = parts.detach().double().requires_grad_()
    query, key, value = exact.permute(2, 0, 3, 1, 4)
    plain = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)
    plain.backward(slope.double())
    assert parts.grad is not None
    assert exact.grad is not None
    pairs = [(ours, plain), *((parts.grad[:, :, part], exact.grad[:, :, part]) for part in range(3))]
    places = slice(0, 1), slice(1, None)
    return [
        float((one[:, place] - other[:, place]).norm() / other[:, place].norm())
        for one, other in ((one.detach(), other.detach()) for one, other in pairs)
        for place in places
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU, and torch sees none here")
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_attention_on_a_gpu(shape):
    # A number rounded to bfloat16 is off by up to 2⁻⁹ of itself, 1.1e-3 in the mean square; weights are rounded too.
    assert max(errors(shape, torch.bfloat16, "cuda")) < 5e-3


@pytest.mark.skipif(not attention.has_triton(), reason="Triton is not installed")
def test_it_is_attention_in_tritons_interpreter():
    """In a process of its own: the interpreter is chosen when Triton is imported. It cannot multiply bfloat16."""
    code = "import torch; from tests.transformers.test_attention import SHAPES, errors\n" + (
        "print(max(max(errors(shape, torch.float32, 'cpu')) for shape in SHAPES[:2]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert float(found.stdout) < 1e-5


def test_it_serves_only_what_its_kernel_can_do():
    """On a host, in float32, and for other shapes torch's own attention is taken."""
    assert not attention.serves(torch.zeros(1, 65, 3, 8, 128, dtype=torch.bfloat16))
    shape = ViTShape(side=8, patch=2, channels=1, width=16, layers=1, heads=2, head_width=8, hidden=16)
    assert make_vit(shape)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize(
    ("shape", "dtype", "serves"),
    [((1, 65, 3, 8, 128), torch.bfloat16, True), ((1, 65, 3, 8, 128), torch.float32, False),
     ((1, 64, 3, 8, 128), torch.bfloat16, False), ((1, 65, 3, 8, 96), torch.bfloat16, False)],
)  # fmt: skip
def test_the_rule_of_what_is_served(shape, dtype, serves, monkeypatch):
    """Of tensors that say they are on a GPU and hold nothing."""
    monkeypatch.setattr(attention, "runs_here", lambda: True)
    with FakeTensorMode():
        parts = torch.empty(shape, dtype=dtype, device="cuda")
        assert attention.serves(parts) is serves
        if serves:
            assert attention.attend(parts).shape == (1, 65, 8, 128)


@pytest.mark.parametrize(("version", "runs"), [((7, 5), False), ((8, 0), False), ((9, 0), True), ((10, 0), False)])
def test_only_the_kind_of_gpu_it_was_tried_on_is_asked(version, runs, monkeypatch):
    """And a compiled model takes the answer as a constant, in one graph."""
    monkeypatch.setattr(attention, "has_triton", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: version)
    torch.compiler.reset()  # the answer of the case before is a constant of the same code
    compiled = torch.compile(lambda x: x + attention.runs_here(), backend="eager", fullgraph=True)
    assert float(compiled(torch.zeros(()))) == runs
