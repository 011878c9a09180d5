"""`saddles lora`: which rank a fine-tune needs, its adapter, and smaller, merged or larger adapters."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from saddles.cli.terminal import interrupted, note, out, plain_table, say
from saddles.errors import SaddlesError
from saddles.runtime.files import explained, refuse_existing

if TYPE_CHECKING:
    from rich.table import Table

    from saddles.probe.lora.adapter import Extraction
    from saddles.probe.lora.plan import LeftOut, LoraPlan
    from saddles.probe.lora.reshape import Reshaped

NUMBERS_WIDTH = 72
"""Columns of a terminal that all numbers of a module take, for matrices of up to five digits a side."""

lora = typer.Typer(no_args_is_help=True, help="LoRA ranks and adapters from a base and a tuned model.")

BaseArgument = Annotated[Path, typer.Argument(help="the model before tuning: a folder or a file of weights")]
TunedArgument = Annotated[Path, typer.Argument(help="the tuned model")]
EnergyOption = Annotated[float | None, typer.Option(help="share of the whole change to keep; default: 0.9")]
PerModuleOption = Annotated[
    float | None, typer.Option("--energy-per-module", help="share of each module's own change to keep")
]
BudgetOption = Annotated[int | None, typer.Option(help="total number of parameters, instead of --energy")]
MaxRankOption = Annotated[
    int | None, typer.Option("--max-rank", help="no module gets more; alone, every module gets it")
]
RoundOption = Annotated[int, typer.Option("--round-to", help="ranks are multiples of it")]
SaveOption = Annotated[
    bool, typer.Option("--save-modules", help="also save whole the embeddings, norms and biases that LoRA cannot carry")
]
EvalOption = Annotated[Path | None, typer.Option("--eval", help="a text: measure the loss at several ranks on it")]
LossOption = Annotated[
    float | None, typer.Option(help="the smallest adapter that loses at most this much on --eval, instead of --energy")
]
DataOption = Annotated[
    Path | None, typer.Option("--data", help="a text: weigh each change by its effect on the prediction there")
]
LeadingOption = Annotated[
    int | None, typer.Option(help="compute only this many singular values of each module: faster for large models")
]
DeviceOption = Annotated[str, typer.Option(help="where it is computed: cpu, cuda, cuda:1, …")]
EmbeddingsOption = Annotated[bool, typer.Option("--embeddings", help="give embeddings factors too")]
DtypeOption = Annotated[str, typer.Option(help="float32, bfloat16 or float16")]
OnOption = Annotated[
    str | None, typer.Option(help="embedded for worker processes, or a Dask scheduler, tcp://HOST:PORT")
]
WorkersOption = Annotated[int | None, typer.Option(help="worker processes of --on embedded; default: one per core")]
PartsOption = Annotated[
    Path | None, typer.Option(help="folder that keeps finished spectra and factors: the same command resumes")
]
OutOption = Annotated[Path | None, typer.Option("--out", help="folder to write; must not exist")]


@lora.command("plan")
def lora_plan(
    base: BaseArgument,
    tuned: TunedArgument,
    energy: EnergyOption = None,
    energy_per_module: PerModuleOption = None,
    budget: BudgetOption = None,
    max_rank: MaxRankOption = None,
    round_to: RoundOption = 1,
    save_modules: SaveOption = False,
    evaluate: EvalOption = None,
    loss: LossOption = None,
    data: DataOption = None,
    leading: LeadingOption = None,
    device: DeviceOption = "cpu",
    embeddings: EmbeddingsOption = False,
    on: OnOption = None,
    workers: WorkersOption = None,
    parts: PartsOption = None,
    figure: Annotated[Path | None, typer.Option(help="write NAME.png, .svg and .pdf: rank against energy")] = None,
    out_: Annotated[Path | None, typer.Option("--out", help="JSON file to write; must not exist")] = None,
) -> None:
    """Find the rank that each module's adapter needs."""
    from saddles.probe.lora.plan import write_plan
    from saddles.probe.lora.planning import lora_plan as work

    pictures = [] if figure is None else [figure.with_suffix(end) for end in (".png", ".svg", ".pdf")]
    for place in [*pictures, *([out_] if out_ is not None else [])]:
        refuse_existing(place)
    with _resumable(parts):
        plan = work(
            base, tuned, energy=energy, budget=budget, max_rank=max_rank, energy_per_module=energy_per_module,
            round_to=round_to, save_modules=save_modules, loss=loss, evaluate=evaluate, data=data, leading=leading,
            device=device, embeddings=embeddings, on=on, workers=workers, parts=parts,
        )  # fmt: skip
    _show_plan(plan)
    if figure is not None:
        from saddles.core.drawings import save_drawing
        from saddles.figures.lora import rank_curve

        with explained(figure):
            save_drawing(rank_curve(plan.curve), figure)
        say(", ".join(map(str, pictures)))
    if out_ is not None:
        say(str(write_plan(plan, out_)))


