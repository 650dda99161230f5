"""ZoRD, Figure 2b: the derived GP on 20 queries of a trajectory against finite differences with more queries.

At the trajectory's last point the derived GP estimates the gradient from the 20 existing queries. Finite differences
use up to 80 additional queries around that point. The paper samples its trajectory like the queries of Figure 2a: a
*cloud* of x₀ and 19 points x₀ + λu. We add a *descent* as a control: d + 1 such points, then Adam with rate λ on the
derived GP's own estimates with one query per iterate, as ZoRD with one virtual step would do. The paper claims errors
that are comparable or better; we judge whether they are better. The least-squares line uses the same 20 queries without
a GP. ``experiments.papers.zord.gradient_error`` lists further choices.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.harness.curves import matrix
from experiments.harness.experiment import Experiment
from experiments.harness.verdicts import Verdict
from experiments.papers.zord import gradient_error as errors
from experiments.workloads.problems import Problem
from optimizers import FiniteDifferences, LeastSquaresDifferences
from optimizers.comparison.records import Row, Rows, by_seed, curve, where
from surrogates import plotting
from surrogates.plotting import Curve

TRAJECTORIES = {"cloud": "around one point", "descent": "along a descent"}
"""The positions of the trajectory's queries, in words."""

FROM_TRAJECTORY = ("derived_gp", "least_squares")
WITH_MORE = ("finite_differences", "orthonormal_differences")


@dataclasses.dataclass(frozen=True)
class Settings(errors.Settings):
    """Settings of Figure 2b: number of trajectory queries, and numbers of additional queries."""

    dim: int = 10
    trajectory: int = 20
    additional: tuple[int, ...] = (5, 10, 20, 30, 40, 50, 60, 70, 80)
    kernel: str = "matern52"


def run_seed(settings: Settings, seed: int) -> Rows:
    """Runs both kinds of trajectory for every smoothing radius."""
    problem = settings.problem(settings.dim)
    rows: Rows = []
    for (number, start, directions), radius, kind in itertools.product(
        errors.starts(problem, settings.starts, seed), settings.smoothing_radii, TRAJECTORIES
    ):
        key: Row = {"seed": seed, "smoothing_radius": radius, "trajectory": kind, "start": number}
        X = trajectory(settings, problem, start, kind, radius, directions)
        rows += _at_the_end(settings, key, problem, X, directions)
    return rows


def trajectory(settings: Settings, problem: Problem, start: Tensor, kind: str, radius: float, seed: int) -> Tensor:
    """Returns the queries in order, ``trajectory x d``; the gradient is estimated at the last one."""
    count = settings.trajectory if kind == "cloud" else settings.dim + 1
    X = errors.local_queries(start, radius, count, seed).flip(0)  # x₀ last
    x = start.clone()
    adam = torch.optim.Adam([x], lr=radius)
    while len(X) < settings.trajectory:
        x.grad = _derived_gp(settings, X, problem(X))
        adam.step()
        X = torch.cat([X, x.detach().clone().unsqueeze(0)])
    return X


def _derived_gp(settings: Settings, X: Tensor, values: Tensor) -> Tensor:
    kernel = errors.KERNELS[settings.kernel](settings.lengthscale)
    return errors.derived_gp_gradient(X, values, X[-1], kernel, settings.noise)


def _at_the_end(settings: Settings, key: Row, problem: Problem, X: Tensor, seed: int) -> Rows:
    x, values = X[-1], problem(X)
    radius, gradient = float(key["smoothing_radius"]), problem.gradient(x)
    without_more = key | {"additional": 0, "queries": len(X)}
    rows = errors.error_rows(without_more, "derived_gp", _derived_gp(settings, X, values), gradient)
    squares = LeastSquaresDifferences(len(X) - 1, radius, "normal").estimate(x, X, values)
    rows += errors.error_rows(without_more, "least_squares", squares.gradient, gradient)
    draws = {
        "finite_differences": ("normal", radius),
        "orthonormal_differences": ("orthonormal", radius * settings.dim**0.5),
    }
    for count, (method, (distribution, reach)) in itertools.product(settings.additional, draws.items()):
        # Other directions than the trajectory's; the value at x is one of the trajectory's.
        more = FiniteDifferences(count, reach, distribution, seed=seed)(problem, x, step=1, batched=True)
        cost = key | {"additional": count, "queries": len(X) + more.queries - 1}
        rows += errors.error_rows(cost, method, more.gradient, gradient)
    return rows


def plot(settings: Settings, rows: Rows) -> Figure:
    """Draws a column for each trajectory and smoothing radius; estimates from the trajectory are horizontal lines."""
    cells = itertools.product(TRAJECTORIES, settings.smoothing_radii)
    columns = {f"{TRAJECTORIES[kind]}, λ = {radius:g}": (kind, radius) for kind, radius in cells}

    def draw(panel: Axes, metric: str, cell: tuple[str, float]) -> None:
        chosen = where(rows, trajectory=cell[0], smoothing_radius=cell[1])
        for method in FROM_TRAJECTORY:
            _, mean, error = curve(chosen, "additional", method=method, metric=metric)
            level = Curve(np.array([0, max(settings.additional)]), mean.repeat(2), error.repeat(2))
            name = f"{plotting.METHODS[method].label}, {settings.trajectory} trajectory queries"
            plotting.draw(panel, plotting.METHODS[method]._replace(marker=""), level, name)
        errors.draw_metric(panel, chosen, metric, "additional", WITH_MORE)

    labels: dict[str, Any] = {"xlabels": "additional queries", "ylabels": [*errors.METRICS.values()]}
    return matrix([*errors.METRICS], columns, draw, height=1.7, sharex=True, sharey="row", **labels)


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges the derived GP without additional queries against finite differences with the most, and our baselines."""
    most = max(settings.additional)
    verdicts = []
    for kind, (baseline, metric, control) in itertools.product(TRAJECTORIES, errors.COMPARISONS):
        count = 0 if baseline == "least_squares" else most
        chosen = where(rows, trajectory=kind, metric=metric)
        cells = {
            f"λ={radius:g}": errors.gain(
                metric,
                by_seed(chosen, smoothing_radius=radius, method="derived_gp"),
                by_seed(chosen, smoothing_radius=radius, method=baseline, additional=count),
            )
            for radius in settings.smoothing_radii
        }
        setting = f"{settings.trajectory} queries of a {kind} against {f'{count} more' if count else 'the same'}"
        ours = control or kind != "cloud"
        verdicts.append(errors.judge_against(baseline, metric, ours, cells, setting))
    return verdicts


EXPERIMENT = Experiment(
    id="zord-fig2b",
    shows=lambda settings: (
        f"{settings.trajectory} trajectory queries with a derived GP against finite differences "
        f"with up to {max(settings.additional)} more, {settings.title} d = {settings.dim}"
    ),
    claim="From 20 queries of its trajectory alone the derived GP's errors are comparable to or better than those of "
    "finite differences with as many as 80 additional queries.",
    scales={"paper": Settings(), "quick": Settings(additional=(20, 80), starts=2)},
    run_seed=run_seed,
    plot=plot,
    claims=claims,
)
