"""
Watch a fine-tune and extract the LoRA
======================================

A model is fine-tuned in full. While it trains, at which rank does each head change?
Afterwards: which LoRA rank would have been enough, and how good is the adapter that is cut
out of the tuned weights?

The model is a small GPT-2 made from a configuration, and the language is a toy, so that
nothing is downloaded. With a model of your own only the first section changes.
"""

# %%
# A model that knows one dialect
# ------------------------------
#
# Sentences have four words: a subject, a verb that depends on it, an object that depends on
# both, and a full stop. A dialect is the rule by which they depend on each other.

import copy

import torch
import transformers

SUBJECTS, WORDS = 16, 49
still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
shape = {"n_layer": 3, "n_head": 4, "n_embd": 96, "n_positions": 32, "vocab_size": WORDS}
config = transformers.GPT2Config(**shape, **still, bos_token_id=48, eos_token_id=48)
torch.manual_seed(0)
base = transformers.GPT2LMHeadModel(config)
base.loss_type = "ForCausalLM"


def batch(dialect: int, step: int, sentences: int = 8, rows: int = 16) -> torch.Tensor:
    """Rows of sentences in a dialect, drawn by the number of the step."""
    draw = torch.Generator().manual_seed(1000 * dialect + step)
    rule = torch.randperm(SUBJECTS, generator=torch.Generator().manual_seed(dialect))
    subject = torch.randint(SUBJECTS, (rows, sentences), generator=draw)
    verb = rule[(subject + torch.randint(2, subject.shape, generator=draw)) % SUBJECTS]
    thing = rule[(subject + verb) % SUBJECTS]
    stop = torch.full_like(subject, 3 * SUBJECTS)
    return torch.stack([subject, SUBJECTS + verb, 2 * SUBJECTS + thing, stop], -1).flatten(1)


def train(model, dialect: int, steps: int, rate: float, after_step=lambda: None) -> list[float]:
    """An ordinary loop."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=0.0)
    losses = []
    for step in range(steps):
        words = batch(dialect, step)
        loss = model(input_ids=words, labels=words).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        after_step()
    return losses


@torch.no_grad()
def test_loss(model, dialect: int) -> float:
    """Loss on sentences that no step sees."""
    words = torch.cat([batch(dialect, step) for step in range(900, 910)])
    return model.eval()(input_ids=words, labels=words).loss.item()


before = train(base, dialect=1, steps=300, rate=3e-3)
print(f"first dialect: loss {before[0]:.2f} at the start, {test_loss(base, 1):.2f} at the end")

# %%
# Fine-tune it, and record
# ------------------------
#
# ``saddles.probe.record`` records what the heads do: every 20 steps the singular values of
# ΔW_K W_Qᵀ and ΔW_V W_Oᵀ, the change of each head's two products since the start. Training
# does not wait for it. In the Trainer of transformers and in Lightning it is a callback
# (see :doc:`/probe`).

import saddles

tuned = copy.deepcopy(base).train()
tuned.transformer.wte.weight.requires_grad_(
    False
)  # the embedding, which is the output matrix too, stays as it is
with saddles.probe.record(tuned, every=20) as run:
    losses = train(tuned, dialect=2, steps=300, rate=1e-3, after_step=run.step)
print(
    f"second dialect: {test_loss(base, 2):.2f} before tuning, {test_loss(tuned, 2):.2f} after"
)

# %%
# The result is a tree of labelled data like everything else here.

print(run.result["heads"]["stable_rank"].sizes)

# %%
# Low rank, from the first step on
# --------------------------------
#
# The stable rank of a change is Σσ²/σ₁²: about how many directions it has. A head is 24 wide;
# its change has a few directions, from the first measurement to the last. The products of the
# base model are of low rank as well (their stable rank stands in each panel): it was trained
# on a small language. In large models trained from scratch they are not, see
# :doc:`/transformers`.

from saddles.figures.probe import normalised_spectra, stable_rank

ranks = stable_rank(run.result)

# %%

spectra = normalised_spectra(run.result)

# %%
# Which LoRA rank would have been enough?
# ---------------------------------------
#
# That is a question about the ΔW of each matrix. ``lora_plan`` gives every module the smallest
# rank that keeps a share of its change, and lists what no LoRA can carry. ``budget=`` finds
# the best ranks within a number of parameters instead. On the command line: ``saddles
# lora plan BASE TUNED``.

plan = saddles.probe.lora_plan(base, tuned, energy=0.9)
plan.table()[["shape", "rank", "energy", "error", "parameters"]]

# %%

full = sum(weight.numel() for weight in tuned.parameters())
print(f"{plan.parameters:,} parameters of {full:,} carry {plan.energy:.1%} of the change")
for row in plan.left_out[:3]:
    print("not carried:", row.name, "-", row.reason)

# %%
# Cut it out
# ----------
#
# ``lora_extract`` writes a PEFT adapter. It is loaded by PEFT itself, as any other; then the
# question that counts is the loss.

import tempfile
from pathlib import Path

import peft

folder = Path(tempfile.mkdtemp())
rows = []
for energy in (0.5, 0.75, 0.9, 0.99):
    plan = saddles.probe.lora_plan(base, tuned, energy=energy)
    extracted = saddles.probe.lora_extract(base, tuned, plan, folder / str(energy))
    adapted = peft.PeftModel.from_pretrained(copy.deepcopy(base), extracted.folder)
    rows.append((energy, plan.parameters, test_loss(adapted, 2)))
    print(f"energy {energy:4.2f}: {plan.parameters:6,} parameters, loss {rows[-1][2]:.3f}")
print(f"base {test_loss(base, 2):.3f}, tuned {test_loss(tuned, 2):.3f}")

# %%

import matplotlib.pyplot as plt

figure, axis = plt.subplots(figsize=(5.5, 3.8), layout="constrained")
axis.plot(
    [row[1] for row in rows],
    [row[2] for row in rows],
    "o-",
    color="#0072B2",
    label="base + adapter",
)
for energy, count, loss in rows:
    axis.annotate(f"{energy:g}", (count, loss), textcoords="offset points", xytext=(5, 5))
axis.axhline(test_loss(tuned, 2), color="#222222", linestyle="--", label="tuned in full")
axis.set(xlabel="parameters of the adapter", ylabel="test loss, second dialect")
axis.set_title("What a share of the change is worth", loc="left", fontsize=10)
axis.legend(frameon=False)

# %%
# Where to go on: :doc:`/lora` says what the stated errors mean, :doc:`/inspect` does the
# first half of this page for a series of checkpoints on disk.
