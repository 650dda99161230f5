"""Mends of pages that Sphinx or the theme write in a way that a screen reader cannot follow."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx


def mend(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Gives the navigation's captions their level; the list of modules, whose inner lists have no item, is one list."""
    tree = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')
    if page == "_modules/index":
        head, _, listed = context["body"].partition("<ul>")
        context["body"] = f"{head}<ul>{''.join(re.findall('<li>.*?</li>', listed, re.S))}</ul>"
