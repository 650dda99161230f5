"""The error of an estimated gradient: the common basis of ZoRD's Figures 2 and 6.

All estimators but one use the same queries: x₀ and n − 1 points x₀ + λu with u standard normal, where λ is the
smoothing radius. For every n the points are the first n − 1 of one sequence, so that results for different n are
paired. The exception is finite differences along orthonormal directions, a stronger baseline than the paper's: they
make separate queries, n including x₀, at the same distance λ√d from x₀.

Our choices where the paper gives no details: x₀ is uniform in the box. Values are centered and scaled to unit variance;
without this the prior's mean is wrong and the derived GP fails. The lengthscale is 1 in Ackley's own units. The nugget,
1e-6 of the values' variance, is far below (λ/ℓ)², so that it does not hide the differences that determine the estimate.
A seed's number is the mean over several x₀. The finite differences of eq. 2 are divided by their number, which the
printed equation omits. The Euclidean distance is relative to the norm of the true gradient, so that functions and
dimensions share an axis. We add least squares, because an average over random directions is an easy baseline.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch
from gpytorch.kernels import Kernel, MaternKernel
from matplotlib.axes import Axes
from torch import Tensor

from experiments.harness.curves import draw_methods
from experiments.harness.verdicts import Verdict, judge
from experiments.workloads.problems import Problem, standard_problem
from optimizers import FiniteDifferences
from optimizers.comparison.records import Row, Rows
from surrogates import DerivedGP, gaussian_likelihood, matern_kernel, plotting, rbf_kernel
from surrogates.checks import check_choice

METRICS = {"cosine": "cosine similarity", "relative_error": "Euclidean error / ‖∇f‖"}

KERNELS: dict[str, Callable[[float], Kernel]] = {
    "matern12": lambda lengthscale: matern_kernel(lengthscale, nu=0.5),
    "matern32": lambda lengthscale: matern_kernel(lengthscale, nu=1.5),
    "matern52": lambda lengthscale: matern_kernel(lengthscale, nu=2.5),
    "rbf": rbf_kernel,
}


def kernel_named(name: str, lengthscale: float) -> Kernel:
    """Makes a kernel of ``KERNELS``; raises ``ValueError`` for another name."""
    return KERNELS[check_choice("kernels", name, KERNELS)](lengthscale)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings that all four figures share; lengths are in the function's own units.

    Attributes:
        function: ``"ackley"``, ``"levy"`` or ``"rosenbrock"``, or a function of your own: it maps points ``... x d`` to
            values ``...``, and automatic differentiation gives its true gradient.
        box: lower and upper bound of every coordinate.
        smoothing_radii: λ.
        starts: number of points x₀ per seed.
        lengthscale: ℓ of the derived GP.
        noise: nugget of the derived GP, in units of the values' variance.
    """

    function: str | Callable[[Tensor], Tensor] = "ackley"
    box: tuple[float, float] = (0.0, 10.0)
    smoothing_radii: tuple[float, ...] = (0.01, 0.1)
    starts: int = 5
    lengthscale: float = 1.0
    noise: float = 1e-6

    @property
    def title(self) -> str:
        """The name of the function in titles."""
        if callable(self.function):
            return getattr(self.function, "__name__", type(self.function).__name__)
        return self.function.capitalize()

    def problem(self, dim: int) -> Problem:
        """Returns the function in ``dim`` dimensions on the box; the minimum of your own function is unknown, NaN."""
        if not callable(self.function):
            return standard_problem(self.function, dim, self.box)
        lower, upper, unknown = (torch.full((dim,), side, dtype=torch.float64) for side in (*self.box, np.nan))
        return Problem(self.title, self.function, lower, upper, unknown, np.nan)


def error_rows(key: Row, method: str, estimate: Tensor, gradient: Tensor) -> Rows:
    """Returns cosine similarity and relative Euclidean error of one estimate as records under ``key``."""
    values = {
        "cosine": torch.nn.functional.cosine_similarity(estimate, gradient, dim=0, eps=1e-300),
        "relative_error": (estimate - gradient).norm() / gradient.norm(),
    }
    return [key | {"method": method, "metric": metric, "value": float(value)} for metric, value in values.items()]


def derived_gp_gradient(X: Tensor, values: Tensor, x: Tensor, kernel: Kernel, noise: float) -> Tensor:
    """Returns ∇μ(x) of a derived GP on centered and scaled values; ``noise`` is in units of the values' variance.

    The posterior mean of a Matérn 1/2 kernel has a kink at every datum. If x is a datum, the mean of the two one-sided
    gradients is returned, in which the kernel term of x cancels.
    """
    model = DerivedGP(X, values.unsqueeze(-1), likelihood=gaussian_likelihood(noise), covar_module=kernel).eval()
    base = getattr(kernel, "base_kernel", kernel)
    aside = torch.full_like(x, 1e-7) if isinstance(base, MaternKernel) and base.nu == 0.5 else torch.zeros_like(x)
    return model.gradient_posterior(torch.stack([x - aside, x + aside])).mean.mean(-2).detach()


def local_queries(x: Tensor, smoothing_radius: float, num_queries: int, seed: int) -> Tensor:
    """Returns x and points x + λu, u standard normal, ``num_queries x d``; a larger ``num_queries`` appends points."""
    return FiniteDifferences(num_queries - 1, smoothing_radius, distribution="normal", seed=seed).points(x)


def starts(problem: Problem, num_starts: int, seed: int) -> list[tuple[int, Tensor, int]]:
    """Draws ``num_starts`` points x₀ uniformly in the box; returns the number, x₀ and direction seed of each."""
    points = problem.sample(num_starts, torch.Generator().manual_seed(seed))
    return [(number, x, seed * num_starts + number) for number, x in enumerate(points)]


def draw_metric(axes: Axes, rows: Rows, metric: str, x: str, methods: Iterable[str]) -> None:
    """Draws mean and standard error of a metric against ``x``, one line per method."""
    draw_methods(axes, rows, x, methods, metric=metric)
    if metric == "relative_error":
        axes.set_yscale("log")


def gain(metric: str, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Returns by how much our estimate is better than the baseline; negative if it is worse.

    For the cosine this is the difference, for the relative error log10 of the baseline's error over ours.
    """
    return ours - theirs if metric == "cosine" else np.log10(theirs / ours)


ADVANTAGES = {"cosine": "gain in cosine similarity", "relative_error": "log10 ratio of Euclidean errors"}

COMPARISONS = (
    ("finite_differences", "cosine", False),
    ("finite_differences", "relative_error", False),
    ("least_squares", "relative_error", True),
    ("orthonormal_differences", "relative_error", True),
)
"""Baseline, metric, and whether the comparison is a control: the paper compares with finite differences only."""


def judge_against(baseline: str, metric: str, control: bool, cells: Mapping[str, np.ndarray], setting: str) -> Verdict:
    """Judges "the derived GP is nearer to the true gradient than the baseline" in every cell of gains."""
    claim = f"the derived GP is more accurate than {plotting.METHODS[baseline].label} in {METRICS[metric]}, {setting}"
    return judge(claim, ADVANTAGES[metric], cells, above=0.0, control=control)
