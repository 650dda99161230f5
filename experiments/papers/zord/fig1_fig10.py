"""ZoRD, Figures 1 and 10: the derived GP of a function in one dimension, with its band.

A function drawn from a GP with squared-exponential kernel is queried with noise. Figure 1 shows the posterior of the
value (top) and of the derivative (bottom) for growing numbers n of queries over the whole domain; it shows the first
seed, the verdicts use all seeds. Figure 10 compares the derived GP of queries in a window, [0, 3], with the GP of as
many queries in the whole domain, [−6, 6]. It shows the first seed's function and derivative at the smallest n, and both
errors against n: the derivative's over the window and the function's over the domain, each in units of its prior
standard deviation. The paper recovers the local derivative from 4 queries and the function from more than 8.

Our choices where the paper gives no details: lengthscale 1, outputscale 1, noise standard deviation 0.05. Queries of
Figure 1 are uniform over ten lengthscales; those of Figure 10 are uniform in the window and in the domain. A larger n
adds queries. The function and its derivative are drawn jointly, so the truth is exact, and the surrogate uses the prior
that the function is drawn from, so its band should be calibrated.
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

from experiments.harness.curves import label_panels
from experiments.harness.experiment import Experiment
from experiments.harness.records import points
from experiments.harness.verdicts import Verdict, judge, never
from experiments.workloads.prior_draws import draw_values_and_gradients
from optimizers.comparison.records import Row, Rows, by_seed, curve, seeds_of, where
from surrogates import DerivedGP, gaussian_likelihood, plotting, rbf_kernel
from surrogates.plotting import MethodStyle


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of both figures; lengths in units of x."""

    lengthscale: float = 1.0
    noise_sd: float = 0.05
    width: float = 10.0
    grid: int = 161
    functions_per_seed: int = 10


@dataclasses.dataclass(frozen=True)
class Fig1(Settings):
    """Settings of Figure 1: queries in the whole domain."""

    num_queries: tuple[int, ...] = (3, 6, 9, 12)


@dataclasses.dataclass(frozen=True)
class Fig10(Settings):
    """Settings of Figure 10: as many queries in a window as in the domain, which is centered at 0."""

    width: float = 12.0
    num_queries: tuple[int, ...] = (4, 6, 8, 10, 12)
    window: tuple[float, float] = (0.0, 3.0)


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A function of the prior on a grid, with noisy queries; all fields have shape ``grid`` or ``n``."""

    grid: Tensor
    function: Tensor
    derivative: Tensor
    queries: Tensor
    values: Tensor


def drawn(settings: Settings, queries: Tensor, grid: Tensor, generator: torch.Generator) -> Drawn:
    """Draws a function and its derivative on the grid, and its noisy values at the queries."""
    n, everywhere = len(queries), torch.cat([queries, grid]).unsqueeze(-1)
    values, slopes = draw_values_and_gradients("rbf", settings.lengthscale, everywhere, 1, generator)
    noise = settings.noise_sd * torch.randn(n, generator=generator, dtype=torch.float64)
    return Drawn(grid, values[0, n:], slopes[0, n:, 0], queries, values[0, :n] + noise)


def fitted(settings: Settings, data: Drawn, n: int) -> dict[str, Tensor]:
    """Returns the truth and both posteriors from the first n queries, on the grid."""
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
    """Records coverage, error and increases of the derivative's variance per function, and the first one's curves."""
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
    """Records root mean square errors over ``functions_per_seed`` functions for each n, and the first one's curves."""
    generator = torch.Generator().manual_seed(seed)
    half, most = settings.width / 2, max(settings.num_queries)
    grid = torch.linspace(-half, half, settings.grid, dtype=torch.float64)
    places = {"function": (-half, half), "derivative": settings.window}
    unit = {"function": 1.0, "derivative": 1.0 / settings.lengthscale}
    squares: dict[tuple[str, int], list[float]] = {}
    rows: Rows = []
    for function in range(settings.functions_per_seed):
        drawn_at = torch.rand(2, most, generator=generator, dtype=torch.float64)
        both = [low + (high - low) * u for (low, high), u in zip(places.values(), drawn_at, strict=True)]
        data = drawn(settings, torch.cat(both), grid, generator)
        for (quantity, (low, high)), part in zip(places.items(), (slice(0, most), slice(most, None)), strict=True):
            own = dataclasses.replace(data, queries=data.queries[part], values=data.values[part])
            inside = (grid >= low) & (grid <= high)
            for n in settings.num_queries:
                found = fitted(settings, own, n)
                name = {"function": "value_mean", "derivative": "derivative_mean"}[quantity]
                error = (found[name] - found[quantity])[inside] / unit[quantity]
                squares.setdefault((quantity, n), []).append(float(error.square().mean()))
                if not function and n == min(settings.num_queries):
                    rows += _curves({"seed": seed, "of": quantity}, own, n, found)
    return rows + [
        {"seed": seed, "quantity": f"{quantity}_error", "num_queries": n, "value": float(np.sqrt(np.mean(found)))}
        for (quantity, n), found in squares.items()
    ]


