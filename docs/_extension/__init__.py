"""What the documentation's build has of its own: docstrings as they are written here, formulas, and checks."""

from __future__ import annotations

from sphinx.application import Sphinx
from sphinx.ext import autosummary

from _extension import accessible, checks, docstrings, formulas, results


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers it."""
    # A first sentence does not end in these.
    autosummary.WELL_KNOWN_ABBREVIATIONS += ("Alg.", "Appx.", "eq.", "eqs.", "Sec.", "Eq.", "Fig.", "Figs.", "Prop.")
    app.connect("autodoc-process-docstring", docstrings.process)
    app.connect("builder-inited", results.copy)
    app.connect("source-read", results.relink)
    app.connect("html-page-context", accessible.mend, priority=900)
    app.connect("build-finished", checks.check)
    app.add_html_math_renderer("mathml", (formulas.inline, None), (formulas.block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
