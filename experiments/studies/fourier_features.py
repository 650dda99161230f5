"""Gradient error of Fourier surrogates against the number of features M, for every kind of feature.

FZooS replaces a client's GP by Bayesian linear regression on M random features, which can be sent as M weights w. The
error of this approximation is the distance between its gradient ∇φ(x)ᵀw and the derived GP's ∇μ(x) on the same data,
relative to ‖∇μ(x)‖. This error should fall as 1/√M (FZooS proves the rate for the kernel in Lemma E.3). There are four
kinds of features: ``cosine``, FZooS's, has independent frequencies and random phases; ``paired`` has a sine and a
cosine for each frequency; ``orthogonal`` has frequencies that are orthogonal within blocks; ``sobol`` has quasi-random
ones.

The kernel is RBF, as in FZooS. The data are n = 150 uniform points of the unit cube, with values drawn from the prior
plus noise of variance 0.01; the error is the mean over five further points. Both surrogates use this kernel and noise.
The root mean square distance of two points, √(d/6), is one lengthscale or half a lengthscale. The ratio of distance and
lengthscale determines how much orthogonal frequencies gain: they are most accurate at short distances.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from experiments.harness.curves import draw_methods
from experiments.harness.experiment import MEANS, Experiment
from experiments.harness.verdicts import Verdict, judge
from optimizers.comparison.records import Row, Rows, by_seed, mean_curve, where
from surrogates import DerivedGP, FourierFeatures, FourierSurrogate, gaussian_likelihood, plotting, rbf_kernel

KINDS = ("cosine", "paired", "orthogonal", "sobol")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the comparison; ``separations`` are root mean square distances of two points in lengthscales."""

    dims: tuple[int, ...] = (10, 300)
    separations: tuple[float, ...] = (1.0, 0.5)
    num_features: tuple[int, ...] = (100, 300, 1000, 3000, 10000)
    num_data: int = 150
    noise: float = 0.01
    points: int = 5


def run_seed(settings: Settings, seed: int) -> Rows:
    """Records the errors of all kinds and M on one data set for each dimension and separation."""
    rows: Rows = []
    for dim, separation in itertools.product(settings.dims, settings.separations):
        generator = torch.Generator().manual_seed(seed)
        kernel = rbf_kernel(math.sqrt(dim / 6) / separation)
        X = torch.rand(settings.num_data + settings.points, dim, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            covariance = kernel(X).to_dense() + settings.noise * torch.eye(len(X), dtype=X.dtype)
        X, at = X[: settings.num_data], X[settings.num_data :]
        normal = torch.randn(len(covariance), generator=generator, dtype=X.dtype)
        Y = (torch.linalg.cholesky(covariance) @ normal)[: settings.num_data]
        likelihood = gaussian_likelihood(settings.noise)
        model = DerivedGP(X, Y.unsqueeze(-1), likelihood=likelihood, covar_module=kernel, outcome_transform=None)
        exact = model.eval().gradient_posterior(at).mean
        for kind in KINDS:
            for M in settings.num_features:
                features = FourierFeatures(kernel, dim, M, seed, kind=kind)
                surrogate = FourierSurrogate(features, settings.noise).fit(X, Y)
                error = (surrogate.gradient(at) - exact).norm(dim=-1) / exact.norm(dim=-1)
                key: Row = {"seed": seed, "dim": dim, "separation": separation, "method": kind, "num_features": M}
                rows.append(key | {"value": float(error.mean())})
    return rows


def plot(settings: Settings, rows: Rows) -> Figure:
    """Draws the errors (top) and their ratios to the cosine features' (bottom), by dimension and separation."""
    cells = list(itertools.product(settings.dims, settings.separations))
    figure, axes = plotting.panels(2, len(cells), height=1.8, sharex=True, sharey="row")
    for (upper, lower), (dim, separation) in zip(axes.T, cells, strict=True):
        chosen = where(rows, dim=dim, separation=separation)
        draw_methods(upper, chosen, "num_features", KINDS)
        counts = settings.num_features
        errors = {kind: [by_seed(chosen, method=kind, num_features=M) for M in counts] for kind in KINDS}
        for kind in KINDS:
            ratios = (ours / theirs for ours, theirs in zip(errors[kind], errors["cosine"], strict=True))
            plotting.draw(lower, kind, mean_curve(counts, ratios))
        slope = errors["cosine"][0].mean() * np.sqrt(counts[0] / np.array(counts))
        upper.plot(counts, slope, color=plotting.BLACK, lw=0.8, ls=":", label="slope of 1/√M")
        upper.set(xscale="log", yscale="log", title=f"d = {dim}, data {separation:g} ℓ apart")
        lower.axhline(0.5, color=plotting.BLACK, lw=0.8, ls="--")
        place: Any = {"xycoords": ("axes fraction", "data"), "va": "bottom", "fontsize": plotting.SMALL}
        lower.annotate("half the error", (0.03, 0.5), **place)
        lower.set(xlabel="number of features M", ylim=(0, 1.5))
    axes[0, 0].set_ylabel("gradient error / ‖∇μ‖")
    axes[1, 0].set_ylabel("error / cosine features' error")
    plotting.shared_legend(figure, axes[0, 0])
    return figure


def claims(settings: Settings, rows: Rows) -> list[Verdict]:
    """Judges the convergence rate of the cosine features, and the other kinds against the cosine features."""
    least, most, high = min(settings.num_features), max(settings.num_features), max(settings.dims)
    cells = {f"d={dim} {gap:g}ℓ": (dim, gap) for dim, gap in itertools.product(settings.dims, settings.separations)}
    errors = {
        (kind, M, label): by_seed(rows, dim=dim, separation=separation, method=kind, num_features=M)
        for kind, M in itertools.product(KINDS, (least, most))
        for label, (dim, separation) in cells.items()
    }

    def against_cosine(kind: str, chosen: Iterable[str]) -> dict[str, np.ndarray]:
        return {label: errors[kind, most, label] / errors["cosine", most, label] for label in chosen}

    rates = {
        label: np.log(errors["cosine", least, label] / errors["cosine", most, label]) / math.log(most / least)
        for label in cells
    }
    falls = f"the error of cosine features falls as 1/√M from M = {least} to {most}, to 0.1 in the exponent"
    half = f"orthogonal features have at most half of the cosine features' error at d = {high}, M = {most}"
    ratios = against_cosine("orthogonal", [label for label, (dim, _) in cells.items() if dim == high])
    verdicts = [
        judge(falls, "−exponent of M", rates, above=0.4, below=0.6),
        judge(half, "ratio of errors", ratios, below=0.5, control=True),
    ]
    for kind in KINDS[1:]:
        claim = f"{kind} features have a smaller error than cosine features at M = {most}"
        verdicts.append(judge(claim, "ratio of errors", against_cosine(kind, cells), below=1.0, control=True))
    return verdicts


EXPERIMENT = Experiment(
    id="fourier-features",
    source="FZooS, eqs. 3-4",
    shows=lambda settings: (
        f"gradient error of Fourier surrogates against M, {len(KINDS)} kinds of features, d = "
        + " and ".join(map(str, settings.dims))
    ),
    claim="The error of random features falls as 1/√M.",
    scales={"paper": Settings(), "quick": Settings(dims=(3,), num_features=(100, 1000), num_data=20)},
    run_seed=run_seed,
    plot=plot,
    caption=f"{MEANS} Below, the dashed level is half of the cosine features' error.",
    claims=claims,
)
