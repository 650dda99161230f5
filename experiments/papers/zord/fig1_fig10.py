"""ZoRD, Figures 1 and 10: the derived GP of a function in one dimension, with its band.

A function drawn from a GP with squared-exponential kernel is queried with noise. Figure 1: the value posterior (upper
panels) and the derived GP (lower) for growing numbers n of queries over the whole domain; the picture is the first
seed's, the verdicts are over all. Figure 10: queries within one small window, from which the derived GP knows the
derivative there although the GP does not know the function elsewhere: the function and the value posterior over the
whole domain, the derivative and the derived GP, and the error of both against the distance from the window's centre,
over all seeds, each in units of its prior standard deviation.

The paper's Figure 10 is another comparison: the derived GP has as many queries in [0, 3] as the GP of values has in
all of [−6, 6], and is said to need 4 where that needs more than 8. Here both are of the same queries, all of them in
the window; that the function is not known elsewhere is then no finding, and the verdict on it is a control.

Readings: the paper does not give its kernel parameters. Here lengthscale 1, outputscale 1, noise standard deviation
0.05. Queries of Figure 1 are uniform over ten lengthscales, nested: a larger n adds queries. Those of Figure 10 are
twelve, uniform in a window two lengthscales wide in the middle of a domain of ten; "locally" is within that window,
"globally" over the domain. The function and its derivative are drawn jointly, so the truth is exact, and the surrogate
is given the prior that the function comes from, so that its band should be right.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.harness import style
from experiments.harness.experiment import Experiment
from experiments.harness.records import Row, Rows, by_seed, curve, points, seeds_of, where
from experiments.harness.style import MethodStyle
from experiments.harness.verdicts import Verdict, judge, never
from experiments.workloads.prior_draws import draw_values_and_gradients
from surrogates import DerivedGP, gaussian_likelihood, rbf_kernel


@dataclasses.dataclass(frozen=True)
class Settings:
    """What both figures are drawn with; lengths in units of x."""

    lengthscale: float = 1.0
    noise_sd: float = 0.05
    width: float = 10.0
    grid: int = 161
    functions_per_seed: int = 10


@dataclasses.dataclass(frozen=True)
class Fig1(Settings):
    """Queries everywhere."""

    num_queries: tuple[int, ...] = (3, 6, 9, 12)


@dataclasses.dataclass(frozen=True)
class Fig10(Settings):
    """Queries in one window."""

    num_queries: int = 12
    window: float = 2.0


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A function of the prior on a grid, with noisy queries of it; everything has shape ``grid`` or ``n``."""

    grid: Tensor
    function: Tensor
    derivative: Tensor
    queries: Tensor
    values: Tensor


def drawn(settings: Settings, queries: Tensor, grid: Tensor, generator: torch.Generator) -> Drawn:
    """A function and its derivative on the grid, and its values with noise at the queries."""
    n, everywhere = len(queries), torch.cat([queries, grid]).unsqueeze(-1)
    values, slopes = draw_values_and_gradients("rbf", settings.lengthscale, everywhere, 1, generator)
    noise = settings.noise_sd * torch.randn(n, generator=generator, dtype=torch.float64)
    return Drawn(grid, values[0, n:], slopes[0, n:, 0], queries, values[0, :n] + noise)


def fitted(settings: Settings, data: Drawn, n: int) -> dict[str, Tensor]:
    """What a panel shows on the grid: the truth, and both posteriors from the first n queries."""
    model = DerivedGP(
        data.queries[:n].unsqueeze(-1),
        data.values[:n].unsqueeze(-1),
        likelihood=gaussian_likelihood(settings.noise_sd**2),
        covar_module=rbf_kernel(settings.lengthscale),
        outcome_transform=None,
    ).eval()
    x = data.grid.unsqueeze(-1)
    with torch.no_grad():
        value = model.posterior(x)
    slope = model.gradient_posterior(x)
    return {
        "function": data.function,
        "derivative": data.derivative,
        "value_mean": value.mean[:, 0],
        "value_sd": value.variance[:, 0].sqrt(),
        "derivative_mean": slope.mean[:, 0],
        "derivative_sd": slope.variance[:, 0].sqrt(),
    }


def _curves(key: Row, data: Drawn, n: int, found: Mapping[str, Tensor]) -> Rows:
    rows = [row for quantity, values in found.items() for row in _line(key, quantity, data.grid, values)]
    return rows + _line(key, "query", data.queries[:n], data.values[:n])


def _line(key: Row, quantity: str, x: Tensor, y: Tensor) -> Rows:
    return [key | {"quantity": quantity, "x": a, "value": b} for a, b in zip(x.tolist(), y.tolist(), strict=True)]


