"""Alternatives to ``DerivedGP`` for the gradient posterior of a Matérn 5/2 GP.

All alternatives use the same data, hyperparameters and noise. Each function of this module computes everything that
does not depend on the query points, and returns a function without arguments that computes the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import sqrt
from typing import TypeVar

import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import ScaleKernel
from gpytorch.kernels.matern52_kernel_grad import Matern52KernelGrad
from gpytorch.means import ZeroMean
from torch import Tensor

from experiments.benchmarks.timing import Call
from surrogates import DerivedGP, gaussian_likelihood, matern_kernel

NOISE = 1e-4
Model = TypeVar("Model", bound=SingleTaskGP)


@dataclass
class Problem:
    """A regression problem: n observations of a smooth function in d dimensions, and q query points.

    Attributes:
        n: number of observations.
        d: number of inputs.
        q: number of query points.
        device: device of the data.
    """

    n: int
    d: int
    q: int
    device: str = "cpu"
    X: Tensor = field(init=False)
    Y: Tensor = field(init=False)
    x: Tensor = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.X = torch.rand(self.n, self.d, dtype=torch.float64, generator=generator).to(self.device)
        self.x = torch.rand(self.q, self.d, dtype=torch.float64, generator=generator).to(self.device)
        self.Y = (6 * self.X[:, : min(self.d, 10)]).sin().sum(-1, keepdim=True)

    @property
    def lengthscale(self) -> float:
        """The lengthscale ℓ, which is about the distance between two points."""
        return 0.4 * sqrt(self.d)

    def model(self, make: type[Model]) -> Model:
        """Creates a BoTorch model of the data, with the problem's noise and kernel."""
        model = make(
            self.X,
            self.Y,
            likelihood=gaussian_likelihood(NOISE),
            covar_module=matern_kernel(self.lengthscale),
            mean_module=ZeroMean(),
            outcome_transform=None,
        )
        return model.to(self.device)

    @cached_property
    def gp(self) -> DerivedGP:
        """The ``DerivedGP`` of the data, with cached factors."""
        gp = self.model(DerivedGP)
        gp.conditioning  # noqa: B018
        return gp


def matrix_vector(problem: Problem) -> Call:
    """Prepares one n x d matrix-vector product, which costs as much as reading the data once."""
    alpha = problem.gp.conditioning.alpha
    return lambda: alpha @ problem.X


def our_mean(problem: Problem) -> Call:
    """Prepares the gradient mean of ``DerivedGP``."""
    return lambda: problem.gp.gradient_posterior(problem.x).mean


def our_mean_and_trace(problem: Problem) -> Call:
    """Prepares the gradient mean of ``DerivedGP`` and the trace of its covariance."""

    def mean_and_trace() -> tuple[Tensor, Tensor]:
        posterior = problem.gp.gradient_posterior(problem.x)
        return posterior.mean, posterior.trace

    return mean_and_trace


def our_covariance(problem: Problem) -> Call:
    """Prepares the dense d x d gradient covariance of ``DerivedGP``."""
    return lambda: problem.gp.gradient_posterior(problem.x).covariance_matrix


def _kernel(x: Tensor, X: Tensor, lengthscale: float) -> Tensor:
    """Computes Matérn 5/2 between points and data with a handwritten formula, ``q x n``."""
    r2 = (x.square().sum(-1, keepdim=True) + X.square().sum(-1) - 2 * x @ X.mT).clamp_min(0) / lengthscale**2
    a = (5 * r2 + 1e-30).sqrt()
    return (1 + a + a.square() / 3) * torch.exp(-a)


def _gradient_of(problem: Problem, mean: Callable[[Tensor], Tensor]) -> Call:
    """Differentiates a posterior mean, ``q x d`` to ``q``, by autograd at the problem's points."""

    def gradient() -> Tensor:
        x = problem.x.clone().requires_grad_(True)
        return torch.autograd.grad(mean(x).sum(), x)[0]

    return gradient


def autograd_by_hand(problem: Problem) -> Call:
    """Prepares the gradient of the posterior mean k(x, X) α by autograd, with cached α."""
    alpha = problem.gp.conditioning.alpha
    return _gradient_of(problem, lambda x: _kernel(x, problem.X, problem.lengthscale) @ alpha)


def botorch_autograd(problem: Problem) -> Call:
    """Prepares the gradient of the posterior mean of BoTorch's ``SingleTaskGP`` by autograd."""
    model = problem.model(SingleTaskGP)
    return _gradient_of(problem, lambda x: model.posterior(x.unsqueeze(-2)).mean)


def jacobian_and_solve(problem: Problem) -> Call:
    """Prepares mean and trace from the Jacobian of k(x, X) (``torch.func.jacrev``) and one triangular solve."""
    prior, known = 5 / 3 * problem.d / problem.lengthscale**2, problem.gp.conditioning
    factor, alpha = known.factor, known.alpha
    jacobian = torch.func.jacrev(lambda x: _kernel(x[None], problem.X, problem.lengthscale)[0])

    def mean_and_trace() -> tuple[Tensor, Tensor]:
        J = torch.stack([jacobian(point) for point in problem.x])
        whitened = torch.linalg.solve_triangular(factor, J, upper=False)
        return J.mT @ alpha, prior - whitened.square().sum((-2, -1))

    return mean_and_trace


def double_jacobian(problem: Problem) -> Call:
    """Prepares the covariance by two nested ``torch.func`` Jacobians of the values' posterior covariance."""
    X, L, lengthscale = problem.X, problem.gp.conditioning.factor, problem.lengthscale

    def covariance(x: Tensor, y: Tensor) -> Tensor:
        first = torch.linalg.solve_triangular(L, _kernel(x[None], X, lengthscale).mT, upper=False)
        second = torch.linalg.solve_triangular(L, _kernel(y[None], X, lengthscale).mT, upper=False)
        r2 = (x - y).square().sum() / lengthscale**2
        # exp(−5r²/6) has Matérn 5/2's Hessian at 0; autograd through the square root of r² does not give it.
        return torch.exp(-5 / 6 * r2) - (first * second).sum()

    outer = torch.func.jacfwd(torch.func.jacrev(covariance, argnums=0), argnums=1)
    return lambda: torch.stack([outer(point, point) for point in problem.x])


def kernel_grad(problem: Problem) -> Call:
    """Prepares mean and covariance from ``Matern52KernelGrad``'s joint covariance, conditioned on the values."""
    kernel = ScaleKernel(Matern52KernelGrad()).double()
    kernel.base_kernel.lengthscale = torch.tensor(problem.lengthscale, dtype=torch.float64)
    kernel.outputscale = torch.tensor(1.0, dtype=torch.float64)
    kernel.to(problem.device)
    width, known = problem.d + 1, problem.gp.conditioning
    factor, alpha = known.factor, known.alpha

    def mean_and_covariance() -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            across = kernel(problem.x, problem.X).to_dense()[:, ::width]
            own = kernel(problem.x).to_dense()
            whitened = torch.linalg.solve_triangular(factor, across.mT, upper=False)
            mean = across @ alpha
            return mean.reshape(problem.q, width)[:, 1:], own - whitened.mT @ whitened

    return mean_and_covariance
