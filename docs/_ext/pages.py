"""The directive `pages`: a toctree of the pages that are there, so that a part and its page can come together later."""

from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.directives.other import TocTree


class Pages(TocTree):
    """```{pages}```: like toctree, without those that are missing."""

    def run(self) -> list[nodes.Node]:
        """Drop the names of pages that do not exist."""
        there = [line for line in self.content if line in self.env.found_docs]
        self.content = StringList(there, self.get_source_info()[0])
        return super().run()


def setup(app: Any) -> dict[str, bool]:
    """Offer the directive."""
    app.add_directive("pages", Pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
