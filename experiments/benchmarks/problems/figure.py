"""The figure of a suite: the share of COCO's targets reached, or the percentage of the gain left, against queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.benchmarks.problems.board import COBYQAS, OURS, Board, least_and_start
from experiments.benchmarks.problems.coco_files import TARGETS
from experiments.benchmarks.problems.rivals import RIVALS
from experiments.benchmarks.problems.runs import Record
from experiments.harness.experiment import counted
from surrogates import plotting

LEFT = ("real", "bbob-largescale")
"""Suites drawn by the percentage left: with two queries per variable hardly any of COCO's targets is reached."""

FLOOR = "random"
LEAST = 0.1
"""The smallest percentage that is drawn."""


def drawn(board: Board) -> list[str]:
    """Returns the methods to draw, by mean rank: at most seven of those that ran on all problems.

    They include our method, both COBYQAs and random search, and otherwise the best ones.
    """
    known = board.mean_ranks()
    ranks = {m: known.get(m, float(k)) for k, m in enumerate(board.everywhere or board.methods)}
    wanted = [m for m in (OURS, *COBYQAS, FLOOR) if m in ranks]
    rest = [m for m in sorted(ranks, key=lambda m: ranks[m]) if m not in wanted]
    chosen = {*wanted, *rest[: plotting.MOST - len(wanted)]}
    return sorted(chosen, key=lambda m: ranks[m])


def runtimes(records: Sequence[Record], method: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns a method's empirical runtime distribution: query counts over d, and the share of targets reached by then.

    Each pair of a run and one of COCO's 51 targets has a runtime: the query count at which the run reached the target,
    or infinity. The distribution is pooled over the runs.
    """
    own = [record for record in records if record.run.method == method]
    found = sorted(n / record.run.problem.dimension for record in own for n in record.reached if n is not None)
    total = len(own) * len(TARGETS)
    return np.array(found), np.arange(1, len(found) + 1) / max(total, 1)


def left(records: Sequence[Record], method: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean over runs of the percentage of the gain that a method left, at shares of the budget.

    The least value and the value at the start are taken over all methods on the same instance, as on the board.
    """
    grid = np.geomspace(0.01, 1.0, 60)
    curves = []
    for problem in sorted({record.run.problem for record in records}):
        there = [record for record in records if record.run.problem == problem and record.least]
        least, start = least_and_start(there) if there else (0.0, 0.0)
        for record in there:
            if record.run.method == method and start > least:
                counts, values = zip(*record.least, strict=True)
                at = np.searchsorted(counts, grid * problem.queries, side="right") - 1
                shares = (np.array(values)[np.maximum(at, 0)] - least) / (start - least)
                curves.append(np.clip(100.0 * np.where(at < 0, 1.0, shares), LEAST, 100.0))
    return grid, np.mean(curves, axis=0) if curves else np.full_like(grid, 100.0)


def figure(records: Sequence[Record]) -> Figure:
    """Draws a panel for each dimension or black box, with one legend."""
    board = Board.of(records)
    suite = board.problems[0].suite
    methods, real, shares = drawn(board), suite == "real", suite in LEFT
    cells: dict[str, list[Record]] = {}
    for key in dict.fromkeys(p.function if real else p.dimension for p in board.problems):
        own = [r for r in records if (r.run.problem.function if real else r.run.problem.dimension) == key]
        problems = counted(len({r.run.problem for r in own}), "problem")
        cells[str(key) if real else f"d = {key}, {problems}"] = own

    def draw_cell(panel: Axes, own: list[Record]) -> None:
        for method in methods:
            x, y = left(own, method) if shares else runtimes(own, method)
            if not shares:
                last = own[0].run.problem.queries / own[0].run.problem.dimension
                x, y = np.append(x, last), np.append(y, y[-1] if len(y) else 0.0)
            look = RIVALS[method].look if method in RIVALS else plotting.METHODS[method]
            marks: Any = {"marker": look.marker, "markevery": max(1, len(x) // 5), "label": look.label}
            panel.plot(x, y, color=look.color, ls=look.line, drawstyle="default" if shares else "steps-post", **marks)
        panel.set_xscale("log")
        if shares:
            panel.set(yscale="log", ylim=(LEAST, 130.0))
        else:
            panel.set_ylim(0.0)

    labels = ("queries over the budget", "% left") if shares else ("queries / d", "share of targets")
    size: Any = {"width": plotting.PAGE, "height": 2.1, "sharey": True}
    return plotting.grid(cells, draw_cell, xlabel=labels[0], ylabel=labels[1], **size)
