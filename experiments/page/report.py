"""All results of a folder as one page that needs nothing else: no script, no file beside it, no network.

The page is HTML and CSS, a function of the folder's files alone, byte for byte: what it says is escaped, what it shows
is embedded.
"""

from __future__ import annotations

import base64
import html
import io
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from experiments import registry
from experiments.harness.experiment import PAPERS, in_words
from experiments.harness.verdicts import ON_STAND_IN, Status, Verdict
from experiments.page import guide
from experiments.page.entries import Entry, read_all
from experiments.running import results
from experiments.running.results import ResultsError

MARKS: dict[Status, str] = {"reproduced": "yes", "partly": "part", "undecided": "open", "not reproduced": "no"}
"""The CSS class of each status."""

STYLE = """
:root{color-scheme:light;--line:#d9dde3;--soft:#5b6470}
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1rem;font:16px/1.5 system-ui,sans-serif;color:#1c2024;background:#fff;
overflow-wrap:break-word}
h1{font-size:1.6rem;line-height:1.2;margin:.5rem 0}h2{font-size:1.3rem;margin:2.5rem 0 .5rem}
h3{font-size:1.1rem;margin:0 0 .25rem}
a{color:#0b5cad}p{margin:.5rem 0}.soft{color:var(--soft);font-size:.9rem}
section.one{border-top:1px solid var(--line);padding:1.25rem 0;scroll-margin-top:.5rem}
.chip{display:inline-block;border-radius:.6rem;padding:0 .55rem;font-size:.82rem;white-space:nowrap;
margin:0 .2rem .2rem 0}
.yes{background:#d7f0df;color:#0b4f24}.part{background:#fdeec4;color:#5c4200}.no{background:#fadcd9;color:#7c1610}
.open{background:#fff;color:#333a44;box-shadow:inset 0 0 0 1px #8a929c}
.control{background:#e8eaee;color:#333a44}.stand{background:#e6e0fa;color:#3c2a80}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th,td{text-align:left;vertical-align:top;padding:.35rem .6rem .35rem 0;border-bottom:1px solid var(--line)}
th{font-weight:600}.summary td:last-child{white-space:nowrap}th.paper{padding-top:1.2rem;font-size:1.02rem}
.wide{overflow-x:auto;margin:.75rem 0}.wide table{width:auto;min-width:50%}.wide td{white-space:nowrap}
.figure img{display:block;width:calc(var(--inches)*104px);max-width:100%;height:auto}
ul.verdicts{list-style:none;padding:0;margin:.75rem 0}ul.verdicts li{margin:0 0 .6rem}
ul.verdicts small{display:block;color:var(--soft)}
details{margin:.4rem 0}summary{cursor:pointer;color:var(--soft)}
pre{overflow-x:auto;white-space:pre-wrap;background:#f5f6f8;padding:.6rem;font-size:.82rem;margin:.4rem 0}
code{font-family:ui-monospace,monospace;font-size:.88em}
@media(max-width:40rem){
body{padding:.75rem;font-size:15px}.figure img{width:calc(var(--inches)*74px);max-width:none}
.summary tr.heads{display:none}
.summary td,.summary th{display:block;white-space:normal;border:0;padding:0}.summary tr{display:block;
border-bottom:1px solid var(--line);padding:.5rem 0}
}
"""


def build(folder: Path) -> tuple[str, list[str]]:
    """The page of a folder's results, and what was left out of it and why.

    Raises:
        ResultsError: if nothing in the folder can be read.
    """
    entries, wrong = read_all(folder)
    if not entries:
        raise ResultsError("\n".join(wrong))
    unknown = [e.id for e in entries if e.id not in registry.MODULES and not e.id.startswith(registry.SCOREBOARDS)]
    wrong += [f"{name} is shown, but is no experiment of this version" for name in unknown]
    return page(entries), wrong


def write_page(folder: Path, out: Path) -> tuple[Path, list[str]]:
    """Write the page of a folder's results; where, and what was left out and why."""
    text, left_out = build(folder)
    out.parent.mkdir(parents=True, exist_ok=True)
    results.replace(out, text.encode())
    return out, left_out