def _draw_posterior(axes: Axes, rows: Rows, truth: str, prefix: str) -> None:
    x, mean = points(rows, f"{prefix}_mean")
    sd, color = points(rows, f"{prefix}_sd")[1], plotting.METHODS["derived_gp"].color
    axes.fill_between(x, mean - 2 * sd, mean + 2 * sd, color=color, alpha=0.2, lw=0, label="mean ± 2 sd")
    axes.plot(x, mean, color=color, label="posterior mean")
    axes.plot(*points(rows, truth), color=plotting.BLACK, ls="--", lw=1.2, label="truth")


def plot_fig1(settings: Fig1, rows: Rows) -> Figure:
    """Draws the first seed's first function (top) and its derivative (bottom), a column for each number of queries."""
    figure, axes = plotting.panels(2, len(settings.num_queries), height=1.6, sharex=True, sharey="row")
    first = where(rows, seed=seeds_of(rows)[0], function=0)
    for (upper, lower), n in zip(axes.T, settings.num_queries, strict=True):
        chosen = where(first, num_queries=n)
        _draw_posterior(upper, chosen, "function", "value")
        _draw_posterior(lower, chosen, "derivative", "derivative")
        queries = points(chosen, "query")
        upper.plot(*queries, "o", color=plotting.BLACK, ms=4, label="noisy query")
        lower.plot(queries[0], np.zeros(n), "|", color=plotting.BLACK, ms=9)
    titles, ylabels = [f"n = {n} queries" for n in settings.num_queries], ("f(x)", "f′(x), per lengthscale")
    label_panels(axes, titles=titles, xlabels="x (in lengthscales)", ylabels=ylabels)
    plotting.shared_legend(figure, axes[0, 0])
    return figure


def plot_fig10(settings: Fig10, rows: Rows) -> Figure:
    """Draws the function from queries everywhere, the derivative from queries in the window, and both errors."""
    figure, axes = plotting.panels(1, 3, height=2.1)
    first = where(rows, seed=seeds_of(rows)[0])
    value, slope, error = axes[0]
    for panel, truth, prefix in ((value, "function", "value"), (slope, "derivative", "derivative")):
        chosen = where(first, of=truth)
        panel.axvspan(*settings.window, color="#EEEEEE", lw=0, label="window")
        _draw_posterior(panel, chosen, truth, prefix)
        panel.set_xlabel("x (in lengthscales)")
    queries = points(where(first, of="function"), "query")
    value.plot(*queries, "o", color=plotting.BLACK, ms=3, label="noisy query")
    local = points(where(first, of="derivative"), "query")[0]
    slope.plot(local, np.zeros(len(local)), "|", color=plotting.BLACK, ms=9)
    value.set(title=f"function, {len(local)} queries", ylabel="f(x)")
    slope.set(title=f"derivative, {len(local)} in the window", ylabel="f′(x), per lengthscale")
    for quantity, look in (
        ("function", MethodStyle("function", plotting.VERMILION, "s", "--")),
        ("derivative", MethodStyle("derivative", plotting.BLUE, "o")),
    ):
        plotting.draw(error, look, curve(rows, "num_queries", quantity=f"{quantity}_error"))
    error.set(title="error", xlabel="queries n", ylabel="RMS error / prior sd", ylim=(0, None))
    error.legend(loc="upper right")
    plotting.shared_legend(figure, value)
    return figure