@lora.command("extract")
def lora_extract(
    base: BaseArgument,
    tuned: TunedArgument,
    energy: EnergyOption = None,
    energy_per_module: PerModuleOption = None,
    budget: BudgetOption = None,
    max_rank: MaxRankOption = None,
    round_to: RoundOption = 1,
    save_modules: SaveOption = False,
    evaluate: EvalOption = None,
    loss: LossOption = None,
    data: DataOption = None,
    leading: LeadingOption = None,
    device: DeviceOption = "cpu",
    embeddings: EmbeddingsOption = False,
    on: OnOption = None,
    workers: WorkersOption = None,
    parts: PartsOption = None,
    plan_: Annotated[
        Path | None, typer.Option("--plan", help="JSON of `saddles lora plan`, instead of --energy and the like")
    ] = None,
    target: Annotated[str, typer.Option("--for", help="peft, vllm or llamacpp: who will load it")] = "peft",
    dtype: DtypeOption = "float32",
    out_: OutOption = None,
) -> None:
    """Write a PEFT adapter that turns BASE into TUNED."""
    from saddles.probe.lora.adapter import lora_extract as work
    from saddles.probe.lora.plan import adapter_folder, read_plan
    from saddles.probe.lora.planning import lora_plan as make

    chosen = (energy, energy_per_module, budget, max_rank, loss, evaluate, leading)
    if plan_ is not None and (any(one is not None for one in chosen) or round_to != 1 or save_modules or embeddings):
        raise SaddlesError("A plan already decides the ranks. Give --plan without --energy, --budget and the like.")
    folder = out_ or adapter_folder(tuned)
    refuse_existing(folder)
    with _resumable(parts):
        plan = (
            read_plan(plan_)
            if plan_ is not None
            else make(
                base, tuned, energy=energy, budget=budget, max_rank=max_rank, energy_per_module=energy_per_module,
                round_to=round_to, save_modules=save_modules, loss=loss, evaluate=evaluate, data=data, leading=leading,
                device=device, embeddings=embeddings, on=on, workers=workers, parts=parts,
            )
        )  # fmt: skip
        extraction = work(
            base, tuned, plan, folder, target=target, dtype=dtype, data=data, device=device, on=on, workers=workers,
            parts=parts,
        )  # fmt: skip
    _show_plan(plan)
    errors = extraction.table()
    out.print(
        f"largest ‖ΔW − BA‖: predicted {errors['predicted_error'].max():.3e}, as stored {errors['error'].max():.3e}"
    )
    if extraction.requantised:
        say(f"merged into the base and quantised again, its modules would be wrong by {extraction.requantised:.3e}")
    _show_target(extraction, target)
    say(f"{extraction.folder}/")


@contextmanager
def _resumable(parts: Path | None) -> Iterator[None]:
    """Say after Ctrl-C what is kept, and the command that resumes."""
    try:
        yield
    except KeyboardInterrupt:
        if parts is not None:
            raise interrupted(f"finished spectra and factors are kept in {parts}", sys.argv[1:]) from None
        note("\nInterrupted; nothing is kept. With --parts FOLDER the same command would resume.")
        raise typer.Exit(130) from None


