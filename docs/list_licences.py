"""Write docs/licences.md: every package that an installation with everything brings, and its licence.

python docs/list_licences.py
"""

import importlib.metadata
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAD = """# Licences

saddles is under the [MIT licence](https://opensource.org/license/mit). It contains no code of others. The packages
that it installs with `all` and with the tools of `make setup` have licences that allow use beside MIT: permissive ones,
and the Mozilla licence (MPL), whose terms cover its own files only. docutils names the GPL for one file, an editor's
mode, which is not loaded. A test looks at every package that is installed, and `python docs/list_licences.py` writes
this page.

<!-- settings -->
| package | licence |
|---|---|
"""


def licence(name: str) -> str:
    """As the package tells it: the expression, the classifiers, or the first line of the text."""
    found = importlib.metadata.metadata(name)
    kinds = [line.rpartition(" :: ")[2] for line in found.get_all("Classifier", []) if line.startswith("License ::")]
    text = found.get_all("License-Expression", []) or [", ".join(kinds)]
    return text[0] or found.get_all("License", [""])[0].partition("\n")[0]


if __name__ == "__main__":
    pins = re.findall(r"^([A-Za-z][\w.-]*)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    rows = [(re.sub(r"[-_.]+", "-", name.lower()), licence(name)) for name in pins]
    text = HEAD + "".join(f"| {name} | {words} |\n" for name, words in sorted(rows))
    (ROOT / "docs" / "licences.md").write_text(text, "utf-8")
