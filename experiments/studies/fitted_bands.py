"""Bands of partial derivatives if hyper-parameters are unknown: fitted, or averaged over.

Functions are drawn from an ARD prior and observed with noise. One coordinate has a long lengthscale, so that its
partial derivatives have a small variance. The bands of one model are computed under

- the hyper-parameters that the functions were drawn with;
- the hyper-parameters of maximum likelihood, without priors;
- the hyper-parameters of largest posterior density under ``SingleTaskGP``'s default kernel and likelihood, with
  log-normal priors that, for lengthscales, are scaled with the dimension;
- a mixture over samples from that posterior.

A band is the mean ± z standard deviations, also for the mixture.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from botorch.exceptions.warnings import OptimizationWarning
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from matplotlib.axes import Axes
from scipy import stats
from torch import Tensor

from experiments.harness.verdicts import Verdict, judge
from experiments.workloads.prior_draws import draw_values_and_gradients
from optimizers.comparison.records import Row, Rows, by_seed, curve, where
from surrogates import DerivedGP, gaussian_likelihood, sample_hyperparameters
from surrogates.plotting import BLACK, GREEN, PURPLE, VERMILION, MethodStyle

WAYS = {
    "known": MethodStyle("as drawn", BLACK, "*"),
    "maximum_likelihood": MethodStyle("maximum likelihood", VERMILION, "s"),
    "default_priors": MethodStyle("BoTorch's priors", GREEN, "^"),
    "averaged": MethodStyle("averaged over samples", PURPLE, "o"),
}
"""The sources of hyper-parameters, with their styles in the figure."""

COORDINATES = {"weak": "-", "others": "--"}

Bands = tuple[Tensor, Tensor]


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of the draws and fits; lengths are in sides of the cube.

    Attributes:
        lengthscales: the prior's lengthscales; the last is the weak coordinate's.
        observations: the number of observations of each function.
        points: the number of points at which gradients are computed.
        functions: the number of functions of a seed, all at the same points.
        samples: the number of samples of the hyper-parameters for each function.
        warmup_steps: the number of warm-up steps of each sample's chain, which starts at the fitted hyper-parameters.
    """

    lengthscales: tuple[float, ...] = (0.5, 0.5, 4.0)
    observations: int = 30
    points: int = 8
    functions: int = 24
    samples: int = 24
    warmup_steps: int = 16


def rows_of(
    settings: Settings,
    levels: Sequence[float],
    noise_sd: float,
    kernel: Callable[[Any], Kernel],
    seed: int,
    generator: torch.Generator,
) -> Rows:
    """Measures the coverage at each nominal level for each source of hyper-parameters.

    Args:
        settings: The settings of the draws and fits.
        levels: The nominal levels.
        noise_sd: The standard deviation of the noise, in units of the prior's.
        kernel: A function that makes the kernel of the draws from its lengthscales.
        seed: The seed that the records name.
        generator: The source of all draws.
    """
    n, d, count = settings.observations, len(settings.lengthscales), settings.functions
    points = torch.rand(n + settings.points, d, generator=generator, dtype=torch.float64)
    values, gradients = draw_values_and_gradients("rbf", settings.lengthscales, points, count, generator)
    noise = noise_sd * torch.randn(count, n, generator=generator, dtype=torch.float64)
    X, Y = points[:n].expand(count, n, d), (values[:, :n] + noise).unsqueeze(-1)
    at, truth = points[n:].expand(count, settings.points, d), gradients[:, n:]
    rows: Rows = []
    for way, (mean, variance) in _bands(settings, noise_sd, kernel, X, Y, at, generator).items():
        standardized = (truth - mean).abs() / variance.sqrt()
        for level in levels:
            inside = (standardized <= stats.norm.ppf((1 + level) / 2)).double()
            for coordinate, chosen in {"weak": inside[..., -1], "others": inside[..., :-1]}.items():
                key: Row = {"seed": seed, "hyperparameters": way, "coordinate": coordinate}
                value = float(chosen.mean())
                rows.append({**key, "quantity": "fitted_coverage", "level": level, "value": value})
    return rows


