"""Formats the section of one figure or table: claim, figures, numbers, verdicts, and how it was run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.harness.experiment import SCALES, counted, in_words
from experiments.harness.verdicts import Verdict
from experiments.report.entries import Entry
from experiments.report.markdown import folded, picture, table, text

Judged = tuple[Entry, Verdict]
"""A verdict and the results that it belongs to."""


def section(entry: Entry, reading: str) -> list[str]:
    """Returns the blocks of one experiment; ``reading`` explains how its source was interpreted."""
    facts = entry.facts
    seeds = counted(len(facts["seeds"]), "seed")
    said = f"{facts['source']}: {facts['shows']}"
    blocks = [f"## {entry.id}", f"{text(said)}.", f"**Claimed:** {text(facts['claim'])}"]
    if facts.get("stand_in"):
        blocks.append(f"**Stand-in:** {text(facts['stand_in'])}. The paper's data were not used.")
    if facts.get("differs"):
        blocks.append(f"**The paper's data, with another model or size:** {text(facts['differs'])}.")
    for number, (file, inches) in enumerate(entry.pictures):
        blocks.append(picture(file, inches, f"{said}, more methods" if number else said))
    if entry.pictures and facts.get("caption"):
        blocks.append(f"{text(facts['caption'])} {seeds}.")
    for found in (facts.get("table"), *facts.get("tables", ())):
        if found:
            columns, *rows = ([text(cell) for cell in line] for line in (found["columns"], *found["rows"]))
            blocks += [text(found["caption"])] * bool(found.get("caption")) + [table(columns, rows)]
    ordered = sorted(entry.verdicts, key=lambda verdict: verdict.control)
    blocks += [verdict_table([(entry, verdict) for verdict in ordered])] * bool(ordered)
    return [*blocks, *_provenance(entry.id, facts, reading)]


def verdict_table(judged: Sequence[Judged], see: str | None = None) -> str:
    """Formats a table with a row for each verdict; a paper's claims are in bold.

    Args:
        judged: the verdicts.
        see: page that the last column links to, with ``{}`` for ``Entry.page``; by default there is no such column.
    """
    rows = []
    for entry, verdict in judged:
        status = verdict.said() if verdict.control else f"**{verdict.said()}**"
        measured = f"{verdict.measured()}, {counted(len(verdict.seeds), 'seed')}"
        detail = "" if see is not None or not verdict.detail else f"; {verdict.detail}"
        row = [status, text(verdict.claim), text(measured + detail)]
        rows.append([*row, link(entry, see)] if see is not None else row)
    return table(["verdict", "claim", "measured", "see"][: 3 if see is None else 4], rows)


def link(entry: Entry, page: str, name: str = "") -> str:
    """Formats a link to the section of some results, by default with their id as text."""
    return f"[{text(name or entry.id)}]({page.format(entry.page)}#{entry.id})"


def _provenance(name: str, facts: Mapping[str, Any], reading: str) -> list[str]:
    machine = [f"{value} cores" if key == "cores" else str(value) for key, value in facts["machine"].items()]
    run = [
        f"at scale {facts['scale']}" if facts.get("scale") in SCALES else "with the options below",
        counted(len(facts["seeds"]), "seed"),
        f"{in_words(facts.get('processor_seconds', 0.0))} of processor time",
        ", ".join(machine),
        *filter(None, [facts.get("date")]),
    ]
    versions = ", ".join(f"{library} {version}" for library, version in facts["versions"].items())
    blocks = []
    if reading:
        scale = "This run uses the settings of the paper's scale."
        if differences := facts.get("differences"):
            items = "\n".join(f"- {text(difference)}" for difference in differences)
            scale = f"The text below describes the paper's scale. This run differs in:\n\n{items}"
        blocks.append(folded("Interpretation and settings", scale, reading))
    return [
        *blocks,
        f"Run {text('; '.join(run))}; {text(versions)}. [All settings]({name}.settings.json).",
        f"```bash\n{facts.get('command', '')}\n```",
    ]
