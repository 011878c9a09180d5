"""Names that are imported when they are first used.

`import saddles` must stay fast, so a package lists its public names once, where type checkers and editors read them,

    if TYPE_CHECKING:
        from saddles.linear.model import TwoLayer as TwoLayer

and Python fetches them from there on demand (PEP 562). The package `lazy_loader` does the same from a stub file; it
takes 10 to 30 ms to import, this 2 ms.
"""

import importlib
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from saddles.runtime.packages import extra_for

RENAMED: dict[str, tuple[str, str]] = {}
"""Old name -> (new name, version in which the old one goes), of the packages that are loaded."""

_EXPORT = re.compile(r"^    from (\S+) import (\w+) as \2$", re.MULTILINE)


def lazy_exports(
    package: str, file: str, renamed: Mapping[str, tuple[str, str]] | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package.

    Args:
        package: the package's `__name__`.
        file: its `__file__`, whose lines `    from MODULE import NAME as NAME` are the public names.
        renamed: old name -> (new name, version in which the old one goes); until then it works and warns.
    """
    homes = {name: home for home, name in _EXPORT.findall(Path(file).read_text("utf-8"))}
    names = sorted(homes)
    RENAMED.update({f"{package}.{old}": (f"{package}.{new}", gone) for old, (new, gone) in (renamed or {}).items()})

    def fetch(name: str) -> object:
        if renamed and name in renamed:
            new, gone = renamed[name]
            words = f"{package}.{name} is now {package}.{new}; the old name goes in version {gone}."
            warnings.warn(words, DeprecationWarning, stacklevel=2)
            return fetch(new)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == package:  # a part of the package itself, such as saddles.linear
            return importlib.import_module(f"{package}.{name}")
        try:
            return getattr(importlib.import_module(homes[name]), name)
        except ModuleNotFoundError as error:
            if (extra := extra_for(error)) is None:
                raise
            words = f"{package}.{name} needs {error.name}, which is not installed: pip install 'saddles[{extra}]'"
            raise ModuleNotFoundError(words, name=error.name) from error

    return fetch, lambda: names, names
