"""ZoRD, Figures 2a, 6a and 6b: error of the derivative estimate against the number of queries, Ackley's function.

The figures show the cosine similarity and the Euclidean error of the derived GP (Matérn 5/2, ZoRD's Section 5), of
finite differences (eq. 2) and of least squares: at d = 10 (Figure 2a), for d = 10, 20, 40 and 80 (Figure 6a), and with
several kernels at d = 80 (Figure 6b). Lines are means over seeds with standard errors; each seed has its own x₀s and
directions. ``experiments.papers.zord.gradient_error`` lists the choices that these figures share with Figure 2b.
Further choices:

- The paper shows two values of λ without naming them, so there are two smoothing radii here. With standard normal
  directions the queries lie at distance λ√d from x₀. At λ = 0.1 and d = 80 they span most of one period of Ackley's
  cosine, and every local estimate suffers. Around λ = 1, at d = 10, no estimate is accurate at any lengthscale, and a
  comparison would be meaningless.
- x₀ is drawn from [0, 10]^d in Ackley's own units. The paper gives no box for these figures; in its Figure 3
  [−20, 20]^d is rescaled to [0, 10]^d (Appx. C).
- In Figures 6a and 6b there are up to 200 queries, so that n exceeds d in every panel.
- The kernels of Figure 6b are Matérn 1/2, 3/2, 5/2 and RBF. The paper's text names Matérn 1/2 and RBF, which it finds
  slightly worse, and 5/2 (Appx. D.1). A Matérn 1/2 prior has no gradient. Its posterior mean has one except at the
  data, where it has kinks; there the mean of the two one-sided gradients is used.

The setting ``function`` replaces Ackley's function by another one, such as your own.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from experiments.harness.experiment import MEANS, Experiment
from experiments.harness.verdicts import Verdict, judge
from experiments.papers.zord import gradient_error as errors
from experiments.workloads.problems import Problem
from optimizers import FiniteDifferences, LeastSquaresDifferences
from optimizers.comparison.records import Row, Rows, where
from surrogates import plotting

BASELINES = ("least_squares", "orthonormal_differences", "finite_differences")
MANY = (5, 10, 20, 40, 60, 80, 100, 150, 200)


@dataclasses.dataclass(frozen=True)
class Settings(errors.Settings):
    """The settings of the three figures: the numbers n of queries, x₀ included, and the least n of the claims."""

    num_queries: tuple[int, ...] = MANY
    claimed_from: int = 10

    @property
    def claimed(self) -> list[int]:
        """The numbers of queries that the claims cover."""
        return [n for n in self.num_queries if n >= self.claimed_from]


@dataclasses.dataclass(frozen=True)
class Fig2a(Settings):
    """One dimension, one kernel."""

    num_queries: tuple[int, ...] = (5, 10, 15, 20, 30, 40, 60, 80, 100)
    dim: int = 10
    kernel: str = "matern52"


@dataclasses.dataclass(frozen=True)
class Fig6a(Settings):
    """Several dimensions."""

    dims: tuple[int, ...] = (10, 20, 40, 80)
    kernel: str = "matern52"


@dataclasses.dataclass(frozen=True)
class Fig6b(Settings):
    """Several kernels."""

    dim: int = 80
    kernels: tuple[str, ...] = ("matern12", "matern32", "matern52", "rbf")


AnySettings = Fig2a | Fig6a | Fig6b


def estimates(
    settings: AnySettings, problem: Problem, x: Tensor, radius: float, n: int, seed: int
) -> dict[str, tuple[Tensor, int]]:
    """Estimates ∇f(x) with each method of a panel from n queries, x included; also returns the number of queries."""
    X = errors.local_queries(x, radius, n, seed)
    values, found = problem(X), {}
    for name in settings.kernels if isinstance(settings, Fig6b) else (settings.kernel,):
        kernel = errors.KERNELS[name](settings.lengthscale)
        estimate = errors.derived_gp_gradient(X, values, x, kernel, settings.noise)
        found[name if isinstance(settings, Fig6b) else "derived_gp"] = estimate, len(X)
    orthonormal = FiniteDifferences(n - 1, radius * problem.dim**0.5, seed=seed)
    for method, more in (
        ("finite_differences", FiniteDifferences(n - 1, radius, "normal", seed=seed).estimate(x, X, values)),
        ("orthonormal_differences", orthonormal(problem, x, batched=True)),
        ("least_squares", LeastSquaresDifferences(n - 1, radius, "normal", seed=seed).estimate(x, X, values)),
    ):
        found[method] = more.gradient, more.queries
    return found


def run_seed(settings: AnySettings, seed: int) -> Rows:
    """Returns the errors of all estimators at every x₀ in each dimension."""
    rows: Rows = []
    for dim in settings.dims if isinstance(settings, Fig6a) else (settings.dim,):
        problem = settings.problem(dim)
        drawn = errors.starts(problem, settings.starts, seed)
        for radius, (start, x, directions) in itertools.product(settings.smoothing_radii, drawn):
            several: Row = {"dim": dim} if isinstance(settings, Fig6a) else {}
            key = {"seed": seed, **several, "smoothing_radius": radius, "start": start}
            gradient = problem.gradient(x)
            for n in settings.num_queries:
                for method, (estimate, queries) in estimates(settings, problem, x, radius, n, directions).items():
                    counted = key | {"num_queries": n, "queries": queries}
                    rows += errors.error_rows(counted, method, estimate, gradient)
    return rows


def plot(settings: AnySettings, rows: Rows) -> Figure:
    """Draws a column for each smoothing radius; in Figure 6a one for each dimension, and two rows for each radius."""
    columns: list[Row] = [{"smoothing_radius": radius} for radius in settings.smoothing_radii]
    blocks: list[Row] = [{}]
    title, height = ", λ = {smoothing_radius:g}", 1.7
    if isinstance(settings, Fig6a):
        columns, blocks = [{"dim": dim} for dim in settings.dims], columns
        title, height = "", 1.4
    methods = (*(settings.kernels if isinstance(settings, Fig6b) else ("derived_gp",)), *BASELINES)
    figure, axes = plotting.panels(2 * len(blocks), len(columns), height=height, sharex=True, sharey="row")
    for (j, column), (block, within) in itertools.product(enumerate(columns), enumerate(blocks)):
        dim = column["dim"] if isinstance(settings, Fig6a) else settings.dim
        for panel, (metric, label) in zip(axes[2 * block :, j], errors.METRICS.items(), strict=False):
            errors.draw_metric(panel, where(rows, **column, **within), metric, "num_queries", methods)
            if isinstance(settings, Fig6a):
                panel.axvline(float(dim), color=plotting.GREY, lw=0.8, ls=":")
            if not j:
                panel.set_ylabel("\n".join([label, *(f"λ = {radius:g}" for radius in within.values())]))
        axes[0, j].set_title(f"{settings.title}, d = {dim}{title.format(**column)}")
        axes[-1, j].set_xlabel("queries n, x₀ included")
    plotting.shared_legend(figure, axes[0, 0])
    return figure


def gains(
    settings: AnySettings, rows: Rows, metric: str, method: str, baseline: str, counts: Sequence[int]
) -> dict[str, np.ndarray]:
    """Returns a method's gains over a baseline for every smoothing radius, dimension and number of queries."""
    dims: list[Row] = [{"dim": dim} for dim in settings.dims] if isinstance(settings, Fig6a) else [{}]
    chosen, cells = where(rows, metric=metric), {}
    for radius, dim, n in itertools.product(settings.smoothing_radii, dims, counts):
        named = [method] if isinstance(settings, Fig6b) else []
        label = " ".join([*named, f"λ={radius:g}", *(f"d={value}" for value in dim.values()), f"n={n}"])
        at = {"smoothing_radius": radius, "num_queries": n, **dim}
        cells[label] = errors.advantage(chosen, metric, method, baseline, **at)
    return cells


