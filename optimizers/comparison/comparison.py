"""The result of a comparison of methods."""

from __future__ import annotations

import base64
import dataclasses
import html
import io
import math
from typing import TYPE_CHECKING

import numpy as np

from optimizers.comparison.interval import with_interval
from optimizers.comparison.records import Rows, curve, where
from surrogates import plotting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = {
    "ZoRD and its baselines": ("zord", "rgf", "prgf", "es", "gld", "least_squares_gradient", "turbo", "cobbo"),
    "ZO-L-Katyusha and its baselines": ("zo_l_katyusha", "zo_svrg", "projected_zo", "nesterov_spokoiny"),
    "HiSo": ("hiso", "decomfl"),
}
"""Methods that share a panel if there are many; all others share the panel "others"."""

_LOOKS = {"least_squares": "least_squares_gradient", "turbo": "turbo1", "cma": "cma_es"}
"""Names of methods that have another name in ``plotting.METHODS``."""


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison:
    """The least values that each method found, with a ranking and a figure; ``str`` gives a line for each method.

    Attributes:
        rows: ``seed``, ``method``, ``queries`` and ``value``, the least of a run's first ``queries`` values; none
            before its first success.
        methods: the labels in the order given.
        seeds: the number of runs of each method.
    """

    rows: Rows
    methods: tuple[str, ...]
    seeds: int

    def final(self, method: str) -> np.ndarray:
        """The least value of each seed at the end of the budget; inf if all queries failed."""
        least = np.full(self.seeds, math.inf)
        for row in where(self.rows, method=method):
            least[int(row["seed"])] = min(least[int(row["seed"])], float(row["value"]))
        return least

    def ranking(self) -> list[str]:
        """The methods by the mean of their least values, best first."""
        return sorted(self.methods, key=lambda method: float(self.final(method).mean()))

    def figure(self) -> Figure:
        """Plots the least value against queries, the mean and standard error over seeds.

        More than seven methods are split into a panel for each family. Methods in a panel have different colours.
        """
        own = tuple(name for name in self.methods if not any(name in family for family in PANELS.values()))
        named = {title: [m for m in names if m in self.methods] for title, names in {**PANELS, "others": own}.items()}
        families = [(title, names) for title, names in named.items() if names]
        if len(self.methods) <= plotting.MOST:
            families = [("", list(self.methods))]
        with plotting.applied():
            figure, axes = plotting.panels(1, len(families), height=3.2, sharey=True)
            for panel, (title, names) in zip(axes[0], families, strict=True):
                plain = [name.lower().replace("-", "_") for name in names]
                keys = [_LOOKS.get(key, key) for key in plain]
                for name, key, look in zip(names, keys, plotting.distinct(keys), strict=True):
                    label = look.label if key in plotting.METHODS else name
                    plotting.draw(panel, look, curve(self.rows, "queries", method=name), label)
                panel.set(title=title, xlabel="queries")
                panel.legend()
            if all(float(row["value"]) > 0 for row in self.rows):
                axes[0, 0].set_yscale("log")
            axes[0, 0].set_ylabel("least value found")
        return figure

    def __str__(self) -> str:
        width = max(map(len, self.methods))
        lines = [f"{name:<{width}}  {_in_words(self.final(name))}" for name in self.ranking()]
        return "\n".join(["least value found, mean over seeds (95% interval)", *lines])

    __repr__ = __str__

    def _repr_html_(self) -> str | None:
        """The text and the figure, for notebooks; without matplotlib only the text."""
        picture = io.BytesIO()
        try:
            self.figure().savefig(picture, format="png", dpi=120)
        except ImportError:
            return None
        data = base64.b64encode(picture.getvalue()).decode()
        return (
            f'<pre>{html.escape(str(self))}</pre>\n<img src="data:image/png;base64,{data}" alt="least value, queries">'
        )


def _in_words(least: np.ndarray) -> str:
    """The mean with its interval; for runs without a value, their number."""
    without = int(np.isinf(least).sum())
    return f"no value in {without} of {len(least)} runs" if without else with_interval(least)
