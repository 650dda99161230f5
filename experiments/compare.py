"""All optimizers on a function of the user's own, from the same starts and with the same budget."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.optimize import Bounds
from torch import Tensor

from experiments.harness import style
from experiments.harness.records import Rows, best_so_far, curve, final
from experiments.harness.verdicts import with_interval
from optimizers import minimize
from optimizers.core.bounds import BoundsLike
from optimizers.registry import METHODS, method_class

Method = str | type | tuple[str | type, Mapping[str, Any]]
"""A method's name, an ``Optimizer`` subclass, or either with options."""

PANELS = {
    "ZoRD and its baselines": ("zord", "rgf", "prgf", "es", "gld", "least_squares", "turbo", "cobbo"),
    "ZO-L-Katyusha and its baselines": ("zo_l_katyusha", "zo_svrg", "projected_zo", "nesterov_spokoiny"),
    "HiSo": ("hiso", "decomfl"),
}
"""Methods that share a panel; those in none, the user's own among them, have one of their own."""

NEED_MORE = ("gradient_descent", "accelerated_zo")
"""Methods that need more than values: a gradient, and a strong convexity."""

_LOOKS = {"least_squares": "least_squares_gradient", "turbo": "turbo1"}
"""The names in ``style.METHODS`` that differ."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What each method reached.

    Attributes:
        rows: ``seed``, ``method``, ``queries`` and ``value``, the least value found with so many queries.
        methods: in the order they were given.
    """

    rows: Rows
    methods: tuple[str, ...]

    def final(self, method: str) -> np.ndarray:
        """The least value of each seed at the end of the budget."""
        return final(self.rows, method=method)

    def ranking(self) -> list[str]:
        """The methods by the mean of their least values, best first."""
        return sorted(self.methods, key=lambda method: float(self.final(method).mean()))

    def figure(self) -> Figure:
        """Least value against queries: mean and standard error over seeds, a panel for each family."""
        own = tuple(name for name in self.methods if not any(name in family for family in PANELS.values()))
        named = {title: [m for m in names if m in self.methods] for title, names in {**PANELS, "others": own}.items()}
        families = [(title, names) for title, names in named.items() if names]
        with style.applied():
            figure, axes = style.panels(1, len(families), width=3.8, height=3.6, sharey=True)
            for panel, (title, names) in zip(axes[0], families, strict=True):
                for name in names:
                    look = style.METHODS[_LOOKS.get(name, name)]
                    style.draw(panel, look, curve(self.rows, "queries", method=name))
                panel.set(title=title, xlabel="queries")
                panel.legend(fontsize=7)
            if all(float(row["value"]) > 0 for row in self.rows):
                axes[0, 0].set_yscale("log")
            axes[0, 0].set_ylabel("least value found")
        return figure

    def __str__(self) -> str:
        width = max(map(len, self.methods))
        lines = [f"{name:<{width}}  {with_interval(self.final(name))}" for name in self.ranking()]
        return "\n".join(["least value found, mean over seeds (95% interval)", *lines])


def compare(
    fun: Callable[[Any], Any],
    *,
    bounds: BoundsLike,
    max_queries: int,
    methods: Iterable[str] | Mapping[str, Method] | None = None,
    starts: Sequence[Any] | None = None,
    seeds: int = 5,
    **options: Any,
) -> Comparison:
    """Minimize a function with each method from the same starts.

    Args:
        fun: as ``minimize`` takes it: a point to a number; NaN, inf and exceptions are failed queries.
        bounds: the box, as ``minimize`` takes it.
        max_queries: budget of each run.
        methods: names; or a label of one's own to a name, an ``Optimizer`` subclass, or either with options:
            ``{"mine": ("zord", {"active": "gated"})}``. By default every method that needs nothing but values.
        starts: a point for each seed; uniform in the box by default.
        seeds: how many runs of each method, at least two.
        **options: more for ``minimize``: ``numpy``, ``batched``, ``prox``, ….

    Returns:
        The least values found, with a figure and a ranking.

    Raises:
        ValueError: for fewer than two seeds, starts that are not one a seed, or what ``minimize`` refuses.
    """
    if seeds < 2:
        raise ValueError(f"an interval needs at least two seeds, got {seeds}")
    chosen = _chosen(methods)
    points = _starts(bounds, seeds) if starts is None else list(starts)
    if len(points) != seeds:
        raise ValueError(f"there must be a start for each of the {seeds} seeds, got {len(points)}")
    rows: Rows = []
    for seed, x0 in enumerate(points):
        for label, (method, own) in chosen.items():
            arguments = {"bounds": bounds, "max_queries": max_queries, "seed": seed, **options, **own}
            values = minimize(fun, x0, method, **arguments).history.y.tolist()
            best = best_so_far(np.where(np.isfinite(values), values, np.nan), max_queries).tolist()
            rows += [
                {"seed": seed, "method": label, "queries": n, "value": value}
                for n, value in enumerate(best)
                if np.isfinite(value)
            ]
    return Comparison(rows, tuple(chosen))


def _chosen(methods: Iterable[str] | Mapping[str, Method] | None) -> dict[str, tuple[Any, Mapping[str, Any]]]:
    if methods is None:
        methods = [name for name in METHODS if name not in NEED_MORE]
    named = methods if isinstance(methods, Mapping) else {name: name for name in methods}
    chosen = {label: found if isinstance(found, tuple) else (found, {}) for label, found in named.items()}
    for method, _ in chosen.values():
        method_class(method)
    return chosen


def _starts(bounds: BoundsLike, seeds: int) -> list[Tensor]:
    pairs = list(zip(bounds.lb, bounds.ub, strict=True)) if isinstance(bounds, Bounds) else bounds
    box = torch.as_tensor(np.array(pairs, dtype=float))
    if box.ndim != 2 or box.shape[1] != 2 or not bool(box.isfinite().all()):
        raise ValueError(f"without starts, bounds must be d finite pairs (lower, upper), got {bounds}")
    lower, upper = box.unbind(-1)
    unit = torch.rand(seeds, len(box), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return list(lower + (upper - lower) * unit)
