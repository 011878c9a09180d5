"""Run whole labs; the report grows as experiments finish."""

from collections.abc import Callable, Sequence
from pathlib import Path

from saddles.core.experiment import Context, Experiment, chosen
from saddles.core.provenance import machine, versions
from saddles.core.run import run_experiment
from saddles.errors import MissingDataError, SaddlesError
from saddles.report.page import Section, write_page
from saddles.runtime.files import explained

HEADING = "saddles: reproduction"


def reproduce(
    labs: Sequence[str],
    *,
    size: str | None = None,
    seed: int = 0,
    root: Path = Path("runs"),
    say: Callable[[str], None] = lambda text: None,
) -> tuple[int, Path]:
    """Run every experiment of some labs (none named: of all) and write root/report.html.

    An experiment without its data is skipped, and the report says so; one that has no such size runs at its default;
    one that fails is reported, and the others still run.

    Returns the number of failed claims and failed experiments, and the page.
    """
    rows = chosen(labs)
    known = list(dict.fromkeys(name for row in rows for name in row.sizes))
    if size is not None and size not in known:
        raise SaddlesError.must_be("size", f"one of {', '.join(known)}", size)
    Context(seed=seed)  # refuses a seed below 0 before anything is written
    page = root / "report.html"
    facts = {**{k: v for k, v in machine().items() if v is not None}, **versions()}
    sections = [Section(row.name, row.title) for row in rows]
    failed = 0
    with explained(root, "Choose another --out"):
        root.mkdir(parents=True, exist_ok=True)
        write_page(sections, page, HEADING, facts)
    for place, row in enumerate(rows):
        here = size if size is not None and size in row.sizes else row.default
        say(f"{place + 1}/{len(rows)} {row.name}, {here}, about {row.sizes[here].seconds:g} s")
        instead = row.instead(here, row.at_hand(here))
        if instead:
            say(f"  data: {instead}")
        sections[place], failures, outcome = _run(row, here, seed, root)
        failed += failures
        say(f"  {outcome}")
        write_page(sections, page, HEADING, facts)
    return failed, page


def _run(row: Experiment, size: str, seed: int, root: Path) -> tuple[Section, int, str]:
    """One experiment: its section of the page, how much failed, and a line about it."""
    try:
        result = run_experiment(row, size=size, seed=seed, root=root)
    except SaddlesError as error:
        missing = isinstance(error, MissingDataError)
        reason = f"{'skipped' if missing else 'failed'}: {error}"
        return Section(row.name, row.title, waiting=reason), 0 if missing else 1, reason
    verdicts = [claim.verdict for claim in result.claims]
    words = {"holds": "hold", "fails": "fail", "not_evidence": "are not evidence", "not_applicable": "do not apply"}
    counts = ", ".join(f"{verdicts.count(verdict)} {word}" for verdict, word in words.items())
    section = Section(row.name, row.title, result.record, result.claims, result.folder / "figure.png")
    return section, verdicts.count("fails"), counts
