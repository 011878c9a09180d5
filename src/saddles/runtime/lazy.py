"""Names that are imported when they are first used.

`import saddles` must stay fast, so a package lists where its public names live
and Python fetches them on demand (PEP 562).
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package.

    Args:
        package: the package's `__name__`.
        homes: public name -> module that holds it. A name whose home ends with
            `.name` itself is a submodule.
    """
    names = sorted(homes)

    def fetch(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(homes[name])
        if homes[name] == f"{package}.{name}":
            return module
        return getattr(module, name)

    return fetch, lambda: names, names
