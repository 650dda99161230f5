"""ZoRD, Figures 2a, 2b, 6a and 6b: error of the derivative estimate against the number of queries, Ackley's function.

All figures show the cosine similarity and the Euclidean error of the derived GP (Matérn 5/2, ZoRD's Section 5), of
finite differences (eq. 2) and of least squares. ``experiments.papers.zord.gradient_error`` lists our choices.

*Figures 2a, 6a and 6b* have equal numbers of queries: at d = 10 (Figure 2a), for d = 10, 20, 40 and 80 (Figure 6a), and
with several kernels at d = 80 (Figure 6b). Lines are means and standard errors over seeds (x₀s and directions):

- The paper shows two values of λ without naming them, so there are two smoothing radii here. With standard normal
  directions the queries lie at distance λ√d from x₀. At λ = 0.1 and d = 80 they span most of one period of Ackley's
  cosine, and every local estimate suffers. Around λ = 1, at d = 10, no estimate is accurate at any lengthscale.
- x₀ is drawn from [0, 10]^d in Ackley's own units. The paper gives no box for these figures; in its Figure 3
  [−20, 20]^d is rescaled to [0, 10]^d (Appx. C).
- In Figures 6a and 6b there are up to 200 queries, so that n exceeds d in every panel.
- The kernels of Figure 6b are Matérn 1/2, 3/2, 5/2 and RBF. The paper's text names Matérn 1/2 and RBF, which it finds
  slightly worse, and 5/2 (Appx. D.1). A Matérn 1/2 prior has no gradient. The posterior mean has a gradient except at
  the data, where it has kinks and the mean of the two one-sided gradients is used.

*Figure 2b* compares the derived GP on 20 queries of a trajectory with finite differences that use more queries. At the
trajectory's last point the derived GP estimates the gradient from the 20 existing queries. Finite differences use up to
80 additional queries around that point. The paper samples its trajectory like the queries of Figure 2a: a *cloud* of x₀
and 19 points x₀ + λu. We add a *descent* as a control: d + 1 such points, then Adam with rate λ on the derived GP's own
estimates with one query per iterate, as ZoRD with one virtual step would do. The paper claims errors that are
comparable or better; we judge whether they are better. The least-squares line uses the same 20 queries without a GP.

The setting ``function`` replaces Ackley's function by your own.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.harness.curves import matrix
from experiments.harness.experiment import MEANS, Experiment
from experiments.harness.verdicts import Verdict, judge
from experiments.papers.zord import gradient_error as errors
from experiments.workloads.problems import Problem
from optimizers import FiniteDifferences, LeastSquaresDifferences
from optimizers.comparison.records import Row, Rows, by_seed, curve, where
from surrogates import plotting
from surrogates.plotting import Curve

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
        """The names of the derived GPs in the records: the names of the kernels, if there are several kernels."""
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
        kernel = errors.kernel_named(name, settings.lengthscale)
        found[method] = errors.derived_gp_gradient(X, values, x, kernel, settings.noise), len(X)
    orthonormal = FiniteDifferences(n - 1, radius * problem.dim**0.5, seed=seed)
    normal: Any = {"distribution": "normal", "seed": seed}
    for method, more in (
        ("finite_differences", FiniteDifferences(n - 1, radius, **normal).estimate(x, X, values)),
        ("orthonormal_differences", orthonormal(problem, x, batched=True)),
        ("least_squares", LeastSquaresDifferences(n - 1, radius, **normal).estimate(x, X, values)),
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
    """Draws a column for each smoothing radius or, if there are several dimensions, a column for each dimension."""
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
    """Judges the derived GP against the paper's baseline and ours."""
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
    """Judges every kernel against finite differences, and the kernels against each other."""
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


TRAJECTORIES = {"cloud": "around one point", "descent": "along a descent"}
"""Descriptions of the two kinds of trajectory."""

