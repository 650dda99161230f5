"""HiSo, Table 2: rounds and bytes until DeComFL's best score, for DeComFL, HiSo, and HiSo with a scalar H.

``experiments.papers.hiso.language`` describes the federation, our choices and the stand-ins. The target is the best
record of DeComFL's run on the same seed. A run that does not reach it counts with all of its rounds; the table lists
how many did. All three methods use rates from the same grid. The paper's rounds and bytes, measured with OPT itself,
are listed beside ours; ``hiso-bytes`` compares the paper's bytes with its rounds. The scalar H
(``experiments.papers.hiso.controls``) is our control: it only adapts the step size.

At the reduced scale runs end early. If DeComFL's best score occurs near the end, the other methods have little time
left to reach it.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.harness.curves import draw_methods
from experiments.harness.experiment import MEANS, Experiment
from experiments.harness.verdicts import Table, Verdict, judge
from experiments.papers.hiso import language
from experiments.papers.hiso.accounting import TABLE_2
from experiments.papers.hiso.controls import SCALAR
from experiments.papers.hiso.language import (
    Cell,
    Settings,
    best,
    cells_of,
    draw_cells,
    in_units,
    place_of,
    rounds_until,
)
from optimizers.comparison.interval import with_interval
from optimizers.comparison.records import Rows, by_seed
from surrogates import plotting

METHODS = ("decomfl", "hiso", "hiso_scalar")


def reached(rows: Rows, method: str, cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    """Returns for each seed the rounds until DeComFL's best score, and whether the method reached it."""
    return rounds_until(rows, best(rows, method="decomfl", **cell), method=method, **cell)


def plot(settings: Settings, rows: Rows) -> Figure:
    """Draws scores over rounds with DeComFL's best score as a level, a panel per model and task."""

    def draw_cell(panel: Axes, cell: Cell) -> None:
        draw_methods(panel, rows, "round", settings.methods, quantity="score", **cell)
        level = best(rows, method="decomfl", **cell).mean()
        panel.axhline(level, color=plotting.GREY, ls=":", label="DeComFL's best")

    return draw_cells(settings, rows, draw_cell, "round", "accuracy")


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges HiSo's rounds against those of DeComFL and the scalar, and whether DeComFL learns."""
    cells = cells_of(settings, rows)
    log_rounds = {
        (method, title): np.log10(reached(rows, method, cell)[0])
        for method in settings.methods
        for title, cell in cells.items()
    }
    gain = {
        title: best(rows, method="decomfl", **cell) - by_seed(rows, quantity="score", round=0, method="decomfl", **cell)
        for title, cell in cells.items()
    }
    verdicts, than = [], {"decomfl": ", and so fewer bytes, than DeComFL", "hiso_scalar": f" than {SCALAR}"}
    statistic = "log10 of the ratio of the rounds"
    for other in [method for method in than if method in settings.methods]:
        claim = f"HiSo needs fewer rounds{than[other]} to DeComFL's best score"
        differences = {title: log_rounds["hiso", title] - log_rounds[other, title] for title in cells}
        verdicts.append(judge(claim, statistic, differences, below=0.0, control=other != "decomfl"))
    claim, statistic = "DeComFL improves the model by more than a twentieth", "best score minus the first"
    return [*verdicts, judge(claim, statistic, gain, above=0.05, control=True)]


def printed(method: str, cell: Cell) -> str:
    """Formats the cell of Table 2, such as ``275 (10.78 KB)``; empty if there is none."""
    rounds, kilobytes = TABLE_2.get(place_of(method, cell), (0, 0.0))
    return f"{rounds:,} ({kilobytes:.2f} KB)" if rounds else ""


def table(settings: Settings, rows: Rows) -> Table:
    """Lists rounds with their interval, bytes, the number of seeds that reached the target, and the paper's numbers."""
    papers = {method for _, _, method in TABLE_2}
    columns = ["model and task", "DeComFL's best score"]
    for method in settings.methods:
        label = plotting.METHODS[method].label
        columns += [f"rounds, {label}", f"bytes, {label}", f"reached it, {label}"]
        columns += [f"paper, {label}"] if method in papers else []
    lines = []
    for title, cell in cells_of(settings, rows).items():
        line = [title, with_interval(best(rows, method="decomfl", **cell))]
        for method in settings.methods:
            rounds, there = reached(rows, method, cell)
            each = by_seed(rows, quantity="bytes", method=method, **cell)
            line += [with_interval(rounds), in_units(float((rounds * each).mean())), f"{there.sum()} of {len(there)}"]
            line += [printed(method, cell)] if method in papers else []
        lines.append(tuple(line))
    note = (
        "Mean over seeds with its 95% interval. Bytes are counted for a client that participates in every round, "
        "KB = 1024. The paper measured OPT itself."
    )
    return Table(tuple(columns), tuple(lines), note)


EXPERIMENT = Experiment(
    id="hiso-table2",
    source="HiSo, Table 2",
    shows=lambda settings: f"rounds and bytes until DeComFL's best score in fine-tuning {language.over(settings)}",
    claim="HiSo needs fewer rounds than DeComFL to DeComFL's best accuracy, and proportionally fewer bytes.",
    scales={
        "paper": Settings(models=("opt-350m", "opt-1.3b"), methods=METHODS),
        "reduced": Settings(models=("opt-350m", "opt-1.3b"), methods=METHODS, **language.REDUCED),
        "quick": Settings(methods=METHODS, **language.QUICK),
    },
    run_seed=language.run_seed,
    plot=plot,
    caption=f"{MEANS} The dotted line is DeComFL's best score.",
    claims=claims,
    table=table,
    seeds={"quick": 3, "reduced": 5, "paper": 5},
    data=("opt-350m", "opt-1.3b", *language.TASKS),
    stand_in=language.describe,
    check=language.check,
    cost={"paper": "days on a GPU with real models"},
)
