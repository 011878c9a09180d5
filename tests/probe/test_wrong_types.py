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
):
    try:
        call()
    except SaddlesError as error:
        print(json.dumps(str(error)))
"""

SENTENCES = [
    "`every` must be a whole number; got 1.5.",
    "`every` must be a whole number; got '10'.",
    "`spectra` must be a multiple of every=2; got 4.0.",
    "`reference` must be a model or its state dict; got 'base/'. Load it first.",
    "`model` must be a torch.nn.Module; got 'gpt2'. Pass the model, not its path or weights.",
]


def test_arguments_of_another_type_get_one_sentence():
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == SENTENCES
