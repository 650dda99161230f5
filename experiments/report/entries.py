"""Reads the results of a folder: settings, verdicts and figures."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from experiments import registry
from experiments.harness.experiment import PAPERS, natural
from experiments.harness.verdicts import DIFFERS, ON_STAND_IN, Verdict
from experiments.program import program
from experiments.running import results
from experiments.running.results import ResultsError

NEEDED = ("format", "experiment", "paper", "source", "shows", "claim", "settings", "seeds", "versions", "machine")


@dataclasses.dataclass(frozen=True)
class Entry:
    """The results of one experiment.

    Attributes:
        id: id of the experiment.
        facts: contents of ``ID.settings.json``.
        verdicts: the verdicts on its claims.
        pictures: file name and printed width in inches of each figure; empty if there is only a table.
    """

    id: str
    facts: Mapping[str, Any]
    verdicts: Sequence[Verdict]
    pictures: Sequence[tuple[str, float]]

    @property
    def paper(self) -> str:
        """A key of ``PAPERS``."""
        return str(self.facts["paper"])

    @property
    def page(self) -> str:
        """The name of its page without suffix: its paper, ``scoreboards`` or ``scoreboards-constrained``."""
        if self.id.startswith(registry.CONSTRAINED_SCOREBOARDS):
            return "scoreboards-constrained"
        return "scoreboards" if self.id.startswith(registry.SCOREBOARDS) else self.paper


def tallies(entries: Sequence[Entry]) -> dict[str, Counter[str]]:
    """Counts the papers' claims by ``Verdict.basis`` and status."""
    found = {basis: Counter[str]() for basis in ("", DIFFERS, ON_STAND_IN)}
    for verdict in (verdict for entry in entries for verdict in entry.verdicts if not verdict.control):
        found[verdict.basis][verdict.status] += 1
    return {where: tally for where, tally in found.items() if tally.total()}


def names_in(folder: Path) -> list[str]:
    """Returns the ids that have results in a folder.

    Raises:
        ResultsError: if the folder does not exist or has no results.
    """
    if not folder.is_dir():
        raise ResultsError(f"{folder} is not a folder; create results with: {program()} run ID --out {folder}")
    found = [path.name.removesuffix(".settings.json") for path in folder.glob("*.settings.json")]
    if not found:
        raise ResultsError(f"{folder} has no results; create some with: {program()} run ID --out {folder}")
    return sorted(found, key=natural)


def read(folder: Path, name: str) -> Entry:
    """Reads the results of one experiment.

    Raises:
        ResultsError: if a file is missing, truncated or from another version.
    """
    path = folder / f"{name}.settings.json"
    facts = results.read_json(path)
    if not isinstance(facts, dict) or any(key not in facts for key in NEEDED) or facts["format"] != results.FORMAT:
        other = facts.get("format", "none") if isinstance(facts, dict) else "none"
        found = f"format {other}; this version reads format {results.FORMAT}"
        raise ResultsError(f"{path} was written by another version ({found}); run {name} again")
    pictures = []
    for suffix in facts.get("figures", [""]):
        path = folder / f"{name}{suffix}.png"
        if not path.exists():
            raise ResultsError(f"{path} does not exist; run {name} again")
        with Image.open(path) as image:
            dots = image.info.get("dpi", (100.0, 100.0))[0]
            pictures.append((path.name, round(image.width / dots, 1)))
    return Entry(name, facts, results.read_verdicts(folder, name), pictures)


def read_all(folder: Path) -> tuple[list[Entry], list[str]]:
    """Reads all results of a folder in the order of the pages; also returns the reasons for unreadable ones."""
    entries, wrong = [], []
    for name in names_in(folder):
        try:
            entries.append(read(folder, name))
        except ResultsError as error:
            wrong.append(str(error))
    for path in sorted(folder.glob("*.partial.jsonl")):
        seeds = max(len(path.read_text().splitlines()) - 1, 0)
        wrong.append(f"{path.name.removesuffix('.partial.jsonl')} is not finished: {seeds} seeds are done")
    order = {paper: i for i, paper in enumerate(PAPERS)}
    entries.sort(key=lambda entry: (order.get(entry.paper, len(order)), natural(entry.id)))
    return entries, wrong
