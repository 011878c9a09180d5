"""The notebooks are the tutorials, were run without an error, and are small. (`make docs` runs the tutorials.)"""

import importlib.util
import sys

import nbformat
import pytest
from doc_pages import ROOT

LARGEST = 400_000
"""Bytes of a notebook: a few figures at screen size."""


@pytest.fixture(scope="module")
def maker():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        spec = importlib.util.spec_from_file_location("make_notebooks", ROOT / "docs" / "make_notebooks.py")
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / "docs"))
    return module


def test_every_tutorial_is_a_notebook(maker):
    assert {tutorial.stem for tutorial in maker.TUTORIALS} == {file.stem for file in maker.FOLDER.glob("*.ipynb")}
    for tutorial in maker.TUTORIALS:
        file = maker.FOLDER / f"{tutorial.stem}.ipynb"
        book, text = nbformat.read(file, as_version=4), file.read_text("utf-8")
        nbformat.validate(book)
        cells = [(cell.cell_type, cell.source) for cell in book.cells]
        assert cells == [(cell.cell_type, cell.source) for cell in maker.written(tutorial).cells], "run it anew"
        outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
        assert any("image/png" in output.get("data", {}) for output in outputs)
        assert all(output.output_type != "error" for output in outputs)
        assert len(text) < LARGEST
        assert ":doc:" not in text
        assert "/tmp/" not in text
        assert str(ROOT) not in text


@pytest.mark.docs
def test_a_notebook_runs_and_keeps_little(maker):
    book = maker.nbformat.v4.new_notebook(
        cells=[
            maker.nbformat.v4.new_code_cell(maker.SETTINGS),
            maker.nbformat.v4.new_code_cell(
                "import sys\nimport matplotlib.pyplot as plt\nprint('told')\nprint('bar', file=sys.stderr)\n"
                "_ = plt.plot([1, 2])"
            ),
            maker.nbformat.v4.new_code_cell("import os; os.getcwd()"),
            maker.nbformat.v4.new_code_cell(
                "from saddles.runtime.displays import Notebook, State\nline = Notebook()\n"
                "line.show(State('flow', 1.0, 4, 3.0, ''))\nline.close()"
            ),
        ]
    )
    settings, drawn, place, progress = maker.run(book).cells
    assert settings.outputs == place.outputs == progress.outputs == []
    assert [output.output_type for output in drawn.outputs] == ["stream", "display_data"]
    assert list(drawn.outputs[1].data) == ["image/png"]
