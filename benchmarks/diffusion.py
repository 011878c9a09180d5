"""The diffusion lab: seeds side by side against one after the other, and CUDA graphs against single launches.

`python -m benchmarks diffusion` runs small models on the CPU in processor seconds, which a busy machine spoils less
than the clock; where torch sees a GPU, one step of the paper's network is timed there: launched kernel by kernel, as a
graph, and compiled as a graph.
"""

import time
from collections.abc import Callable
from typing import Any


def main(full: bool = False) -> None:
    import torch

    torch.set_num_threads(1)
    for side, channels, seeds in ((8, (8, 16), 2), (8, (8, 16), 5), (16, (16, 32), 5)):
        print_seeds(side, channels, seeds, 8 if full else 3)
    if torch.cuda.is_available():
        print_graphs(50 if full else 20)


def print_seeds(side: int, channels: tuple[int, ...], seeds: int, repeats: int) -> None:
    """Gradients of several models in a loop, and of all of them at once by vmap."""
    one, other = gradients(side, channels, seeds, together=False), gradients(side, channels, seeds, together=True)
    one()
    other()
    spent = {"loop": 0.0, "vmap": 0.0}
    for _ in range(repeats):
        for name, work in (("loop", one), ("vmap", other)):
            began = time.process_time()
            work()
            spent[name] += time.process_time() - began
    loop, batched = (1000 * spent[name] / repeats for name in ("loop", "vmap"))
    print(f"{seeds} seeds, {side} × {side}, channels {channels}: loop {loop:.0f} ms, vmap {batched:.0f} ms, "
          f"ratio {batched / loop:.2f}")  # fmt: skip


def gradients(side: int, channels: tuple[int, ...], seeds: int, together: bool) -> Callable[[], Any]:
    """One gradient of every model on its own batch of 32."""
    import torch
    from torch.func import functional_call, grad, stack_module_state, vmap

    from saddles.diffusion import UNetShape, make_vdm

    models = [make_vdm(UNetShape(side, channels, 1, 1), seed) for seed in range(seeds)]
    x, noise = torch.rand(seeds, 32, 3, side, side), torch.randn(seeds, 32, 3, side, side)
    described, moments = torch.rand(seeds, 32, 4), torch.rand(seeds, 32)
    if not together:

        def loop() -> None:
            for k, model in enumerate(models):
                model.zero_grad()
                terms = model.bound(x[k], described[k], moments[k], noise[k])
                torch.stack([value.mean() for value in terms.values()]).sum().backward()

        return loop
    weights, buffers = stack_module_state(models)  # type: ignore[arg-type]
    bare = Bound(models[0])

    def loss(own: Any, *batch: Any) -> Any:
        return functional_call(bare, ({f"model.{name}": value for name, value in own.items()}, buffers), batch)

    everywhere = vmap(grad(loss), randomness="error")
    return lambda: everywhere(weights, x, described, moments, noise)


def Bound(model: Any) -> Any:  # noqa: N802
    """The mean bound as the forward pass of a module."""
    import torch

    class Inner(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *batch: Any) -> Any:
            return torch.stack([value.mean() for value in self.model.bound(*batch).values()]).sum()

    return Inner()


def print_graphs(steps: int) -> None:
    """Milliseconds of a step of the paper's network, launched kernel by kernel, as a graph, compiled as a graph."""
    import torch

    from benchmarks.transformers import print_profile
    from saddles.diffusion import Circles, Evaluation, Plan, UNetShape, make_vdm
    from saddles.diffusion.training import _Stepper

    for way in ("launches", "graph", "compiled graph"):
        device = torch.device("cuda")
        model = make_vdm(UNetShape()).to(device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True, capturable=True)
        circles = Circles(0.7)
        look = Evaluation(circles, None)  # type: ignore[arg-type]
        stepper = _Stepper(model, optimiser, circles, look, Plan(), 0, way == "compiled graph")
        if way != "launches":
            stepper.capture()
        for number in range(10):
            stepper.step(number)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for number in range(steps):
            stepper.step(10 + number)
        torch.cuda.synchronize()
        print(f"{way}: {1000 * (time.perf_counter() - began) / steps:.2f} ms per step")
        if way != "launches":
            print_profile(lambda stepper=stepper: stepper.step(0))
