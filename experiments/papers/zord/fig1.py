"""ZoRD, Figure 1: the derived GP of a function in one dimension, for a growing number of queries.

Upper panels: a function drawn from a GP with squared-exponential kernel, its noisy values, and the value
posterior. Lower panels: its derivative and the derived GP, mean and two standard deviations (eqs. 4-6).

Readings: the paper gives neither function nor kernel parameters. Here lengthscale 1, outputscale 1, noise
standard deviation 0.05, queries uniform over ten lengthscales, nested: a larger n adds queries. The
function and its derivative are drawn jointly, so the truth is exact, and the surrogate is given the prior
that the function comes from, so that its band should be right. The picture is the first seed; the
verdicts are over all.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import torch
from matplotlib.figure import Figure

from experiments.harness import style
from experiments.harness.experiment import Experiment
from experiments.harness.records import Row, Rows, by_seed, points, seeds_of, where
from experiments.harness.verdicts import Verdict, judge, never
from experiments.workloads.prior_draws import draw_values_and_gradients
from surrogates import DerivedGP, gaussian_likelihood, rbf_kernel


@dataclasses.dataclass(frozen=True)
class Settings:
    """What Figure 1 is drawn with; lengths in units of x."""

    num_queries: tuple[int, ...] = (3, 6, 9, 12)
    lengthscale: float = 1.0
    noise_sd: float = 0.05
    width: float = 10.0
    grid: int = 161
    functions_per_seed: int = 10


def run_seed(settings: Settings, seed: int) -> Rows:
    """Curves of the first function, and each function's coverage and rises of the derivative's variance."""
    generator = torch.Generator().manual_seed(seed)
    most = max(settings.num_queries)
    grid = torch.linspace(0, settings.width, settings.grid, dtype=torch.float64)
    queries = settings.width * torch.rand(settings.functions_per_seed, most, generator=generator, dtype=torch.float64)
    rows: Rows = []
    for function, chosen in enumerate(queries):
        everywhere = torch.cat([chosen, grid]).unsqueeze(-1)
        values, slopes = draw_values_and_gradients("rbf", settings.lengthscale, everywhere, 1, generator)
        noise = settings.noise_sd * torch.randn(most, generator=generator, dtype=torch.float64)
        truth = (values[0, most:], slopes[0, most:, 0])
        data = (chosen.unsqueeze(-1), (values[0, :most] + noise).unsqueeze(-1))
        rows += _function_rows(settings, seed, function, data, grid, truth)
    return rows


def _function_rows(
    settings: Settings,
    seed: int,
    function: int,
    data: tuple[torch.Tensor, torch.Tensor],
    grid: torch.Tensor,
    truth: tuple[torch.Tensor, torch.Tensor],
) -> Rows:
    rows: Rows = []
    before = torch.full_like(grid, torch.inf)
    for n in settings.num_queries:
        key: Row = {"seed": seed, "function": function, "num_queries": n}
        model = DerivedGP(
            data[0][:n],
            data[1][:n],
            likelihood=gaussian_likelihood(settings.noise_sd**2),
            covar_module=rbf_kernel(settings.lengthscale),
            outcome_transform=None,
        ).eval()
        with torch.no_grad():
            value = model.posterior(grid.unsqueeze(-1))
        slope = model.gradient_posterior(grid.unsqueeze(-1))
        mean, variance = slope.mean[:, 0], slope.variance[:, 0]
        inside = (mean - truth[1]).abs() <= 1.96 * variance.sqrt()
        rows.append(key | {"quantity": "coverage", "value": float(inside.double().mean())})
        rows.append(key | {"quantity": "error", "value": float((mean - truth[1]).square().mean().sqrt())})
        rows.append(key | {"quantity": "rises", "value": int((variance > before + 1e-9).sum())})
        before = variance
        if function:
            continue
        curves = {
            "function": truth[0],
            "derivative": truth[1],
            "value_mean": value.mean[:, 0],
            "value_sd": value.variance[:, 0].sqrt(),
            "derivative_mean": mean,
            "derivative_sd": variance.sqrt(),
        }
        for quantity, curve in curves.items():
            rows += [key | {"quantity": quantity, "x": x, "value": y} for x, y in zip(grid, curve, strict=True)]
        queries = zip(data[0][:n, 0], data[1][:n, 0], strict=True)
        rows += [key | {"quantity": "query", "x": x, "value": y} for x, y in queries]
    return rows


def plot(settings: Settings, rows: Rows) -> Figure:
    """Function above derivative, a column for each number of queries; the first seed's first function."""
    figure, axes = style.panels(2, len(settings.num_queries), width=2.9, sharex=True, sharey="row")
    first = where(rows, seed=seeds_of(rows)[0], function=0)
    black = style.TRUTH.color
    for column, n in enumerate(settings.num_queries):
        chosen = where(first, num_queries=n)
        for row, (truth, prefix) in enumerate((("function", "value"), ("derivative", "derivative"))):
            panel = axes[row, column]
            sd, true = (points(chosen, quantity)[1] for quantity in (f"{prefix}_sd", truth))
            style.draw_posterior(panel, *points(chosen, f"{prefix}_mean"), sd, true)
        queries = points(chosen, "query")
        axes[0, column].plot(*queries, "o", color=black, ms=4, label="noisy query")
        axes[1, column].plot(queries[0], np.zeros(n), "|", color=black, ms=9)
        axes[0, column].set_title(f"n = {n} queries")
        axes[1, column].set_xlabel("x (in lengthscales)")
    axes[0, 0].set_ylabel("f(x)")
    axes[1, 0].set_ylabel("f′(x), per lengthscale")
    style.shared_legend(figure, axes[0, 0], 4)
    return figure


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """The error falls with n, the band holds the truth, the variance never rises."""
    seeds = seeds_of(rows)

    def measured(quantity: str, n: int) -> np.ndarray:
        return by_seed(rows, quantity=quantity, num_queries=n)

    counts = settings.num_queries
    steps = list(itertools.pairwise(counts))
    rises = np.sum([measured("rises", n) for n in counts], axis=0) * settings.functions_per_seed
    trials = np.full(len(seeds), settings.functions_per_seed * settings.grid * len(steps))
    return [
        judge(
            "the derivative's error falls as queries come",
            "fall of the root mean square error",
            {f"n={few} to {many}": measured("error", few) - measured("error", many) for few, many in steps},
            seeds,
            above=0.0,
        ),
        judge(
            "the 95% band of the derivative holds the true derivative as often as it says, to 5 points",
            "share of x where it does",
            {f"n={n}": measured("coverage", n) for n in counts},
            seeds,
            above=0.9,
            below=1.0,
        ),
        never(
            "the derivative's variance never rises as queries come",
            "share of x where it does",
            rises,
            trials,
            seeds,
        ),
    ]


EXPERIMENT = Experiment(
    id="zord-fig1",
    source="ZoRD, Fig. 1",
    shows="derived GP of a function in one dimension, with its band, for growing n",
    claim="The derived GP estimates the derivative from values alone, with a band that shrinks as queries come.",
    scales={"paper": Settings(), "quick": Settings(num_queries=(3, 6), grid=21, functions_per_seed=3)},
    run_seed=run_seed,
    plot=plot,
    claims=claims,
)
