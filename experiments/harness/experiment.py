"""The interface of an experiment: settings, a run per seed, figures, verdicts and an optional table.

To add an experiment, write one module and register it in ``experiments.registry``. The module defines ``EXPERIMENT``,
or ``EXPERIMENTS`` if several figures differ only in their settings. The published page shows the module's docstring,
which explains how the source was interpreted.

Settings are frozen dataclasses, one object per scale: ``paper`` repeats the paper's run; ``reduced`` runs in one night
on two cores together with all other experiments (by default it equals ``paper``); ``quick`` takes seconds and is used
by the tests. Two fields have the same meaning everywhere and are set from the command line:

* ``device: str = "cpu"`` is ``--device``;
* ``data: str = ""`` is ``--data DIR`` (``experiments.workloads.data``). An empty string selects the stand-in.

Every experiment satisfies these conditions, which ``tests/experiments/test_figures.py`` checks at the quick scale:

* ``run_seed`` depends on its seed alone. A record has a ``seed``, a finite ``value`` and columns that identify it. The
  column ``method`` names the method; ``plotting.METHODS`` gives its style.
* ``plot`` labels the x axis of the last row (or of every panel, if they differ) and the y axis of the first column. The
  figure has a legend (``plotting.grid``, ``plotting.shared_legend``), is 3.4 or 7 inches wide (``plotting.panels``),
  has no text below 7 points and at most seven methods per panel; ``plot_more`` draws the rest. ``caption`` explains
  bands.
* ``claims`` returns verdicts with finite numbers over all seeds. At least one verdict is on the paper's claim, if the
  source makes a measurable claim. A claim that fails is reported like any other.
* Every number in ``shows``, in a verdict or in a table's caption is one of the settings. Numbers that differ between
  scales are computed from the settings (``tests/experiments/test_words.py``). Docstrings describe the paper's scale.
* ``table`` has a caption, and each row has a name and a value.
* An experiment with ``data`` has a ``stand_in``, whose name ``figures`` writes above each figure.
* ``check(settings)`` raises ``ValueError`` before any seed runs if the data are not as expected.
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
from optimizers.comparison.records import Rows, seeds_of
from surrogates import plotting

PAPERS = {
    "zord": "ZoRD (Shu et al. 2023)",
    "fzoos": "FZooS (Shu et al. 2024)",
    "hiso": "HiSo (Li et al. 2025)",
    "katyusha": "ZO-L-Katyusha (Zhang and Tang 2024)",
    "ours": "Beyond the papers",
}
OF_THEOREMS = {"calibration": "zord", "fourier-features": "fzoos"}
"""Maps each experiment on a paper's theorem, which has no figure in the paper, to the paper."""

SCALES = ("quick", "reduced", "paper")
MORE = "-more"
"""Suffix of the file name of a second figure."""


def paper_of(name: str) -> str:
    """Returns the paper that an id belongs to, or ``ours``."""
    prefix = name.partition("-")[0]
    return OF_THEOREMS.get(name, prefix if prefix in PAPERS else "ours")


def natural(name: str) -> list[tuple[int, str]]:
    """Returns a sort key that puts fig2 before fig10."""
    return [(int(piece), "") if piece.isdigit() else (0, piece) for piece in re.split(r"(\d+)", name)]


