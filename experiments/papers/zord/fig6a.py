"""ZoRD, Figure 6a: error of the derivative estimate for d = 10, 20, 40 and 80.

As Figure 2a (see there and ``experiments.papers.zord.gradient_error`` for the readings), a column for each
dimension. Queries go up to 200, so that n exceeds d everywhere. Two smoothing radii, as the paper does
not say which: with standard normal directions the queries lie λ√d from x₀, so that at λ = 0.1 and d = 80
they span most of one ripple of Ackley's function, and every local estimate suffers.
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
from experiments.papers.zord.fig2a import METHODS
from experiments.workloads.problems import standard_problem


@dataclasses.dataclass(frozen=True)
class Settings:
    """What Figure 6a is drawn with; lengths in Ackley's own units."""

    dims: tuple[int, ...] = (10, 20, 40, 80)
    box: tuple[float, float] = (0.0, 10.0)
    smoothing_radii: tuple[float, ...] = (0.01, 0.1)
    num_queries: tuple[int, ...] = (5, 10, 20, 40, 60, 80, 100, 150, 200)
    claimed_from: int = 10
    starts: int = 5
    kernel: str = "matern52"
    lengthscale: float = 1.0
    noise: float = 1e-6


def run_seed(settings: Settings, seed: int) -> Rows:
    """All estimators at every x₀ in each dimension."""
    rows: Rows = []
    for dim in settings.dims:
        problem = standard_problem("ackley", dim, settings.box)
        for radius, (start, x, directions) in itertools.product(
            settings.smoothing_radii, errors.starts(problem, settings.starts, seed)
        ):
            rows += errors.compare_estimators(
                {"seed": seed, "dim": dim, "smoothing_radius": radius, "start": start},
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
    """A column for each dimension, two rows for each smoothing radius."""
    radii = settings.smoothing_radii
    figure, axes = style.panels(2 * len(radii), len(settings.dims), width=2.7, height=2.1, sharex=True, sharey="row")
    for column, dim in enumerate(settings.dims):
        for number, radius in enumerate(radii):
            chosen = where(rows, dim=dim, smoothing_radius=radius)
            for row, (metric, label) in enumerate(errors.METRICS.items()):
                panel = axes[2 * number + row, column]
                errors.draw_metric(panel, chosen, metric, METHODS)
                panel.axvline(dim, color=style.GREY, lw=0.8, ls=":")
                if not column:
                    panel.set_ylabel(f"{label}\nλ = {radius:g}")
        axes[0, column].set_title(f"Ackley, d = {dim} (dotted: n = d)")
        axes[-1, column].set_xlabel("queries n, x₀ included")
    style.shared_legend(figure, axes[0, 0], 4)
    return figure


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """The derived GP against the paper's baseline and ours, for each smoothing radius."""
    seeds = seeds_of(rows)
    counts = [n for n in settings.num_queries if n >= settings.claimed_from]
    verdicts = []
    for baseline, metric, control in errors.COMPARISONS:
        cells = {
            f"λ={radius:g} d={dim} n={n}": errors.advantage(
                rows, metric, "derived_gp", baseline, dim=dim, smoothing_radius=radius, num_queries=n
            )
            for radius in settings.smoothing_radii
            for dim in settings.dims
            for n in counts
        }
        setting = f"d from {min(settings.dims)} to {max(settings.dims)}, n ≥ {counts[0]}"
        verdicts.append(errors.judge_against(baseline, metric, control, cells, seeds, setting))
    return verdicts


EXPERIMENT = Experiment(
    id="zord-fig6a",
    source="ZoRD, Fig. 6a",
    shows="error of the gradient estimate in 10 to 80 dimensions, Ackley",
    claim="The derived GP's advantage over finite differences holds in every dimension.",
    scales={"paper": Settings(), "quick": Settings(dims=(10, 20), num_queries=(10, 40), starts=2)},
    run_seed=run_seed,
    plot=plot,
    claims=claims,
)