def _bands(
    settings: Settings,
    noise_sd: float,
    kernel: Callable[[Any], Kernel],
    X: Tensor,
    Y: Tensor,
    at: Tensor,
    generator: torch.Generator,
) -> dict[str, Bands]:
    """The mean and variance of every partial derivative, for each source of hyper-parameters."""
    lengthscales = torch.tensor(settings.lengthscales, dtype=torch.float64)
    known = DerivedGP(
        X,
        Y,
        likelihood=gaussian_likelihood(noise_sd**2),
        covar_module=kernel(lengthscales),
        outcome_transform=None,
    )
    each = X.shape[:1]
    without_priors = ScaleKernel(RBFKernel(ard_num_dims=X.shape[-1], batch_shape=each), batch_shape=each)
    likeliest = DerivedGP(X, Y, likelihood=GaussianLikelihood(batch_shape=each), covar_module=without_priors)
    default = DerivedGP(X, Y)
    _fit(likeliest)
    _fit(default)
    averaged = sample_hyperparameters(default, settings.samples, generator, warmup_steps=settings.warmup_steps)
    found: dict[str, Bands] = {}
    with torch.no_grad():
        for way, model in (("known", known), ("maximum_likelihood", likeliest), ("default_priors", default)):
            posterior = model.gradient_posterior(at)
            found[way] = posterior.mean, posterior.variance
        mixture = averaged.gradient_posterior(at)
        found["averaged"] = mixture.mixture_mean, mixture.mixture_variance
    return found


def _fit(model: DerivedGP) -> None:
    """Fits the hyper-parameters of all functions at once, from GPyTorch's initial ones, without (random) restarts.

    Without priors the likelihood may increase in a lengthscale without bound; the fit is then where L-BFGS stops, as
    for a user.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizationWarning)
        fit_gpytorch_mll_scipy(ExactMarginalLogLikelihood(model.likelihood, model))


def draw(axes: Axes, settings: Settings, rows: Rows) -> None:
    """Plots the coverage of the weak coordinate and of the others against its nominal level."""
    for way, look in WAYS.items():
        for coordinate, line in COORDINATES.items():
            found = curve(rows, "level", hyperparameters=way, coordinate=coordinate, quantity="fitted_coverage")
            weak = coordinate == "weak"
            label, marker, width = (look.label, look.marker, 1.5) if weak else (None, "", 1.0)
            drawn: Any = {"color": look.color, "ls": line, "marker": marker, "lw": width, "label": label}
            axes.errorbar(found.x, found.mean, found.standard_error, **drawn)
    ends = axes.get_xlim()
    axes.plot(ends, ends, color=BLACK, lw=0.6, zorder=0)
    title = f"bands, hyper-parameters fitted, n = {settings.observations}"
    axes.set(title=title, xlabel="nominal coverage", ylabel="coverage", xlim=ends, ylim=(0, 1.02))
    axes.legend(loc="lower right")


def claims(rows: Rows, seeds: Sequence[int]) -> list[Verdict]:
    """Judges the bands with fitted hyper-parameters, and the remedies."""

    def covered(way: str) -> dict[str, np.ndarray]:
        chosen = where(rows, hyperparameters=way, quantity="fitted_coverage", level=0.95)
        return {coordinate: by_seed(chosen, coordinate=coordinate) for coordinate in COORDINATES}

    known, likeliest, default, averaged = map(covered, WAYS)

    def judged(claim: str, statistic: str, cells: dict[str, np.ndarray], **bars: float) -> Verdict:
        return judge(claim, statistic, cells, seeds, control=True, **bars)

    more = "coverage minus that of maximum likelihood"
    return [
        judged("95% bands cover 95% where hyper-parameters are known, to 2 points", "coverage", known, above=0.93,
               below=0.97),
        judged("95% bands of the weak coordinate cover less than 80% at the maximum of the likelihood", "coverage",
               {"": likeliest["weak"]}, below=0.8),
        judged("95% bands of the weak coordinate cover more under BoTorch's priors", more,
               {"": default["weak"] - likeliest["weak"]}, above=0.0),
        judged("95% bands of the weak coordinate cover more averaged over hyper-parameters", more,
               {"": averaged["weak"] - likeliest["weak"]}, above=0.0),
        judged("95% bands of the other coordinates cover more averaged over hyper-parameters than with the same priors "
               "fitted", "difference of coverage", {"": averaged["others"] - default["others"]}, above=0.0),
        judged("95% bands cover at least 90% averaged over hyper-parameters", "coverage", averaged, above=0.9),
    ]  # fmt: skip
