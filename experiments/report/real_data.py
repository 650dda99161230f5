"""Builds the page that compares verdicts on stand-ins with the current verdicts.

``stand-ins.json`` in the results folder has the verdicts of the first runs, which all used stand-ins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.harness.experiment import counted
from experiments.harness.verdicts import Verdict
from experiments.report.entries import Entry
from experiments.report.markdown import page, table, text
from experiments.report.section import link
from experiments.running.results import read_json

FIRST = "stand-ins.json"
TITLE = "The papers' own data: verdicts then and now"
INTRODUCTION = (
    "Each row is a claim of a paper that was first judged on a stand-in for the paper's data. The column *now* has the "
    "verdict of the published run. A dash means that there is no verdict on real data: the published run uses the "
    "stand-in, or the claim was dropped. The language models still have stand-ins. Every run on real "
    "data can be repeated with the command below its figure, and continued with ``--resume``."
)


def comparison(folder: Path, entries: Sequence[Entry]) -> str:
    """Returns the page; empty if the folder has no verdicts of first runs."""
    if not (folder / FIRST).exists():
        return ""
    found = {(entry.id, _key(verdict.claim)): (entry, verdict) for entry in entries for verdict in entry.verdicts}
    rows = []
    for first in read_json(folder / FIRST):
        entry, verdict = found.get((first["experiment"], _key(first["claim"])), (None, None))
        then = [_said(first["status"], first), f"{first['scale']}, {counted(first['seeds'], 'seed')}"]
        now = ["–"] * 3 if entry is None or verdict is None or verdict.stand_in else _now(entry, verdict)
        name = first["experiment"] if entry is None else link(entry, "{}.md")
        rows.append([name, text(first["claim"]), *then, *now])
    columns = ["figure or table", "claim", "on the stand-in", "run at", "now", "run at", "what differs from the paper"]
    return page(f"# {TITLE}", text(INTRODUCTION), table(columns, rows))


def _key(claim: str) -> str:
    """Returns a claim without its numbers, which depend on the scale; digits in a name such as TuRBO-10 stay."""
    return re.sub(r"(?<![\w-])\d[\d.,]*", "", claim)


def _said(status: str, first: Mapping[str, Any]) -> str:
    return f"{status}, in {first['held']} of {first['settings']}" if status == "partly" else status


def _now(entry: Entry, verdict: Verdict) -> list[str]:
    status = f"**{_said(verdict.status, {'held': verdict.held, 'settings': verdict.settings})}**"
    run = f"{entry.facts.get('scale', 'other')}, {counted(len(verdict.seeds), 'seed')}"
    return [status, run, text(verdict.differs) or "nothing"]
