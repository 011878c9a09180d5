"""The probe: heads of GPT-2 small against dense products, and what a live recorder costs.

`python -m benchmarks probe` runs on the CPU; where torch sees a GPU, the recorder is measured there.
`--full` takes the dense singular values of all heads instead of one layer's, and more pairs of runs.
"""

import os
import statistics
import subprocess
import sys
import time
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
LAYERS, HEADS, WIDTH = 12, 12, 768
SIDE = WIDTH // HEADS


def gpt2_small(seed: int = 0, **more: Any) -> Any:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    dropouts = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(n_layer=LAYERS, n_head=HEADS, n_embd=WIDTH, **dropouts, **more))


def moved(model: Any, share: float = 1e-3) -> dict[str, Any]:
    """The weights somewhat later."""
    import torch

    with torch.no_grad():
        return {name: p + share * p.std() * torch.randn_like(p) for name, p in model.named_parameters() if p.dim() > 1}


def dense(layout: Any, now: Any, start: Any, layers: int) -> Any:
    """Singular values of the d × d products of some layers' heads, a layer's heads at a time."""
    import torch

    found = []
    for heads in list(layout.layers().values())[:layers]:
        for left, right in (("K", "Q"), ("V", "O")):

            def stack(kind: str, read: Any, heads: Any = heads) -> Any:
                return torch.stack([h.factors[kind].cut(read(h.factors[kind].parameter)) for h in heads])

            change = stack(left, now) @ stack(right, now).mT - stack(left, start) @ stack(right, start).mT
            found.append(torch.linalg.svdvals(change)[..., : 2 * SIDE])
    return found


def prepared() -> tuple[Any, Any, Any]:
    from saddles import probe

    model = gpt2_small()
    start = {name: p.detach() for name, p in model.named_parameters()}
    later = moved(model)
    return probe.heads(model), later.__getitem__, start.__getitem__


def factored_against_dense(full: bool) -> None:
    import torch

    from saddles.probe.measuring import measure_heads
    from saddles.runtime.threads import torch_pool

    layout, now, start = prepared()
    share = LAYERS if full else 1
    times: dict[str, list[float]] = {"dense": [], "factored": []}
    spent: dict[str, list[float]] = {"dense": [], "factored": []}
    with torch_pool(1) as pool:
        works = {
            "dense": lambda: pool.submit(dense, layout, now, start, share).result(),
            "factored": lambda: measure_heads(layout, now, start, pool.map)["singular_value"],
        }
        results: dict[str, Any] = {}
        for _ in range(1 if full else 3):
            for name, work in works.items():
                clock, processor = time.perf_counter(), time.process_time()
                results[name] = work()
                scale = LAYERS / share if name == "dense" else 1
                times[name].append(scale * (time.perf_counter() - clock))
                spent[name].append(scale * (time.process_time() - processor))
    first = torch.as_tensor(results["factored"][0, :, 0])
    error = float((first - results["dense"][0]).abs().max() / first.max())
    note = "all" if full else "one layer of 12, times 12"
    print(f"{LAYERS * HEADS} heads of GPT-2 small, both products, float32, one thread each, best of interleaved runs")
    for name in works:
        print(f"  {name}: {min(times[name]):.2f} s, {min(spent[name]):.2f} processor seconds")
    ratio, work = (min(t["dense"]) / min(t["factored"]) for t in (times, spent))
    print(f"  dense ({note}) takes {ratio:.0f} times as long, {work:.0f} times the processor seconds")
    print(f"  largest difference {error:.1e} of the largest singular value: what dense float32 loses by cancellation")
    flops = LAYERS * HEADS * 2 * (2 * 2 * WIDTH * (2 * SIDE) ** 2 + 2 * 2 * (2 * SIDE) ** 3)
    print(f"  floor: QR of both sides, the core and its Gram matrix: {flops / 1e9:.0f} GFLOP")


