"""Tables for the terminal: the experiments with their costs and needs, and the outcomes of a run."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments import registry
from experiments.harness.experiment import PAPERS, SCALES, cost_of, paper_of
from experiments.harness.verdicts import STATUSES
from experiments.running.runner import Run
from experiments.workloads.data import folder_of

PUBLISHED = Path(__file__).parents[1] / "published"
PIPED = 120
"""Width in columns if standard output is not a terminal."""


def console() -> Console:
    """Returns a rich console for standard output; without a terminal it writes plain text of a fixed width."""
    return Console(width=None if sys.stdout.isatty() else PIPED, highlight=False, markup=False)


def described(paper: str | None = None, data: Path | None = None) -> dict[str, Any]:
    """Describes the experiments and benchmarks as JSON data, at the paper's scale.

    Args:
        paper: only the experiments of this paper.
        data: folder in which to look for data sets.
    """
    names = [name for name in registry.MODULES if paper in (None, paper_of(name))]
    return {"experiments": [_described(name, data) for name in names], "benchmarks": list(registry.BENCHMARKS)}


def _described(name: str, data: Path | None) -> dict[str, Any]:
    try:
        experiment = registry.get(name)
    except registry.MissingExtraError as error:
        return {"id": name, "paper": paper_of(name), "missing": str(error)}
    folders = {wanted: None if data is None else folder_of(data, wanted).exists() for wanted in experiment.data}
    return {
        "id": name,
        "paper": experiment.paper,
        "source": experiment.source,
        "shows": experiment.shown(experiment.settings()),
        "claim": experiment.claim,
        "cost": {scale: cost_of(experiment, scale) for scale in SCALES},
        "data": folders,
        "stand_in": experiment.stands_in(experiment.settings()) if experiment.stand_in else "",
        "extra": experiment.extra,
        "missing": str(registry.missing_extra(experiment.extra, name) or ""),
    }


def listing(found: dict[str, Any]) -> list[Table]:
    """Returns a table for each paper; ids link to the published figures if these are present.

    Args:
        found: the result of ``described``.
    """
    tables = []
    for paper, title in PAPERS.items():
        rows = [one for one in found["experiments"] if one["paper"] == paper]
        table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, show_edge=False)
        table.add_column("id", no_wrap=True)
        table.add_column("shows", ratio=1)
        for scale in SCALES:
            table.add_column(scale, max_width=12, justify="right")
        for one in rows:
            costs = [one.get("cost", {}).get(scale) or "" for scale in SCALES]
            table.add_row(_linked(one["id"], PUBLISHED / f"{one['id']}.png"), _shown(one, costs), *map(_brief, costs))
        if rows:
            tables.append(table)
    return tables


def _brief(cost: str) -> str:
    """Returns a cost that is a time; other texts are printed below the description of the experiment."""
    return cost if cost[:1].isdigit() else "see left" if cost else "–"


def _shown(one: dict[str, Any], costs: Sequence[str]) -> str:
    if "source" not in one:
        return one["missing"]
    lines = [f"{one['source']}: {one['shows']}"]
    lines += [f"{scale}: {cost}" for scale, cost in zip(SCALES, costs, strict=True) if _brief(cost) not in (cost, "–")]
    if one["data"]:
        lines.append("data: " + ", ".join(f"{name} ({_whereabouts(name, at)})" for name, at in one["data"].items()))
    if one["stand_in"]:
        lines.append(f"stand-in without data: {one['stand_in']}")
    if one["missing"]:
        lines.append(one["missing"])
    return "\n".join(lines)


def _whereabouts(name: str, here: bool | None) -> str:
    return f"--data DIR, in DIR/{name}" if here is None else "here" if here else "not in the given folder"


def _linked(text: str, path: Path) -> Text:
    return Text(text, style=f"link {path.absolute().as_uri()}") if path.exists() else Text(text)


def finished(runs: Sequence[Run], out: Path) -> Table:
    """Returns the table of a run: the outcomes of each experiment's claims, and its figure's file name."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("experiment", no_wrap=True)
    table.add_column("seeds", justify="right")
    for status in STATUSES:
        table.add_column(status, justify="right")
    table.add_column("own claims hold", justify="right")
    table.add_column("figure", no_wrap=True)
    for run in runs:
        claims = Counter(verdict.status for verdict in run.verdicts if not verdict.control)
        own = Counter(verdict.status for verdict in run.verdicts if verdict.control)
        held = f"{own['reproduced']} of {own.total()}" if own else ""
        picture = out / f"{run.experiment.id}.png"
        table.add_row(
            run.experiment.id,
            str(run.finished),
            *(str(claims[status] or "") for status in STATUSES),
            held,
            "failed" if run.failure else _linked(picture.name, picture),
        )
    return table
