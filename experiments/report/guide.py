"""Which method to use when, as Markdown: each advice beside the verdicts that support it.

``experiments.report.advice`` has the advice. Its verdicts are looked up among the results by experiment and claim, so
that other results show other numbers beside the same advice.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.harness.verdicts import CONTROL_WORDS
from experiments.report.advice import ADVICE, DEFAULTS, INTRODUCTION, Advice, Default, Ground
from experiments.report.entries import Entry
from experiments.report.markdown import page, table, text
from experiments.report.section import Judged, link, verdict_table

TITLE = "Which method to use when"


def look_up(grounds: Sequence[Ground], entries: Sequence[Entry]) -> list[Judged]:
    """Returns the verdicts that the results have on some grounds, in the order of the grounds."""
    found: list[Judged] = []
    for ground in grounds:
        for entry in entries:
            if entry.id == ground.experiment:
                found += [(entry, v) for v in entry.verdicts if v.claim.startswith(ground.claim)][:1]
    return found


def guide(entries: Sequence[Entry]) -> str:
    """Returns the page: a table of cases, one of defaults, and the verdicts of each; empty without any verdict."""
    cases = [(item, f"``{item.use}``", f"``{item.use}``. {item.why}") for item in ADVICE]
    defaults = [(item, item.why, item.why) for item in DEFAULTS]
    parts = [
        *_part("Cases", ("you have", "use", "see"), cases, entries),
        *_part("Defaults", ("default", "why", "see"), defaults, entries),
    ]
    return page(f"# {TITLE}", INTRODUCTION, *parts) if parts else ""


def _part(
    heading: str, columns: Sequence[str], items: Sequence[tuple[Advice | Default, str, str]], entries: Sequence[Entry]
) -> list[str]:
    """Returns a table of items with what it says of each and the results that decide it, then each with its verdicts.

    Args:
        heading: of the part.
        columns: of the table.
        items: an advice or a default, its cell in the table, and its paragraph.
        entries: the results.
    """
    rows, blocks = [], list[str]()
    for item, short, long in items:
        if judged := look_up(item.grounds, entries):
            deciding = {entry.id: link(entry, "{}.md") for entry, verdict in judged if verdict.status != "undecided"}
            rows.append([text(item.title), text(short), ", ".join(deciding.values())])
            blocks += [f"### {text(item.title)}", text(long), verdict_table(judged, CONTROL_WORDS, "{}.md")]
    return [f"## {heading}", table(columns, rows), *blocks] if rows else []
