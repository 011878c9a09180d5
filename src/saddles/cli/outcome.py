"""What `saddles run` prints of its result."""

from typing import TYPE_CHECKING

from rich.markup import escape

from saddles.cli.terminal import duration, note, out, plain_table, say, since_start

if TYPE_CHECKING:
    from saddles.core.run import Run


def show_run(result: "Run") -> None:
    """The verdicts, and how long they took."""
    from saddles.core.claim import compared, null_in_words

    record = result.record
    waited, computed = since_start(), record["wall_time_s"]
    if result.computed:
        how = f"finished, {duration(waited)} by the clock"
        # A resumed run: this command took less than the whole.
        how += f", {duration(computed)} with what was computed before" if computed > waited else ""
    else:
        how = f"shown from an earlier identical run (--fresh computes it again, {duration(computed)})"
    head = f"[bold]{record['experiment']}[/bold] {record['size']}, seed {record['seed']}"
    out.print(f"{head}: {how}", highlight=False, soft_wrap=True)
    table = plain_table("verdict", "claim", "value", "", "threshold", "null", "runs")
    colours = {"holds": "green", "fails": "red", "not_evidence": "yellow", "not_applicable": "yellow"}
    for claim in result.claims:
        verdict = f"[{colours[claim.verdict]}]{claim.verdict.replace('_', ' ')}[/]"
        text = escape(claim.claim) + (f"\n[dim]{escape(claim.reason)}[/dim]" if claim.reason else "")
        relation = compared(claim.value, claim.relation, claim.threshold)
        numbers = (f"{claim.value:.4g}", relation, f"{claim.threshold:.4g}", null_in_words(claim), str(claim.seeds))
        table.add_row(verdict, text, *numbers)
    out.print(table)
    say(f"figure: {result.folder / 'figure.png'}")


def warn_of_nan(result: "Run") -> None:
    """Name what a finished run of a user's own experiment lost; in ours, NaN has a meaning (GPT-2 has no accuracy)."""
    from saddles.core.experiment import registry
    from saddles.core.trajectory import lost_variables

    row = registry().get(result.record["experiment"])
    if row is None or row.shipped or not (lost := lost_variables(result.trajectory)):
        return
    names = ", ".join(f"`{name}`" for name in lost)
    note(f"NaN at the last time of this finished run: {names}. EQX_ON_ERROR=raise saddles run … --fresh may say why.")
