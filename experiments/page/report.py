"""All results of a folder as pages in that folder: a summary, a page for each paper, and which method to use when.

The pages are HTML and CSS, functions of the folder's files alone, byte for byte: what they say is escaped. They need no
script and no network, the pictures beside them only, which are loaded when they come into sight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import registry
from experiments.harness.experiment import in_words
from experiments.harness.verdicts import Status
from experiments.page import guide, summary
from experiments.page.entries import Entry, read_all
from experiments.page.pieces import MARKS, chips, document, marked, section, text
from experiments.page.summary import Summary, of_paper, paper_title, papers_in, points_of, run_at, tallies
from experiments.running import results
from experiments.running.results import ResultsError

TITLE = "Four papers' figures and tables, run again"
GUIDE = "which-method"
"""The page of the guide, without its suffix."""


def build(folder: Path) -> tuple[dict[str, str], list[str]]:
    """The pages of a folder's results by the names of their files, and what was left out and why.

    Raises:
        ResultsError: if nothing in the folder can be read.
    """
    entries, wrong = read_all(folder)
    if not entries:
        raise ResultsError("\n".join(wrong))
    unknown = [e.id for e in entries if e.id not in registry.MODULES and not e.id.startswith(registry.SCOREBOARDS)]
    wrong += [f"{name} is shown, but is no experiment of this version" for name in unknown]
    return pages(entries), wrong


def write_pages(folder: Path) -> tuple[Path, list[str]]:
    """Write the pages beside a folder's results; where the first one is, and what was left out and why."""
    found, left_out = build(folder)
    for name, page in found.items():
        results.replace(folder / name, page.encode())
    return folder / "index.html", left_out


def pages(entries: Sequence[Entry]) -> dict[str, str]:
    """The pages; results are shown in their order."""
    found = {"index.html": document(TITLE, [_navigation(entries, "index"), *_first(entries)])}
    for paper in papers_in(entries):
        parts = [_navigation(entries, paper), *_lead(paper, entries), *map(section, of_paper(entries, paper))]
        found[f"{paper}.html"] = document(paper_title(paper), parts)
    if blocks := _guide(entries):
        found[f"{GUIDE}.html"] = document("Which method to use when", [_navigation(entries, GUIDE), *blocks])
    return found


def _navigation(entries: Sequence[Entry], here: str) -> str:
    names = {"index": "Summary", **{paper: paper_title(paper) for paper in papers_in(entries)}}
    if guide.parts(entries):
        names[GUIDE] = "Which method"
    links = [
        f"<b>{text(name)}</b>" if page == here else f'<a href="{page}.html">{text(name)}</a>'
        for page, name in names.items()
    ]
    return f"<nav>{' '.join(links)}</nav>"


def _first(entries: Sequence[Entry]) -> list[str]:
    """What a stranger reads first: what is claimed and what came out, paper by paper; then the rule, all verdicts."""
    places = {"": "on the paper's problem or data"}
    counts = [
        f"<p>{chips(tally)} {places.get(where, 'on a stand-in for the data of the paper')}</p>"
        for where, tally in tallies([entry for entry in entries if entry.facts["paper"] != "ours"]).items()
    ]
    return [
        "<p>Every figure and table of four papers on optimization without gradients was run again with this library. "
        "So many of the papers' claims came out which way:</p>",
        *counts,
        _papers(entries),
        f"<p class=soft>{text(_facts(entries))}</p>",
        "<h2>How a claim is judged</h2>",
        f"<p>{marked(summary.RULE)}</p>",
        "<h2>Verdicts</h2>",
        _all_verdicts(entries),
    ]


def _facts(entries: Sequence[Entry]) -> str:
    dates = sorted({entry.facts.get("date", "") for entry in entries} - {""})
    seconds = sum(entry.facts.get("processor_seconds", 0.0) for entry in entries)
    said = f"{len(entries)} figures and tables, {in_words(seconds)} of processor time"
    when = f", run {dates[0]}" if len(dates) == 1 else f", run from {dates[0]} to {dates[-1]}" if dates else ""
    return f"{said}{when}."


