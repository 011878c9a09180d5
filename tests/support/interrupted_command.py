"""`python -m interrupted_command`: a run that is interrupted while a library runs a text as code."""

import dataclasses

import toy_experiment

from saddles.cli import main
from saddles.core.experiment import register


def run(settings, context):
    exec("raise KeyboardInterrupt")


if __name__ == "__main__":
    register(dataclasses.replace(toy_experiment.ROW, run=run))
    main()
