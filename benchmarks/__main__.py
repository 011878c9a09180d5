"""`python -m benchmarks [LAB ...] [--full]`: every lab's benchmark, or those named."""

import importlib
import pkgutil
import sys

import benchmarks
from benchmarks.timing import announce


def main() -> None:
    full = "--full" in sys.argv
    named = [word for word in sys.argv[1:] if not word.startswith("--")]
    labs = [m.name for m in pkgutil.iter_modules(benchmarks.__path__) if m.name not in ("__main__", "timing")]
    announce()
    for lab in labs:
        if not named or lab in named:
            print(f"\n## {lab}\n")
            importlib.import_module(f"benchmarks.{lab}").main(full)


if __name__ == "__main__":
    main()
