"""ZoRD, Figure 6b: error of the derivative estimate for several kernels, Ackley, d = 80.

As Figure 2a (see there and ``experiments.papers.zord.gradient_error`` for the readings), a line for each kernel
of the derived GP: Matérn 1/2, 3/2, 5/2 and RBF; which of them the paper's picture has, its text does not
say. A Matérn 1/2 prior has no gradient; its posterior mean has one, but for kinks at the data, where the
mean of both sides is taken.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
from matplotlib.figure import Figure

from experiments.harness import style
from experiments.harness.experiment import Experiment
from experiments.harness.records import Rows, seeds_of, where
from experiments.harness.verdicts import Verdict, judge
from experiments.papers.zord import gradient_error as errors
from experiments.workloads.problems import standard_problem

BASELINES = ("least_squares", "orthonormal_differences", "finite_differences")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What Figure 6b is drawn with; lengths in Ackley's own units."""

    dim: int = 80
    box: tuple[float, float] = (0.0, 10.0)
    smoothing_radii: tuple[float, ...] = (0.01, 0.1)
    num_queries: tuple[int, ...] = (5, 10, 20, 40, 60, 80, 100, 150, 200)
    claimed_from: int = 10
    starts: int = 5
    kernels: tuple[str, ...] = ("matern12", "matern32", "matern52", "rbf")
    lengthscale: float = 1.0
    noise: float = 1e-6


def run_seed(settings: Settings, seed: int) -> Rows:
    """All kernels and baselines at every x₀."""
    problem = standard_problem("ackley", settings.dim, settings.box)
    rows: Rows = []
    for radius, (start, x, directions) in itertools.product(
        settings.smoothing_radii, errors.starts(problem, settings.starts, seed)
    ):
        rows += errors.compare_estimators(
            {"seed": seed, "smoothing_radius": radius, "start": start},
            problem,
            x,
            smoothing_radius=radius,
            num_queries=settings.num_queries,
            kernels=settings.kernels,
            lengthscale=settings.lengthscale,
            noise=settings.noise,
            seed=directions,
        )
    return rows


def plot(settings: Settings, rows: Rows) -> Figure:
    """A column for each smoothing radius."""
    figure, axes = style.panels(2, len(settings.smoothing_radii), width=4.4, sharex=True, sharey="row")
    for column, radius in enumerate(settings.smoothing_radii):
        for row, (metric, label) in enumerate(errors.METRICS.items()):
            chosen = where(rows, smoothing_radius=radius)
            errors.draw_metric(axes[row, column], chosen, metric, (*settings.kernels, *BASELINES))
            axes[row, 0].set_ylabel(label)
        axes[0, column].set_title(f"Ackley, d = {settings.dim}, smoothing radius λ = {radius:g}")
        axes[1, column].set_xlabel("queries n, x₀ included")
    style.shared_legend(figure, axes[0, 0], 4)
    return figure


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Every kernel against finite differences, and the kernels among themselves."""
    seeds = seeds_of(rows)
    counts = [n for n in settings.num_queries if n >= settings.claimed_from]

    def against(metric: str, method: str, baseline: str, queries: list[int]) -> dict[str, np.ndarray]:
        return {
            f"{method} λ={radius:g} n={n}": errors.advantage(
                rows, metric, method, baseline, smoothing_radius=radius, num_queries=n
            )
            for radius in settings.smoothing_radii
            for n in queries
        }

    verdicts = []
    for metric, statistic in errors.ADVANTAGES.items():
        cells: dict[str, np.ndarray] = {}
        for kernel in settings.kernels:
            cells |= against(metric, kernel, "finite_differences", counts)
        claim = f"with every kernel the derived GP is nearer than finite differences in {errors.METRICS[metric]}"
        verdicts.append(judge(claim, statistic, cells, seeds, above=0.0))
    enough = [n for n in counts if n >= settings.dim]
    among = (
        ("matern52", "rbf", "the RBF kernel is slightly worse than Matérn 5/2"),
        (
            "matern52",
            "matern12",
            "the roughest kernel, Matérn 1/2, is worse than Matérn 5/2",
        ),
    )
    for better, worse, claim in among:
        cells = against("cosine", better, worse, enough)
        control = worse == "matern12"
        statistic = errors.ADVANTAGES["cosine"]
        verdicts.append(judge(f"{claim}, n ≥ d", statistic, cells, seeds, above=0.0, control=control))
    return verdicts


EXPERIMENT = Experiment(
    id="zord-fig6b",
    source="ZoRD, Fig. 6b",
    shows="error of the gradient estimate for several kernels, Ackley d = 80",
    claim="The derived GP's advantage over finite differences holds for every kernel; RBF is slightly worse.",
    scales={"paper": Settings(), "quick": Settings(dim=20, num_queries=(10, 40), starts=2)},
    run_seed=run_seed,
    plot=plot,
    claims=claims,
)
