"""Run whole labs side by side; the report grows as experiments finish."""

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from saddles.core.engines.embedded import gpus
from saddles.core.engines.engine import ONE_THREAD
from saddles.core.experiment import Context, Experiment, chosen, registered_here
from saddles.core.provenance import machine, versions
from saddles.core.run import Run, planned_folder, run_experiment, write_ending
from saddles.core.status import Ending, Status
from saddles.errors import MissingDataError, MissingPackageError, SaddlesError
from saddles.report.page import Section, write_page
from saddles.runtime.files import explained
from saddles.runtime.interrupts import terminated_like_ctrl_c
from saddles.runtime.packages import extra_for, not_installed
from saddles.runtime.progress import bar
from saddles.runtime.threads import cores
from saddles.runtime.workers import Worker, WorkerLostError

HEADING = "saddles: reproduction"


@dataclass(frozen=True)
class Job:
    """One experiment to run in a worker process."""

    name: str
    size: str
    seed: int
    root: Path


@dataclass(frozen=True)
class Outcome:
    """What became of it: a run, or why there is none."""

    run: Run | None = None
    reason: str = ""
    skipped: bool = False


def reproduce(
    labs: Sequence[str],
    *,
    size: str | None = None,
    seed: int = 0,
    root: Path = Path("runs"),
    workers: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[int, Path]:
    """Run every experiment of some labs (none named: of all) and write root/report.html.

    An experiment without its data is skipped, and the report says so; one that has no such size runs at its default;
    one that fails is reported, and the others still run.

    Args:
        workers: experiments at a time, each in a process with one thread; None is one for each core or GPU, 1 runs
            them one after another in this process.

    Returns the number of failed claims and failed experiments, and the page.
    """
    rows = chosen(labs)
    known = list(dict.fromkeys(name for row in rows for name in row.sizes))
    if size is not None and size not in known:
        raise SaddlesError.must_be("size", f"one of {', '.join(known)}", size)
    if workers is not None and workers < 1:
        raise SaddlesError.must_be("workers", "at least 1", workers)
    Context(seed=seed)  # refuses a seed below 0 before anything is written
    page = root / "report.html"
    facts = {**{k: v for k, v in machine().items() if v is not None}, **versions()}
    sections = [Section(row.name, row.title) for row in rows]
    with explained(root, "Choose another --out"):
        root.mkdir(parents=True, exist_ok=True)
        write_page(sections, page, HEADING, facts)
    say(f"report: {page} (it grows; reload it)")
    sizes = [size if size is not None and size in row.sizes else row.default for row in rows]
    jobs = [Job(row.name, here, seed, root) for row, here in zip(rows, sizes, strict=True)]
    seconds = [row.sizes[here].seconds for row, here in zip(rows, sizes, strict=True)]
    failed = 0
    # The longest first: a long one that begins last would run alone.
    work = {place: (rows[place], jobs[place]) for place in sorted(range(len(rows)), key=lambda place: -seconds[place])}
    outcomes = _outcomes(work, workers or len(gpus()) or cores())
    with terminated_like_ctrl_c(), bar("reproduce", float(sum(seconds))) as progress, closing(outcomes):
        for count, (place, outcome) in enumerate(outcomes, 1):
            sections[place], failures, words = _judged(rows[place], outcome)
            failed += failures
            write_page(sections, page, HEADING, facts)
            computed = not outcome.skipped and (outcome.run is None or outcome.run.computed)
            (progress.advance if computed else progress.skip)(seconds[place])  # what is only shown takes no time
            progress.print(f"{count}/{len(rows)} {rows[place].name}, {sizes[place]}: {words}", say)
    return failed, page


Submit = Callable[[Experiment, Job], "Future[Outcome]"]


def _outcomes(work: Mapping[int, tuple[Experiment, Job]], workers: int) -> Generator[tuple[int, Outcome], None, None]:
    """What became of each, as they finish."""
    if workers == 1:  # in this thread, which alone gets Ctrl-C; the end of a program waits for all others
        for place, (row, job) in work.items():
            yield place, _carry_out(row, job)
        return
    with _runner(min(workers, len(work)) or 1) as submit:
        places = {submit(row, job): place for place, (row, job) in work.items()}
        for future in as_completed(places):
            yield places[future], future.result()


@contextmanager
def _runner(workers: int) -> Iterator[Submit]:
    """Something that takes jobs: worker processes."""
    mine, all_workers, stopped = threading.local(), set(), threading.Event()

    def elsewhere(job: Job) -> Outcome:
        if not hasattr(mine, "worker"):
            mine.worker = Worker(_start, None, environment={str(k): v for k, v in ONE_THREAD.items()})
            all_workers.add(mine.worker)
        try:
            return mine.worker.call(job)
        except WorkerLostError as error:
            del mine.worker  # the next job of this thread starts another
            ending = Status(Ending.INTERRUPTED) if stopped.is_set() else Status(Ending.FAILED, str(error))
            with suppress(OSError, SaddlesError):  # it was killed, and could not say so itself
                write_ending(planned_folder(job.name, size=job.size, seed=job.seed, root=job.root), ending)
            return Outcome(reason=str(error))

    def submit(row: Experiment, job: Job) -> "Future[Outcome]":
        # An experiment that was registered in this process alone is not known to a fresh one.
        if registered_here(row.name):
            return pool.submit(_carry_out, row, job)
        return pool.submit(elsewhere, job)

    with ThreadPoolExecutor(workers, thread_name_prefix="reproduce") as pool:
        try:
            yield submit
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            stopped.set()
            for worker in all_workers:
                worker.kill()


def _start(nothing: None) -> Callable[[Job], Outcome]:
    """What a worker process answers jobs with."""
    from saddles.core.experiment import find
    from saddles.runtime.programs import keep_compiled_programs

    keep_compiled_programs()
    return lambda job: _carry_out(find(job.name), job)


def _carry_out(row: Experiment, job: Job) -> Outcome:
    try:
        return Outcome(run_experiment(row, size=job.size, seed=job.seed, root=job.root))
    except (MissingDataError, MissingPackageError) as error:
        return Outcome(reason=str(error), skipped=True)
    except SaddlesError as error:
        return Outcome(reason=str(error))
    except Exception as error:  # a mistake of ours in one experiment must not take the others down
        if isinstance(error, ModuleNotFoundError) and (extra := extra_for(error)):
            return Outcome(reason=str(not_installed(error, extra)), skipped=True)
        return Outcome(reason=f"this is a bug in saddles ({type(error).__name__}: {error})")


def _judged(row: Experiment, outcome: Outcome) -> tuple[Section, int, str]:
    """The section of the page, how much failed, and a line about it."""
    result = outcome.run
    if result is None:
        state = "skipped" if outcome.skipped else "broken"
        section = Section(row.name, row.title, waiting=outcome.reason, state=state)
        return section, 0 if outcome.skipped else 1, f"{'skipped' if outcome.skipped else 'failed'}: {outcome.reason}"
    verdicts = [claim.verdict for claim in result.claims]
    words = {  # of one claim, of several
        "holds": ("holds", "hold"),
        "fails": ("fails", "fail"),
        "not_evidence": ("is not evidence", "are not evidence"),
        "not_applicable": ("does not apply", "do not apply"),
    }
    found = {verdict: verdicts.count(verdict) for verdict in words if verdict in verdicts}
    counts = ", ".join(f"{count} {words[verdict][count > 1]}" for verdict, count in found.items())
    instead = result.record.get("data_note", "")
    section = Section(row.name, row.title, result.record, result.claims, result.folder / "figure.png")
    return section, verdicts.count("fails"), counts + (f"; {instead}" if instead else "")
