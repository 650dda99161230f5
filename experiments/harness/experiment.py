"""What an experiment is: settings, a run for each seed, a picture, verdicts, and where there is one a table.

A new experiment is one module and one line in ``registry.MODULES``; nothing else knows of it. The module defines
``EXPERIMENT``, or, where figures differ in a setting, ``EXPERIMENTS``, one for each id whose line names the module. Its
docstring says how the source was read; the page shows it.

Settings are a frozen dataclass, one object a scale: ``paper`` is what the paper ran, ``reduced`` fits a night on two
cores together with all others (where a module has none: the paper's), ``quick`` takes seconds and is in the tests.
Two fields of the settings mean the same everywhere and are set from the command line where they exist:

* ``device: str = "cpu"`` is ``--device``;
* ``data: str = ""`` is ``--data DIR``, the folder in which data set NAME is ``DIR/NAME``; empty: the stand-in.

What every experiment promises, and ``tests/experiments/test_figures.py`` asks of it at its quick scale:

* ``run_seed`` draws from its seed alone: the same records whatever ran before, others for another seed. A record has
  ``seed``, a finite ``value``, and text or numbers that tell it apart; a method stands in the column ``method``, under
  a name whose look is in ``plotting.METHODS`` (methods of one experiment have colours of their own) or any other name.
* ``plot`` labels its axes: below where x is the panels' own or in the last row, at the left in the first column. The
  figure has a legend (``plotting.grid`` and ``plotting.shared_legend`` make it), is 3.4 or 7 inches wide
  (``plotting.panels``), has no text under 7 points at that size and no more than seven methods in a panel;
  ``plot_more`` draws the others. What bands and bars are is said in ``caption``.
* ``claims`` gives verdicts over all seeds with finite numbers, at least one of them no control where the source claims
  what can be measured. A claim that fails is reported as it came out.
* Numbers in ``shows``, in verdicts and in a table's caption are those of the settings: where they name one that the
  scales differ in, they are made from it (``tests/experiments/test_words.py``). The docstring is of the paper's scale.
* ``table`` has a caption, and a name and a value in each row.
* With ``data`` there is a ``stand_in``. ``figures`` puts its name above the figure; ``plot`` need not.
* ``check(settings)`` raises ``ValueError``, before any seed runs, where the data are not what the loader expects.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from typing import Any

from matplotlib.figure import Figure

from experiments.harness.records import plain
from experiments.harness.verdicts import Table, Verdict
from optimizers.comparison.records import Rows
from surrogates import plotting

PAPERS = {
    "zord": "ZoRD (Shu et al. 2023)",
    "fzoos": "FZooS (Shu et al. 2024)",
    "hiso": "HiSo (Li et al. 2025)",
    "katyusha": "ZO-L-Katyusha (Zhang and Tang 2024)",
    "ours": "Beside the papers",
}
OF_THEOREMS = {"calibration": "zord", "fourier-features": "fzoos"}
"""Experiments on what a paper proves, in no figure of it, and the paper."""

SCALES = ("quick", "reduced", "paper")
MORE = "-more"
"""What the name of a second figure has after the id."""


def paper_of(name: str) -> str:
    """The paper that an id begins with, or whose theorem it is on, else ``ours``."""
    prefix = name.partition("-")[0]
    return OF_THEOREMS.get(name, prefix if prefix in PAPERS else "ours")


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts fig2 before fig10."""
    return [(int(piece), "") if piece.isdigit() else (0, piece) for piece in re.split(r"(\d+)", name)]


