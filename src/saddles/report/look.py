"""One look for every page: colours for light, dark and print, type, tables, figures.

The report and the explorer share it. Colours are CSS variables; all text has a contrast of at least 4.5 to its
background.
"""

LIGHT = {
    "ink": "#1d1d1f", "soft": "#5f6368", "paper": "#ffffff", "line": "#dddddd", "card": "#f7f7f8",
    "holds": "#00694f", "fails": "#b3340a", "na": "#6b5900", "accent": "#0a5ea8",
}  # fmt: skip
DARK = {
    "ink": "#ececec", "soft": "#a8abb0", "paper": "#161618", "line": "#3a3a3d", "card": "#202023",
    "holds": "#3fc79a", "fails": "#ff8a5c", "na": "#e0c34a", "accent": "#7cc0f8",
}  # fmt: skip


def variables(colours: dict[str, str]) -> str:
    """The colours as CSS variables."""
    return " ".join(f"--{name}: {value};" for name, value in colours.items())


BASE = """
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
h1 { font-size: 1.6rem; line-height: 1.25; font-weight: 650; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; line-height: 1.3; font-weight: 650; }
p { margin: .3rem 0; } .soft { color: var(--soft); } code { font-size: .88rem; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; margin: .6rem 0; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem .35rem 0; border-bottom: 1px solid var(--line); }
td.number, th.number { font-variant-numeric: tabular-nums; white-space: nowrap; text-align: right; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; font-size: .9rem; margin: .4rem 0; }
dd { margin: 0; overflow-wrap: anywhere; } dt { color: var(--soft); }
details { margin: .4rem 0; } summary { cursor: pointer; }
"""
"""What every page has in common."""
