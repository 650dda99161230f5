"""ZoRD, Figure 2a: error of the derivative estimate against the number of queries, Ackley, d = 10.

Cosine similarity (upper panels) and Euclidean error (lower) of the derived GP (Matérn 5/2, as ZoRD's
Section 5), of finite differences (eq. 2) and of least squares, for two smoothing radii. Mean and standard
error over seeds, each with x₀s and directions of its own. Readings: see
``experiments.papers.zord.gradient_error``; the paper does not give λ, and its Figure 3 has the box [0, 10]^d,
which is taken here too. Around λ = 1 and more, a ripple of Ackley's function, no estimate is right for
any lengthscale, and the comparison has no meaning.
"""

from __future__ import annotations

import dataclasses
import itertools

from matplotlib.figure import Figure

from experiments.harness import style
from experiments.harness.experiment import Experiment
from experiments.harness.records import Rows, seeds_of, where
from experiments.harness.verdicts import Verdict
from experiments.papers.zord import gradient_error as errors
from experiments.workloads.problems import standard_problem

METHODS = ("derived_gp", "least_squares", "orthonormal_differences", "finite_differences")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What Figure 2a is drawn with; lengths in Ackley's own units."""

    dim: int = 10
    box: tuple[float, float] = (0.0, 10.0)
    smoothing_radii: tuple[float, ...] = (0.01, 0.1)
    num_queries: tuple[int, ...] = (5, 10, 15, 20, 30, 40, 60, 80, 100)
    claimed_from: int = 10
    starts: int = 5
    kernel: str = "matern52"
    lengthscale: float = 1.0
    noise: float = 1e-6


def run_seed(settings: Settings, seed: int) -> Rows:
    """All estimators at every x₀."""
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
            kernels=[settings.kernel],
            lengthscale=settings.lengthscale,
            noise=settings.noise,
            seed=directions,
        )
    return rows


def plot(settings: Settings, rows: Rows) -> Figure:
    """A column for each smoothing radius."""
    figure, axes = style.panels(2, len(settings.smoothing_radii), width=4.2, sharex=True, sharey="row")
    for column, radius in enumerate(settings.smoothing_radii):
        for row, (metric, label) in enumerate(errors.METRICS.items()):
            errors.draw_metric(axes[row, column], where(rows, smoothing_radius=radius), metric, METHODS)
            axes[row, 0].set_ylabel(label)
        axes[0, column].set_title(f"Ackley, d = {settings.dim}, smoothing radius λ = {radius:g}")
        axes[1, column].set_xlabel("queries n, x₀ included")
    style.shared_legend(figure, axes[0, 0], 2)
    return figure


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """The derived GP against the paper's baseline and against ours."""
    seeds = seeds_of(rows)
    counts = [n for n in settings.num_queries if n >= settings.claimed_from]
    verdicts = []
    for baseline, metric, control in errors.COMPARISONS:
        cells = {
            f"λ={radius:g} n={n}": errors.advantage(
                rows, metric, "derived_gp", baseline, smoothing_radius=radius, num_queries=n
            )
            for radius in settings.smoothing_radii
            for n in counts
        }
        verdicts.append(errors.judge_against(baseline, metric, control, cells, seeds, f"n ≥ {counts[0]}"))
    return verdicts


EXPERIMENT = Experiment(
    id="zord-fig2a",
    source="ZoRD, Fig. 2a",
    shows="error of the gradient estimate against the number of queries, Ackley d = 10",
    claim="With the same number of queries the derived GP estimates the derivative better than finite differences.",
    scales={"paper": Settings(), "quick": Settings(num_queries=(5, 20), starts=2)},
    run_seed=run_seed,
    plot=plot,
    claims=claims,
)