def run_fig1(settings: Fig1, seed: int) -> Rows:
    """Curves of the first function, and each function's coverage and rises of the derivative's variance."""
    generator = torch.Generator().manual_seed(seed)
    most = max(settings.num_queries)
    grid = torch.linspace(0, settings.width, settings.grid, dtype=torch.float64)
    queries = settings.width * torch.rand(settings.functions_per_seed, most, generator=generator, dtype=torch.float64)
    rows: Rows = []
    for function, chosen in enumerate(queries):
        data = drawn(settings, chosen, grid, generator)
        before = torch.full_like(grid, torch.inf)
        for n in settings.num_queries:
            key: Row = {"seed": seed, "function": function, "num_queries": n}
            found = fitted(settings, data, n)
            error, variance = found["derivative_mean"] - data.derivative, found["derivative_sd"].square()
            inside = error.abs() <= 1.96 * found["derivative_sd"]
            rows.append(key | {"quantity": "coverage", "value": float(inside.double().mean())})
            rows.append(key | {"quantity": "error", "value": float(error.square().mean().sqrt())})
            rows.append(key | {"quantity": "rises", "value": int((variance > before + 1e-9).sum())})
            before = variance
            if not function:
                rows += _curves(key, data, n, found)
    return rows


def run_fig10(settings: Fig10, seed: int) -> Rows:
    """Root mean square errors over ``functions_per_seed`` functions at each x, and the first one's curves."""
    generator = torch.Generator().manual_seed(seed)
    n, key = settings.num_queries, Row(seed=seed)
    grid = torch.linspace(-settings.width / 2, settings.width / 2, settings.grid, dtype=torch.float64)
    slope_sd = 1.0 / settings.lengthscale
    squares = torch.zeros(2, settings.grid, dtype=torch.float64)
    rows: Rows = []
    for function in range(settings.functions_per_seed):
        queries = settings.window * (torch.rand(n, generator=generator, dtype=torch.float64) - 0.5)
        data = drawn(settings, queries, grid, generator)
        found = fitted(settings, data, n)
        squares[0] += (found["value_mean"] - data.function).square()
        squares[1] += ((found["derivative_mean"] - data.derivative) / slope_sd).square()
        if not function:
            rows += _curves(key, data, n, found)
    squares /= settings.functions_per_seed
    local = grid.abs() <= settings.window / 2
    summary = {
        "local_derivative_error": squares[1, local],
        "local_function_error": squares[0, local],
        "global_function_error": squares[0],
        "global_derivative_error": squares[1],
    }
    rows += [key | {"quantity": quantity, "value": float(found.mean().sqrt())} for quantity, found in summary.items()]
    half = settings.grid // 2
    for quantity, square in zip(("function_error", "derivative_error"), squares, strict=True):
        # Distances from the window's centre: both sides of it, folded.
        rows += _line(key, quantity, grid[half:], ((square + square.flip(0)) / 2).sqrt()[half:])
    return rows


def _draw_posterior(axes: Axes, rows: Rows, truth: str, prefix: str) -> None:
    """A posterior, its mean and two standard deviations, with the truth."""
    x, mean = points(rows, f"{prefix}_mean")
    sd, color = points(rows, f"{prefix}_sd")[1], style.METHODS["derived_gp"].color
    axes.fill_between(x, mean - 2 * sd, mean + 2 * sd, color=color, alpha=0.2, lw=0, label="mean ± 2 sd")
    axes.plot(x, mean, color=color, label="posterior mean")
    axes.plot(*points(rows, truth), color=style.BLACK, ls="--", lw=1.2, label="truth")


def plot_fig1(settings: Fig1, rows: Rows) -> Figure:
    """Function above derivative, a column for each number of queries; the first seed's first function."""
    figure, axes = style.panels(2, len(settings.num_queries), width=2.9, sharex=True, sharey="row")
    first = where(rows, seed=seeds_of(rows)[0], function=0)
    for (upper, lower), n in zip(axes.T, settings.num_queries, strict=True):
        chosen = where(first, num_queries=n)
        _draw_posterior(upper, chosen, "function", "value")
        _draw_posterior(lower, chosen, "derivative", "derivative")
        queries = points(chosen, "query")
        upper.plot(*queries, "o", color=style.BLACK, ms=4, label="noisy query")
        lower.plot(queries[0], np.zeros(n), "|", color=style.BLACK, ms=9)
        upper.set_title(f"n = {n} queries")
        lower.set_xlabel("x (in lengthscales)")
    axes[0, 0].set_ylabel("f(x)")
    axes[1, 0].set_ylabel("f′(x), per lengthscale")
    style.shared_legend(figure, axes[0, 0], 4)
    return figure