def page(entries: Sequence[Entry]) -> str:
    """The whole page; the results are shown in their order."""
    papers = list(dict.fromkeys(entry.facts["paper"] for entry in entries))
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>gradient-surrogates: results</title><style>{STYLE}</style></head><body>",
        "<h1>Four papers' figures and tables, run again</h1>",
        _introduction(entries),
        _summary(papers, entries),
        _guide(entries),
    ]
    for paper in papers:
        parts.append(f"<h2>{_text(PAPERS.get(paper, paper))}</h2>")
        parts += [_section(entry) for entry in entries if entry.facts["paper"] == paper]
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _introduction(entries: Sequence[Entry]) -> str:
    groups = [[entry for entry in entries if bool(entry.facts.get("stand_in")) == other] for other in (False, True)]
    tallies = [sum((entry.tally() for entry in group), Counter[str]()) for group in groups]
    places = ("on the paper's problem or data", "on a stand-in for the paper's data")
    counts = "".join(
        f"<p>{_chips(tally)} {place}</p>" for tally, place in zip(tallies, places, strict=True) if tally.total()
    )
    dates = sorted({entry.facts.get("date", "") for entry in entries} - {""})
    seconds = sum(entry.facts.get("processor_seconds", 0.0) for entry in entries)
    facts = [f"{len(entries)} figures and tables", f"{in_words(seconds)} of processor time"]
    if dates:
        facts.append(f"run {dates[0]}" if len(dates) == 1 else f"run from {dates[0]} to {dates[-1]}")
    return (
        f"{counts}<p class=soft>{_text(', '.join(facts))}.</p>"
        "<p>A claim is judged over the seeds that all methods share, in every setting by the bootstrap 95% interval "
        "of its statistic. A setting holds where the interval lies wholly on the claimed side of the threshold, fails"
        " where it lies wholly on the other, and is undecided where the threshold is in it. A claim is "
        "<b>reproduced</b> where every setting holds and <b>partly</b> where some do. Where none does, it is "
        "<b>undecided</b> if all settings are, or if the interval of the mean over settings has the threshold in it: "
        "these seeds say neither yes nor no. Else it is <b>not reproduced</b>. Grey marks are controls of ours, "
        "beside the paper's claims. A verdict <b>on the stand-in</b> is of data that took the place of the paper's, "
        "and says nothing of those. What was found was not tuned to the claims, and what failed is shown as it came "
        "out.</p>"
    )


def _summary(papers: Sequence[str], entries: Sequence[Entry]) -> str:
    rows = ["<tr class=heads><th>figure</th><th>what it shows</th><th>claims</th><th>run at</th></tr>"]
    for paper in papers:
        rows.append(f'<tr><th colspan="4" class=paper>{_text(PAPERS.get(paper, paper))}</th></tr>')
        rows += [_row(entry) for entry in entries if entry.facts["paper"] == paper]
    return f"<h2>Verdicts</h2><table class=summary>{''.join(rows)}</table>"


def _guide(entries: Sequence[Entry]) -> str:
    blocks = []
    for heading, items in guide.parts(entries):
        blocks.append(f"<h2>{_text(heading)}</h2>")
        for item, grounds in items:
            listed = "".join(
                f'<li><span class="chip {MARKS[f.verdict.status]}">{_text(f.word)}</span> {_text(f.verdict.claim)} '
                f'(<a href="#{_text(f.entry.id)}">{_text(f.entry.facts["source"])}</a>)'
                f"<small>{_text(f.measured)}</small></li>"
                for f in grounds
            )
            blocks.append(f"<h3>{_text(item.title)}</h3><p>{_marked(item.text)}</p><ul class=verdicts>{listed}</ul>")
    return "\n".join(blocks)


def _row(entry: Entry) -> str:
    facts = entry.facts
    where = ON_STAND_IN if facts.get("stand_in") else ""
    name = f"<br><small>stand-in: {_text(facts['stand_in'])}</small>" if where else ""
    return (
        f'<tr><td><a href="#{_text(entry.id)}">{_text(facts["source"])}</a></td>'
        f"<td>{_text(facts['shows'])}{name}</td><td>{_chips(entry.tally(), where) or 'controls only'}</td>"
        f"<td class=soft>{_text(facts.get('scale', ''))}, {_count(len(facts['seeds']), 'seed')}</td></tr>"
    )


