"""Builds the pages of a results folder: an index, a page for each paper, the scoreboards, and the guide.

The pages depend on the files of the folder alone, byte for byte. Pages link to each other and to the figures and
settings in the folder, and can be read on GitHub, in an editor's preview, or in Sphinx with MyST.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments import registry
from experiments.harness.experiment import PAPERS, counted, in_words
from experiments.harness.verdicts import DIFFERS, ON_STAND_IN, OWN_WORDS, STATUSES
from experiments.report import real_data
from experiments.report.advice import joined, read_toml
from experiments.report.entries import Entry, read_all, tallies
from experiments.report.guide import TITLE, guide
from experiments.report.markdown import page, table, text
from experiments.report.section import link, section, verdict_table
from experiments.running import results
from experiments.running.results import ResultsError

INDEX = "index.md"
GUIDE = "which-method.md"
REAL_DATA = "real-data.md"
TITLES = PAPERS | {
    "scoreboards": "Scoreboards: third-party problems",
    "scoreboards-constrained": "Scoreboards: constraints, integers and hyperparameters",
}
"""The title of each page of results."""

SUMMARIES = read_toml("summary.toml")
"""For each page the main claims of the paper, with the figures and tables that show them, and their consequences."""

RULE = joined(SUMMARIES.pop("rule"))
"""The rule of judgement."""

MARKS = ("<!-- reproduced -->\n", "<!-- /reproduced -->")
"""The lines between which ``with_counts`` inserts the table of outcomes."""


def build(folder: Path) -> tuple[dict[str, str], list[str]]:
    """Returns the pages by file name, and a reason for each result that was left out.

    Raises:
        ResultsError: if no result in the folder can be read.
    """
    entries, wrong = read_all(folder)
    if not entries:
        raise ResultsError("\n".join(wrong))
    unknown = [e.id for e in entries if e.id not in registry.MODULES and not e.id.startswith(registry.SCOREBOARDS)]
    wrong += [f"{name} is shown, but this version has no such experiment" for name in unknown]
    pages = {f"{name}.md": _results(name, own) for name, own in by_page(entries).items()}
    if advice := guide(entries):
        pages[GUIDE] = advice
    if compared := real_data.comparison(folder, entries):
        pages[REAL_DATA] = compared
    further = [path for path in sorted(folder.glob("*.md")) if path.name not in (*pages, INDEX)]
    heads = [path.read_text(encoding="utf-8").partition("\n")[0] for path in further]
    links = [f"[{TITLE}]({GUIDE})"] * bool(advice) + [f"[{real_data.TITLE}]({REAL_DATA})"] * bool(compared)
    links += [f"[{head.lstrip('# ')}]({path.name})" for head, path in zip(heads, further, strict=True)]
    return {INDEX: _index(entries, links), **pages}, wrong


def write_pages(folder: Path) -> tuple[Path, list[str]]:
    """Writes the pages into the folder; returns the path of the index and the reasons for what was left out."""
    pages, left_out = build(folder)
    for name, written in pages.items():
        results.replace(folder / name, written.encode())
    return folder / INDEX, left_out


def by_page(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Groups the results by page."""
    return {name: [e for e in entries if e.page == name] for name in dict.fromkeys(e.page for e in entries)}


def _index(entries: Sequence[Entry], links: Sequence[str]) -> str:
    dates = sorted({entry.facts.get("date", "") for entry in entries} - {""})
    seconds = sum(entry.facts.get("processor_seconds", 0.0) for entry in entries)
    run = f"{counted(len(entries), 'result')} that took {in_words(seconds)} of processor time"
    run += f", run from {dates[0]} to {dates[-1]}" if dates[1:] else f", run on {dates[0]}" if dates else ""
    blocks = [
        "# The figures and tables of four papers, reproduced",
        "This library repeats every figure and table of four papers on optimization without gradients. Each claim of a "
        f"paper is judged over several seeds. These pages show {run}.",
        paper_table(entries),
        f"See also: {', '.join(links)}." if links else "",
    ]
    for name, own in by_page(entries).items():
        blocks += [f"## [{title(name)}]({name}.md)", *(_points(name, own) or [f"{_counts(own)}."])]
    blocks += ["## How a claim is judged", text(RULE)]
    return page(*blocks, "## Every figure and table", _figures(entries, "{}.md"))


