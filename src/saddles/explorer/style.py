"""The explorer's style sheet, on top of the look that all pages share, and its few lines of JavaScript."""

from pathlib import Path

from saddles.report.look import BASE, DARK, LIGHT, variables

_HERE = Path(__file__).parent
_THEMES = f":root {{ {variables(LIGHT)} }}\nbody.body--dark {{ {variables(DARK)} color-scheme: dark; }}\n"

CSS = _THEMES + BASE + (_HERE / "explorer.css").read_text("utf-8")
_SHARED = (_HERE / "shared.js").read_text("utf-8")
SCRIPT = _SHARED + (_HERE / "explorer.js").read_text("utf-8")
"""Of the live rooms."""
SITE = _SHARED + (_HERE / "site.js").read_text("utf-8")
"""Of the static site and of the front page."""
