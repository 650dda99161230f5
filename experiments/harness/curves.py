"""Curves of methods drawn from records: mean and standard error over seeds, a line for each method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from optimizers.comparison.records import Rows, Value, curve
from surrogates import plotting


def draw_methods(axes: Axes, rows: Rows, x: str, methods: Iterable[str], /, **conditions: Value) -> None:
    """``draw`` for each method: its ``value`` over seeds at each ``x``, from the records under the conditions."""
    for method in methods:
        plotting.draw(axes, method, curve(rows, x, method=method, **conditions))


def label_panels(
    axes: np.ndarray,
    *,
    titles: str | Sequence[str] = (),
    xlabels: str | Sequence[str] = (),
    ylabels: str | Sequence[str] = (),
) -> None:
    """Sets titles above the first row, x labels below the last row, y labels left of the first column.

    Args:
        axes: the ``rows x columns`` panels.
        titles: one text for each column, or one for all.
        xlabels: likewise.
        ylabels: one text for each row, or one for all.
    """
    for edge, kind, texts in (
        (axes[0], "title", titles),
        (axes[-1], "xlabel", xlabels),
        (axes[:, 0], "ylabel", ylabels),
    ):
        each = [texts] * len(edge) if isinstance(texts, str) else texts
        for panel, text in zip(edge, each, strict=False):
            panel.set(**{kind: text})


def grid_of_methods(
    rows: Rows, x: str, methods: Sequence[str], cells: Mapping[str, Mapping[str, Value]], **options: Any
) -> Figure:
    """``grid`` whose panels hold a line for each method, from the records under the panel's conditions.

    Args:
        rows: the records.
        x: the column of the horizontal axis; its label is ``xlabel``, else the same.
        methods: the methods.
        cells: a panel's title to its conditions.
        **options: for ``grid``.
    """

    def draw_cell(panel: Axes, conditions: Mapping[str, Value]) -> None:
        draw_methods(panel, rows, x, methods, **conditions)

    return plotting.grid(cells, draw_cell, **{"xlabel": x, **options})