def _results(name: str, own: Sequence[Entry]) -> str:
    blocks = [f"# {title(name)}", f"[All results]({INDEX})", *_points(name, own)]
    ours = own[0].paper == "ours"
    claims = [(entry, verdict) for entry in own for verdict in entry.verdicts if verdict.control == ours]
    if judged := [pair for pair in claims if pair[1].status in ("not reproduced", "undecided")]:
        ordered = sorted(judged, key=lambda pair: pair[1].status)
        words = "do not hold" if ours else "were not reproduced"
        blocks += [f"**Claims that are undecided or {words}**", verdict_table(ordered, see="")]
    blocks += ["**Figures and tables**", _figures(own, "")]
    first = dict[str, str]()
    for entry in own:
        reading = entry.facts.get("reading", "")
        place = first.setdefault(reading, entry.id)
        blocks += section(entry, text(reading) if place == entry.id else f"See [{place}](#{place}).")
    return page(*blocks)


def _points(name: str, own: Sequence[Entry]) -> list[str]:
    one = SUMMARIES.get(name, {"points": []})
    shown = [(joined(point["claim"]), [e for e in own if e.id in point["experiments"]]) for point in one["points"]]
    lines = [f"- {text(claim)} **{_counts(found)}**" for claim, found in shown if found]
    return ["\n".join(lines), f"**In the library:** {text(joined(one['doing']))}"] if lines else []


def _counts(entries: Sequence[Entry]) -> str:
    """Formats the outcomes of the papers' claims, such as ``2 reproduced, 1 partly on the stand-in``, or of our own."""
    said = [f"{tally[s]} {s}{where}" for where, tally in tallies(entries).items() for s in STATUSES if tally[s]]
    own = Counter(verdict.status for entry in entries for verdict in entry.verdicts)
    return ", ".join(said or [f"{own[s]} {words[own[s] != 1]}" for s, words in OWN_WORDS.items() if own[s]])


def _figures(entries: Sequence[Entry], place: str) -> str:
    rows = []
    for entry in entries:
        facts = entry.facts
        run = f"{facts.get('scale', 'other')}, {counted(len(facts['seeds']), 'seed')}"
        data = f"stand-in: {text(facts['stand_in'])}" if facts.get("stand_in") else text(facts.get("differs", ""))
        rows.append([link(entry, place, facts["source"]), text(facts["shows"]), _counts([entry]), run, data])
    apart = ([entry for entry in entries if (entry.paper == "ours") == own] for own in (False, True))
    rows += [["all", "", _counts(some), "", ""] for some in apart if some]
    return table(["figure or table", "shows", "claims", "run at", "data"], rows)


def title(name: str) -> str:
    """Returns the title of a page: for a paper, its name, authors and year."""
    return TITLES.get(name, name)


def paper_table(entries: Sequence[Entry]) -> str:
    """Returns the table of outcomes by paper, each with the command that runs it again."""
    rows = []
    for paper, own in by_page(entries).items():
        found: Mapping[str, Counter[str]] = tallies(own)
        if found:
            here, *others = (found.get(basis, Counter()) for basis in ("", DIFFERS, ON_STAND_IN))
            elsewhere = [f"{tally['reproduced']} of {tally.total()} reproduced" if tally else "" for tally in others]
            again = f"`gradient-surrogates run --paper {paper} --scale reduced`"
            rows.append([title(paper), *(here[status] for status in STATUSES), *elsewhere, again])
    return table(["", *STATUSES, "other model or size", "on stand-ins", ""], rows) if rows else ""


def with_counts(readme: str, entries: Sequence[Entry]) -> str:
    """Inserts the table of outcomes between the ``MARKS`` of a text; returns a text without marks unchanged."""
    begin, end = MARKS
    head, begun, rest = readme.partition(begin)
    _, ended, tail = rest.partition(end)
    return f"{head}{begin}{paper_table(entries)}\n{end}{tail}" if begun and ended else readme
