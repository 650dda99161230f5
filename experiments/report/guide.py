"""Builds the page "Which method to use when" from the advice and the verdicts that support it.

The verdicts are looked up by experiment and claim, so the page shows the numbers of the folder that it is built from.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.report.advice import ADVICE, DEFAULTS, INTRODUCTION, Advice
from experiments.report.entries import Entry
from experiments.report.markdown import page, table, text
from experiments.report.section import Judged, link, verdict_table

TITLE = "Which method to use when"


def look_up(grounds: Sequence[tuple[str, str]], entries: Sequence[Entry]) -> list[Judged]:
    """Returns the results' verdicts for some grounds, in the order of the grounds."""
    found: list[Judged] = []
    for experiment, claim in grounds:
        for entry in entries:
            if entry.id == experiment:
                found += [(entry, v) for v in entry.verdicts if v.claim.startswith(claim)][:1]
    return found


def guide(entries: Sequence[Entry]) -> str:
    """Returns the page: a table of cases, a table of defaults, and the verdicts of each; empty without verdicts."""
    cases = [(item, f"``{item.use}``", f"``{item.use}``. {item.why}") for item in ADVICE]
    defaults = [(item, item.why, item.why) for item in DEFAULTS]
    parts = [
        *_part("Cases", ("you have", "use", "see"), cases, entries),
        *_part("Defaults", ("default", "why", "see"), defaults, entries),
    ]
    return page(f"# {TITLE}", INTRODUCTION, *parts) if parts else ""


def _part(
    heading: str, columns: Sequence[str], items: Sequence[tuple[Advice, str, str]], entries: Sequence[Entry]
) -> list[str]:
    """Formats one part: a table of its items (advice, cell, paragraph), then each with its verdicts."""
    rows, blocks = [], list[str]()
    for item, short, long in items:
        if judged := look_up(item.grounds, entries):
            deciding = {entry.id: link(entry, "{}.md") for entry, verdict in judged if verdict.status != "undecided"}
            rows.append([text(item.title), text(short), ", ".join(deciding.values())])
            blocks += [f"### {text(item.title)}", text(long), verdict_table(judged, "{}.md")]
    return [f"## {heading}", table(columns, rows), *blocks] if rows else []
