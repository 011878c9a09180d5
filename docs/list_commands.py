"""Write docs/commands.md: the help of every command.

python docs/list_commands.py
"""

from pathlib import Path
from typing import Any

from typer.main import get_command

from saddles.cli import app

PAGE = Path(__file__).with_name("commands.md")
WIDTH = 100
HEAD = """# Commands

What every command prints with `--help`; written by `python docs/list_commands.py`.
"""


def page() -> str:
    """The page as Markdown."""
    parts = [HEAD]
    for words, text in _helps(get_command(app), "saddles", None):
        parts.append(f"## `{words}`\n\n```text\n{text.strip()}\n```\n")
    return "\n".join(parts)


def _helps(command: Any, name: str, above: Any) -> list[tuple[str, str]]:
    context = command.context_class(command, info_name=name, parent=above, terminal_width=WIDTH)
    below = getattr(command, "commands", {})
    rows = [(context.command_path, command.get_help(context))]
    return rows + [row for word, one in below.items() for row in _helps(one, word, context)]


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
