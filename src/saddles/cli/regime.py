"""The command `regime`: whether the change between two checkpoints is lazy or active."""

from math import isnan
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from saddles.cli.terminal import out, say


def regime(
    base: Annotated[Path, typer.Argument(help="the model before: Hugging Face folder, .safetensors or torch file")],
    tuned: Annotated[Path, typer.Argument(help="the same model after, or a LoRA adapter on it")],
    data: Annotated[str, typer.Option(help="text file on which the outputs are compared")],
    samples: Annotated[int, typer.Option(help="blocks of text")] = 4,
    length: Annotated[int, typer.Option(help="tokens in a block")] = 128,
    probes: Annotated[int, typer.Option(help="random directions for the tangent kernel; 0 leaves it out")] = 4,
    out_: Annotated[Path | None, typer.Option("--out", help="folder for numbers and figure")] = None,
) -> None:
    """Say whether the change from BASE to TUNED is lazy or active, with numbers and a figure."""
    from saddles.networks.practice import compare_checkpoints, rows_of, verdict
    from saddles.runtime.files import refuse_existing

    if out_ is not None:
        refuse_existing(out_)
    whole, heads = compare_checkpoints(base, tuned, data, samples=samples, length=length, probes=probes)
    table = Table(box=None, pad_edge=False)
    for name in ("measure", "value", "meaning"):
        table.add_column(name)
    for row in rows_of(whole, heads):
        table.add_row(*row)
    out.print(table)
    blocks, tokens = whole.attrs["samples"], whole.attrs["length"]
    say(f"On {blocks} block{'s' * (blocks > 1)} of {tokens} tokens of {data}.")
    if "reason" in heads.attrs:
        say(f"No numbers of heads: {heads.attrs['reason']}")
    say(verdict(whole))
    if out_ is not None:
        from saddles import figures
        from saddles.runtime.files import write_json

        out_.mkdir(parents=True, exist_ok=True)
        numbers = {str(name): float(whole[name]) for name in whole.data_vars}
        known = {name: None if isnan(value) else value for name, value in numbers.items()}  # JSON has no NaN
        write_json(out_ / "regime.json", {**known, **whole.attrs})
        if heads.data_vars:
            heads.to_dataframe().to_csv(out_ / "heads.csv")
            figures.regime.of_heads(heads, whole).savefig(out_ / "regime.png", dpi=150)
        say(f"{out_}/")
