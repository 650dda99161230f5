"""ZoRD, Figure 10: the derived GP is accurate near its queries although the GP misses the function elsewhere.

A function drawn from a GP with squared-exponential kernel is queried within one small window. Left: the
function and the value posterior over the whole domain. Middle: the derivative and the derived GP. Right:
the error of both against the distance from the window's centre, over all seeds, each in units of its
prior standard deviation.

Readings: as in Figure 1 (lengthscale 1, noise standard deviation 0.05); twelve queries, as there, uniform
in a window two lengthscales wide in the middle of a domain of ten. "Locally" is within that window,
"globally" over the domain.
"""

from __future__ import annotations

import dataclasses

import torch
from matplotlib.figure import Figure

from experiments.harness import style
from experiments.harness.experiment import Experiment
from experiments.harness.records import Rows, by_seed, curve, points, seeds_of, where
from experiments.harness.verdicts import Verdict, judge
from experiments.workloads.prior_draws import draw_values_and_gradients
from surrogates import DerivedGP, gaussian_likelihood, rbf_kernel


@dataclasses.dataclass(frozen=True)
class Settings:
    """What Figure 10 is drawn with; lengths in units of x."""

    num_queries: int = 12
    lengthscale: float = 1.0
    noise_sd: float = 0.05
    width: float = 10.0
    window: float = 2.0
    grid: int = 161
    functions_per_seed: int = 10


def run_seed(settings: Settings, seed: int) -> Rows:
    """Root mean square errors over ``functions_per_seed`` functions at each x, and the first one's curves."""
    generator = torch.Generator().manual_seed(seed)
    n = settings.num_queries
    grid = torch.linspace(-settings.width / 2, settings.width / 2, settings.grid, dtype=torch.float64)
    slope_sd = 1.0 / settings.lengthscale
    squares = torch.zeros(2, settings.grid, dtype=torch.float64)
    rows: Rows = []
    for function in range(settings.functions_per_seed):
        queries = settings.window * (torch.rand(n, generator=generator, dtype=torch.float64) - 0.5)
        everywhere = torch.cat([queries, grid]).unsqueeze(-1)
        values, slopes = draw_values_and_gradients("rbf", settings.lengthscale, everywhere, 1, generator)
        Y = values[0, :n] + settings.noise_sd * torch.randn(n, generator=generator, dtype=torch.float64)
        model = DerivedGP(
            queries.unsqueeze(-1),
            Y.unsqueeze(-1),
            likelihood=gaussian_likelihood(settings.noise_sd**2),
            covar_module=rbf_kernel(settings.lengthscale),
            outcome_transform=None,
        ).eval()
        with torch.no_grad():
            value = model.posterior(grid.unsqueeze(-1))
        slope = model.gradient_posterior(grid.unsqueeze(-1))
        squares[0] += (value.mean[:, 0] - values[0, n:]).square()
        squares[1] += ((slope.mean[:, 0] - slopes[0, n:, 0]) / slope_sd).square()
        if function == 0:
            curves = {
                "function": values[0, n:],
                "derivative": slopes[0, n:, 0],
                "value_mean": value.mean[:, 0],
                "value_sd": value.variance[:, 0].sqrt(),
                "derivative_mean": slope.mean[:, 0],
                "derivative_sd": slope.variance[:, 0].sqrt(),
            }
            for quantity, ys in curves.items():
                rows += [
                    {"seed": seed, "quantity": quantity, "x": x, "value": y} for x, y in zip(grid, ys, strict=True)
                ]
            rows += [{"seed": seed, "quantity": "query", "x": x, "value": y} for x, y in zip(queries, Y, strict=True)]
    squares /= settings.functions_per_seed
    local = grid.abs() <= settings.window / 2
    summary: dict[str, torch.Tensor] = {
        "local_derivative_error": squares[1, local].mean().sqrt(),
        "local_function_error": squares[0, local].mean().sqrt(),
        "global_function_error": squares[0].mean().sqrt(),
        "global_derivative_error": squares[1].mean().sqrt(),
    }
    rows += [{"seed": seed, "quantity": quantity, "value": float(value)} for quantity, value in summary.items()]
    for quantity, square in (("function_error", squares[0]), ("derivative_error", squares[1])):
        # Distances from the window's centre: both sides of it, folded.
        folded = ((square + square.flip(0)) / 2).sqrt()[settings.grid // 2 :]
        distances = grid[settings.grid // 2 :]
        rows += [
            {"seed": seed, "quantity": quantity, "x": x, "value": y} for x, y in zip(distances, folded, strict=True)
        ]
    return rows


def plot(settings: Settings, rows: Rows) -> Figure:
    """Function, derivative and both errors against distance."""
    figure, axes = style.panels(1, 3, width=3.6, height=3.2)
    first = where(rows, seed=seeds_of(rows)[0])
    blue, black = style.METHODS["derived_gp"].color, style.TRUTH.color
    half = settings.window / 2
    for panel, truth, prefix in zip(axes[0], ("function", "derivative"), ("value", "derivative"), strict=False):
        sd, true = (points(first, quantity)[1] for quantity in (f"{prefix}_sd", truth))
        panel.axvspan(-half, half, color="#EEEEEE", lw=0, label="queried window")
        style.draw_posterior(panel, *points(first, f"{prefix}_mean"), sd, true)
        panel.set_xlabel("x (in lengthscales)")
    axes[0, 0].plot(*points(first, "query"), "o", color=black, ms=3, label="noisy query")
    axes[0, 0].set(title="the function, globally", ylabel="f(x)")
    axes[0, 1].set(title="its derivative", ylabel="f′(x), per lengthscale")
    panel = axes[0, 2]
    panel.axvspan(0, half, color="#EEEEEE", lw=0)
    entries = (
        ("function_error", "function", style.VERMILION, "--"),
        ("derivative_error", "derivative", blue, "-"),
    )
    for quantity, label, color, line in entries:
        errors = curve(where(rows, quantity=quantity), "x")
        panel.plot(errors.x, errors.mean, color=color, ls=line, label=label)
        band = errors.mean - errors.standard_error, errors.mean + errors.standard_error
        panel.fill_between(errors.x, *band, color=color, alpha=0.2, lw=0)
    panel.set(
        title=f"error, mean ± standard error of {len(seeds_of(rows))} seeds",
        xlabel="distance from window's centre (lengthscales)",
        ylabel="root mean square error / prior sd",
        ylim=(0, None),
    )
    panel.legend(loc="lower right")
    style.shared_legend(figure, axes[0, 0], 5)
    return figure


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Local derivative against global function, and how good the local derivative is by itself."""
    seeds = seeds_of(rows)
    local = by_seed(rows, quantity="local_derivative_error")
    gap = by_seed(rows, quantity="global_function_error") - local
    unit = "in prior standard deviations"
    return [
        judge(
            "the local derivative is estimated better than the function globally",
            f"root mean square error, global function minus local derivative, {unit}",
            {"all": gap},
            seeds,
            above=0.0,
        ),
        judge(
            "the local derivative is accurate by itself: its error is under half of the prior's",
            f"root mean square error of the local derivative, {unit}",
            {"all": local},
            seeds,
            below=0.5,
        ),
    ]


EXPERIMENT = Experiment(
    id="zord-fig10",
    source="ZoRD, Fig. 10",
    shows="local derivative against global function: queries in one window",
    claim="The derived GP estimates the local derivative well although the GP does not know the function globally.",
    scales={"paper": Settings(), "quick": Settings(grid=21, functions_per_seed=3)},
    run_seed=run_seed,
    plot=plot,
    claims=claims,
)
