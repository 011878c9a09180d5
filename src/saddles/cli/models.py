"""Commands for real models: their checkpoints, and the LoRA adapters between them."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from saddles.cli.terminal import err, interrupted, out
from saddles.errors import SaddlesError

lora = typer.Typer(no_args_is_help=True, help="LoRA ranks and adapters from a base and a tuned model.")


def inspect(
    checkpoints: Annotated[list[Path], typer.Argument(help="a folder of checkpoints, or several; files or folders")],
    reference: Annotated[
        Path | None, typer.Option(help="the model at the start; default: the first checkpoint")
    ] = None,
    modules: Annotated[bool, typer.Option(help="measure plain matrices too, which takes longest")] = True,
    only: Annotated[str | None, typer.Option(help="regular expression: only matrices of such names")] = None,
    out_: Annotated[Path | None, typer.Option("--out", help="folder to write; the same command goes on in it")] = None,
) -> None:
    """Measure how the rank of each head's change grows over a series of checkpoints."""
    from saddles.probe.inspection import inspect as work
    from saddles.probe.inspection import planned_folder
    from saddles.report.inspection import growth_sentences, write_inspection

    folder = out_ or planned_folder(checkpoints, reference, modules, only)
    try:
        tree = work(checkpoints, reference, modules=modules, only=only, out=folder)
    except KeyboardInterrupt:
        words = ["inspect", *map(str, checkpoints), *(["--reference", str(reference)] if reference else [])]
        words += ["--no-modules"] * (not modules) + (["--only", only] if only else []) + ["--out", str(folder)]
        raise interrupted("what is measured is kept", words) from None
    for note in json.loads(tree.attrs["notes"]):
        err.print(f"[yellow]note:[/yellow] {escape(note)}", highlight=False, soft_wrap=True)
    for line in growth_sentences(tree):
        out.print(escape(line), highlight=False)
    out.print(f"report: {write_inspection(tree, folder)}", highlight=False, soft_wrap=True)


BaseArgument = Annotated[Path, typer.Argument(help="the model before tuning: a folder or a file of weights")]
TunedArgument = Annotated[Path, typer.Argument(help="the tuned model")]
EnergyOption = Annotated[float | None, typer.Option(help="share of each module's change to keep; default 0.9")]
BudgetOption = Annotated[int | None, typer.Option(help="parameters in all, instead of --energy")]


@lora.command("plan")
def lora_plan(
    base: BaseArgument,
    tuned: TunedArgument,
    energy: EnergyOption = None,
    budget: BudgetOption = None,
    out_: Annotated[Path | None, typer.Option("--out", help="JSON file to write; must not exist")] = None,
) -> None:
    """Find the rank that each module's adapter needs."""
    from saddles.probe.lora.plan import lora_plan as work
    from saddles.probe.lora.plan import write_plan

    _refuse(out_)
    plan = work(base, tuned, energy=energy, budget=budget)
    _show_plan(plan)
    if out_ is not None:
        out.print(str(write_plan(plan, out_)), highlight=False, soft_wrap=True)


@lora.command("extract")
def lora_extract(
    base: BaseArgument,
    tuned: TunedArgument,
    energy: EnergyOption = None,
    budget: BudgetOption = None,
    plan_: Annotated[Path | None, typer.Option("--plan", help="JSON of `saddles lora plan`, instead of both")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16")] = "float32",
    out_: Annotated[Path | None, typer.Option("--out", help="folder to write; must not exist")] = None,
) -> None:
    """Write a PEFT adapter that turns BASE into TUNED."""
    from saddles.probe.lora.adapter import lora_extract as work
    from saddles.probe.lora.plan import adapter_folder, read_plan
    from saddles.probe.lora.plan import lora_plan as make

    if plan_ is not None and (energy is not None or budget is not None):
        raise SaddlesError.about("--plan came with --energy or --budget", "a plan says it all", "leave one out")
    folder = out_ or adapter_folder(tuned)
    _refuse(folder)
    plan = read_plan(plan_) if plan_ is not None else make(base, tuned, energy=energy, budget=budget)
    made = work(base, tuned, plan, folder, dtype=dtype)
    _show_plan(plan)
    worst = made.table()
    out.print(
        f"largest ‖ΔW − BA‖: predicted {worst['predicted_error'].max():.3e}, as stored {worst['error'].max():.3e}"
    )
    out.print(f"{made.folder}/", highlight=False, soft_wrap=True)


def _show_plan(plan: Any) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    rows = plan.table()
    for column in ("module", "shape", "rank", "energy", "‖ΔW‖", "error", "parameters"):
        table.add_column(column, justify="left" if column == "module" else "right", overflow="fold")
    for name, row in rows.iterrows():
        numbers = (f"{row['energy']:.4f}", f"{row['norm']:.3e}", f"{row['error']:.3e}", f"{row['parameters']:,}")
        table.add_row(escape(str(name)), row["shape"], str(row["rank"]), *numbers)
    out.print(table)
    reasons: dict[str, list[Any]] = {}
    for row in plan.left_out:
        reasons.setdefault(row.reason, []).append(row)
    for reason, found in reasons.items():
        names = ", ".join(row.name for row in found[:3]) + (", …" if len(found) > 3 else "")
        norm = sum(row.norm**2 for row in found) ** 0.5
        words = f"not carried, {reason}: ‖Δ‖ {norm:.3e} in {len(found)} tensor{'s' * (len(found) > 1)} ({names})"
        out.print(escape(words), highlight=False, soft_wrap=True)
    out.print(
        f"{plan.asked}: {plan.parameters:,} parameters carry {100 * plan.energy:.2f} % of all ‖Δ‖²; "
        f"{100 * plan.share_left_out:.2f} % is in tensors that LoRA does not carry",
        highlight=False,
        soft_wrap=True,
    )


def _refuse(place: Path | None) -> None:
    if place is not None and place.exists():
        raise SaddlesError.about(f"{place} exists already", "nothing is overwritten", "choose another --out")