MEANS = "Lines are means over seeds; bands show ± one standard error."
"""Caption of most figures."""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One figure or table.

    Attributes:
        id: paper, then figure or table, such as ``zord-fig2a``.
        shows: description of the figure or table in one line; a function of the settings if it mentions their numbers.
        claim: the claim of the source, with its numbers.
        scales: settings (frozen dataclasses) of ``paper``, ``quick`` and, if ``paper`` takes over a night, ``reduced``.
        run_seed: maps settings and a seed, the unit of repetition, parallel work and bootstrap, to records.
        plot: maps settings and records to a figure; None if there is only a table.
        claims: maps settings and the records of at least two seeds to verdicts.
        seeds: default number of seeds, for all scales or by scale, such as ``{"reduced": 5, "paper": 10}``. The quick
            scale has at most 3 seeds, unless ``seeds`` names it.
        data: names of the external data sets, such as ``("mnist",)``.
        stand_in: what replaces the data without ``--data``, such as ``scikit-learn's digits for MNIST``; or a function
            of the settings that returns an empty string if the real data are used.
        differs: maps settings with real data to the differences from the paper's model or size; empty if none.
        check: raises ``ValueError`` for settings that cannot run; called once, before any seed.
        cost: processor time by scale, such as ``{"paper": "3 h"}``; measured times take precedence.
        table: maps settings and records to the paper's table, our values beside the printed ones.
        extra: the pip extra that it needs, a key of ``registry.EXTRAS``.
        caption: one or two sentences that explain lines, bands and marks; or a function of the settings.
        plot_more: maps settings and records to a second figure, for controls or crowded panels, or to None.
        source: place in the paper; by default it follows from the id, such as ``ZoRD, Fig. 2a`` from ``zord-fig2a``.
    """

    id: str
    shows: str | Callable[[Any], str]
    claim: str
    scales: Mapping[str, Any]
    run_seed: Callable[[Any, int], Rows]
    plot: Callable[[Any, Rows], Figure] | None
    claims: Callable[[Any, Rows], list[Verdict]]
    seeds: int | Mapping[str, int] = 10
    data: tuple[str, ...] = ()
    stand_in: str | Callable[[Any], str] = ""
    differs: Callable[[Any], str] | None = None
    check: Callable[[Any], object] | None = None
    cost: Mapping[str, str] = dataclasses.field(default_factory=dict)
    table: Callable[[Any, Rows], Table] | None = None
    extra: str = ""
    caption: str | Callable[[Any], str] = MEANS
    plot_more: Callable[[Any, Rows], Figure | None] | None = None
    source: str = ""

    def __post_init__(self) -> None:
        paper, _, place = self.id.partition("-")
        place = place.replace("fig", "Fig. ").replace("table", "Table ")
        if not self.source:
            object.__setattr__(self, "source", f"{PAPERS.get(paper, paper).partition(' (')[0]}, {place}")

    @property
    def paper(self) -> str:
        """The key of ``PAPERS`` that the id belongs to."""
        return paper_of(self.id)

    def settings(self, scale: str = "paper") -> Any:
        """Returns the settings of a scale; ``reduced`` falls back to ``paper``.

        Raises:
            ValueError: for a scale that this experiment does not have.
        """
        if scale not in self.scales and scale == "reduced":
            scale = "paper"
        if scale not in self.scales:
            raise ValueError(f"{self.id} has no scale {scale!r}; it has {', '.join(self.scales)}")
        return self.scales[scale]

    def num_seeds(self, scale: str = "paper") -> int:
        """Returns the default number of seeds at a scale, by the rule of ``seeds``."""
        known = {"paper": self.seeds} if isinstance(self.seeds, int) else self.seeds
        if scale in known:
            return known[scale]
        paper = known.get("paper", max(known.values()))
        return min(paper, 3) if scale == "quick" else paper

    def shown(self, settings: Any) -> str:
        """Returns the one-line description ``shows`` of a run with these settings."""
        return self.shows(settings) if callable(self.shows) else self.shows

    def differences(self, settings: Any) -> list[str]:
        """Returns one text for each field in which the settings differ from the paper's scale."""
        paper = self.settings("paper")
        pairs = [(f.name, getattr(settings, f.name), getattr(paper, f.name)) for f in dataclasses.fields(settings)]
        return [f"{name}: {_short(ours)} instead of {_short(theirs)}" for name, ours, theirs in pairs if ours != theirs]

    def judged(self, settings: Any, rows: Rows, differs: str = "") -> list[Verdict]:
        """Returns the verdicts of ``claims``, completed with seeds, stand-ins and differences from the paper."""
        about: dict[str, Any] = {"stand_in": self.stands_in(settings), "differs": differs}
        seeds, own = seeds_of(rows), self.paper == "ours"
        found = self.claims(settings, rows)
        return [dataclasses.replace(v, seeds=v.seeds or seeds, control=v.control or own, **about) for v in found]

    def stands_in(self, settings: Any) -> str:
        """Returns the stand-in that a run with these settings uses; an empty string if it uses none."""
        if callable(self.stand_in):
            return self.stand_in(settings)
        return "" if getattr(settings, "data", "") else self.stand_in

    def captioned(self, settings: Any) -> str:
        """Returns the caption of the figure of a run with these settings."""
        return self.caption(settings) if callable(self.caption) else self.caption

    def figures(self, settings: Any, rows: Rows) -> dict[str, Figure]:
        """Draws the figures, keyed by file-name suffix, each with the stand-in's name above it."""
        plots = {"": self.plot, MORE: self.plot_more}
        drawn = {name: plot(settings, rows) for name, plot in plots.items() if plot is not None}
        found = {name: figure for name, figure in drawn.items() if figure is not None}
        if stand_in := self.stands_in(settings):
            for figure in found.values():
                plotting.head(figure, f"stand-in: {stand_in}")
        return found

    def draw(self, settings: Any, rows: Rows) -> Figure:
        """Draws the first figure.

        Raises:
            ValueError: if the experiment has only a table.
        """
        if self.plot is None:
            raise ValueError(f"{self.id} has no figure; call Experiment.table(settings, rows) for its table")
        return self.figures(settings, rows)[""]

    def run(self, settings: Any, seeds: Iterable[int]) -> Rows:
        """Returns the records of all seeds."""
        return [plain(row) for seed in seeds for row in self.run_seed(settings, seed)]


def _short(value: Any) -> str:
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
    """Returns the published processor seconds per seed, or None if they were not measured."""
    return _measured().get(name, {}).get(scale)


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun: ``1 seed``, ``2 seeds``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def in_words(seconds: float) -> str:
    """Formats a time: ``8 s``, ``12 min``, ``3.4 h``, ``2.1 days``."""
    for limit, unit, name in ((100, 1, "s"), (6000, 60, "min"), (48 * 3600, 3600, "h")):
        if seconds < limit:
            count = seconds / unit
            return f"{count:.2g} {name}" if count < 10 else f"{count:.0f} {name}"
    return f"{seconds / 86400:.2g} days"


def cost_of(experiment: Experiment, scale: str) -> str:
    """Formats the processor time of a run with the default seeds; an empty string if it is unknown."""
    measured = seconds_a_seed(experiment.id, scale)
    if measured is None and "reduced" not in experiment.scales and scale in ("reduced", "paper"):
        measured = seconds_a_seed(experiment.id, "paper" if scale == "reduced" else "reduced")
    if measured is None:
        return experiment.cost.get(scale, "")
    return in_words(measured * experiment.num_seeds(scale))