def claims(settings: AnySettings, rows: Rows) -> list[Verdict]:
    """Compares the derived GP with the paper's baseline and with ours."""
    counts = settings.claimed
    setting = f"n ≥ {counts[0]}"
    if isinstance(settings, Fig6a):
        setting = f"d from {min(settings.dims)} to {max(settings.dims)}, {setting}"
    return [
        errors.judge_against(
            other, metric, control, gains(settings, rows, metric, "derived_gp", other, counts), setting
        )
        for other, metric, control in errors.COMPARISONS
    ]


def claims_of_kernels(settings: Fig6b, rows: Rows) -> list[Verdict]:
    """Compares every kernel with finite differences, and the kernels with each other."""
    counts = settings.claimed
    verdicts = []
    for metric, statistic in errors.ADVANTAGES.items():
        cells: dict[str, np.ndarray] = {}
        for kernel in settings.kernels:
            cells |= gains(settings, rows, metric, kernel, "finite_differences", counts)
        claim = f"with every kernel the derived GP is nearer than finite differences in {errors.METRICS[metric]}"
        verdicts.append(judge(claim, statistic, cells, above=0.0))
    enough = [n for n in counts if n >= settings.dim]
    for worse, claim in (
        ("rbf", "the RBF kernel is slightly worse than Matérn 5/2"),
        ("matern12", "the roughest kernel, Matérn 1/2, is slightly worse than Matérn 5/2"),
    ):
        cells, statistic = gains(settings, rows, "cosine", "matern52", worse, enough), errors.ADVANTAGES["cosine"]
        verdicts.append(judge(f"{claim}, n ≥ d", statistic, cells, above=0.0))
    return verdicts


