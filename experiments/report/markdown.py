"""Markdown that GitHub and MyST render alike."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

SPECIAL = re.compile(r"[\\`$]|<(?=[\w/!?])|~(?=\S)|&(?=#?\w+;)|(?<=\w)\*(?=\w)|(?<!\w)_(?=\S)|\](?=[(\[])")
"""Characters that Markdown would read as markup."""

NUMBERS = re.compile(r"[\d.,e+−-]*")

PIXELS_AN_INCH = 120


def text(value: object) -> str:
    """Escapes a text in which code stands between double backticks."""
    pieces = re.split(r"``(.+?)``", str(value), flags=re.S)
    return "".join(f"`{piece}`" if i % 2 else SPECIAL.sub(r"\\\g<0>", piece) for i, piece in enumerate(pieces))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Formats a table of Markdown cells; columns of numbers are aligned to the right."""
    head, *cells = [
        [re.sub(r"\s*\n\s*", " ", str(cell)).replace("|", "\\|") for cell in row] for row in (columns, *rows)
    ]
    rule = ["--:" if all(NUMBERS.fullmatch(row[i]) for row in cells) else "---" for i in range(len(head))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *cells))


def picture(name: str, inches: float, alternative: str) -> str:
    """Formats an image at its printed width, or narrower on small screens."""
    return f'<img src="{name}" alt="{html.escape(alternative)}" width="{round(PIXELS_AN_INCH * inches)}">'


def folded(title: str, *blocks: str) -> str:
    """Formats blocks that are hidden until the reader opens them."""
    return "\n\n".join([f"<details><summary>{title}</summary>", *blocks, "</details>"])


def page(*blocks: str) -> str:
    """Joins the blocks that are not empty."""
    return "\n\n".join(filter(None, blocks)) + "\n"
