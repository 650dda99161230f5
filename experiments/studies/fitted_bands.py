"""Coverage of bands of partial derivatives with fitted or sampled hyperparameters.

Functions are drawn from an ARD prior and observed with noise. The last coordinate is *weak*: its lengthscale is long,
so its partial derivatives have a small variance. Bands are computed with

- the hyperparameters of the prior from which the functions were drawn;
- maximum-likelihood estimates, without priors;
- maximum a posteriori estimates under ``SingleTaskGP``'s default log-normal priors, which depend on the dimension;
- a mixture over samples from that posterior.

A band is the mean ± z standard deviations; for a mixture these are the mixture's mean and standard deviation.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from botorch.exceptions.warnings import OptimizationWarning
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from matplotlib.axes import Axes
from scipy import stats
from torch import Tensor

from experiments.harness.verdicts import Verdict, judge
from experiments.workloads.prior_draws import draw_values_and_gradients
from optimizers.comparison.records import Row, Rows, by_seed, curve, where
from surrogates import DerivedGP, gaussian_likelihood, rbf_kernel, sample_hyperparameters
from surrogates.plotting import BLACK, GREEN, PURPLE, VERMILION, MethodStyle

WAYS = {
    "known": MethodStyle("as drawn", BLACK, "*"),
    "maximum_likelihood": MethodStyle("maximum likelihood", VERMILION, "s"),
    "default_priors": MethodStyle("BoTorch's priors", GREEN, "^"),
    "averaged": MethodStyle("averaged over samples", PURPLE, "o"),
}
"""Maps each source of hyperparameters to its style in the figure."""

COORDINATES = {"weak": "-", "others": "--"}

Bands = tuple[Tensor, Tensor]


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the draws and fits; lengths are in sides of the cube.

    Attributes:
        lengthscales: lengthscales of the prior; the last one belongs to the weak coordinate.
        observations: number of noisy values of each function.
        points: number of points at which gradients are predicted.
        functions: number of functions per seed, all observed at the same points.
        samples: number of samples of the hyperparameters for each function.
        warmup_steps: number of warm-up steps of each Markov chain; chains start at the fitted hyperparameters.
    """

    lengthscales: tuple[float, ...] = (0.5, 0.5, 4.0)
    observations: int = 30
    points: int = 8
    functions: int = 24
    samples: int = 24
    warmup_steps: int = 16


def rows_of(
    settings: Settings, levels: Sequence[float], noise_sd: float, seed: int, generator: torch.Generator
) -> Rows:
    """Records the coverage at each nominal level for each of ``WAYS``.

    Args:
        settings: settings of the draws and fits.
        levels: nominal levels.
        noise_sd: standard deviation of the noise, in prior standard deviations.
        seed: the seed, for the records.
        generator: source of all draws.
    """
    n, d, count = settings.observations, len(settings.lengthscales), settings.functions
    points = torch.rand(n + settings.points, d, generator=generator, dtype=torch.float64)
    values, gradients = draw_values_and_gradients("rbf", settings.lengthscales, points, count, generator)
    noise = noise_sd * torch.randn(count, n, generator=generator, dtype=torch.float64)
    X, Y = points[:n].expand(count, n, d), (values[:, :n] + noise).unsqueeze(-1)
    at, truth = points[n:].expand(count, settings.points, d), gradients[:, n:]
    rows: Rows = []
    for way, (mean, variance) in _bands(settings, noise_sd, X, Y, at, generator).items():
        standardized = (truth - mean).abs() / variance.sqrt()
        for level in levels:
            inside = (standardized <= stats.norm.ppf((1 + level) / 2)).double()
            for coordinate, chosen in {"weak": inside[..., -1], "others": inside[..., :-1]}.items():
                key: Row = {"seed": seed, "hyperparameters": way, "coordinate": coordinate}
                value = float(chosen.mean())
                rows.append({**key, "quantity": "fitted_coverage", "level": level, "value": value})
    return rows


def _bands(
    settings: Settings, noise_sd: float, X: Tensor, Y: Tensor, at: Tensor, generator: torch.Generator
) -> dict[str, Bands]:
    """Returns the mean and variance of every partial derivative for each of ``WAYS``."""
    lengthscales = torch.tensor(settings.lengthscales, dtype=torch.float64)
    known = DerivedGP(
        X,
        Y,
        likelihood=gaussian_likelihood(noise_sd**2),
        covar_module=rbf_kernel(lengthscales),
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
    """Fits the hyperparameters of all functions at once, without restarts, because these are random.

    Without priors the likelihood may increase without bound along a lengthscale. The point at which L-BFGS stops is
    then used, as it would be in practice.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizationWarning)
        fit_gpytorch_mll_scipy(ExactMarginalLogLikelihood(model.likelihood, model))


def draw(axes: Axes, settings: Settings, rows: Rows) -> None:
    """Draws the coverage of the weak coordinate and of the others against the nominal level."""
    for way, look in WAYS.items():
        for coordinate, line in COORDINATES.items():
            found = curve(rows, "level", hyperparameters=way, coordinate=coordinate, quantity="fitted_coverage")
            weak = coordinate == "weak"
            label, marker, width = (look.label, look.marker, 1.5) if weak else (None, "", 1.0)
            drawn: Any = {"color": look.color, "ls": line, "marker": marker, "lw": width, "label": label}
            axes.errorbar(found.x, found.mean, found.standard_error, **drawn)
    ends = axes.get_xlim()
    axes.plot(ends, ends, color=BLACK, lw=0.6, zorder=0)
    title = f"bands, hyperparameters fitted, n = {settings.observations}"
    axes.set(title=title, xlabel="nominal coverage", ylabel="coverage", xlim=ends, ylim=(0, 1.02))
    for name, line in COORDINATES.items():
        label = "weak coordinate" if name == "weak" else "other coordinates"
        axes.plot([], [], color=BLACK, ls=line, lw=1.0, label=label)
    axes.legend(loc="lower right", ncols=2)


def claims(rows: Rows) -> list[Verdict]:
    """Judges the coverage with fitted hyperparameters, and the effects of priors and of averaging over samples."""

    def covered(way: str) -> dict[str, np.ndarray]:
        chosen = where(rows, hyperparameters=way, quantity="fitted_coverage", level=0.95)
        return {coordinate: by_seed(chosen, coordinate=coordinate) for coordinate in COORDINATES}

    known, likeliest, default, averaged = map(covered, WAYS)

    def judged(claim: str, statistic: str, cells: dict[str, np.ndarray], **bars: float) -> Verdict:
        return judge(claim, statistic, cells, control=True, **bars)

    more = "coverage minus the coverage with maximum likelihood"
    return [
        judged("with known hyperparameters the coverage of 95% bands is 95%, to 2 points", "coverage", known,
               above=0.93, below=0.97),
        judged("with maximum likelihood the coverage of the weak coordinate's 95% bands is below 80%", "coverage",
               {"": likeliest["weak"]}, below=0.8),
        judged("BoTorch's priors increase the coverage of the weak coordinate's 95% bands", more,
               {"": default["weak"] - likeliest["weak"]}, above=0.0),
        judged("averaging over hyperparameters increases the coverage of the weak coordinate's 95% bands", more,
               {"": averaged["weak"] - likeliest["weak"]}, above=0.0),
        judged("averaging increases the coverage of the other coordinates' 95% bands over a fit with the priors",
               "difference of coverage", {"": averaged["others"] - default["others"]}, above=0.0),
        judged("with averaging the coverage of 95% bands is at least 90%", "coverage", averaged, above=0.9),
    ]  # fmt: skip