AdapterArgument = Annotated[Path, typer.Argument(help="a PEFT folder, or a .safetensors file with kohya's names")]
OutArgument = Annotated[Path, typer.Option("--out", help="folder (kohya's names: file) to write; must not exist")]


@lora.command("compress")
def lora_compress(
    adapter: AdapterArgument,
    out_: OutArgument,
    energy: EnergyOption = None,
    energy_per_module: PerModuleOption = None,
    budget: BudgetOption = None,
    max_rank: MaxRankOption = None,
    round_to: RoundOption = 1,
    evaluate: Annotated[Path | None, typer.Option("--eval", help="a text: what --loss is measured on")] = None,
    loss: LossOption = None,
    base: Annotated[
        Path | None, typer.Option(help="the adapter's base, for --loss; default: the folder that its config names")
    ] = None,
) -> None:
    """Write an adapter of fewer ranks, the best of its size."""
    from saddles.probe.lora.reshape import lora_compress as work

    _show_reshaped(
        work(
            adapter, out_, energy, budget, max_rank, energy_per_module=energy_per_module, round_to=round_to, loss=loss,
            evaluate=evaluate, base=base,
        )
    )  # fmt: skip


@lora.command("merge")
def lora_merge(
    adapters: Annotated[list[Path], typer.Argument(help="two or more adapters of one base")],
    out_: OutArgument,
    weights: Annotated[str | None, typer.Option(help="one number for each, as 0.7,0.3; default: 1 for each")] = None,
    energy: Annotated[float | None, typer.Option(help="share of the sum to keep; default: all of it")] = None,
    budget: BudgetOption = None,
    max_rank: MaxRankOption = None,
) -> None:
    """Write one adapter whose change is the weighted sum of several."""
    from saddles.probe.lora.reshape import lora_merge as work

    try:
        shares = None if weights is None else [float(word) for word in weights.split(",")]
    except ValueError as error:
        raise SaddlesError.must_be("weights", "numbers with commas between them", weights) from error
    _show_reshaped(work(adapters, shares, out_, energy, budget, max_rank))


@lora.command("grow")
def lora_grow(
    adapter: AdapterArgument,
    rank: Annotated[int, typer.Option(help="of every module")],
    out_: OutArgument,
) -> None:
    """Write an adapter of higher rank with the same function, to train on."""
    from saddles.probe.lora.reshape import lora_grow as work

    _show_reshaped(work(adapter, rank, out_))


def _show_reshaped(made: "Reshaped") -> None:
    from saddles.probe.lora.peft_files import PREFIX

    overlap = made.overlap
    numbers = ("rank", "new rank", "‖ΔW‖", "error", *(["overlap"] if overlap is not None else []))
    table = plain_table("module", *numbers, right=numbers)
    for name, (old, new) in made.ranks.items():
        cells = [str(old), str(new), f"{made.norms[name]:.3e}", f"{made.errors[name]:.3e}"]
        table.add_row(
            escape(name.removeprefix(PREFIX)), *cells, *([f"{overlap[name]:+.3f}"] if overlap is not None else [])
        )
    out.print(table)
    before, after = made.parameters
    say(f"{before:,} parameters became {after:,}; relative error of the whole change {made.error:.2e}")
    say(str(made.place))


def _show_target(extraction: "Extraction", target: str) -> None:
    plan = extraction.plan
    if target != "peft":
        rank, planned = (
            plan.settings(target)["r"],
            plan.parameters - sum(r.outputs * plan.lora_bias for r in plan.carried),
        )
        if extraction.parameters == planned:
            say(f"every module has rank {rank}: nothing had to be padded for {target}")
        else:
            say(f"padded to rank {rank} for {target}: {extraction.parameters:,} parameters instead of {planned:,}")
        if target == "vllm":
            say(f"vLLM must be started with --max-lora-rank {_slot(int(rank))} or more")
    for name in extraction.dropped:
        say(f"left out, because {target} rejects it: {name}")
    for line in extraction.notes:
        say(line)
    if extraction.loaded:
        say(f"loaded back through PEFT into {plan.architecture}")
    else:
        say("not loaded back: without a config.json the model's class is not known")