FROM_TRAJECTORY = ("derived_gp", "least_squares")
WITH_MORE = ("finite_differences", "orthonormal_differences")


@dataclasses.dataclass(frozen=True)
class Fig2b(errors.Settings):
    """Settings of Figure 2b: number of trajectory queries, and numbers of additional queries."""

    dim: int = 10
    trajectory: int = 20
    additional: tuple[int, ...] = (5, 10, 20, 30, 40, 50, 60, 70, 80)
    kernel: str = "matern52"


def run_fig2b(settings: Fig2b, seed: int) -> Rows:
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


def trajectory(settings: Fig2b, problem: Problem, start: Tensor, kind: str, radius: float, seed: int) -> Tensor:
    """Returns the trajectory's queries in order, ``trajectory x d``; the gradient is estimated at the last query."""
    count = settings.trajectory if kind == "cloud" else settings.dim + 1
    X = errors.local_queries(start, radius, count, seed).flip(0)  # x₀ last
    x = start.clone()
    adam = torch.optim.Adam([x], lr=radius)
    while len(X) < settings.trajectory:
        x.grad = _derived_gp(settings, X, problem(X))
        adam.step()
        X = torch.cat([X, x.detach().clone().unsqueeze(0)])
    return X


def _derived_gp(settings: Fig2b, X: Tensor, values: Tensor) -> Tensor:
    kernel = errors.kernel_named(settings.kernel, settings.lengthscale)
    return errors.derived_gp_gradient(X, values, X[-1], kernel, settings.noise)


def _at_the_end(settings: Fig2b, key: Row, problem: Problem, X: Tensor, seed: int) -> Rows:
    x, values = X[-1], problem(X)
    radius, gradient = float(key["smoothing_radius"]), problem.gradient(x)
    without_more = key | {"additional": 0, "queries": len(X)}
    rows = errors.error_rows(without_more, "derived_gp", _derived_gp(settings, X, values), gradient)
    squares = LeastSquaresDifferences(len(X) - 1, radius, distribution="normal").estimate(x, X, values)
    rows += errors.error_rows(without_more, "least_squares", squares.gradient, gradient)
    draws = {
        "finite_differences": ("normal", radius),
        "orthonormal_differences": ("orthonormal", radius * settings.dim**0.5),
    }
    for count, (method, (distribution, reach)) in itertools.product(settings.additional, draws.items()):
        # Other directions than the trajectory's; the value at x is one of the trajectory's.
        more = FiniteDifferences(count, reach, distribution=distribution, seed=seed)(problem, x, step=1, batched=True)
        cost = key | {"additional": count, "queries": len(X) + more.queries - 1}
        rows += errors.error_rows(cost, method, more.gradient, gradient)
    return rows


def plot_fig2b(settings: Fig2b, rows: Rows) -> Figure:
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


def claims_of_fig2b(settings: Fig2b, rows: Rows) -> list[Verdict]:
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


def experiment(
    figure: str,
    paper: Settings,
    quick: Mapping[str, Any],
    shows: Callable[[Any], str],
    claim: str,
    judged: Callable[[Any, Rows], list[Verdict]] = claims,
    more: str = "",
) -> Experiment:
    """Creates a figure's experiment; ``quick`` overrides the paper's settings, ``more`` is added to the caption."""
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
    Experiment(
        id="zord-fig2b",
        shows=lambda settings: (
            f"{settings.trajectory} trajectory queries with a derived GP against finite differences "
            f"with up to {max(settings.additional)} more, {settings.title} d = {settings.dim}"
        ),
        claim="From 20 queries of its trajectory alone the derived GP's errors are comparable to or better than those "
        "of finite differences with as many as 80 additional queries.",
        scales={"paper": Fig2b(), "quick": Fig2b(additional=(20, 80), starts=2)},
        run_seed=run_fig2b,
        plot=plot_fig2b,
        claims=claims_of_fig2b,
    ),
)