MEANS = "Lines are means over the seeds, bands one standard error to either side."
"""The caption of most figures."""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One figure or table.

    Attributes:
        id: paper, then figure or table, such as ``zord-fig2a``.
        source: where it stands, such as ``ZoRD, Fig. 2a``.
        shows: what it shows, one line; or a function of the settings where it names what these decide.
        claim: what its source claims, with the source's numbers.
        scales: a frozen dataclass of settings for each scale: ``paper``, ``quick`` for tests, and ``reduced``
            where the paper's takes more than its share of a night.
        run_seed: settings and a seed to long-form records. A seed is the unit of repetition, of parallel work and of
            the bootstrap.
        plot: settings and records to a figure; None where a table says all.
        claims: settings and records of at least two seeds to verdicts.
        seeds: how many seeds by default, or that for some scales, ``{"reduced": 5, "paper": 10}``; where quick
            is not named, at most 3.
        data: names of the data sets that it needs beyond what ships, such as ``("mnist",)``.
        stand_in: what takes their place without ``--data``, such as ``scikit-learn's digits for MNIST``; or a function
            of the settings, empty where the real data are used.
        check: raises ``ValueError`` for settings that cannot run; called once, before any seed.
        cost: processor time at a scale, in words, such as ``{"paper": "3 h"}``; measured times go before it.
        table: settings and records to the paper's table with our values beside the printed ones.
        extra: the pip extra that it needs, a key of ``registry.EXTRAS``.
        caption: what lines, bands and marks of the figure are, one sentence or two; or a function of the settings.
        plot_more: settings and records to a second figure, of controls or what else would crowd the first; None where a
            scale has nothing for it.
    """

    id: str
    source: str
    shows: str | Callable[[Any], str]
    claim: str
    scales: Mapping[str, Any]
    run_seed: Callable[[Any, int], Rows]
    plot: Callable[[Any, Rows], Figure] | None
    claims: Callable[[Any, Rows], list[Verdict]]
    seeds: int | Mapping[str, int] = 10
    data: tuple[str, ...] = ()
    stand_in: str | Callable[[Any], str] = ""
    check: Callable[[Any], object] | None = None
    cost: Mapping[str, str] = dataclasses.field(default_factory=dict)
    table: Callable[[Any, Rows], Table] | None = None
    extra: str = ""
    caption: str | Callable[[Any], str] = MEANS
    plot_more: Callable[[Any, Rows], Figure | None] | None = None

    @property
    def paper(self) -> str:
        """One of ``PAPERS``, see ``paper_of``."""
        return paper_of(self.id)

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

    def shown(self, settings: Any) -> str:
        """What a run with these settings shows."""
        return self.shows(settings) if callable(self.shows) else self.shows

    def differences(self, settings: Any) -> list[str]:
        """What these settings have that the paper's scale has not, a text for each field."""
        paper = self.settings("paper")
        pairs = [(f.name, getattr(settings, f.name), getattr(paper, f.name)) for f in dataclasses.fields(settings)]
        return [f"{name}: {_short(ours)} instead of {_short(theirs)}" for name, ours, theirs in pairs if ours != theirs]

    def judged(self, settings: Any, rows: Rows) -> list[Verdict]:
        """The verdicts of ``claims``, which say what stood in for the paper's data."""
        name = self.stands_in(settings)
        return [dataclasses.replace(verdict, stand_in=name) for verdict in self.claims(settings, rows)]

    def stands_in(self, settings: Any) -> str:
        """What stands in for data that are not used under these settings; empty where nothing does."""
        if callable(self.stand_in):
            return self.stand_in(settings)
        return "" if getattr(settings, "data", "") else self.stand_in

    def captioned(self, settings: Any) -> str:
        """What lines, bands and marks are in the figure of a run with these settings."""
        return self.caption(settings) if callable(self.caption) else self.caption

    def figures(self, settings: Any, rows: Rows) -> dict[str, Figure]:
        """The figures by what the names of their files have after the id, with the stand-in's name above each."""
        plots = {"": self.plot, MORE: self.plot_more}
        drawn = {name: plot(settings, rows) for name, plot in plots.items() if plot is not None}
        found = {name: figure for name, figure in drawn.items() if figure is not None}
        if stand_in := self.stands_in(settings):
            for figure in found.values():
                plotting.head(figure, f"stand-in: {stand_in}")
        return found

    def run(self, settings: Any, seeds: Iterable[int]) -> Rows:
        """The records of all seeds, one seed after another."""
        return [plain(row) for seed in seeds for row in self.run_seed(settings, seed)]


def _short(value: Any) -> str:
    """A value of a settings field, to be read."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))})" if value else "none"
    if dataclasses.is_dataclass(value):
        return ", ".join(f"{f.name} {_short(getattr(value, f.name))}" for f in dataclasses.fields(value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


@functools.cache
def _measured() -> dict[str, dict[str, float]]:
    file = resources.files("experiments") / "published" / "costs.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def seconds_a_seed(name: str, scale: str) -> float | None:
    """Processor seconds of one seed, as measured when the committed results were made; None where they were not."""
    return _measured().get(name, {}).get(scale)


def counted(number: int, noun: str) -> str:
    """A number with its noun: ``1 seed``, ``2 seeds``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def in_words(seconds: float) -> str:
    """A time to be read: ``8 s``, ``12 min``, ``3.4 h``, ``2.1 days``."""
    for limit, unit, name in ((100, 1, "s"), (6000, 60, "min"), (48 * 3600, 3600, "h")):
        if seconds < limit:
            count = seconds / unit
            return f"{count:.2g} {name}" if count < 10 else f"{count:.0f} {name}"
    return f"{seconds / 86400:.2g} days"


def cost_of(experiment: Experiment, scale: str) -> str:
    """Processor time of a run with the default seeds, in words; empty where nobody knows."""
    measured = seconds_a_seed(experiment.id, scale)
    if measured is None and "reduced" not in experiment.scales and scale in ("reduced", "paper"):
        measured = seconds_a_seed(experiment.id, "paper" if scale == "reduced" else "reduced")
    if measured is None:
        return experiment.cost.get(scale, "")
    return in_words(measured * experiment.num_seeds(scale))
