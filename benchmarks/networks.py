"""What the live measures of lab `networks` cost, in steps of the training that they watch.

    python -m benchmarks networks [--full]      --full: GPT-2 small; a model of 7 million parameters otherwise

A training step (forward, backward, Adam) on a batch, then each measure on the same batch, by processor time in one
process on one thread. A measure that costs s steps and is taken every k steps slows training by s/k.
"""

import time

import torch

from benchmarks.timing import best_of
from saddles import networks
from saddles.runtime.threads import one_thread
from saddles.transformers import make_gpt2

SMALL = {"n_layer": 4, "n_embd": 256, "n_head": 4, "n_positions": 128, "vocab_size": 16_000}
LARGE = {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 128, "vocab_size": 50_257}


@one_thread()
def main(full: bool = False) -> None:
    torch.set_num_threads(1)
    model = make_gpt2(LARGE if full else SMALL, seed=0)
    start = {name: part.detach().clone() for name, part in model.named_parameters()}
    words = torch.randint(0, (LARGE if full else SMALL)["vocab_size"], (2, 128))
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)

    def step() -> None:
        model(words, labels=words).loss.backward()
        optimiser.step()
        optimiser.zero_grad()

    repeats = 1 if full else 3
    one = best_of(step, repeats, time.process_time)
    count = sum(part.numel() for part in model.parameters())
    print(f"{count:,} parameters, 2 × 128 tokens: a step {one:.2f} processor seconds; in steps:")
    measures = {
        "LiveRegime": networks.LiveRegime({"input_ids": words}),
        "LiveRegime, 2 probes": networks.LiveRegime({"input_ids": words}, probes=2),
        "LiveHeads": networks.LiveHeads(),
    }
    for name, measure in measures.items():
        print(f"- {name}: {best_of(lambda one=measure: one(model, start), repeats, time.process_time) / one:.2f}")
