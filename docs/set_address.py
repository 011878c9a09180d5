"""Put the repository's address wherever it stands: the package's metadata, the citation, the recipes, the pages.

    python docs/set_address.py https://github.com/OWNER/saddles

`[project.urls]` of pyproject.toml has the address that is replaced. The address of the site follows from it.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FORM = re.compile(r"https://github\.com/([\w-]+)/([\w.-]+?)/?")


def address(root: Path = ROOT) -> str:
    """The address that pyproject.toml tells."""
    return tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Repository"]


def site(repository: str) -> str:
    """Where GitHub publishes the pages of a repository."""
    if not (form := FORM.fullmatch(repository)):
        sys.exit(f"The address must be https://github.com/OWNER/NAME; got {repository}.")
    return f"https://{form[1].lower()}.github.io/{form[2]}"


def replace(new: str, root: Path = ROOT) -> list[str]:
    """Write the new address over the old one; returns the files that changed."""
    old, new = address(root), new.rstrip("/")
    pairs = [(site(old), site(new)), (old, new)]
    changed = []
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        file = root / name
        if not file.is_file() or file.is_symlink():
            continue
        before = after = file.read_bytes()
        for one, other in pairs:
            after = after.replace(one.encode(), other.encode())
        if after != before:
            file.write_bytes(after)
            changed.append(name)
    return changed


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/set_address.py https://github.com/OWNER/NAME")
    print("\n".join(replace(sys.argv[1])))
