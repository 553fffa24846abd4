"""How the documentation is built: ``make docs``. Every code cell is executed, and a warning is an error."""

from __future__ import annotations

import os
import shutil
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

project = "xarray-tensordict"
author = "The xarray-tensordict developers"
copyright = author  # noqa: A001 - the name is Sphinx's
version = release = version_of("xarray-tensordict")

# Sphinx takes pages from its own folder only.
shutil.copytree(
    Path(__file__).parents[1] / "notebooks",
    Path(__file__).parent / "notebooks",
    ignore=shutil.ignore_patterns("*.md", ".*"),
    dirs_exist_ok=True,
)

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
nitpicky = False

# Code cells run in a folder of their own, so that stores that they write do not land among the sources.
nb_execution_mode = "force" if os.environ.get("DOCS_EXECUTE", "1") == "1" else "off"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_in_temp = True
nb_merge_streams = True
os.environ["PYTHONWARNINGS"] = "ignore::FutureWarning"

# Errors and warnings are shown as their message, without the paths of the machine that built the page.
profile = Path(__file__).parent / "_build" / "ipython" / "profile_default"
profile.mkdir(parents=True, exist_ok=True)
(profile / "ipython_kernel_config.py").write_text("""
c.InteractiveShell.xmode = "Minimal"
c.IPKernelApp.exec_lines = [
    "import warnings",
    "warnings.formatwarning = lambda message, category, *_, **__: f'{category.__name__}: {message}\\\\n'",
    "del warnings",
]
""")
os.environ["IPYTHONDIR"] = str(profile.parent)

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_rtype = False
# Groups of seldom used parameters, below "Parameters".
_GROUPS = ("Samples", "Entries", "Reading", "Epochs", "Processes", "Arrays", "Running", "Storage", "Decoding")
napoleon_custom_sections = [(name, "params_style") for name in _GROUPS]
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "pydata_sphinx_theme"
html_title = "xarray-tensordict"
html_static_path = ["_static"]
html_show_sourcelink = False
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "show_prev_next": True,
    # One line at 1280 px: the search is a button, and the pages that are looked up are under "More".
    "navbar_align": "left",
    "navbar_persistent": [],
    "navbar_end": ["search-button", "theme-switcher"],
    "header_links_before_dropdown": 7,
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_css_files = ["custom.css"]
# Pages of the first level have no pages below them to list.
html_sidebars = {"*": []}


def setup(app: Any) -> None:
    """Show the accessors under the names that users write: ``ds.td.to_zarr``, not ``DatasetAccessor.to_zarr``."""
    shown = {"DatasetAccessor.": "ds.td.", "DataTreeAccessor.": "dt.td."}

    def rename(_app: Any, _domain: Any, _type: Any, content: Any) -> None:
        from docutils.nodes import Text
        from sphinx.addnodes import desc_addname

        for prefix in content.parent.findall(desc_addname):
            prefix[:] = [Text(shown.get(prefix.astext(), prefix.astext()))]

    app.connect("object-description-transform", rename)
