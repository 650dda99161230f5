"""Calibration of gradient posteriors, and ZoRD's Theorems 1 and 2.

Functions and their exact gradients are drawn from a GP prior. The GP with the same prior is conditioned on noisy values
at uniform points of the unit cube. Four statements are then exact, and are tested:

- The posterior mean ± z posterior standard deviations contains a partial derivative with probability Φ(z) − Φ(−z).
- E‖∇f(x) − ∇μ(x)‖² = trace ∂σ²(x).
- Theorem 1: ‖∇f(x) − ∇μ(x)‖² ≤ α‖∂σ²(x)‖ with probability at least 1 − δ. The paper's α is d + 2(√d + 1) ln(1/δ),
  which follows from Laurent and Massart's tail bound of χ²(d) for δ ≤ 1/e. We test the stronger bound with
  α = d + (√d + 1) ln(1/δ), which implies the paper's.
- Theorem 2, in the part that holds: no observation raises the uncertainty, measured by the trace, the spectral norm or
  the matrix order. (The theorem's rate needs r < 1, but r = 1 for every differentiable stationary kernel.)

Our choices where the paper gives no details: the lengthscale is √d/2, so that the diagonal of the cube is two
lengthscales in every dimension. The noise has a tenth of the prior's standard deviation.

In addition we measure the coverage with fitted hyperparameters. Functions are drawn from a prior with lengthscales 0.5
and 0.5 and, for the *weak* coordinate, 4; they are observed at 30 points with noise. Bands are computed with the true
hyperparameters, maximum-likelihood estimates, estimates under ``SingleTaskGP``'s default priors, and a mixture over
samples of the hyperparameters under these priors (``surrogates.sample_hyperparameters``).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel
from matplotlib.figure import Figure
from scipy import stats
from torch import Tensor

from experiments.harness.experiment import Experiment
from experiments.harness.verdicts import Verdict, judge, never
from experiments.studies import fitted_bands
from experiments.workloads.prior_draws import draw_values_and_gradients
from optimizers.comparison.records import Row, Rows, Value, by_seed, curve, where
from surrogates import DerivedGP, gaussian_likelihood, matern_kernel, plotting, rbf_kernel

KERNELS: dict[str, Callable[[Any], Kernel]] = {"rbf": rbf_kernel, "matern52": matern_kernel}
MEASURES = {"trace": "trace", "spectral_norm": "spectral norm", "order": "some direction's variance"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the draws; lengths are in sides of the cube, and noise in prior standard deviations."""

    kernels: tuple[str, ...] = ("rbf", "matern52")
    dims: tuple[int, ...] = (2, 10)
    num_observations: tuple[int, ...] = (4, 16, 64)
    levels: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
    deltas: tuple[float, ...] = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
    noise_sd: float = 0.1
    points: int = 4
    functions: int = 200
    fitted: fitted_bands.Settings = dataclasses.field(default_factory=fitted_bands.Settings)


def run_seed(settings: Settings, seed: int) -> Rows:
    """Returns the records of one set of points per kernel and dimension, and of bands with fitted hyperparameters."""
    generator = torch.Generator().manual_seed(seed)
    rows: Rows = []
    for kernel in settings.kernels:
        for dim in settings.dims:
            most = max(settings.num_observations)
            X = torch.rand(most + settings.points, dim, generator=generator, dtype=torch.float64)
            values, gradients = draw_values_and_gradients(kernel, math.sqrt(dim) / 2, X, settings.functions, generator)
            noise = settings.noise_sd * torch.randn(values[:, :most].shape, generator=generator, dtype=torch.float64)
            key: Row = {"seed": seed, "kernel": kernel, "dim": dim}
            truth = gradients[:, most:]
            for n in settings.num_observations:
                observed = (values[:, :n] + noise[:, :n]).unsqueeze(-1)
                rows += _calibration_rows(settings, key, X[:n], observed, X[most:], truth)
            rows += _monotone_rows(settings, key, X[:most], values[0, :most] + noise[0], X[most:])
    return rows + fitted_bands.rows_of(settings.fitted, settings.levels, settings.noise_sd, seed, generator)


