"""ZoRD, Figures 2a, 6a and 6b: error of the derivative estimate against the number of queries, Ackley's function.

The figures show the cosine similarity and the Euclidean error of the derived GP (Matérn 5/2, ZoRD's Section 5), of
finite differences (eq. 2) and of least squares: at d = 10 (Figure 2a), for d = 10, 20, 40 and 80 (Figure 6a), and with
several kernels at d = 80 (Figure 6b). Lines are means over seeds with standard errors. Each seed has its own x₀s and
directions. ``experiments.papers.zord.gradient_error`` lists the choices that these figures share with Figure 2b.
Further choices:

- The paper shows two values of λ without naming them, so there are two smoothing radii here. With standard normal
  directions the queries lie at distance λ√d from x₀. At λ = 0.1 and d = 80 they span most of one period of Ackley's
  cosine, and every local estimate suffers. Around λ = 1, at d = 10, no estimate is accurate at any lengthscale.
- x₀ is drawn from [0, 10]^d in Ackley's own units. The paper gives no box for these figures; in its Figure 3
  [−20, 20]^d is rescaled to [0, 10]^d (Appx. C).
- In Figures 6a and 6b there are up to 200 queries, so that n exceeds d in every panel.
- The kernels of Figure 6b are Matérn 1/2, 3/2, 5/2 and RBF. The paper's text names Matérn 1/2 and RBF, which it finds
  slightly worse, and 5/2 (Appx. D.1). A Matérn 1/2 prior has no gradient. Its posterior mean has one except at the
  data, where it has kinks; there the mean of the two one-sided gradients is used.

The setting ``function`` replaces Ackley's function by your own.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.harness.curves import matrix
from experiments.harness.experiment import MEANS, Experiment
from experiments.harness.verdicts import Verdict, judge
from experiments.papers.zord import gradient_error as errors
from experiments.workloads.problems import Problem
from optimizers import FiniteDifferences, LeastSquaresDifferences
from optimizers.comparison.records import Row, Rows, by_seed, where
from surrogates import plotting

BASELINES = ("least_squares", "orthonormal_differences", "finite_differences")


@dataclasses.dataclass(frozen=True)
class Settings(errors.Settings):
    """Settings of a figure.

    Attributes:
        dims: d.
        kernels: kernels of the derived GP.
        num_queries: n, x₀ included.
        claimed_from: least n that the claims cover.
    """

    dims: tuple[int, ...] = (10,)
    kernels: tuple[str, ...] = ("matern52",)
    num_queries: tuple[int, ...] = (5, 10, 20, 40, 60, 80, 100, 150, 200)
    claimed_from: int = 10

    @property
    def surrogates(self) -> tuple[str, ...]:
        """The names of the derived GPs in the records: those of the kernels, if there are several."""
        return self.kernels if len(self.kernels) > 1 else ("derived_gp",)

    @property
    def claimed(self) -> list[int]:
        """The numbers of queries that the claims cover."""
        return [n for n in self.num_queries if n >= self.claimed_from]


def estimates(
    settings: Settings, problem: Problem, x: Tensor, radius: float, n: int, seed: int
) -> dict[str, tuple[Tensor, int]]:
    """Estimates ∇f(x) with each method of a panel from n queries, x included; also returns the number of queries."""
    X = errors.local_queries(x, radius, n, seed)
    values, found = problem(X), {}
    for method, name in zip(settings.surrogates, settings.kernels, strict=True):
        kernel = errors.KERNELS[name](settings.lengthscale)
        found[method] = errors.derived_gp_gradient(X, values, x, kernel, settings.noise), len(X)
    orthonormal = FiniteDifferences(n - 1, radius * problem.dim**0.5, seed=seed)
    for method, more in (
        ("finite_differences", FiniteDifferences(n - 1, radius, "normal", seed=seed).estimate(x, X, values)),
        ("orthonormal_differences", orthonormal(problem, x, batched=True)),
        ("least_squares", LeastSquaresDifferences(n - 1, radius, "normal", seed=seed).estimate(x, X, values)),
    ):
        found[method] = more.gradient, more.queries
    return found


def run_seed(settings: Settings, seed: int) -> Rows:
    """Returns the errors of all estimators at every x₀ in each dimension."""
    rows: Rows = []
    for dim in settings.dims:
        problem = settings.problem(dim)
        drawn = errors.starts(problem, settings.starts, seed)
        for radius, (start, x, directions) in itertools.product(settings.smoothing_radii, drawn):
            gradient = problem.gradient(x)
            for n in settings.num_queries:
                key: Row = {"seed": seed, "dim": dim, "smoothing_radius": radius, "start": start, "num_queries": n}
                for method, (estimate, queries) in estimates(settings, problem, x, radius, n, directions).items():
                    rows += errors.error_rows(key | {"queries": queries}, method, estimate, gradient)
    return rows


def plot(settings: Settings, rows: Rows) -> Figure:
    """Draws a column for each smoothing radius, or one for each of several dimensions and two lines for each radius."""
    several, radii = len(settings.dims) > 1, settings.smoothing_radii
    columns = {
        f"{settings.title}, d = {dim}" + ("" if several else f", λ = {radius:g}"): (dim, radius)
        for dim in settings.dims
        for radius in (radii[:1] if several else radii)
    }
    lines = list(itertools.product(radii if several else (None,), errors.METRICS))

    def draw(panel: Axes, line: tuple[float | None, str], column: tuple[int, float]) -> None:
        (radius, metric), (dim, its_radius) = line, column
        chosen = where(rows, dim=dim, smoothing_radius=radius or its_radius)
        errors.draw_metric(panel, chosen, metric, "num_queries", (*settings.surrogates, *BASELINES))
        if several:
            panel.axvline(dim, color=plotting.GREY, lw=0.8, ls=":")

    ylabels = [errors.METRICS[metric] + (f"\nλ = {radius:g}" if radius else "") for radius, metric in lines]
    options: dict[str, Any] = {"height": 1.4 if several else 1.7, "sharex": True, "sharey": "row"}
    return matrix(lines, columns, draw, xlabels="queries n, x₀ included", ylabels=ylabels, **options)


def gains(
    settings: Settings, rows: Rows, metric: str, method: str, baseline: str, counts: Sequence[int]
) -> dict[str, np.ndarray]:
    """Returns a method's gains over a baseline for every smoothing radius, dimension and number of queries."""
    chosen, cells = where(rows, metric=metric), {}
    for radius, dim, n in itertools.product(settings.smoothing_radii, settings.dims, counts):
        words = [method] * (len(settings.kernels) > 1) + [f"λ={radius:g}"] + [f"d={dim}"] * (len(settings.dims) > 1)
        ours, theirs = (
            by_seed(chosen, smoothing_radius=radius, dim=dim, num_queries=n, method=each) for each in (method, baseline)
        )
        cells[" ".join([*words, f"n={n}"])] = errors.gain(metric, ours, theirs)
    return cells


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Compares the derived GP with the paper's baseline and with ours."""
    counts = settings.claimed
    setting = f"n ≥ {counts[0]}"
    if len(settings.dims) > 1:
        setting = f"d from {min(settings.dims)} to {max(settings.dims)}, {setting}"
    return [
        errors.judge_against(
            other, metric, control, gains(settings, rows, metric, "derived_gp", other, counts), setting
        )
        for other, metric, control in errors.COMPARISONS
    ]


