"""The results of a folder: what was run, what came out, and the pictures."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from experiments.harness.experiment import PAPERS, natural
from experiments.harness.verdicts import ON_STAND_IN, Verdict
from experiments.program import program
from experiments.running import results
from experiments.running.results import ResultsError

NEEDED = ("format", "experiment", "paper", "source", "shows", "claim", "settings", "seeds", "versions", "machine")


class Picture(NamedTuple):
    """A picture beside the results.

    Attributes:
        name: its file, in the folder of the results.
        inches: its printed width.
    """

    name: str
    inches: float


@dataclasses.dataclass(frozen=True)
class Entry:
    """One experiment's results.

    Attributes:
        id: its id.
        facts: what ``ID.settings.json`` holds.
        verdicts: what came out.
        pictures: the figure, and a second one where there is one; none where a table says all.
    """

    id: str
    facts: Mapping[str, Any]
    verdicts: Sequence[Verdict]
    pictures: Sequence[Picture]

    @property
    def paper(self) -> str:
        """A key of ``PAPERS``."""
        return str(self.facts["paper"])

    def tally(self) -> Counter[str]:
        """Counts the verdicts on the source's claims by status, without controls."""
        return Counter(verdict.status for verdict in self.verdicts if not verdict.control)


def tallies(entries: Sequence[Entry]) -> dict[str, Counter[str]]:
    """Counts verdicts by status, those on a paper's data under an empty key and those on stand-ins under a suffix."""
    found = {where: Counter[str]() for where in ("", ON_STAND_IN)}
    for entry in entries:
        found[ON_STAND_IN if entry.facts.get("stand_in") else ""] += entry.tally()
    return {where: tally for where, tally in found.items() if tally.total()}


def names_in(folder: Path) -> list[str]:
    """Ids that have results in a folder, paper by paper.

    Raises:
        ResultsError: if there is no such folder, or nothing in it.
    """
    if not folder.is_dir():
        raise ResultsError(f"{folder} is no folder; results are made by: {program()} run ID --out {folder}")
    found = [path.name.removesuffix(".settings.json") for path in folder.glob("*.settings.json")]
    if not found:
        raise ResultsError(f"{folder} holds no results; make some: {program()} run ID --out {folder}")
    return sorted(found, key=natural)


def read(folder: Path, name: str) -> Entry:
    """One experiment's results.

    Raises:
        ResultsError: if a file is missing, cut, or of another version.
    """
    path = folder / f"{name}.settings.json"
    facts = results.read_json(path)
    if not isinstance(facts, dict) or any(key not in facts for key in NEEDED) or facts["format"] != results.FORMAT:
        other = facts.get("format", "none") if isinstance(facts, dict) else "none"
        found = f"format {other}, this one reads {results.FORMAT}"
        raise ResultsError(f"{path} was written by another version ({found}); run {name} again")
    pictures = []
    for suffix in facts.get("figures", [""]):
        path = folder / f"{name}{suffix}.png"
        if not path.exists():
            raise ResultsError(f"{path} is not there; run {name} again")
        with Image.open(path) as image:
            dots = image.info.get("dpi", (100.0, 100.0))[0]
            pictures.append(Picture(path.name, round(image.width / dots, 1)))
    return Entry(name, facts, results.read_verdicts(folder, name), pictures)


def read_all(folder: Path) -> tuple[list[Entry], list[str]]:
    """Reads a folder's results in the order of the pages; also returns what is wrong with those it cannot read."""
    entries, wrong = [], []
    for name in names_in(folder):
        try:
            entries.append(read(folder, name))
        except ResultsError as error:
            wrong.append(str(error))
    for path in sorted(folder.glob("*.partial.jsonl")):
        seeds = max(len(path.read_text().splitlines()) - 1, 0)
        wrong.append(f"{path.name.removesuffix('.partial.jsonl')} is not finished, {seeds} seeds are")
    order = {paper: i for i, paper in enumerate(PAPERS)}
    entries.sort(key=lambda entry: (order.get(entry.paper, len(order)), natural(entry.id)))
    return entries, wrong
