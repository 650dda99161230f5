"""The figure of a suite: the share of COCO's targets reached, or the percentage of the gain left, against queries."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.benchmarks.problems.board import OURS, PAIRS, Board, least_and_start
from experiments.benchmarks.problems.coco_files import TARGETS
from experiments.benchmarks.problems.rivals import RIVALS
from experiments.benchmarks.problems.runs import Record
from experiments.benchmarks.problems.suites import BOXES
from experiments.harness.experiment import counted
from surrogates import plotting

LEFT = (*BOXES, "bbob-largescale")
"""Suites whose figures show the percentage of the gain left; with 2 d queries few of COCO's targets are reached."""

ALWAYS = {
    True: (OURS, "cobyqa_wide", "turbo", "random"),
    False: (OURS, "cobyqa_wide", "newuoa_wide", "turbo", "cma", "random"),
}
"""Methods drawn wherever they ran on a whole panel, in figures of the gain left (True) and of targets (False)."""

CAPTION = "A method is drawn where it ran on all problems of a panel. "
CAPTIONS = {
    True: CAPTION + "Lines are means over the panel's problems of the percentage of the possible gain that is left; "
    "bands show ± one standard error.",
    False: CAPTION + "Lines show the share of COCO's targets that are reached, over all problems of the panel.",
}
"""Captions of figures of the percentage left (True) and of COCO's targets (False)."""


def drawn(board: Board, panels: Sequence[Board]) -> list[str]:
    """Returns the methods to draw, at most seven: those of ``ALWAYS``, then those with the best mean ranks."""
    ranks, here = board.mean_ranks(), {method for panel in panels for method in panel.everywhere}
    methods = [method for method in ALWAYS[board.problems[0].suite in LEFT] if method in here]
    methods += sorted((m for m in ranks if m in here and m not in (*methods, *PAIRS)), key=lambda m: ranks[m])
    return methods[: plotting.MOST]


def runtimes(records: Sequence[Record], method: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns a method's empirical runtime distribution: query counts over d, and the share of targets reached by then.

    Each pair of a run and one of COCO's 51 targets has a runtime: the query count at which the run reached the target,
    or infinity. The distribution is pooled over the runs.
    """
    own = [record for record in records if record.run.method == method]
    found = sorted(n / record.run.problem.dimension for record in own for n in record.reached if n is not None)
    return np.array(found), np.arange(1, len(found) + 1) / max(len(own) * len(TARGETS), 1)


def left(records: Sequence[Record], methods: Sequence[str]) -> dict[str, plotting.Curve]:
    """Returns the percentage of the gain left against the share of the budget: mean and standard error of each method.

    The possible gain of an instance is computed from the runs of all methods, as in ``percent_left``.
    """
    grid = np.geomspace(0.01, 1.0, 60)
    curves: dict[str, list[np.ndarray]] = {method: [] for method in methods}
    for problem, runs in itertools.groupby(sorted(records, key=lambda r: r.run.problem), lambda r: r.run.problem):
        there = list(runs)
        if not any(record.least for record in there):
            continue
        least, start = least_and_start(there)
        for record in there:
            if record.run.method in curves and start > least:
                counts, values = zip(*(record.least or [(problem.queries + 1, start)]), strict=True)
                at = np.searchsorted(counts, grid * problem.queries, side="right") - 1
                shares = (np.array(values)[np.maximum(at, 0)] - least) / (start - least)
                curves[record.run.method].append(np.clip(100.0 * np.where(at < 0, 1.0, shares), 0.0, 100.0))
    return {
        method: plotting.Curve(
            grid, np.mean(found, axis=0), np.std(found, axis=0, ddof=len(found) > 1) / len(found) ** 0.5
        )
        for method, found in curves.items()
        if found
    }


def figure(records: Sequence[Record]) -> Figure:
    """Draws a panel for each dimension or black box, with one legend for all panels."""
    board = Board.of(records)
    suite = board.problems[0].suite
    real, shares = suite in BOXES, suite in LEFT
    cells: dict[str, list[Record]] = {}
    for key in dict.fromkeys(p.function if real else p.dimension for p in board.problems):
        own = [r for r in records if (r.run.problem.function if real else r.run.problem.dimension) == key]
        problems = counted(len({r.run.problem for r in own}), "problem")
        cells[str(key) if real else f"d = {key}, {problems}"] = own
    panels = {title: Board.of(own) for title, own in cells.items()}
    methods = drawn(board, list(panels.values()))

    def draw_cell(panel: Axes, title: str) -> None:
        own, here = cells[title], [method for method in methods if method in panels[title].everywhere]
        percent = left(own, here) if shares else {}
        for method in here:
            look = RIVALS[method].look if method in RIVALS else plotting.METHODS[method]
            if shares:
                if method in percent:  # not where no method gained anything
                    plotting.draw(panel, look, percent[method])
                continue
            x, y = runtimes(own, method)
            x = np.append(x, own[0].run.problem.queries / own[0].run.problem.dimension)
            y = np.append(y, y[-1:] if len(y) else 0.0)
            marks: Any = {"marker": look.marker, "markevery": max(1, len(x) // 5), "label": look.label}
            panel.plot(x, y, color=look.color, ls=look.line, drawstyle="steps-post", **marks)
        panel.set(xscale="log", ylim=(0.0, 100.0 if shares else None))

    labels = ("queries / budget", "% left") if shares else ("queries / d", "share of targets")
    columns = 4 if len(cells) == 4 else 3
    size: Any = {"columns": columns, "height": 1.9, "width": plotting.PAGE, "sharey": True, "legend": False}
    found = plotting.grid({title: title for title in cells}, draw_cell, xlabel=labels[0], ylabel=labels[1], **size)
    fullest = max(found.axes, key=lambda panel: len(panel.get_lines()))
    spec = fullest.get_gridspec()
    if spec is not None and (full := len(cells) % spec.ncols):
        free = found.add_subplot(spec[-1, full:])
        free.set_axis_off()
        free.legend(*fullest.get_legend_handles_labels(), loc="center")
    else:
        plotting.shared_legend(found, fullest)
    return found
