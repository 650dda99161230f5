"""Sphinx's configuration: ``make docs`` builds ``docs/_build/html`` without network, warnings as errors."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version as installed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from _extension.names import FOREIGN, reference

project = "gradient-surrogates"
author = "The gradient-surrogates authors"
version = release = installed("gradient-surrogates")
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.viewcode", "_extension"]
exclude_patterns = ["_build", "_extension"]
templates_path = ["_templates"]

html_theme = "furo"
html_title = f"gradient-surrogates {release}"
html_copy_source = False
html_show_copyright = False
html_domain_indices = False
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["style.css"]
maximum_signature_line_length = 88

myst_enable_extensions = ["dollarmath", "deflist", "html_image"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
os.environ["TQDM_DISABLE"] = "1"  # the kernels' bars, of which a page would keep every state

autosummary_context = {"reference": reference(), "foreign": ", ".join(FOREIGN)}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True

# What other projects and rooms of this one that are not public define has no page here.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!(surrogates|optimizers|federated|experiments)\.).*"),
    ("py:.*", r"(surrogates|optimizers|federated|experiments)\.[a-z_]+\..*"),
]
