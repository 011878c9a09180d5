"""Arguments of another type get one sentence; in a process of its own, where tests do not check types themselves."""

import json
import subprocess
import sys

CALLS = """
import json

import torch

from saddles import probe
from saddles.errors import SaddlesError

layer = torch.nn.MultiheadAttention(8, 2)


def recorded(**words):
    with probe.record(layer, **words):
        pass


for call in (
    lambda: recorded(every=1.5),
    lambda: recorded(every="10"),
    lambda: recorded(every=2, spectra=4.0),
    lambda: recorded(reference="base/"),
    lambda: probe.record("gpt2"),
    lambda: probe.lora_plan("base", "tuned", energy="0.9"),
    lambda: probe.lora_plan("base", "tuned", max_rank=2.5),
    lambda: probe.lora_plan("base", "tuned", budget="10"),
    lambda: probe.lora_grow("adapter", 2.5, "out"),
):
    try:
        call()
    except SaddlesError as error:
        print(json.dumps(str(error)))
"""

SENTENCES = [
    "`every` must be a whole number of at least 1; got 1.5.",
    "`every` must be a whole number of at least 1; got '10'.",
    "`spectra` must be a multiple of every=2; got 4.0.",
    "`reference` must be a model or its state dict; got 'base/'. Load it first.",
    "`model` must be a torch.nn.Module; got 'gpt2'. Pass the model, not its path or weights.",
    "`energy` must be above 0 and at most 1; got '0.9'.",
    "`max_rank` must be a whole number of at least 1; got 2.5.",
    "`budget` must be a positive whole number of parameters; got '10'.",
    "`rank` must be a whole number of at least 1; got 2.5.",
]


def test_arguments_of_another_type_get_one_sentence():
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == SENTENCES
