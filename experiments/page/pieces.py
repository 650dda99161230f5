"""What the pages are made of: marks, verdicts, tables, figures, and text that is escaped."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from experiments.harness.experiment import counted, in_words
from experiments.harness.verdicts import Status, Verdict
from experiments.page.entries import Entry

MARKS: dict[Status, str] = {"reproduced": "yes", "partly": "part", "undecided": "open", "not reproduced": "no"}
"""The CSS class of each status."""

STYLE = """
:root{color-scheme:light;--line:#d9dde3;--soft:#555e69}
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
th{font-weight:600}.summary td:first-child{white-space:nowrap}
.wide{overflow-x:auto;margin:.75rem 0}.wide table{width:auto;min-width:50%}.wide td{white-space:nowrap}
.figure{margin:.75rem 0;overflow-x:auto}
.figure img{display:block;margin-bottom:.6rem;width:calc(var(--inches)*120px);max-width:100%;height:auto}
.figure figcaption{color:var(--soft);font-size:.9rem;margin:.3rem 0 0}
ul.verdicts{list-style:none;padding:0;margin:.75rem 0}ul.verdicts li{margin:0 0 .6rem}
ul.verdicts small{display:block;color:var(--soft)}
details{margin:.4rem 0}summary{cursor:pointer;color:var(--soft)}
pre{overflow-x:auto;white-space:pre-wrap;background:#f5f6f8;padding:.6rem;font-size:.82rem;margin:.4rem 0}
code{font-family:ui-monospace,monospace;font-size:.88em}
@media(max-width:40rem){
body{padding:.75rem;font-size:15px}.chip{white-space:normal}.figure img{width:calc(var(--inches)*96px);max-width:none}
.figure figcaption{position:sticky;left:0}
.summary thead{display:none}.summary,.summary tbody{display:block}
.summary td,.summary th{display:block;white-space:normal;border:0;padding:0}.summary tr{display:block;
border-bottom:1px solid var(--line);padding:.5rem 0}
}
nav{margin:.5rem 0 1rem}nav a{margin-right:1rem;white-space:nowrap}nav b{margin-right:1rem}
.papers{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr));gap:1rem}
.papers section{border:1px solid var(--line);border-radius:.5rem;padding:.75rem 1rem}
.papers h2{margin-top:0}.papers ul{padding-left:1.1rem;margin:.4rem 0}.papers li{margin-bottom:.5rem}
"""


def document(title: str, parts: Iterable[str]) -> str:
    """A whole page of a title, which is its heading too, and what follows it."""
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{text(title)}</title><style>{STYLE}</style></head><body><main>",
            f"<h1>{text(title)}</h1>",
            *parts,
            "</main></body></html>\n",
        ]
    )


def section(entry: Entry) -> str:
    """One figure or table: what is claimed, the figures, the table, the verdicts, and how it was run."""
    facts = entry.facts
    parts = [
        f'<section class=one id="{text(entry.id)}"><h2>{text(facts["source"])}: {text(facts["shows"])}</h2>',
        f"<p class=soft><code>{text(entry.id)}</code></p>",
        f"<p><b>Claimed:</b> {marked(facts['claim'])}</p>",
    ]
    if facts.get("stand_in"):
        mark = '<span class="chip stand">stand-in</span>'
        parts.append(f"<p>{mark} {text(facts['stand_in'])}: the paper's data were not used.</p>")
    parts += [_figures(entry)] if entry.pictures else []
    parts += [_table(table) for table in (facts.get("table"), *facts.get("tables", ())) if table]
    listed = map(verdict_item, sorted(entry.verdicts, key=lambda verdict: verdict.control))
    parts.append(f"<ul class=verdicts>{''.join(listed)}</ul>")
    if facts.get("reading"):
        parts.append(f"<details><summary>How it was read and run</summary>{_reading(facts)}</details>")
    return "\n".join([*parts, _provenance(facts), "</section>"])


def _figures(entry: Entry) -> str:
    """The pictures, loaded when they come into sight, and what lines and bands are."""
    facts = entry.facts
    said = f"{text(facts['source'])}: {text(facts['shows'])}"
    pictures = "".join(
        f'<img loading="lazy" width="{picture.width}" height="{picture.height}" style="--inches:{picture.inches}" '
        f'alt="{said}{", more methods" if number else ""}" src="{text(picture.name)}">'
        for number, picture in enumerate(entry.pictures)
    )
    caption = facts.get("caption", "")
    below = f"<figcaption>{marked(caption)} {counted(len(facts['seeds']), 'seed')}.</figcaption>" if caption else ""
    return f"<figure class=figure tabindex=0>{pictures}{below}</figure>"


def _reading(facts: Mapping[str, Any]) -> str:
    """What the run has that the paper's scale has not, and the module's docstring, which is of the latter."""
    found = "<p>The settings are those of the paper's scale.</p>"
    if differences := facts.get("differences"):
        items = "".join(f"<li>{text(difference)}</li>" for difference in differences)
        found = f"<p>The text is of the paper's scale. This run has other settings:</p><ul>{items}</ul>"
    return found + _paragraphs(facts["reading"])


def _table(table: Mapping[str, Any]) -> str:
    head = "".join(f"<th>{text(name)}</th>" for name in table["columns"])
    rows = "".join("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in table["rows"])
    caption = f"<p class=soft>{marked(table['caption'])}</p>" if table.get("caption") else ""
    return f"{caption}<div class=wide tabindex=0><table><tr>{head}</tr>{rows}</table></div>"


def verdict_item(verdict: Verdict) -> str:
    """A verdict as an item of a list: its mark, the claim, and what was measured."""
    kind, word = MARKS[verdict.status], verdict.said()
    if verdict.control:
        kind, word = "control", f"control: {word}"
    said = f"{verdict.measured()}, {counted(len(verdict.seeds), 'seed')}"
    said += f"; {verdict.detail}" if verdict.detail else ""
    mark = f'<span class="chip {kind}">{word}</span>'
    return f"<li>{mark} {text(verdict.claim)}<small>{text(said)}</small></li>"


def _provenance(facts: Mapping[str, Any]) -> str:
    machine = facts["machine"]
    made = [
        f"{facts.get('scale', 'settings')} scale, {counted(len(facts['seeds']), 'seed')}",
        f"{in_words(facts.get('processor_seconds', 0.0))} of processor time",
        ", ".join(f"{value} cores" if key == "cores" else str(value) for key, value in machine.items()),
        facts.get("date", ""),
    ]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    settings = json.dumps(facts["settings"], indent=1, ensure_ascii=False)
    return (
        f"<p class=soft>{text('; '.join(filter(None, made)))}.</p><pre>{text(facts.get('command', ''))}</pre>"
        f"<details><summary>Settings and versions</summary><p class=soft>{text(versions)}</p>"
        f"<pre>{text(_folded(settings))}</pre></details>"
    )


def _folded(found: str) -> str:
    """JSON with each innermost list on one line."""
    return re.sub(r"\[[^\[\]{}]*\]", lambda match: re.sub(r"\s+", " ", match[0]), found)


def chips(counts: Mapping[str, int], where: str = "") -> str:
    """A mark for each status that there is one of."""
    return "".join(
        f'<span class="chip {kind}">{counts[status]} {status}{where}</span>'
        for status, kind in MARKS.items()
        if counts.get(status)
    )


def _paragraphs(found: str) -> str:
    """A docstring's paragraphs and lists."""
    parts = []
    for block in found.split("\n\n"):
        lines = block.strip().splitlines()
        if lines and all(re.match(r"[-*] | {2,}", line) for line in lines):
            items = re.split(r"^[-*] ", block.strip(), flags=re.M)[1:]
            parts.append("<ul>" + "".join(f"<li>{marked(item)}</li>" for item in items) + "</ul>")
        elif lines:
            parts.append(f"<p>{marked(' '.join(lines))}</p>")
    return "".join(parts)


def marked(found: str) -> str:
    """Escaped, with ``code`` as code."""
    return re.sub(r"``(.+?)``", r"<code>\1</code>", text(found))


def text(value: Any) -> str:
    """Escaped."""
    return html.escape(str(value), quote=True)