_PEAK = """
import gc, sys, threading
import torch
from benchmarks.probe import dense, prepared
from saddles.probe.measuring import measure_heads
torch.set_num_threads(1)
layout, now, start = prepared()
torch.linalg.eigvalsh(torch.eye(4, dtype=torch.float64)), torch.linalg.svdvals(torch.eye(4))
gc.collect()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4 / 1024
before, done, most = resident(), threading.Event(), [0.0]
def look():
    while not done.wait(5e-4):
        most[0] = max(most[0], resident() - before)
watcher = threading.Thread(target=look)
watcher.start()
dense(layout, now, start, 1) if sys.argv[1] == "dense" else measure_heads(layout, now, start)
done.set(), watcher.join()
print(most[0])
"""


def peak_memory() -> None:
    """Growth of the resident size, each in a process of its own, both one layer's heads at a time."""
    peaks = {}
    for name in ("dense", "factored"):
        done = subprocess.run([sys.executable, "-c", _PEAK, name], capture_output=True, text=True, check=True)
        peaks[name] = float(done.stdout.split()[-1])
    share = peaks["factored"] / peaks["dense"]
    print(f"  peak memory: dense {peaks['dense']:.0f} MiB, factored {peaks['factored']:.0f} MiB, {share:.2f} of it")


def trainer(device: str, batch: int, tokens: int) -> tuple[Any, Any]:
    """A model and what makes one step of it."""
    import torch

    model = gpt2_small(n_positions=tokens).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-4)
    words = torch.randint(0, 50000, (batch, tokens), device=device)

    def one() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = model(input_ids=words, labels=words).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return model, one


def stretch(one: Any, steps: int, run: Any, watched: bool) -> tuple[float, float]:
    """Seconds and processor seconds of some steps; on a CPU what is measured beside them is waited for."""
    import torch

    gpu = torch.cuda.is_available()
    run.flush()
    if gpu:
        torch.cuda.synchronize()
    clock, processor = time.perf_counter(), time.process_time()
    for _ in range(steps):
        one()
        if watched:
            run.step()
    if gpu:
        torch.cuda.synchronize()
    else:
        run.flush()
    return time.perf_counter() - clock, time.process_time() - processor


def recorder_overhead(full: bool) -> None:
    """One training run in stretches, every other one watched, the order turned from pair to pair.

    The recorder is ready before the first. On a CPU there is one measurement in 10 steps, a fifth of whose cost is
    told. Two stretches without a recorder tell the noise.
    """
    import torch

    from saddles import probe

    gpu = torch.cuda.is_available()
    device, batch, tokens, steps, every = ("cuda", 64, 512, 50, 50) if gpu else ("cpu", 2, 128, 10, 10)
    pairs = (21 if full else 9) if gpu else (9 if full else 3)
    name = torch.cuda.get_device_name() if gpu else f"CPU, {torch.get_num_threads()} threads"
    print(f"live recorder, GPT-2 small, batch {batch} × {tokens}, one measurement in 50 steps, {name}")
    model, one = trainer(device, batch, tokens)
    extra, work, noise, plain = [], [], [], []
    with probe.record(model, every) as run:
        stretch(one, every, run, True)
        for pair in range(pairs):
            order = (False, True, False) if pair % 2 else (True, False, False)
            found = [stretch(one, steps, run, watched) for watched in order]
            with_it = found[order.index(True)]
            without = [f for f, watched in zip(found, order, strict=True) if not watched]
            base = without[0]
            extra.append((with_it[0] / base[0] - 1) * every / 50)
            work.append((with_it[1] / base[1] - 1) * every / 50)
            noise.append((without[1][0] / base[0] - 1) * every / 50)
            plain.append(base[0] / steps)
            told = f"without it again {100 * noise[-1]:+.2f} %"
            print(f"  pair {pair + 1}: {_percent(extra[-1:], work[-1:])}; {told}", flush=True)
        waited = run.waited
    print(f"  a step takes {1e3 * statistics.median(plain):.1f} ms without it; training waited {waited:.2f} s in all")
    print(f"  median of {pairs} pairs: {_percent(extra, work)}; noise {100 * statistics.median(noise):+.2f} %")


def _percent(extra: list[float], work: list[float]) -> str:
    return f"{100 * statistics.median(extra):+.2f} % time, {100 * statistics.median(work):+.2f} % processor seconds"


def main(full: bool) -> None:
    factored_against_dense(full)
    peak_memory()
    recorder_overhead(full)