def claims_of_kernels(settings: Settings, rows: Rows) -> list[Verdict]:
    """Compares every kernel with finite differences, and the kernels with each other."""
    counts = settings.claimed
    verdicts = []
    for metric, statistic in errors.ADVANTAGES.items():
        cells: dict[str, np.ndarray] = {}
        for kernel in settings.kernels:
            cells |= gains(settings, rows, metric, kernel, "finite_differences", counts)
        claim = f"with every kernel the derived GP is nearer than finite differences in {errors.METRICS[metric]}"
        verdicts.append(judge(claim, statistic, cells, above=0.0))
    enough = [n for n in counts if n >= max(settings.dims)]
    for worse, claim in (
        ("rbf", "the RBF kernel is slightly worse than Matérn 5/2"),
        ("matern12", "the roughest kernel, Matérn 1/2, is slightly worse than Matérn 5/2"),
    ):
        cells, statistic = gains(settings, rows, "cosine", "matern52", worse, enough), errors.ADVANTAGES["cosine"]
        verdicts.append(judge(f"{claim}, n ≥ d", statistic, cells, above=0.0))
    return verdicts


def experiment(
    figure: str,
    paper: Settings,
    quick: Mapping[str, Any],
    shows: Callable[[Any], str],
    claim: str,
    judged: Callable[[Any, Rows], list[Verdict]] = claims,
    more: str = "",
) -> Experiment:
    """Makes one of the figures; ``quick`` overrides the paper's settings, ``more`` is added to the caption."""
    return Experiment(
        id=f"zord-fig{figure}",
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
        Settings(num_queries=(5, 10, 15, 20, 30, 40, 60, 80, 100)),
        {"num_queries": (5, 20)},
        lambda settings: f"against the number of queries, {settings.title} d = {settings.dims[0]}",
        "With the same number of queries the derived GP estimates the derivative better than finite differences.",
    ),
    experiment(
        "6a",
        Settings(dims=(10, 20, 40, 80)),
        {"dims": (10, 20), "num_queries": (10, 40)},
        lambda settings: f"in {min(settings.dims)} to {max(settings.dims)} dimensions, {settings.title}",
        "The derived GP's advantage over finite differences holds in every dimension.",
        more=f" Dotted: n = d. {CUT}",
    ),
    experiment(
        "6b",
        Settings(dims=(80,), kernels=("matern12", "matern32", "matern52", "rbf")),
        {"dims": (20,), "num_queries": (10, 40)},
        lambda settings: f"for {len(settings.kernels)} kernels, {settings.title} d = {settings.dims[0]}",
        "The derived GP's advantage over finite differences holds for every kernel; Matérn 1/2 and RBF are slightly "
        "worse.",
        claims_of_kernels,
        f" {CUT}",
    ),
)
