"""ZoRD, Figure 7: thresholds on the uncertainty that ends virtual steps, and other measures of uncertainty.

The first figure is the paper's: the spectral norm with thresholds c from 0 (one step per query) upwards, d = 40. The
paper's best thresholds are 0.3 on Ackley's function and 0.4 on Levy's; its text does not give the other thresholds. We
use ℓ = 0.3 √d, so that the largest possible uncertainty, the prior's 5/(3ℓ²), is above these thresholds; otherwise only
the limit on their number would end virtual steps. The second figure has every measure of the library with thresholds
from strict (left) to loose (right), including its default. At the reduced scale each measure has three thresholds (the
spectral norm has all), and TuRBO uses batches of 20, with which the starts on Ackley's function lie on its plateau.
``experiments.papers.zord.descent`` lists further choices.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from experiments.harness.curves import matrix
from experiments.harness.experiment import Experiment
from experiments.harness.records import final
from experiments.harness.verdicts import Verdict, judge
from experiments.papers.zord import descent
from optimizers.comparison.records import Row, Rows, curve, mean_curve, where
from surrogates import plotting
from surrogates.plotting import MethodStyle

THRESHOLDS: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("spectral_norm", (0.0, 0.1, 0.2, 0.3, 0.4)),
    ("mean_variance", (0.0, 0.05, 0.1, 0.2, 0.35)),
    ("relative", (0.2, 0.4, 0.6, 0.8, 0.9)),
    ("descent", (0.001, 0.01, 0.05, 0.1, 0.2)),
    ("kept_information", (0.95, 0.9, 0.8, 0.6, 0.4)),
)
FEWER = (THRESHOLDS[0], *((name, values[1:4]) for name, values in THRESHOLDS[1:]))
"""Thresholds at the reduced scale: all thresholds of the paper's measure, three thresholds of each other measure."""
FEWEST = (("spectral_norm", (0.0, 0.3)), ("kept_information", (0.9, 0.6)))
COLORS = (plotting.BLACK, plotting.SKY, plotting.GREEN, plotting.ORANGE, plotting.VERMILION)
"""Colours of the measures. The thresholds of a measure are shades of purple, darker if they are looser."""
MARKERS = ("o", "s", "^", "D", "v")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of Figure 7; ``problems`` lists the half-width of each box."""

    problems: tuple[tuple[str, float], ...] = descent.HALF_WIDTHS
    dim: int = 40
    queries: int = 200
    lengthscale: float = 0.3
    thresholds: tuple[tuple[str, tuple[float, ...]], ...] = THRESHOLDS
    start_queries: int = 300
    every: int = 5
    cache: str = "results/cache"
    turbo: descent.TurboOptions = ()


def run_seed(settings: Settings, seed: int) -> Rows:
    """Runs ZoRD with every measure at every threshold."""
    rows: Rows = []
    lengthscale = settings.lengthscale * math.sqrt(settings.dim)
    for name, half_width in settings.problems:
        how = (settings.start_queries, seed, settings.cache, settings.turbo)
        problem, start = descent.problem_and_start(name, half_width, settings.dim, *how)
        for uncertainty, thresholds in settings.thresholds:
            for threshold in thresholds:
                options = {"uncertainty": uncertainty, "threshold": threshold, "lengthscale": lengthscale}
                values = descent.METHODS["zord"](problem, start, settings.queries, seed, **options)
                key: Row = {"seed": seed, "problem": name, "uncertainty": uncertainty, "threshold": threshold}
                rows += descent.gap_rows(key, problem, start, values, settings.queries, settings.every)
    return rows


def plot(settings: Settings, rows: Rows) -> Figure:
    """Draws a curve for each threshold of the spectral norm."""
    paper, thresholds = settings.thresholds[0]
    shades = colormaps["Purples"](np.linspace(0.4, 1.0, len(thresholds)))
    relative = descent.relative_to_first(where(rows, uncertainty=paper))

    def draw(panel: Axes, name: str) -> None:
        found = [curve(relative, "queries", problem=name, threshold=threshold) for threshold in thresholds]
        for threshold, shade, marker, each in zip(thresholds, shades, MARKERS, found, strict=False):
            plotting.draw(panel, MethodStyle(f"c = {threshold:g}", to_hex(shade), marker), each)
        if all(np.array_equal(found[0].mean, each.mean) for each in found):
            panel.text(0.5, 0.9, "the same for every c", transform=panel.transAxes, ha="center")

    cells = {f"{name.capitalize()}, d = {settings.dim}": name for name in dict(settings.problems)}
    options: dict[str, Any] = {"height": 2.0, "sharey": True}
    return plotting.grid(cells, draw, xlabel="queries", ylabel=descent.RELATIVE, **options)


def plot_more(settings: Settings, rows: Rows) -> Figure:
    """Draws the final gaps of every measure at its thresholds: a row of panels per problem, a column per measure."""
    names, relative = list(dict(settings.problems)), descent.relative_to_first(rows)
    columns = {name.replace("_", " "): i for i, (name, _) in enumerate(settings.thresholds)}

    def draw(panel: Axes, problem: str, i: int) -> None:
        uncertainty, chosen = settings.thresholds[i]
        finals = [final(relative, problem=problem, uncertainty=uncertainty, threshold=c) for c in chosen]
        look = MethodStyle(uncertainty, COLORS[i], MARKERS[i])
        plotting.draw(panel, look, mean_curve(range(len(chosen)), finals))
        panel.set_xticks(range(len(chosen)), [f"{c:g}".removeprefix("0") or "0" for c in chosen])

    size: dict[str, Any] = {"height": 1.6, "width": plotting.PAGE, "sharex": "col", "sharey": "row"}
    ylabels = [f"{name.capitalize()}\nlog₁₀ of last / first" for name in names]
    return matrix(names, columns, draw, xlabels="threshold", ylabels=ylabels, legend=False, **size)


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges dynamic steps against one step per query, and the other measures against the spectral norm."""
    verdicts = list[Verdict]()
    paper, thresholds = settings.thresholds[0]
    statistic = "difference of the final log10 gap"
    gaps = {
        (name, uncertainty, c): final(rows, problem=name, uncertainty=uncertainty, threshold=c)
        for name in dict(settings.problems)
        for uncertainty, chosen in settings.thresholds
        for c in chosen
    }

    def best(name: str, uncertainty: str, chosen: tuple[float, ...]) -> np.ndarray:
        return min((gaps[name, uncertainty, c] for c in chosen), key=np.mean)

    for threshold in thresholds[1:]:
        cells = {name: gaps[name, paper, threshold] - gaps[name, paper, thresholds[0]] for name, _ in settings.problems}
        claim = f"virtual steps with c = {threshold:g} end lower than one step per query (c = {thresholds[0]:g})"
        verdicts.append(judge(claim, statistic, cells, below=0.0))
    for uncertainty, chosen in settings.thresholds[1:]:
        cells = {name: best(name, uncertainty, chosen) - best(name, paper, thresholds) for name, _ in settings.problems}
        claim = f"{uncertainty.replace('_', ' ')} at its best threshold ends lower than the spectral norm at its best"
        verdicts.append(judge(claim, statistic, cells, below=0.0, control=True))
    return verdicts


EXPERIMENT = Experiment(
    id="zord-fig7",
    shows=lambda settings: f"thresholds c and measures of uncertainty that end virtual steps, d = {settings.dim}",
    claim="Dynamic virtual steps (c > 0) are better than one step per query (c = 0).",
    scales={
        "paper": Settings(),
        "quick": Settings(descent.HALF_WIDTHS[:1], dim=4, queries=20, thresholds=FEWEST, start_queries=8, cache=""),
        "reduced": Settings(thresholds=FEWER, every=10, turbo=descent.QUICK_TURBO),
    },
    run_seed=run_seed,
    plot=plot,
    plot_more=plot_more,
    caption=descent.CAPTION,
    claims=claims,
    seeds={"reduced": 4, "paper": 10},
)