def plot_fig10(settings: Fig10, rows: Rows) -> Figure:
    """Function, derivative and both errors against distance."""
    figure, axes = style.panels(1, 3, width=3.6, height=3.2)
    first = where(rows, seed=seeds_of(rows)[0])
    value, slope, error = axes[0]
    half = settings.window / 2
    for panel, truth, prefix in ((value, "function", "value"), (slope, "derivative", "derivative")):
        panel.axvspan(-half, half, color="#EEEEEE", lw=0, label="queried window")
        _draw_posterior(panel, first, truth, prefix)
        panel.set_xlabel("x (in lengthscales)")
    value.plot(*points(first, "query"), "o", color=style.BLACK, ms=3, label="noisy query")
    value.set(title="the function, globally", ylabel="f(x)")
    slope.set(title="its derivative", ylabel="f′(x), per lengthscale")
    error.axvspan(0, half, color="#EEEEEE", lw=0)
    for look in (MethodStyle("function", style.VERMILION, "", "--"), MethodStyle("derivative", style.BLUE, "")):
        style.draw(error, look, curve(rows, "x", quantity=f"{look.label}_error"))
    error.set(
        title=f"error, mean ± standard error of {len(seeds_of(rows))} seeds",
        xlabel="distance from window's centre (lengthscales)",
        ylabel="root mean square error / prior sd",
        ylim=(0, None),
    )
    error.legend(loc="lower right")
    style.shared_legend(figure, value, 5)
    return figure


def claims_of_fig1(settings: Fig1, rows: Rows) -> list[Verdict]:
    """The error falls with n, the band holds the truth, the variance never rises."""
    seeds, counts = seeds_of(rows), settings.num_queries
    measured = {
        (quantity, n): by_seed(rows, quantity=quantity, num_queries=n)
        for quantity in ("error", "coverage", "rises")
        for n in counts
    }
    steps = list(itertools.pairwise(counts))
    falls = {f"n={few} to {many}": measured["error", few] - measured["error", many] for few, many in steps}
    shares = {f"n={n}": measured["coverage", n] for n in counts}
    rises = np.sum([measured["rises", n] for n in counts], axis=0) * settings.functions_per_seed
    trials = np.full(len(seeds), settings.functions_per_seed * settings.grid * len(steps))
    band = "the 95% band of the derivative holds the true derivative as often as it says, to 5 points"
    fall, share = "fall of the root mean square error", "share of x where it does"
    return [
        judge("the derivative's error falls as queries come", fall, falls, seeds, above=0.0),
        judge(band, share, shares, seeds, above=0.9, below=1.0),
        never("the derivative's variance never rises as queries come", share, rises, trials, seeds),
    ]


def claims_of_fig10(settings: Fig10, rows: Rows) -> list[Verdict]:
    """Local derivative against global function, and how good the local derivative is by itself."""
    seeds, unit = seeds_of(rows), "in prior standard deviations"
    local = by_seed(rows, quantity="local_derivative_error")
    gap = by_seed(rows, quantity="global_function_error") - local
    better = "the local derivative is estimated better than the function globally"
    accurate = "the local derivative is accurate by itself: its error is under half of the prior's"
    error = "root mean square error"
    return [
        judge(
            better,
            f"{error}, global function minus local derivative, {unit}",
            {"all": gap},
            seeds,
            above=0.0,
            control=True,
        ),
        judge(accurate, f"{error} of the local derivative, {unit}", {"all": local}, seeds, below=0.5),
    ]


EXPERIMENTS = (
    Experiment(
        id="zord-fig1",
        source="ZoRD, Fig. 1",
        shows=lambda settings: (
            "derived GP of a function in one dimension, with its band, for n = "
            + ", ".join(map(str, settings.num_queries))
        ),
        claim="The derived GP estimates the derivative from values alone, with a band that shrinks as queries come.",
        scales={"paper": Fig1(), "quick": Fig1(num_queries=(3, 6), grid=21, functions_per_seed=3)},
        run_seed=run_fig1,
        plot=plot_fig1,
        claims=claims_of_fig1,
    ),
    Experiment(
        id="zord-fig10",
        source="ZoRD, Fig. 10",
        shows=lambda settings: f"local derivative against global function: {settings.num_queries} queries in a window",
        claim="The derived GP estimates a local derivative from fewer queries than the GP needs for all of a function.",
        scales={"paper": Fig10(), "quick": Fig10(grid=21, functions_per_seed=3)},
        run_seed=run_fig10,
        plot=plot_fig10,
        claims=claims_of_fig10,
    ),
)