def _papers(entries: Sequence[Entry]) -> str:
    """A card for each paper."""
    cards = []
    for one in summary.SUMMARIES:
        if of_paper(entries, one.paper) and points_of(one, entries):
            head = f'<h2><a href="{one.paper}.html">{text(paper_title(one.paper))}</a></h2>'
            cards.append(f"<section>{head}{_points(one, entries)}</section>")
    return f"<div class=papers>{''.join(cards)}</div>" if cards else ""


def _points(one: Summary, entries: Sequence[Entry]) -> str:
    items = "".join(f"<li>{text(point.claim)}<br>{_marks(shown)}</li>" for point, shown in points_of(one, entries))
    return f"<ul>{items}</ul><p><b>What we do about it.</b> {text(one.doing)}</p>"


def _marks(entries: Sequence[Entry]) -> str:
    """How many claims came out which way, on the papers' data and on stand-ins."""
    found = "".join(chips(tally, where) for where, tally in tallies(entries).items())
    return found or '<span class="chip control">controls only</span>'


def _lead(paper: str, entries: Sequence[Entry]) -> list[str]:
    """The head of a paper's page: its summary, what did not come out, and its figures."""
    own = of_paper(entries, paper)
    blocks = [_points(one, entries) for one in summary.SUMMARIES if one.paper == paper and points_of(one, entries)]
    heads: tuple[tuple[Status, str], ...] = (("not reproduced", "Not reproduced"), ("undecided", "Undecided"))
    for status, heading in heads:
        items = "".join(
            f'<li>{text(verdict.claim)} (<a href="#{text(entry.id)}">{text(entry.facts["source"])}</a>'
            f"{', on the stand-in' if verdict.stand_in else ''})<small>{text(verdict.measured())}</small></li>"
            for entry, verdict in summary.came_out(own, status)
        )
        blocks += [f"<p><b>{heading}</b></p><ul class=verdicts>{items}</ul>"] if items else []
    return [*blocks, _table_of(own, "")]


def _all_verdicts(entries: Sequence[Entry]) -> str:
    """A table for each paper, in which each row has scale, seeds and stand-in."""
    return "".join(
        f"<h3>{text(paper_title(paper))}</h3>{_table_of(of_paper(entries, paper), f'{paper}.html')}"
        for paper in papers_in(entries)
    )


def _table_of(entries: Sequence[Entry], page: str) -> str:
    heads = "<thead><tr><th>figure</th><th>what it shows</th><th>claims</th><th>run at</th><th>data</th></tr></thead>"
    rows = "".join(_row(entry, page) for entry in entries)
    return f"<table class=summary>{heads}<tbody>{rows}</tbody></table>"


def _row(entry: Entry, page: str) -> str:
    facts: Mapping[str, Any] = entry.facts
    data = f'<span class="chip stand">stand-in</span> {text(facts["stand_in"])}' if facts.get("stand_in") else ""
    return (
        f'<tr><td><a href="{page}#{text(entry.id)}">{text(facts["source"])}</a></td><td>{text(facts["shows"])}</td>'
        f"<td>{_marks([entry])}</td><td class=soft>{text(run_at(facts))}</td><td class=soft>{data}</td></tr>"
    )


def _guide(entries: Sequence[Entry]) -> list[str]:
    blocks = []
    for number, (heading, items) in enumerate(guide.parts(entries)):
        blocks += [f"<h2>{text(heading)}</h2>"] if number else []
        for item, grounds in items:
            listed = "".join(
                f'<li><span class="chip {MARKS[f.verdict.status]}">{text(f.word)}</span> {text(f.verdict.claim)} '
                f'(<a href="{text(guide.page_of(f.entry))}">{text(f.entry.facts["source"])}</a>)'
                f"<small>{text(f.measured)}</small></li>"
                for f in grounds
            )
            blocks.append(f"<h3>{text(item.title)}</h3><p>{marked(item.text)}</p><ul class=verdicts>{listed}</ul>")
    return blocks