def experiment(
    figure: str,
    paper: AnySettings,
    quick: Mapping[str, Any],
    shows: Callable[[Any], str],
    claim: str,
    judged: Callable[[Any, Rows], list[Verdict]] = claims,
    more: str = "",
) -> Experiment:
    """Makes one of the figures; ``quick`` overrides the paper's settings, ``more`` is added to the caption."""
    return Experiment(
        id=f"zord-fig{figure}",
        source=f"ZoRD, Fig. {figure}",
        shows=lambda settings: f"error of the gradient estimate {shows(settings)}",
        claim=claim,
        scales={"paper": paper, "quick": dataclasses.replace(paper, starts=2, **quick)},
        run_seed=run_seed,
        plot=plot,
        caption=f"{MEANS}{more}",
        claims=judged,
    )


CUT = "Errors beyond the upper edge belong to least squares at n = d, where its system is barely determined."

EXPERIMENTS = (
    experiment(
        "2a",
        Fig2a(),
        {"num_queries": (5, 20)},
        lambda settings: f"against the number of queries, {settings.title} d = {settings.dim}",
        "With the same number of queries the derived GP estimates the derivative better than finite differences.",
    ),
    experiment(
        "6a",
        Fig6a(),
        {"dims": (10, 20), "num_queries": (10, 40)},
        lambda settings: f"in {min(settings.dims)} to {max(settings.dims)} dimensions, {settings.title}",
        "The derived GP's advantage over finite differences holds in every dimension.",
        more=f" Dotted: n = d. {CUT}",
    ),
    experiment(
        "6b",
        Fig6b(),
        {"dim": 20, "num_queries": (10, 40)},
        lambda settings: f"for {len(settings.kernels)} kernels, {settings.title} d = {settings.dim}",
        "The derived GP's advantage over finite differences holds for every kernel; Matérn 1/2 and RBF are slightly "
        "worse.",
        claims_of_kernels,
        f" {CUT}",
    ),
)
