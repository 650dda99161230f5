"""What an experiment is: settings, a run for each seed, a picture, verdicts, and where there is one a table.

A module of an experiment defines ``EXPERIMENT`` and has a line in ``registry.MODULES``; nothing else knows of it.

Settings are a frozen dataclass, one object a scale: ``paper`` is what the paper ran, ``reduced`` fits a night on two
cores together with all others (where a module has none: the paper's), ``quick`` takes seconds and is in the tests.
Two fields of the settings mean the same everywhere and are set from the command line where they exist:

* ``device: str = "cpu"`` — ``--device``.
* ``data: str = ""`` — ``--data DIR``, the folder in which data set NAME is ``DIR/NAME``; empty: the stand-in.

Before any seed runs, ``check(settings)`` raises ``ValueError`` where the data are not what the loader
expects. Figures are drawn by ``draw``, which puts the stand-in's name above them; ``plot`` need not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args

from matplotlib.figure import Figure

from experiments.harness.records import Rows, plain
from experiments.harness.tables import Table
from experiments.harness.verdicts import Verdict

PAPERS = ("zord", "fzoos", "hiso", "katyusha", "ours")
SCALES = ("quick", "reduced", "paper")

Paper = Literal["", "zord", "fzoos", "hiso", "katyusha", "ours"]


def paper_of(name: str) -> Paper:
    """The paper that an id begins with, else ``ours``."""
    prefix = name.partition("-")[0]
    return next((paper for paper in get_args(Paper) if paper == prefix), "ours")


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One figure or table.

    A seed is the unit of repetition, of parallel work and of the bootstrap: ``run_seed`` draws from its seed
    alone, so the records do not depend on how seeds are spread over processes.

    Attributes:
        id: paper, then figure or table, such as ``zord-fig2a``.
        source: where it stands, such as ``ZoRD, Fig. 2a``.
        shows: what it shows, one line.
        claim: what its source claims.
        scales: a frozen dataclass of settings for each scale: ``paper``, ``quick`` for tests, and ``reduced``
            where the paper's takes more than its share of a night.
        run_seed: settings and a seed to long-form records: columns ``seed``, ``value``, and what tells them
            apart.
        plot: settings and records to a figure.
        claims: settings and records of at least two seeds to verdicts.
        seeds: how many seeds by default, or that for some scales, ``{"reduced": 5, "paper": 10}``; where quick
            is not named, at most 3.
        paper: one of ``PAPERS``; by default what the id begins with, else ``ours``.
        data: names of the data sets that it needs beyond what ships, such as ``("mnist",)``; each is looked for
            in ``DIR/NAME`` under ``--data DIR``.
        stand_in: what takes their place without ``--data``, for the figure's title, such as ``scikit-learn's
            digits for MNIST``; or a function of the settings, empty where the real data are used. A plain text
            is shown where the settings' ``data`` is empty or missing.
        check: raises ``ValueError`` for settings that cannot run, such as a data folder that is not what the
            loader expects; called once, before any seed.
        cost: processor time at a scale, in words, such as ``{"paper": "3 h"}``; measured times go before it.
        table: settings and records to the paper's table with our values beside the printed ones.
        extra: the pip extra that it needs, a key of ``registry.EXTRAS``.
    """

    id: str
    source: str
    shows: str
    claim: str
    scales: Mapping[str, Any]
    run_seed: Callable[[Any, int], Rows]
    plot: Callable[[Any, Rows], Figure]
    claims: Callable[[Any, Rows], list[Verdict]]
    seeds: int | Mapping[str, int] = 10
    paper: Paper = ""
    data: tuple[str, ...] = ()
    stand_in: str | Callable[[Any], str] = ""
    check: Callable[[Any], object] | None = None
    cost: Mapping[str, str] = dataclasses.field(default_factory=dict)
    table: Callable[[Any, Rows], Table] | None = None
    extra: str = ""

    def __post_init__(self) -> None:
        if not self.paper:
            object.__setattr__(self, "paper", paper_of(self.id))
        if self.paper not in PAPERS:
            raise ValueError(f"{self.id}: unknown paper {self.paper!r}; known are {', '.join(PAPERS)}")

    def settings(self, scale: str = "paper") -> Any:
        """The settings at a scale; ``reduced`` is the paper's where there are none of its own.

        Raises:
            ValueError: for a scale that this experiment does not have.
        """
        if scale not in self.scales and scale == "reduced":
            scale = "paper"
        if scale not in self.scales:
            raise ValueError(f"{self.id} has no scale {scale!r}; it has {', '.join(self.scales)}")
        return self.scales[scale]

    def num_seeds(self, scale: str = "paper") -> int:
        """How many seeds a run has by default at a scale: where it names none the paper's, at quick scale 3 of them."""
        known = {"paper": self.seeds} if isinstance(self.seeds, int) else self.seeds
        if scale in known:
            return known[scale]
        paper = known.get("paper", max(known.values()))
        return min(paper, 3) if scale == "quick" else paper

    def stands_in(self, settings: Any) -> str:
        """What stands in for data that are not used under these settings; empty where nothing does."""
        if callable(self.stand_in):
            return self.stand_in(settings)
        return "" if getattr(settings, "data", "") else self.stand_in

    def draw(self, settings: Any, rows: Rows) -> Figure:
        """``plot`` with the stand-in's name above it."""
        figure = self.plot(settings, rows)
        if name := self.stands_in(settings):
            above = figure.get_suptitle()
            figure.suptitle(f"{above}\nstand-in: {name}" if above else f"stand-in: {name}", fontsize=9)
            for legend in figure.legends:  # the layout gives a title and a legend above the panels the same place
                legend.set_loc("outside lower center")
        return figure

    def run(self, settings: Any, seeds: Iterable[int], progress: Callable[[], object] | None = None) -> Rows:
        """The records of all seeds, one seed after another; ``progress()`` is called after each."""
        rows: Rows = []
        for seed in seeds:
            rows += [plain(row) for row in self.run_seed(settings, seed)]
            if progress is not None:
                progress()
        return rows
