"""What the pages show is there: links, commands, options, targets of make, public names."""

import importlib
import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from doc_pages import ROOT, anchors, blocks, links, name, pages

import saddles
from saddles.cli import app
from saddles.core.experiment import find

PAGES = pages()
BENCHMARKS = {file.stem for file in (ROOT / "benchmarks").glob("*.py")}
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
COMMAND = re.compile(r"(saddles|make|python -m (saddles|benchmarks)|torchrun) ")
PLACEHOLDER = re.compile(r"[…\[\]|]|\b[A-Z]{2,}\b")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, fragment = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), f"{name(page)} links to {link}"
        assert ROOT in target.parents, f"{name(page)} links out of the repository: {link}"
        if fragment and target.suffix == ".md":
            assert fragment in anchors(target), f"{name(page)} links to {link}; there are {sorted(anchors(target))}"


def _shown() -> list[tuple[str, str]]:
    """Every command line in a block or in the text, and where it stands."""
    found = []
    for page in PAGES:
        if page.name == "CHANGELOG.md":
            continue
        lines = [line for block in blocks(page) if block.language in ("", "sh") for line in block.code.splitlines()]
        lines += re.findall(r"`((?:saddles|make|python -m) [^`]+)`", page.read_text("utf-8"))
        for line in lines:
            parts = re.split(r"\s{3,}|\s#", line.strip())  # what stands far to the right explains
            found += [(name(page), part) for part in parts if COMMAND.match(part)]
    return sorted(set(found))


@pytest.mark.parametrize(("page", "line"), _shown())
def test_commands_exist(page, line):
    words = shlex.split(line.replace("'", ""))
    if words[0] == "make":
        assert {word for word in words[1:] if "=" not in word} <= TARGETS
        return
    if words[:3] == ["python", "-m", "benchmarks"]:
        assert words[3] == "LAB" or words[3] in BENCHMARKS or words[3].startswith("--")
        return
    words = words[words.index("saddles") + 1 :]
    assert _parse(words, bool(PLACEHOLDER.search(line))), line


def _parse(words: list[str], sketch: bool) -> bool:
    """Walk down to the command; a sketch's options must exist, a whole line must parse and name an experiment."""
    here: Any = typer.main.get_command(app)
    while words and hasattr(here, "commands") and not words[0].startswith("--"):
        heads = words[0].split("|")
        found = [here.commands[head] for head in heads if head in here.commands]
        assert len(found) == len(heads), f"no command {words[0]}"
        here, words = found[0], words[1:]
    options = {option for parameter in here.params for option in (*parameter.opts, *parameter.secondary_opts)}
    asked = {option for word in words for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", word)}
    assert asked <= options | {"--help"}, f"unknown: {asked - options}"
    if not sketch and words and not hasattr(here, "commands"):  # `saddles --install-completion` would be carried out
        with here.make_context("saddles", list(words)) as context:
            if here.name == "run" and context.params["name"]:
                find(context.params["name"]).settings(context.params["size"] or find(context.params["name"]).default)
    return True


def _packages() -> list[str]:
    inside = [n for n in saddles.__all__ if inspect.ismodule(getattr(saddles, n)) and n != "figures"]
    return ["saddles", *(f"saddles.{n}" for n in inside)]


@pytest.mark.parametrize("package", _packages())
def test_reference_lists_the_public_names(package):
    """The build checks it too, by the same list on the page; this says it in a second."""
    stem = "package" if package == "saddles" else package.partition(".")[2]
    page = ROOT / "docs" / "reference" / f"{stem}.md"
    listed = next(block for block in blocks(page) if block.language == f"{{names}} {package}").code.split()
    module = importlib.import_module(package)
    public = [n for n in module.__all__ if not inspect.ismodule(getattr(module, n))]
    assert sorted(listed) == sorted(public)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("", ""),
        ("effective_rank\n", "saddles.measures.effective_rank is public but not listed"),
        ("stable_rank\n", "saddles.measures.stable_rank is public but not listed"),
        ("+gone\n", "saddles.measures.gone is listed but not public"),
    ],
    ids=["as it is", "removed from the page", "renamed", "gone from the package"],
)
def test_a_public_name_that_goes_breaks_the_build(tmp_path, change, words):
    page = (ROOT / "docs" / "reference" / "measures.md").read_text()
    if change.startswith("+"):
        page = page.replace("\nspeed\n", f"\nspeed\n{change[1:]}")
    elif change:
        assert change in page
        page = page.replace(f"\n{change}", "\nstable_ranks\n" if change.startswith("stable") else "\n")
    (tmp_path / "index.md").write_text(page)
    (tmp_path / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT / 'docs' / '_ext')!r})\n"
        "extensions = ['sphinx.ext.autodoc', 'sphinx.ext.autosummary', 'sphinx.ext.napoleon', 'myst_parser']\n"
        "extensions += ['docstrings', 'names']\nautosummary_generate = False\n"
    )
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "dummy", str(tmp_path), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode == 0) == (not change), done.stderr
    assert words in done.stderr


def test_every_page_has_a_place():
    """A page that no toctree holds is found by the build; a figure that no page shows is found here."""
    shown = {(page.parent / link).resolve() for page in PAGES for link in links(page)}
    unused = [figure for figure in (ROOT / "docs" / "figures").iterdir() if figure.resolve() not in shown]
    assert not unused


def test_no_page_names_this_machine():
    for page in PAGES:
        assert str(Path.home()) not in page.read_text("utf-8")