def _slot(rank: int) -> int:
    """The smallest rank that vLLM's --max-lora-rank allows."""
    return next((size for size in (8, 16, 32, 64, 128, 256, 320, 512) if size >= rank), rank)


def _modules(plan: "LoraPlan") -> "Table":
    """One row per module; norms and errors, which --out has too, only where names still fit beside them."""
    modules = plan.table()
    wide = out.width >= max(len(str(name)) for name in modules.index) + NUMBERS_WIDTH
    norms = ("‖ΔW‖", "error") if wide else ()
    numbers = ("shape", "rank", "energy", "above\nrounding", *norms, "parameters")
    table = plain_table("module", *numbers, right=numbers)
    for name, row in modules.iterrows():
        shares = (f"{row['energy']:.4f}", f"{row['energy_above']:.4f}")
        sizes = (f"{row['norm']:.3e}", f"{row['error']:.3e}") if wide else ()
        cells = (str(row["shape"]), str(row["rank"]), *shares, *sizes, f"{row['parameters']:,}")
        table.add_row(escape(str(name)), *cells)
    return table


def _show_plan(plan: "LoraPlan") -> None:
    say(plan.answer)
    curve = plain_table(
        "one rank for all", "carries", "parameters", right=("one rank for all", "carries", "parameters")
    )
    for point in plan.curve:
        curve.add_row(str(point.rank), f"{100 * point.energy:.1f} %", f"{point.parameters:,}")
    out.print(curve)
    if plan.measured:
        words = "loss" if plan.task == "CAUSAL_LM" else "KL to tuned"
        losses = plain_table("model", "parameters", words, right=("parameters", words))
        for row in plan.measured:
            losses.add_row(escape(row.what), f"{row.parameters:,}" if row.parameters else "", f"{row.value:.4f}")
        out.print(losses)
    out.print(_modules(plan))
    quiet = [row.module for row in plan.modules if row.norm and not row.above]
    if quiet:
        say(f"nothing above rounding in {len(quiet)} changed module{'s' * (len(quiet) > 1)} ({', '.join(quiet[:3])})")
    by_reason: dict[str, list[LeftOut]] = {}
    for row in plan.left_out:
        by_reason.setdefault(row.reason, []).append(row)
    for reason, rows in by_reason.items():
        names = ", ".join(row.name for row in rows[:3]) + (", …" if len(rows) > 3 else "")
        norm = sum(row.norm**2 for row in rows) ** 0.5
        say(f"not carried, {reason}: ‖Δ‖ {norm:.3e} in {len(rows)} tensor{'s' * (len(rows) > 1)} ({names})")
    if plan.saved:
        names = ", ".join(one.name for one in plan.saved[:3]) + (", …" if len(plan.saved) > 3 else "")
        say(f"saved whole: {plan.saved_parameters:,} parameters ({names})")
    if plan.quantised:
        times = plan.requantising / plan.norm
        say(
            f"the base is stored as {plan.quantised}; changes are against the numbers that it computes with. The tuned "
            f"model, quantised again, would be wrong by {times:.2g} of its whole change: keep the adapter apart"
        )
    weighted = f", weighted by {plan.data}" if plan.data else ""
    biases = plan.parameters - sum(row.rank * row.cost for row in plan.carried)
    of_them = f" ({biases:,} of them biases)" if biases else ""
    say(
        f"{plan.asked}: {plan.parameters:,} parameters{of_them} carry {100 * plan.energy:.2f} % of all ‖Δ‖² and "
        f"{100 * plan.energy_above:.2f} % of what LoRA can carry (above rounding{weighted}); "
        f"{100 * plan.share_left_out:.2f} % of all is in tensors that no rank carries"
    )
