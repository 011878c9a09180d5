"""Run whole labs and let the report grow as experiments finish."""

from collections.abc import Callable, Sequence
from pathlib import Path

from saddles.core.experiment import Experiment, registry
from saddles.core.provenance import machine, versions
from saddles.core.run import run_experiment
from saddles.errors import MissingDataError, SaddlesError
from saddles.report.page import Section, write_page


def reproduce(
    labs: Sequence[str],
    *,
    size: str | None = None,
    seed: int = 0,
    root: Path = Path("runs"),
    say: Callable[[str], None] = lambda text: None,
) -> tuple[int, Path]:
    """Run every experiment of some labs (none named: of all) and write root/report.html.

    An experiment without its data is skipped with that reason; one that has no such size runs at
    its default; one that breaks is reported and the rest go on.

    Returns the number of failed claims and broken experiments, and the page.
    """
    chosen = _chosen(labs)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaddlesError.about(
            f"{root} cannot be written ({error.strerror})",
            "a folder with write permission is needed",
            "choose another --out",
        ) from error
    page = root / "report.html"
    facts = {**{k: v for k, v in machine().items() if v is not None}, **versions()}
    sections = [Section(row.name, row.title) for row in chosen]
    failed = 0
    for place, row in enumerate(chosen):
        write_page(sections, page, "saddles: reproduction", facts)
        wanted = size if size is not None and size in row.sizes else row.default
        say(f"{place + 1}/{len(chosen)} {row.name}, {wanted}, about {row.sizes[wanted].seconds:g} s")
        try:
            made = run_experiment(row, size=wanted, seed=seed, root=root)
        except MissingDataError as missing:
            sections[place] = Section(row.name, row.title, waiting=f"skipped: {missing}")
            say(f"  skipped: {missing}")
            continue
        except SaddlesError as error:
            sections[place] = Section(row.name, row.title, waiting=f"broke: {error}")
            failed += 1
            say(f"  broke: {error}")
            continue
        verdicts = [claim.verdict for claim in made.claims]
        failed += len(made.failed)
        counts = {word: verdicts.count(word) for word in ("holds", "fails", "not_applicable")}
        say(f"  {counts['holds']} hold, {counts['fails']} fail, {counts['not_applicable']} do not apply")
        sections[place] = Section(row.name, row.title, made.record, made.claims, made.folder / "figure.png")
    write_page(sections, page, "saddles: reproduction", facts)
    return failed, page


def _chosen(labs: Sequence[str]) -> list[Experiment]:
    known = registry().values()
    there = sorted({row.lab for row in known})
    unknown = [lab for lab in labs if lab not in there]
    if unknown:
        raise SaddlesError.about(f"the lab {unknown[0]!r} came", f"there are {', '.join(there)}", "choose one of them")
    return [row for row in known if not labs or row.lab in labs]
