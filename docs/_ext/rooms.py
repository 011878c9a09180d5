"""The explorer's static rooms inside the pages: `{room} linear` shows one, `docs/rooms.py` writes them."""

from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive


class ShowRoom(Directive):
    """A frame with one room, and a link that opens it alone."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make the nodes."""
        name = self.arguments[0]
        frame = f'<iframe class="room" src="rooms/{name}.html" title="explorer: {name}" loading="lazy"></iframe>'
        link = f'<p><a href="rooms/{name}.html">Open this room alone</a></p>'
        return [nodes.raw("", frame + link, format="html")]


def setup(app: Any) -> dict[str, bool]:
    """Offer the directive."""
    app.add_directive("room", ShowRoom)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
