"""Captions of the navigation as headings of a level, which a screen reader asks for and Sphinx does not write."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx


def level(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Gives the captions their level in the tree that the theme has made."""
    tree = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')