def _section(entry: Entry) -> str:
    facts = entry.facts
    width, height, inches = _size(entry.picture)
    picture = base64.b64encode(entry.picture).decode("ascii")
    parts = [
        f'<section class=one id="{_text(entry.id)}"><h3>{_text(facts["source"])}: {_text(facts["shows"])}</h3>',
        f"<p class=soft><code>{_text(entry.id)}</code></p>",
        f"<p><b>Claimed:</b> {_marked(facts['claim'])}</p>",
    ]
    if facts.get("stand_in"):
        mark = '<span class="chip stand">stand-in</span>'
        parts.append(f"<p>{mark} {_text(facts['stand_in'])}: the paper's data were not used.</p>")
    parts.append(
        f'<div class="wide figure"><img width="{width}" height="{height}" style="--inches:{inches}" '
        f'alt="{_text(facts["source"])}: {_text(facts["shows"])}" src="data:image/png;base64,{picture}"></div>'
    )
    parts += [_table(table) for table in (facts.get("table"), *facts.get("tables", ())) if table]
    listed = map(_verdict, sorted(entry.verdicts, key=lambda verdict: verdict.control))
    parts.append(f"<ul class=verdicts>{''.join(listed)}</ul>")
    if facts.get("reading"):
        parts.append(f"<details><summary>How it was read and run</summary>{_reading(facts)}</details>")
    return "\n".join([*parts, _provenance(facts), "</section>"])


def _reading(facts: Mapping[str, Any]) -> str:
    """What the run has that the paper's scale has not, and the module's docstring, which is of the latter."""
    found = "<p>The settings are those of the paper's scale.</p>"
    if differences := facts.get("differences"):
        items = "".join(f"<li>{_text(text)}</li>" for text in differences)
        found = f"<p>The text is of the paper's scale. This run has other settings:</p><ul>{items}</ul>"
    return found + _paragraphs(facts["reading"])


def _table(table: Mapping[str, Any]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in table["columns"])
    rows = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in table["rows"])
    caption = f"<p class=soft>{_marked(table['caption'])}</p>" if table.get("caption") else ""
    return f"{caption}<div class=wide><table><tr>{head}</tr>{rows}</table></div>"


def _verdict(verdict: Verdict) -> str:
    kind, word = MARKS[verdict.status], verdict.said()
    if verdict.control:
        kind, word = "control", f"control: {word}"
    low, high = verdict.interval
    measured = f"{verdict.statistic}: {verdict.estimate:.3g} ({low:.3g} to {high:.3g})"
    said = f"{measured}, {_count(len(verdict.seeds), 'seed')}" + (f"; {verdict.detail}" if verdict.detail else "")
    mark = f'<span class="chip {kind}">{word}</span>'
    return f"<li>{mark} {_text(verdict.claim)}<small>{_text(said)}</small></li>"


def _provenance(facts: Mapping[str, Any]) -> str:
    machine = facts["machine"]
    made = [
        f"{facts.get('scale', 'settings')} scale, {_count(len(facts['seeds']), 'seed')}",
        f"{in_words(facts.get('processor_seconds', 0.0))} of processor time",
        ", ".join(f"{value} cores" if key == "cores" else str(value) for key, value in machine.items()),
        facts.get("date", ""),
    ]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    settings = json.dumps(facts["settings"], indent=1, ensure_ascii=False)
    return (
        f"<p class=soft>{_text('; '.join(filter(None, made)))}.</p><pre>{_text(facts.get('command', ''))}</pre>"
        f"<details><summary>Settings and versions</summary><p class=soft>{_text(versions)}</p>"
        f"<pre>{_text(_folded(settings))}</pre></details>"
    )


def _folded(text: str) -> str:
    """JSON with each innermost list on one line."""
    return re.sub(r"\[[^\[\]{}]*\]", lambda match: re.sub(r"\s+", " ", match[0]), text)


def _chips(counts: Mapping[str, int], where: str = "") -> str:
    return "".join(
        f'<span class="chip {kind}">{counts[status]} {status}{where}</span>'
        for status, kind in MARKS.items()
        if counts.get(status)
    )


def _paragraphs(text: str) -> str:
    """A docstring's paragraphs and lists."""
    found = []
    for block in text.split("\n\n"):
        lines = block.strip().splitlines()
        if lines and all(re.match(r"[-*] | {2,}", line) for line in lines):
            items = re.split(r"^[-*] ", block.strip(), flags=re.M)[1:]
            found.append("<ul>" + "".join(f"<li>{_marked(item)}</li>" for item in items) + "</ul>")
        elif lines:
            found.append(f"<p>{_marked(' '.join(lines))}</p>")
    return "".join(found)


def _marked(text: str) -> str:
    """Escaped, with ``code`` as code."""
    return re.sub(r"``(.+?)``", r"<code>\1</code>", _text(text))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _size(picture: bytes) -> tuple[int, int, float]:
    """Width and height of a picture in pixels, and its width in inches."""
    image = Image.open(io.BytesIO(picture))
    dots = image.info.get("dpi", (100.0, 100.0))[0]
    return image.width, image.height, round(image.width / dots, 1)


def _text(value: Any) -> str:
    return html.escape(str(value), quote=True)
