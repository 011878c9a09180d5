"""Commands for real models: their checkpoints, and the LoRA adapters between them."""

import json
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from saddles.cli.terminal import err, interrupted, out, plain_table, say
from saddles.errors import SaddlesError
from saddles.runtime.files import refuse_existing

if TYPE_CHECKING:
    from saddles.probe.lora.plan import LeftOut, LoraPlan

lora = typer.Typer(no_args_is_help=True, help="LoRA ranks and adapters from a base and a tuned model.")


def inspect(
    checkpoints: Annotated[list[Path], typer.Argument(help="a folder of checkpoints, or several files or folders")],
    reference: Annotated[
        Path | None, typer.Option(help="the model at the start; default: the first checkpoint")
    ] = None,
    modules: Annotated[bool, typer.Option(help="also measure single matrices, which takes longest")] = True,
    only: Annotated[str | None, typer.Option(help="regular expression: only matrices whose names match")] = None,
    config: Annotated[Path | None, typer.Option(help="config.json of the model, where none lies beside it")] = None,
    heads: Annotated[int | None, typer.Option(help="attention heads per layer, where no configuration says")] = None,
    adapter: Annotated[
        Path | None, typer.Option(help="Python file that registers an adapter for the model; it is run")
    ] = None,
    out_: Annotated[Path | None, typer.Option("--out", help="folder to write; the same command resumes in it")] = None,
) -> None:
    """Measure how the rank of each head's change grows over a series of checkpoints."""
    from saddles.probe.inspection import inspect as work
    from saddles.probe.inspection import planned_folder
    from saddles.report.inspection import growth_sentences, write_inspection

    if adapter is not None:
        run_adapter(adapter)
    stated = _stated(config, heads)
    folder = out_ or planned_folder(checkpoints, reference, modules, only, stated)
    try:
        tree = work(checkpoints, reference, modules=modules, only=only, config=stated, out=folder)
    except KeyboardInterrupt:
        words = ["inspect", *map(str, checkpoints), *(["--reference", str(reference)] if reference else [])]
        given = {"--config": config, "--heads": heads, "--adapter": adapter}
        words += [word for name, value in given.items() if value is not None for word in (name, str(value))]
        words += ["--no-modules"] * (not modules) + (["--only", only] if only else []) + ["--out", str(folder)]
        raise interrupted("finished measurements are kept", words) from None
    for note in json.loads(tree.attrs["notes"]):
        err.print(f"[yellow]note:[/yellow] {escape(note)}", highlight=False, soft_wrap=True)
    for line in growth_sentences(tree):
        out.print(escape(line), highlight=False)
    say(f"report: {write_inspection(tree, folder)}")


def _stated(config: Path | None, heads: int | None) -> dict[str, object]:
    """What the options say about the model."""
    stated: dict[str, object] = {}
    if config is not None:
        try:
            stated = json.loads(config.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise SaddlesError(f"`--config` must be a JSON file such as config.json; {config} is not.") from error
        if not isinstance(stated, dict):
            raise SaddlesError(f"`--config` must hold a JSON object; {config} holds something else.")
    if heads is not None:
        if heads < 1:
            raise SaddlesError.must_be("heads", "at least 1", heads)
        stated |= {"num_attention_heads": heads}
    return stated


def run_adapter(file: Path) -> None:
    """Run a user's own file, which calls `saddles.probe.register`."""
    from saddles.probe.layouts.adapters import adapters

    before = len(adapters())
    try:
        runpy.run_path(str(file))
    except Exception as error:  # whatever the user's file raises
        raise SaddlesError(f"The adapter {file} could not be run: {type(error).__name__}: {error}.") from error
    if len(adapters()) == before:
        raise SaddlesError(f"The adapter {file} registers nothing. Call saddles.probe.register in it.")


BaseArgument = Annotated[Path, typer.Argument(help="the model before tuning: a folder or a file of weights")]
TunedArgument = Annotated[Path, typer.Argument(help="the tuned model")]
EnergyOption = Annotated[float | None, typer.Option(help="share of each module's change to keep; default: 0.9")]
BudgetOption = Annotated[int | None, typer.Option(help="total number of parameters, instead of --energy")]


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

    if out_ is not None:
        refuse_existing(out_)
    plan = work(base, tuned, energy=energy, budget=budget)
    _show_plan(plan)
    if out_ is not None:
        say(str(write_plan(plan, out_)))


@lora.command("extract")
def lora_extract(
    base: BaseArgument,
    tuned: TunedArgument,
    energy: EnergyOption = None,
    budget: BudgetOption = None,
    plan_: Annotated[
        Path | None, typer.Option("--plan", help="JSON of `saddles lora plan`, instead of --energy or --budget")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16")] = "float32",
    out_: Annotated[Path | None, typer.Option("--out", help="folder to write; must not exist")] = None,
) -> None:
    """Write a PEFT adapter that turns BASE into TUNED."""
    from saddles.probe.lora.adapter import lora_extract as work
    from saddles.probe.lora.plan import adapter_folder, read_plan
    from saddles.probe.lora.plan import lora_plan as make

    if plan_ is not None and (energy is not None or budget is not None):
        raise SaddlesError("A plan already decides the ranks. Give --plan without --energy and --budget.")
    folder = out_ or adapter_folder(tuned)
    refuse_existing(folder)
    plan = read_plan(plan_) if plan_ is not None else make(base, tuned, energy=energy, budget=budget)
    extraction = work(base, tuned, plan, folder, dtype=dtype)
    _show_plan(plan)
    errors = extraction.table()
    out.print(
        f"largest ‖ΔW − BA‖: predicted {errors['predicted_error'].max():.3e}, as stored {errors['error'].max():.3e}"
    )
    say(f"{extraction.folder}/")


def _show_plan(plan: "LoraPlan") -> None:
    numbers = ("shape", "rank", "energy", "‖ΔW‖", "error", "parameters")
    table = plain_table("module", *numbers, right=numbers)
    for name, row in plan.table().iterrows():
        cells = (f"{row['energy']:.4f}", f"{row['norm']:.3e}", f"{row['error']:.3e}", f"{row['parameters']:,}")
        table.add_row(escape(str(name)), str(row["shape"]), str(row["rank"]), *cells)
    out.print(table)
    by_reason: dict[str, list[LeftOut]] = {}
    for row in plan.left_out:
        by_reason.setdefault(row.reason, []).append(row)
    for reason, rows in by_reason.items():
        names = ", ".join(row.name for row in rows[:3]) + (", …" if len(rows) > 3 else "")
        norm = sum(row.norm**2 for row in rows) ** 0.5
        say(f"not carried, {reason}: ‖Δ‖ {norm:.3e} in {len(rows)} tensor{'s' * (len(rows) > 1)} ({names})")
    say(
        f"{plan.asked}: {plan.parameters:,} parameters carry {100 * plan.energy:.2f} % of all ‖Δ‖²; "
        f"{100 * plan.share_left_out:.2f} % is in tensors that LoRA does not carry"
    )