def _model(settings: Settings, key: Row, X: Tensor, Y: Tensor) -> DerivedGP:
    dim = X.shape[-1]
    return DerivedGP(
        X,
        Y,
        likelihood=gaussian_likelihood(settings.noise_sd**2),
        covar_module=KERNELS[str(key["kernel"])](math.sqrt(dim) / 2),
        outcome_transform=None,
    ).eval()


def _calibration_rows(settings: Settings, key: Row, X: Tensor, Y: Tensor, at: Tensor, truth: Tensor) -> Rows:
    """Returns the coverage of bands and the violations of Theorem 1's bound over functions and points."""
    dim = X.shape[-1]
    functions = len(Y)
    model = _model(settings, key, X.expand(functions, *X.shape), Y)
    posterior = model.gradient_posterior(at.expand(functions, *at.shape))
    errors = truth - posterior.mean
    squared = errors.square().sum(-1)
    standardized = errors.abs() / posterior.variance.sqrt()
    key = {**key, "num_observations": len(X)}
    rows: Rows = []
    for level in settings.levels:
        inside = standardized <= stats.norm.ppf((1 + level) / 2)
        rows.append(key | {"quantity": "coverage", "level": level, "value": float(inside.double().mean())})
    for delta in settings.deltas:
        alpha = dim + (math.sqrt(dim) + 1) * math.log(1 / delta)
        beyond = squared > alpha * posterior.spectral_norm
        rows.append(key | {"quantity": "theorem1", "level": delta, "value": float(beyond.double().mean())})
    rows.append(key | {"quantity": "error_over_trace", "value": float((squared / posterior.trace).mean())})
    return rows


def _monotone_rows(settings: Settings, key: Row, X: Tensor, Y: Tensor, at: Tensor) -> Rows:
    """Adds observations one by one; records the uncertainty relative to the prior's, and how often it rises."""
    dim = X.shape[-1]
    model = _model(settings, key, X[:1], Y[:1].unsqueeze(-1))
    total = float(model.gradient_posterior(at).prior_trace[0])
    prior = {"trace": total, "spectral_norm": total / dim}
    rises = dict.fromkeys(MEASURES, 0)
    rows: Rows = []
    before: dict[str, Tensor] | None = None
    for n in range(1, len(X) + 1):
        if n > 1:
            model.add_observations(X[n - 1 : n], Y[n - 1 : n].unsqueeze(-1))
        posterior = model.gradient_posterior(at)
        now = {
            "trace": posterior.trace.clone(),
            "spectral_norm": posterior.spectral_norm.clone(),
            "order": posterior.covariance_matrix.clone(),
        }
        if before is not None:
            for measure, scale in prior.items():
                rises[measure] += int((now[measure] > before[measure] + 1e-9 * scale).sum())
            fall = torch.linalg.eigvalsh(before["order"] - now["order"])[..., 0]
            rises["order"] += int((fall < -1e-9 * prior["spectral_norm"]).sum())
        for measure, scale in prior.items():
            value = float(now[measure].mean() / scale)
            rows.append(key | {"num_observations": n, "quantity": measure, "value": value})
        before = now
    trials = (len(X) - 1) * len(at)
    for measure, count in rises.items():
        rows.append(key | {"quantity": f"rises_{measure}", "value": count})
        rows.append(key | {"quantity": f"trials_{measure}", "value": trials})
    return rows


