"""Draws records as curves: mean and standard error over seeds, one line per method."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from optimizers.comparison.records import Rows, Value, curve
from surrogates import plotting

Line = TypeVar("Line")
Column = TypeVar("Column")


def draw_methods(axes: Axes, rows: Rows, x: str, methods: Iterable[str], /, **conditions: Value) -> None:
    """Draws ``value`` against ``x``, one line per method, from the records that meet the conditions."""
    for method in methods:
        plotting.draw(axes, method, curve(rows, x, method=method, **conditions))


def name_lines(axes: Axes, methods: Sequence[str]) -> None:
    """Names the methods on the y axis: the first is drawn at 0, the next at −1, and so on."""
    labels = [plotting.METHODS[method].label.partition(" (")[0] for method in methods]
    axes.set_yticks(-np.arange(len(methods)), labels)
    axes.set_ylim(0.6 - len(methods), 0.4)


def draw_strips(axes: Axes, values: Mapping[str, np.ndarray], center: Callable[[np.ndarray], float]) -> None:
    """Draws a line of dots for each method, one dot per seed, with a vertical mark at their center."""
    for i, (method, found) in enumerate(values.items()):
        color = plotting.METHODS[method].color
        axes.plot(found, np.full(len(found), -i), ls="", marker="o", alpha=0.5, color=color)
        axes.plot(center(found), -i, ls="", marker="|", ms=9, mew=1.8, color=color)
    name_lines(axes, [*values])


def matrix(
    lines: Sequence[Line],
    columns: Mapping[str, Column],
    draw: Callable[[Axes, Line, Column], object],
    *,
    xlabels: str | Sequence[str] = (),
    ylabels: str | Sequence[str] = (),
    legend: bool = True,
    **options: Any,
) -> Figure:
    """Draws a matrix of panels with one legend below.

    Args:
        lines: what the rows of panels show.
        columns: what the columns of panels show, by the title above the first row.
        draw: draws a panel, called as ``draw(axes, line, column)``.
        xlabels: labels below the last row: one text for all panels, or one text per panel.
        ylabels: labels left of the first column, likewise.
        legend: whether to add the legend.
        **options: passed to ``surrogates.plotting.panels``.
    """
    figure, axes = plotting.panels(len(lines), len(columns), **options)
    for panel, (line, column) in zip(axes.flat, itertools.product(lines, columns.values()), strict=True):
        draw(panel, line, column)
    for edge, kind, texts in (
        (axes[0], "title", [*columns]),
        (axes[-1], "xlabel", xlabels),
        (axes[:, 0], "ylabel", ylabels),
    ):
        for panel, text in zip(edge, itertools.repeat(texts) if isinstance(texts, str) else texts, strict=False):
            panel.set(**{kind: text})
    if legend:
        plotting.shared_legend(figure, axes[0, 0])
    return figure


def grid_of_methods(
    rows: Rows, x: str, methods: Sequence[str], cells: Mapping[str, Mapping[str, Value]], **options: Any
) -> Figure:
    """Draws a panel for each set of conditions, with one line per method.

    Args:
        rows: the records.
        x: the column on the horizontal axis; also its label unless ``xlabel`` is given.
        methods: the methods.
        cells: each panel's title and the conditions on its records.
        **options: passed to ``surrogates.plotting.grid``.
    """

    def draw_cell(panel: Axes, conditions: Mapping[str, Value]) -> None:
        draw_methods(panel, rows, x, methods, **conditions)

    return plotting.grid(cells, draw_cell, **{"xlabel": x, **options})
