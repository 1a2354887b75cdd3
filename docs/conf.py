"""Sphinx configuration: pages in Markdown, the reference from docstrings, mathematics and fonts without a network."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent))

from _ext import explanation_figures, reference  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

import lit_sparse  # noqa: E402

project = "lit_sparse"
author = "The lit_sparse developers"
copyright = f"2026, {author}. MIT licence"  # noqa: A001
release = version = lit_sparse.__version__
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinxcontrib.bibtex",
    "_ext.reference",
    "_ext.gallery",
    "sphinx_gallery.gen_gallery",
]
sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "examples",
    "filename_pattern": "plot_",
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 3600,  # how long a program takes depends on the machine
    "write_computation_times": False,
    "show_signature": False,
    "abort_on_example_error": True,
}
logging.getLogger("pytorch_lightning.utilities.rank_zero").setLevel(logging.WARNING)  # pages show what programs print
warnings.filterwarnings("ignore", category=FutureWarning, module="pytorch_lightning")
exclude_patterns = ["_build", "_ext"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_inline"]
myst_heading_anchors = 3

bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "plain"
bibtex_reference_style = "author_year"

napoleon_custom_sections = ["Source"]
napoleon_use_rtype = False
napoleon_numpy_docstring = False  # all docstrings are in the style of Google
autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False  # those of other packages use directives of their own

nitpicky = True
nitpick_ignore_regex = reference.EXTERNAL

html_theme = "furo"
html_title = f"lit_sparse {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
SOURCE = "https://github.com/lit-sparse/lit-sparse"
html_theme_options = {
    "navigation_with_keys": True,
    "source_repository": SOURCE,  # links that view and edit the source of a page
    "source_branch": "main",
    "source_directory": "docs/",
    "footer_icons": [
        {"name": "Licence", "url": f"{SOURCE}/blob/main/LICENSE", "html": "Licence", "class": "footer-text"},
        {"name": "Source", "url": SOURCE, "html": "Source", "class": "footer-text"},
    ],
}
templates_path = ["_templates"]
html_copy_source = False
html_show_sphinx = False
copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# MathJax in one file, with its glyphs as SVG paths: nothing is loaded from another host.
mathjax_path = "mathjax.js"
_package = importlib.util.find_spec("sphinx-mathjax-offline")
assert _package is not None and _package.origin is not None, "pip install -e '.[docs]'"
_generated = HERE / "_build" / "static"
_generated.mkdir(parents=True, exist_ok=True)
shutil.copyfile(Path(_package.origin).parent / "static" / "mathjax" / "tex-svg.js", _generated / "mathjax.js")
html_static_path.append(str(_generated))

if os.environ.get("LIT_SPARSE_DOCS") == "pages":  # a quick look at the pages, without the reference of the code
    exclude_patterns.append("reference/api")
    suppress_warnings = ["toc", "ref"]
else:
    reference.write_pages(HERE / "reference" / "api")

explanation_figures.draw(HERE / "explanation" / "pictures")


def keep_colons(app: object, what: str, name: str, item: object, options: object, lines: list[str]) -> None:
    """Let no text of an attribute up to a colon be read as its type, as Napoleon does: types are annotations here."""
    if what in {"attribute", "data", "property"} and lines:
        lines[0] = ": " + lines[0]


def collapse(app: object, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """List in the sidebar what stands above and beside a page: all pages in each page are slow to write and to read."""
    if (whole := context.get("toctree")) is not None:
        context["toctree"] = lambda **options: whole(**{**options, "collapse": True})


def link_source(app: object, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Link no source of a page that the build writes: these are not Markdown."""
    if not (HERE / f"{page}.md").is_file():
        context["theme_source_repository"] = ""


def setup(app: Sphinx) -> None:
    """Connect the handlers, to be called before those of Napoleon and of the theme."""
    app.connect("autodoc-process-docstring", keep_colons, priority=400)
    app.connect("html-page-context", collapse, priority=400)
    app.connect("html-page-context", link_source, priority=400)
