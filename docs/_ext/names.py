"""The directive `names`: a package's public names, each with its docstring.

The list is written out on the page. A name that is gone, renamed, or public but not listed is a warning,
and warnings break the build.
"""

import importlib
import inspect
from types import ModuleType
from typing import Any, ClassVar

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

_log = logging.getLogger(__name__)


def public_names(package: str) -> list[str]:
    """What a package exports, packages inside it aside: those have pages of their own."""
    module = importlib.import_module(package)
    return [name for name in module.__all__ if not isinstance(getattr(module, name), ModuleType)]


class Names(SphinxDirective):
    """```{names} PACKAGE``` with one name a line."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        """Parse the lines that autosummary and autodoc would be given by hand."""
        package, listed = self.arguments[0], [line.strip() for line in self.content if line.strip()]
        there = public_names(package)
        for name in sorted(set(there) ^ set(listed)):
            what = "is public but not listed" if name in there else "is listed but not public"
            _log.warning("%s.%s %s", package, name, what, location=self.get_location())
        kept = [name for name in listed if name in there]
        lines = ["```{eval-rst}", f".. currentmodule:: {package}", "", ".. autosummary::", "   :nosignatures:", ""]
        lines += [f"   {name}" for name in kept]
        for name in kept:
            thing = getattr(importlib.import_module(package), name)
            home = getattr(thing, "__module__", "")
            shared = package != "saddles" and home.startswith(("saddles.core", "saddles.solvers"))  # indexed elsewhere
            lines += ["", *_entry(thing, name), *["   :no-index:"] * shared]
        box = nodes.container()
        self.state.nested_parse(StringList([*lines, "```"], self.get_source_info()[0]), self.content_offset, box)
        return box.children


class Also(SphinxDirective):
    """```{also}``` with one full name a line: what public names return or accept without being public themselves."""

    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        """Document each where it lives."""
        lines = ["```{eval-rst}"]
        for full in (line.strip() for line in self.content if line.strip()):
            module, _, name = full.rpartition(".")
            thing = getattr(importlib.import_module(module), name)
            lines += ["", f".. currentmodule:: {module}", "", *_entry(thing, name)]
        box = nodes.container()
        self.state.nested_parse(StringList([*lines, "```"], self.get_source_info()[0]), self.content_offset, box)
        return box.children


def _entry(thing: Any, name: str) -> list[str]:
    if not callable(thing):
        return [f".. data:: {name}", "", "   See `saddles.protocols`."]
    if not inspect.isclass(thing):
        return [f".. autofunction:: {name}"]
    kind = "autoexception" if issubclass(thing, Exception) else "autoclass"
    return [f".. {kind}:: {name}", "   :members:"]


def setup(app: Any) -> dict[str, bool]:
    """Offer the directives."""
    app.add_directive("names", Names)
    app.add_directive("also", Also)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