def plot(settings: Settings, rows: Rows) -> Figure:
    """Draws coverage with known and with fitted hyperparameters, violations of Theorem 1, and uncertainty against n."""
    figure, axes = plotting.panels(2, 2, height=2.2)
    (coverage, fitted), (theorem, falling) = axes
    most = max(settings.num_observations)
    for kernel, (dim, line) in itertools.product(settings.kernels, zip(settings.dims, ("-", "--", ":"), strict=False)):
        look, chosen = plotting.METHODS[kernel], where(rows, kernel=kernel, dim=dim)
        drawn: Any = {"color": look.color, "ls": line}
        found = curve(chosen, "level", num_observations=most, quantity="coverage")
        height, error = 100 * (found.mean - found.x), 100 * found.standard_error
        coverage.errorbar(found.x, height, error, marker=look.marker, label=f"{look.label}, d = {dim}", **drawn)
        found = curve(chosen, "level", num_observations=most, quantity="theorem1")
        theorem.plot(found.x, found.mean, marker=look.marker, **drawn)
        for measure, width in (("trace", 1.6), ("spectral_norm", 0.8)):
            found = curve(chosen, "num_observations", quantity=measure)
            falling.plot(found.x, found.mean, lw=width, **drawn)
    coverage.axhline(0, color=plotting.BLACK, lw=0.8)
    label = "coverage − nominal, in %"
    coverage.set(title=f"bands, prior known, n = {most}", xlabel="nominal coverage", ylabel=label, ylim=(-5, 5))
    bars = np.array(settings.deltas)
    theorem.plot(bars, bars, color=plotting.BLACK, ls="-", lw=0.8)
    theorem.annotate("allowed", (bars[0], bars[0]), ha="right", va="bottom")
    theorem.set_xscale("log")
    theorem.set_yscale("symlog", linthresh=1e-3)
    theorem.set(title=f"Theorem 1, n = {most}", xlabel="δ", ylabel="share beyond the bound", ylim=(-2e-4, 1))
    title, label = "Theorem 2", "uncertainty / prior's"
    falling.set(title=title, xscale="log", xlabel="observations n", ylabel=label, ylim=(0, 1.05))
    for name, width in (("trace", 1.6), ("spectral norm", 0.8)):
        falling.plot([], [], color=plotting.BLACK, lw=width, label=name)
    falling.legend(loc="lower left")
    fitted_bands.draw(fitted, settings.fitted, rows)
    plotting.shared_legend(figure, coverage)
    return figure


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges the bands, the trace, both theorems, and bands with fitted hyperparameters."""
    settled: list[tuple[str, dict[str, Value]]] = [
        (f"{kernel} d={dim} n={n}", {"kernel": kernel, "dim": dim, "num_observations": n})
        for kernel, dim, n in itertools.product(settings.kernels, settings.dims, settings.num_observations)
    ]

    def cells(quantity: str, **level: float) -> dict[str, np.ndarray]:
        chosen = where(rows, quantity=quantity, **level)
        return {label: by_seed(chosen, **conditions) for label, conditions in settled}

    verdicts = []
    for level in (0.8, 0.95):
        claim = f"the coverage of {level:.0%} bands of partial derivatives is {level:.0%}, to 2 points"
        covered = cells("coverage", level=level)
        verdicts.append(judge(claim, "coverage", covered, above=level - 0.02, below=level + 0.02, control=True))
    ratio = cells("error_over_trace")
    claim = "the expected squared error of the gradient is the trace of its covariance, to 10%"
    verdicts.append(judge(claim, "squared error / trace", ratio, above=0.9, below=1.1, control=True))
    slack = {
        f"{label} δ={delta:g}": delta - values
        for delta in settings.deltas
        for label, values in cells("theorem1", level=delta).items()
    }
    claim = "Theorem 1: the squared error exceeds α‖∂σ²‖ with probability at most δ"
    verdicts.append(judge(claim, "δ minus the share beyond", slack, above=0.0))
    for measure, name in MEASURES.items():
        designs = len(settings.kernels) * len(settings.dims)
        counts, trials = (designs * by_seed(rows, quantity=f"{what}_{measure}") for what in ("rises", "trials"))
        claim = f"Theorem 2: an observation never raises the uncertainty ({name})"
        verdicts.append(never(claim, "share of observations that do", counts, trials))
    return verdicts + fitted_bands.claims(rows)


QUICK = Settings(
    dims=(2,),
    num_observations=(4, 8),
    functions=10,
    fitted=fitted_bands.Settings(observations=10, points=2, functions=2, samples=2, warmup_steps=1),
)

EXPERIMENT = Experiment(
    id="calibration",
    source="ZoRD, Theorems 1 and 2",
    shows="coverage of gradient bands, Theorem 1's bound and Theorem 2's decrease over draws from the prior, and "
    "coverage with fitted hyperparameters",
    claim="Gradient posteriors are calibrated, Theorem 1's bound holds, and the uncertainty never rises.",
    scales={"paper": Settings(), "quick": QUICK},
    run_seed=run_seed,
    plot=plot,
    caption="Lines are means over seeds; bars show ± one standard error. Thin black lines show the nominal values. "
    "With fitted hyperparameters solid lines show the weak coordinate, and dashed lines the others. For Theorem 2 "
    "thick lines show the trace, and thin lines the spectral norm.",
    claims=claims,
)
