"""How far an estimated gradient is from the true one: what ZoRD's Figures 2 and 6 have in common.

All estimators but one see the same queries: x₀ and n − 1 points x₀ + λu with u standard normal, the first
n − 1 of one sequence whatever n is, so that curves are paired along n too. λ is the smoothing radius; n
counts x₀ for everyone. The exception are finite differences along orthonormal directions, a stronger
baseline than the paper's: they have n queries of their own, at the same distance from x₀ (λ√d).

Readings, where the paper is silent: x₀ is uniform in the box; values are centred and scaled to unit
variance (the prior's mean is then sensible: without it the derived GP fails); the lengthscale is 1 in
Ackley's own units; the nugget, 1e-6 of the values' variance, is far below (λ/ℓ)², or the differences that
the estimate is made of drown in it; a seed's number is the mean over several x₀. The finite differences
of eq. 2 are divided by their number, which the paper's print leaves out. Its Euclidean distance is given
relative to the true gradient's norm, so that functions and dimensions share an axis. Least squares over
the same queries is ours to add: the baseline that a surrogate must beat, where an average over random
directions is an easy one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from gpytorch.kernels import Kernel, MaternKernel
from matplotlib.axes import Axes
from torch import Tensor

from experiments.harness.curves import draw_methods
from experiments.harness.verdicts import Verdict, judge
from experiments.workloads.problems import Problem
from optimizers import FiniteDifferences
from optimizers.comparison.records import Row, Rows, by_seed
from surrogates import DerivedGP, gaussian_likelihood, matern_kernel, plotting, rbf_kernel

METRICS = {"cosine": "cosine similarity", "relative_error": "Euclidean error / ‖∇f‖"}

KERNELS: dict[str, Callable[[float], Kernel]] = {
    "matern12": lambda lengthscale: matern_kernel(lengthscale, nu=0.5),
    "matern32": lambda lengthscale: matern_kernel(lengthscale, nu=1.5),
    "matern52": lambda lengthscale: matern_kernel(lengthscale, nu=2.5),
    "rbf": rbf_kernel,
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What all four figures are drawn with; lengths in Ackley's own units.

    Attributes:
        box: lower and upper bound of every coordinate.
        smoothing_radii: λ.
        starts: x₀s of a seed.
        lengthscale: ℓ of the derived GP.
        noise: its nugget, in units of the values' variance.
    """

    box: tuple[float, float] = (0.0, 10.0)
    smoothing_radii: tuple[float, ...] = (0.01, 0.1)
    starts: int = 5
    lengthscale: float = 1.0
    noise: float = 1e-6


def error_rows(key: Row, method: str, estimate: Tensor, gradient: Tensor) -> Rows:
    """Cosine similarity and relative Euclidean error of one estimate, as records under ``key``."""
    values = {
        "cosine": torch.nn.functional.cosine_similarity(estimate, gradient, dim=0, eps=1e-300),
        "relative_error": (estimate - gradient).norm() / gradient.norm(),
    }
    return [key | {"method": method, "metric": metric, "value": float(value)} for metric, value in values.items()]


def derived_gp_gradient(X: Tensor, values: Tensor, x: Tensor, kernel: Kernel, noise: float) -> Tensor:
    """∇μ(x) of a derived GP on centred and scaled values; ``noise`` is in units of the values' variance.

    The mean of a Matérn 1/2 kernel has a kink at every datum; where x is one, the average over both sides of it
    is taken, in which that datum's own term cancels.
    """
    model = DerivedGP(X, values.unsqueeze(-1), likelihood=gaussian_likelihood(noise), covar_module=kernel).eval()
    base = getattr(kernel, "base_kernel", kernel)
    aside = torch.full_like(x, 1e-7) if isinstance(base, MaternKernel) and base.nu == 0.5 else torch.zeros_like(x)
    return model.gradient_posterior(torch.stack([x - aside, x + aside])).mean.mean(-2).detach()


def local_queries(x: Tensor, smoothing_radius: float, num_queries: int, seed: int) -> Tensor:
    """x and ``num_queries`` − 1 points x + λu, u standard normal, ``num_queries x d``; nested in their number."""
    return FiniteDifferences(num_queries - 1, smoothing_radius, "normal", seed=seed).points(x)


def starts(problem: Problem, num_starts: int, seed: int) -> list[tuple[int, Tensor, int]]:
    """``num_starts`` points x₀ uniform in the box: (number, x₀, seed of its directions), a function of the seed."""
    points = problem.sample(num_starts, torch.Generator().manual_seed(seed))
    return [(number, x, seed * num_starts + number) for number, x in enumerate(points)]


def draw_metric(axes: Axes, rows: Rows, metric: str, x: str, methods: Iterable[str]) -> None:
    """Mean and standard error of a metric against ``x``, one line a method; the axis of errors ends at 5."""
    draw_methods(axes, rows, x, methods, metric=metric)
    if metric == "relative_error":
        axes.set_yscale("log")
        axes.set_ylim(None, 5)


def gain(metric: str, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """How much better ours is, positive for better.

    Cosine: the difference. Relative error: log10 of theirs over ours.
    """
    return ours - theirs if metric == "cosine" else np.log10(theirs / ours)


def advantage(rows: Rows, metric: str, method: str, baseline: str, **conditions: str | int | float) -> np.ndarray:
    """The gain of ``method`` over ``baseline`` under the conditions, one number a seed."""
    ours = by_seed(rows, metric=metric, method=method, **conditions)
    return gain(metric, ours, by_seed(rows, metric=metric, method=baseline, **conditions))


ADVANTAGES = {"cosine": "gain in cosine similarity", "relative_error": "log10 ratio of Euclidean errors"}

COMPARISONS = (
    ("finite_differences", "cosine", False),
    ("finite_differences", "relative_error", False),
    ("least_squares", "relative_error", True),
    ("orthonormal_differences", "relative_error", True),
)
"""Baseline, metric, and whether the comparison is a control of ours: the paper has finite differences only."""


def judge_against(
    baseline: str, metric: str, control: bool, cells: Mapping[str, np.ndarray], seeds: Sequence[int], setting: str
) -> Verdict:
    """Verdict on "the derived GP is nearer to the true gradient than the baseline" in every cell of gains."""
    claim = f"the derived GP is nearer than {plotting.METHODS[baseline].label} in {METRICS[metric]}, {setting}"
    return judge(claim, ADVANTAGES[metric], cells, seeds, above=0.0, control=control)
