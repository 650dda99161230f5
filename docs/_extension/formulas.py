"""Formulas as MathML, which needs neither network nor script."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml


def block(self: Any, node: nodes.math_block) -> None:
    """Writes a displayed formula."""
    self.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def inline(self: Any, node: nodes.math) -> None:
    """Writes a formula in a line."""
    self.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode
