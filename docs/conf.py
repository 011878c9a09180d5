"""Sphinx: the site is built by `make docs`, and a warning is an error."""

import sys
from pathlib import Path

import saddles

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "saddles"
author = "the authors of saddles"
project_copyright = author
release = version = saddles.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "sphinxcontrib.bibtex",
    "myst_parser",
    "mathml",
    "docstrings",
    "names",
    "records",
    "rooms",
]
exclude_patterns = ["_build", "results", "tutorials", "gallery/*.py", "gallery/**/*.ipynb", "gallery/**/*.json"]
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!saddles\b).*"),  # other projects' names: their inventories need a network
    (r"py:obj", r"saddles\.\w+\.Gradient(Descent|Flow)"),  # shared by labs, indexed once, on core's page
    (r"py:class", r"saddles\.(.*\.)?(State|Args|S|T|SomeArray)"),  # type variables
    (r"py:class", r"saddles\..*\.(CellRow|Pictures|Array|Tensor|Shaped|Drawing|LogScale|MarginPath|Coefficients|Risk)"),
    (r"py:class", r"saddles\..*\.(CrossedPath|Schedule)"),  # types inside a room, which only annotations name
]

myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_inline"]
myst_heading_anchors = 3
myst_update_mathjax = False

autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autosummary_generate = False
python_maximum_signature_line_length = 100
napoleon_numpy_docstring = False

bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "plain"

sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "remove_config_comments": True,
    "capture_repr": ("_repr_html_",),
    "show_memory": False,
    "show_signature": False,
    "image_scrapers": ("matplotlib", "drawn"),
    "write_computation_times": False,  # that page would load scripts from elsewhere
}

html_theme = "pydata_sphinx_theme"
html_title = "saddles"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False
html_sidebars = {"index": [], "claims": []}
html_theme_options = {
    "logo": {"text": "saddles"},
    "show_nav_level": 2,
    "header_links_before_dropdown": 6,
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}
