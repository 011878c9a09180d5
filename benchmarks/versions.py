"""Two versions: the same commands of this checkout and another in turns, so that what made a CPU slower is seen.

`SADDLES_AGAINST=FOLDER python -m benchmarks versions`, where FOLDER is a checkout of another version. Both run in this
environment. `--full` takes more turns.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import saddles

HERE = Path(saddles.__file__).parents[1]
COMMANDS = {
    "ViT, Adam": "transformers/vit-cifar10-adam --set seeds=1",
    "GPT-2 on bytes": "transformers/gpt2-wikitext --set source=shakespeare",
    "diffusion": "diffusion/figure-6a --set separations=0.7",
    "phase diagram": "linear/figure-2",
}
"""Size `laptop` of work that was made faster on a GPU."""


def main(full: bool = False) -> None:
    other = os.environ.get("SADDLES_AGAINST")
    if other is None:
        print("needs SADDLES_AGAINST=FOLDER, a checkout of another version")
        return
    trees = (Path(other).resolve() / "src", HERE)
    if not (trees[0] / "saddles").is_dir():  # Python would take the installed one without a word
        sys.exit(f"SADDLES_AGAINST must be a checkout with src/saddles in it; got {other!r}.")
    with tempfile.TemporaryDirectory() as folder:
        for name, words in COMMANDS.items():
            # The first turn compiles and is not counted; who goes first changes from turn to turn.
            turns = [_turn(trees, words, Path(folder), bool(turn % 2)) for turn in range(7 if full else 3)][1:]
            for what, kind in enumerate(("processor s", "s by the clock")):
                before, now = ([turn[which][what] for turn in turns] for which in (0, 1))
                ratios = [later / earlier for earlier, later in zip(before, now, strict=True)]
                print(
                    f"{name}: {statistics.median(before):.1f} {kind} before, {statistics.median(now):.1f} now; "
                    f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
                    flush=True,
                )


def _turn(trees: tuple[Path, Path], words: str, folder: Path, now_first: bool) -> list[tuple[float, float]]:
    costs = {tree: _cost(tree, words, folder) for tree in (trees[::-1] if now_first else trees)}
    return [costs[tree] for tree in trees]


def _cost(tree: Path, words: str, folder: Path) -> tuple[float, float]:
    """Processor seconds, and seconds by the clock, of a command with the sources of a tree."""
    own = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryDirectory(dir=folder) as place:
        command = [sys.executable, "-m", "saddles", "run", *words.split(), "--size", "laptop", "--out", f"{place}/run"]
        done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):  # a claim that fails is no matter here
        sys.exit(f"{' '.join(command)} with {tree}: {done.stderr[-2000:]}")
    clock, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, clock
