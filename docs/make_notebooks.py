"""The tutorials as notebooks: `python docs/make_notebooks.py` writes notebooks/*.ipynb anew, executed.

The texts and the code come from docs/tutorials, the outputs from running them here. What is kept is small: figures as
PNG at 72 dots an inch, no widgets, no HTML where there is text.
"""

import ast
import copy
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from set_address import address, colab
from sphinx_gallery.gen_gallery import DEFAULT_GALLERY_CONF
from sphinx_gallery.notebook import jupyter_notebook
from sphinx_gallery.py_source_parser import split_code_and_text_blocks

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("[0-9]_*.py"))
KEPT = ("image/png", "text/plain")
INSTALL = '# Where saddles is not installed: remove the first sign of the next line.\n# %pip install "saddles[all]"'
SETTINGS = '%config InlineBackend.print_figure_kwargs = {"dpi": 72, "bbox_inches": "tight"}\n%matplotlib inline'
ROLE = re.compile(r":doc:`(?:([^`<]+?)\s*<([^>]+)>|([^`]+))`", re.DOTALL)
COMMENT = re.compile(r"^# sphinx_gallery_.*\n?", re.MULTILINE)


def written(tutorial: Path) -> nbformat.NotebookNode:
    """The notebook of a tutorial, not yet run."""
    _, blocks = split_code_and_text_blocks(str(tutorial))
    settings = {**copy.deepcopy(DEFAULT_GALLERY_CONF), "pypandoc": False, "first_notebook_cell": None}
    cells = jupyter_notebook(blocks, settings, FOLDER)["cells"]
    made = [_cell(cell) for cell in cells]
    opening = nbformat.v4.new_markdown_cell(_badge(tutorial.stem))
    setting = [nbformat.v4.new_code_cell(text) for text in (INSTALL, SETTINGS)]
    book = nbformat.v4.new_notebook(cells=[made[0], opening, *setting, *made[1:]])
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book.metadata = nbformat.from_dict({"kernelspec": kernel})
    for number, cell in enumerate(book.cells):
        cell["id"] = f"cell-{number}"
    return book


def run(book: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook with its outputs, run in an empty folder."""
    book = copy.deepcopy(book)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(book, timeout=600, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    for cell in book.cells:
        cell.metadata = nbformat.from_dict({})
        if cell.cell_type == "code":
            cell.outputs = [small for output in cell.outputs if (small := _small(output, folder))]
    book.metadata.pop("language_info", None)  # it names the Python that ran it
    return book


def _cell(cell: dict[str, Any]) -> nbformat.NotebookNode:
    text = "".join(cell["source"])
    if cell["cell_type"] == "code":
        return nbformat.v4.new_code_cell(_shown(COMMENT.sub("", text).strip()))
    return nbformat.v4.new_markdown_cell(ROLE.sub(_link, text).replace("``", "`").strip())


def _shown(code: str) -> str:
    """A figure that is made last is shown, as on the site."""
    last = ast.parse(code).body[-1]
    made = isinstance(last, ast.Assign) and ast.unparse(last.targets[0]) == "figure"
    return f"{code}\nfigure" if made else code


def _link(role: re.Match[str]) -> str:
    words, place = role[1] or role[3], (role[2] or role[3]).strip()
    if place.startswith("/"):
        name = "../CONTRIBUTING.md" if place == "/contributing" else f"../docs{place}.md"
    else:
        name = f"{place}.ipynb"
    return f"[{' '.join(words.split()).removeprefix('/')}]({name})"


def _badge(name: str) -> str:
    """A link that opens the notebook on a machine of Google's, once the repository is public."""
    return f"[Open in Colab]({colab(address())}/blob/main/notebooks/{name}.ipynb)"


def _small(output: nbformat.NotebookNode, folder: str) -> nbformat.NotebookNode | None:
    """An output without what is large, moves, or differs between machines."""
    if output.output_type == "stream":
        return output if output.name == "stdout" else None  # progress bars
    data = {kind: output.data[kind] for kind in KEPT if kind in output.get("data", {})}
    if "image/png" in data:
        data.pop("text/plain", None)
    if not any(data.values()) or folder in str(data):  # empty: the line of a progress bar that is gone
        return None
    return nbformat.v4.new_output(output.output_type, data=data, **_count(output))


def _count(output: nbformat.NotebookNode) -> dict[str, Any]:
    return {"execution_count": output.execution_count} if output.output_type == "execute_result" else {}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for tutorial in TUTORIALS:
        if len(sys.argv) == 1 or tutorial.stem in sys.argv[1:]:
            nbformat.write(run(written(tutorial)), FOLDER / f"{tutorial.stem}.ipynb")
            print(tutorial.stem, (FOLDER / f"{tutorial.stem}.ipynb").stat().st_size // 1000, "kB")
