"""The main claims of each paper, their consequences for the library, and the rule of judgement, from ``summary.toml``.

``experiments.report.pages`` adds the outcomes of the results that it shows.
"""

from __future__ import annotations

from typing import NamedTuple

from experiments.report.advice import joined, read_toml


class Point(NamedTuple):
    """One main claim of a paper, and the ids of the figures and tables that show it."""

    claim: str
    experiments: tuple[str, ...]


class Summary(NamedTuple):
    """The main claims of a paper, and their consequences for the library."""

    points: tuple[Point, ...]
    doing: str


_TEXTS = read_toml("summary.toml")

RULE = joined(_TEXTS.pop("rule"))
"""The rule of judgement."""

SUMMARIES = {
    paper: Summary(
        tuple(Point(joined(point["claim"]), tuple(point["experiments"])) for point in texts["points"]),
        joined(texts["doing"]),
    )
    for paper, texts in _TEXTS.items()
}
"""The summary for each key of ``PAPERS``."""
