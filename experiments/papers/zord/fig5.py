"""ZoRD, Figure 5: the surfaces of Ackley's and Levy's functions, d = 2.

The axes are the search coordinates, [0, 10]². The paper only shows the surfaces. We add a verdict and the best queries
of ZoRD (the library's defaults) and RGF (the paper's settings), which make the same number of queries from the first
seed's start, at a distance of 2.5 from the minimum. The paper's Section 5.2 compares both in more dimensions.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from experiments.harness.experiment import Experiment
from experiments.harness.records import log10_gap
from experiments.harness.verdicts import Verdict, judge_pairs
from experiments.papers.zord.descent import HALF_WIDTHS, SETTINGS
from experiments.workloads.problems import Problem, standard_problem
from optimizers import run
from optimizers.comparison.records import Row, Rows, by_seed, seeds_of, where
from optimizers.evaluation import Evaluator
from optimizers.registry import method_class
from surrogates import plotting

METHODS = ("zord", "rgf")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of Figure 5; ``problems`` lists the half-width of each box."""

    problems: tuple[tuple[str, float], ...] = HALF_WIDTHS
    queries: int = 60
    distance: float = 2.5
    grid: int = 801


def run_seed(settings: Settings, seed: int) -> Rows:
    """Runs both methods from one point and records each new best query."""
    rows: Rows = []
    for (name, half_width), method in itertools.product(settings.problems, METHODS):
        problem = standard_problem(name, 2, (-half_width, half_width))
        angle = 2 * math.pi * torch.rand(1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        unit = (problem.upper - problem.lower) / 10.0
        x0 = problem.minimizer + unit * settings.distance * torch.cat([angle.cos(), angle.sin()])
        common: dict[str, Any] = {"bounds": problem.bounds.T, "max_queries": settings.queries, "seed": seed}
        optimizer = method_class(method)(x0, store_points=True, **SETTINGS.get(method, {}), **common)
        history = run(optimizer, Evaluator(problem, batched=True)).history
        scaled = 10.0 * (history.x - problem.lower) / (problem.upper - problem.lower)
        facts: Row = {"seed": seed, "problem": name, "method": method}
        best = math.inf
        for n, (z, y) in enumerate(zip(scaled.tolist(), history.y.tolist(), strict=True), start=1):
            if y < best:
                best = y
                rows.append({**facts, "queries": n, "x1": z[0], "x2": z[1], "value": best})
        rows.append({**facts, "queries": "final", "value": log10_gap(best, problem.minimum)})
    return rows


def plot(settings: Settings, rows: Rows) -> Figure:
    """Draws the surface of each problem (top) and the marked square that contains the paths (bottom)."""
    figure, axes = plotting.panels(2, len(settings.problems), height=2.5, width=plotting.PAGE)
    seed = seeds_of(rows)[0]
    for (whole, part), (name, half_width) in zip(axes.T, settings.problems, strict=True):
        problem = standard_problem(name, 2, (-half_width, half_width)).scaled(0.0, 10.0)
        found = where(rows, seed=seed, problem=name)
        rows_of = {method: [row for row in where(found, method=method) if "x1" in row] for method in METHODS}
        paths = {m: np.array([[row["x1"], row["x2"]] for row in own], dtype=float) for m, own in rows_of.items()}
        lower, side = _square(np.concatenate([*paths.values()]))
        _draw_surface(figure, whole, problem, np.zeros(2), 10.0, settings.grid)
        whole.add_patch(Rectangle((lower[0], lower[1]), side, side, fill=False, color="white", lw=1.2))
        _draw_surface(figure, part, problem, lower, side, settings.grid)
        part.plot(*paths["rgf"][0], color="white", marker="o", markersize=7)
        for method, path in paths.items():
            look = plotting.METHODS[method]
            part.plot(*path.T, color="white", lw=2.4)
            part.plot(*path.T, color=look.color, marker=look.marker, ls=look.line, label=look.label)
        whole.set_title(f"{name.capitalize()}, d = 2")
    plotting.shared_legend(figure, axes[1, 0])
    return figure


def _square(points: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns the lower corner and the side of a square around some points, with a margin, within [0, 10]²."""
    low, high = points.min(0), points.max(0)
    side = 1.3 * float((high - low).max())
    return np.clip((low + high - side) / 2, 0.0, 10.0 - side), side


def _draw_surface(figure: Figure, panel: Axes, problem: Problem, lower: np.ndarray, side: float, grid: int) -> None:
    x1, x2 = (np.linspace(start, start + side, grid) for start in lower)
    mesh = torch.from_numpy(np.stack(np.meshgrid(x1, x2), axis=-1))
    surface = panel.contourf(x1, x2, problem(mesh).numpy(), levels=24, cmap="cividis")
    figure.colorbar(surface, ax=panel, label="f", ticks=MaxNLocator(5))
    panel.set(xlabel="x₁", ylabel="x₂", aspect="equal")
    panel.grid(False)


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges ZoRD against RGF on these surfaces."""
    finals = where(rows, queries="final")
    return judge_pairs(
        [("zord", "rgf", True)],
        f"with {settings.queries} queries {{}} ends lower than {{}} in two dimensions",
        "difference of the final log10 gap",
        lambda name, method: by_seed(finals, problem=name, method=method),
        {name: name for name, _ in settings.problems},
        below=0.0,
    )


EXPERIMENT = Experiment(
    id="zord-fig5",
    shows="surfaces of Ackley's and Levy's functions, d = 2, with paths of ZoRD and RGF",
    claim="The functions are highly nonconvex and have local minima.",
    scales={"paper": Settings(), "quick": Settings(queries=25, grid=41)},
    run_seed=run_seed,
    plot=plot,
    caption="The lower panels enlarge the marked squares. Lines connect the first seed's successive best queries, from "
    "the white disc.",
    claims=claims,
)
