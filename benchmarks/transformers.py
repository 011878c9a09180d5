"""The transformers lab on a GPU: a step launched, compiled and as a graph; measuring; which kernels take the time.

`python -m benchmarks transformers` needs an NVIDIA GPU. `--full` adds the ViT's kernels and more pairs of stretches
with and without a recorder.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any


def main(full: bool = False) -> None:
    import torch

    if not torch.cuda.is_available():
        print("needs an NVIDIA GPU, and torch sees none here")
        return
    print_ceilings()
    print_gpt2(9 if full else 3)
    print_vit(full)


def seconds(work: Callable[[], Any], repeats: int) -> float:
    """Seconds of one run, of several that follow each other; the device is waited for at both ends."""
    import torch

    for _ in range(3):
        work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / repeats


def print_ceilings() -> None:
    """What the GPU reaches in a large product and a large copy."""
    import torch

    one, other = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    rate = 2 * 8192**3 / seconds(lambda: one @ other, 10) / 1e12
    wide = torch.randn(1 << 30, device="cuda")
    copied = 8 * wide.numel() / seconds(wide.clone, 5) / 1e12
    print(f"{torch.cuda.get_device_name()}: bfloat16 product {rate:.0f} TFLOP/s, copy {copied:.2f} TB/s")


def stepper_of(model: Any, feed: Any, recipe: Any, compiled: bool, graph: bool) -> Any:
    """A stepper as `train` makes it."""
    from saddles.transformers.training import _Stepper

    stepper = _Stepper(model, feed, recipe, recipe.build(model.parameters(), True), compiled, 1)
    if graph:
        stepper.capture(0)
    return stepper


WAYS = {"launched": (False, False), "compiled": (True, False), "compiled, graph": (True, True)}


def print_steps(name: str, make: Callable[[], tuple[Any, Any, Any]], steps: int) -> Any:
    """Milliseconds of a step in each way, and the mean loss of its first ten steps; returns the last stepper."""
    stepper = None
    for way, options in WAYS.items():
        began = time.perf_counter()
        stepper = stepper_of(*make(), *options)
        losses = [float(stepper.step(number)) for number in range(10)]
        ready = time.perf_counter() - began
        count = iter(range(10, 10**6))
        took = seconds(lambda stepper=stepper, count=count: stepper.step(next(count)), steps)
        print(f"{name}, {way}: {1e3 * took:.2f} ms per step; ready and ten steps after {ready:.0f} s, their loss "
              f"{statistics.mean(losses):.5f}", flush=True)  # fmt: skip
    return stepper


def print_gpt2(pairs: int) -> None:
    """GPT-2 small, batch 16 × 256, random tokens; then the recorder beside it."""
    import numpy as np
    import torch

    from saddles.transformers import Recipe, TextFeed, make_gpt2
    from saddles.transformers.text import Text

    tokens = np.random.default_rng(0).integers(0, 50_257, 256 * 2048)
    text, device = Text("random", tokens, tokens[: 256 * 16], 50_257), torch.device("cuda")

    def make() -> tuple[Any, Any, Any]:
        feed = TextFeed(text, 256, 16, 0, device)
        return make_gpt2({"n_positions": 256}).to(device), feed, Recipe("adam", 3e-4, 100_000, decay="linear")

    stepper = print_steps("GPT-2 small, 16 × 256", make, 50)
    print_profile(lambda: stepper.step(0))
    print_measuring(stepper.model)
    print_recorder(stepper, pairs)


def print_measuring(model: Any) -> None:
    """Milliseconds on the device and on the host of a measurement of all heads."""
    import torch

    from saddles import probe
    from saddles.probe.measuring import measure_row
    from saddles.probe.recording.on_device import DeviceBackend
    from saddles.probe.recording.snapshot import Copier
    from saddles.runtime.threads import spare_cores, torch_pool

    layout = probe.heads(model)
    now = {name: dict(model.named_parameters())[name] for name in layout.head_parameters()}
    start = {name: (w.detach() + 1e-3 * w.detach().std() * torch.randn_like(w)).cpu() for name, w in now.items()}
    with torch_pool(spare_cores()) as pool:
        backend = DeviceBackend(layout, Copier(now), start, pool)
        readings = backend.readings()
        for whole in (False, True):
            readings.whole = whole

            def device() -> None:
                backend.copy_to(readings)
                readings.wait()

            def issue() -> None:
                backend.copy_to(readings)

            took, issued = seconds(device, 20), 0.0
            torch.cuda.synchronize()
            began = time.perf_counter()
            issue()
            issued = time.perf_counter() - began
            readings.wait()
            host = min(_clock(lambda: backend.measure(readings)) for _ in range(5))
            what = "with spectra" if whole else "ranks alone"
            print(f"measuring {len(layout.heads)} heads, {what}: {1e3 * took:.2f} ms from copy to arrival, "
                  f"{1e3 * issued:.2f} to launch, then {1e3 * host:.1f} ms on {spare_cores()} threads")  # fmt: skip
        row = backend.measure(readings)
        cpu = {name: w.detach().cpu() for name, w in now.items()}
        began = time.perf_counter()
        host_row = measure_row(layout, cpu.__getitem__, start.__getitem__, modules=False, mapping=pool.map)
        took = time.perf_counter() - began
    error = (
        abs(row["heads/singular_value"] - host_row["heads/singular_value"]).max() / row["heads/singular_value"].max()
    )
    print(f"the host's path: {took:.2f} s; largest difference {error:.1e} of the largest singular value")


def _clock(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def print_recorder(stepper: Any, pairs: int, steps: int = 250) -> None:
    """Stretches of one training run, every other one recorded: ranks every 25 steps, spectra every 250."""
    import torch

    from saddles import probe

    count, extra, noise, plain = iter(range(10**6)), [], [], []
    with probe.record(stepper.model, 25, spectra=250) as run:

        def stretch(watched: bool) -> float:
            run.flush()
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(steps):
                stepper.step(next(count))
                if watched:
                    run.step()
            torch.cuda.synchronize()
            return time.perf_counter() - began

        stretch(True)
        for pair in range(pairs):
            order = (False, True, False) if pair % 2 else (True, False, False)
            found = [stretch(watched) for watched in order]
            base, again = (f for f, watched in zip(found, order, strict=True) if not watched)
            extra.append(found[order.index(True)] / base - 1)
            noise.append(again / base - 1)
            plain.append(base / steps)
        waited = run.waited
    print(f"recorder, ranks every 25 steps, spectra every 250: {100 * statistics.median(extra):+.2f} % "
          f"({_range(extra)}) of a step of {1e3 * statistics.median(plain):.2f} ms, {pairs} pairs of {steps} steps; "
          f"without it {100 * statistics.median(noise):+.2f} % ({_range(noise)}); {waited:.2f} s waited")  # fmt: skip


def _range(shares: list[float]) -> str:
    return f"{100 * min(shares):+.2f} to {100 * max(shares):+.2f}"


def print_vit(full: bool) -> None:
    """The paper's ViT on random images, batch 512."""
    import torch

    from saddles.transformers import ImageFeed, Recipe, ViTShape, make_vit
    from saddles.transformers.images import made

    device, images = torch.device("cuda"), made(0, train=4096, test=64, side=32)

    def make() -> tuple[Any, Any, Any]:
        shape = ViTShape(classes=images.classes)
        return make_vit(shape).to(device), ImageFeed(images, 512, 0, device), Recipe("adam", 1e-4, 100_000)

    stepper = print_steps("the paper's ViT, batch 512", make, 50)
    if full:
        print_profile(lambda: stepper.step(0))


def print_profile(work: Callable[[], Any], most: int = 14) -> None:
    """The kernels that take the longest, as milliseconds of one run."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    runs = 5
    work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(runs):
            work()
        torch.cuda.synchronize()
    rows = [(row.self_device_time_total / 1e3 / runs, row.count / runs, row.key) for row in found.key_averages()]
    rows = sorted((row for row in rows if row[0] > 0), reverse=True)
    print(f"  {sum(row[0] for row in rows):.2f} ms in {sum(row[1] for row in rows):.0f} kernels, of which")
    for took, count, name in rows[:most]:
        print(f"  {took:7.3f} ms {count:6.1f} × {name[:100]}")
