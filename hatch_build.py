"""The README for a package index, which needs whole addresses: relative ones lead nowhere there.

In the repository its links and pictures are relative, so that they work in every checkout and fork.
"""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)]+)\)")


class WholeAddresses(MetadataHookInterface):
    """Links to the files of this version's tag, in the repository that [project.urls] names."""

    def update(self, metadata: dict) -> None:
        """Set the field `readme`."""
        files = f"{metadata['urls']['Repository']}/{{}}/v{metadata['version']}"

        def whole(link: re.Match[str]) -> str:
            picture, words, path = link.groups()
            return f"{picture}[{words}]({files.format('raw' if picture else 'blob')}/{path})"

        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": LINK.sub(whole, text)}