def claims_of_fig1(settings: Fig1, rows: Rows) -> list[Verdict]:
    """Judges whether the error falls with n, the band is calibrated and the variance never rises."""
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
    band = "the 95% band contains the true derivative with its nominal frequency, to 5 points"
    fall, share = "decrease of the root mean square error", "share of x where it does"
    return [
        judge("the derivative's error falls as queries are added", fall, falls, above=0.0),
        judge(band, share, shares, above=0.9, below=1.0),
        never("the derivative's variance never rises as queries are added", share, rises, trials),
    ]


def claims_of_fig10(settings: Fig10, rows: Rows) -> list[Verdict]:
    """Judges the local derivative against the function at equal queries, and against twice as many."""
    unit = "in prior standard deviations"
    few, error = min(settings.num_queries), "root mean square error"
    local, whole = (
        {n: by_seed(rows, quantity=f"{name}_error", num_queries=n) for n in settings.num_queries}
        for name in ("derivative", "function")
    )
    gaps = {f"n={n}": whole[n] - local[n] for n in settings.num_queries}
    twice = {f"n={few} against {n}": whole[n] - local[few] for n in settings.num_queries if n == 2 * few}
    better = "the local derivative is more accurate than the function from as many queries"
    accurate = f"from {few} queries the local derivative is accurate: its error is below half of the prior's"
    fewer = f"the local derivative from {few} queries is more accurate than the function from {2 * few}"
    verdicts = [
        judge(better, f"{error}, function minus derivative, {unit}", gaps, above=0.0),
        judge(accurate, f"{error} of the local derivative, {unit}", {"": local[few]}, below=0.5),
    ]
    if twice:
        verdicts.append(judge(fewer, f"{error}, function minus derivative, {unit}", twice, above=0.0))
    return verdicts


EXPERIMENTS = (
    Experiment(
        id="zord-fig1",
        source="ZoRD, Fig. 1",
        shows=lambda settings: (
            "derived GP of a function in one dimension, with its band, for n = "
            + ", ".join(map(str, settings.num_queries))
        ),
        claim="The derived GP estimates the derivative from values alone, with a band that shrinks as queries are "
        "added.",
        scales={"paper": Fig1(), "quick": Fig1(num_queries=(3, 6), grid=21, functions_per_seed=3)},
        run_seed=run_fig1,
        plot=plot_fig1,
        caption="One function of the first seed, with the posterior's mean and a band of two standard deviations.",
        claims=claims_of_fig1,
    ),
    Experiment(
        id="zord-fig10",
        source="ZoRD, Fig. 10",
        shows=lambda settings: (
            "error of the local derivative and of the function from as many queries, n = "
            + ", ".join(map(str, settings.num_queries))
        ),
        claim="The derived GP estimates a local derivative from fewer queries than the GP needs for all of a function.",
        scales={"paper": Fig10(), "quick": Fig10(num_queries=(4, 8), grid=33, functions_per_seed=3)},
        run_seed=run_fig10,
        plot=plot_fig10,
        caption="Left and middle: a function of the first seed and its derivative, with the posterior's mean and a "
        "band of two standard deviations. Right: means over seeds; bands show ± one standard error.",
        claims=claims_of_fig10,
    ),
)
