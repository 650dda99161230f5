"""NeST-BO (Tang, Kudva and Paulson, AISTATS 2026, arXiv 2510.05516): queries informative about the Newton step.

Rule and constants are from its authors' program (github.com/PaulsonLab/NeST-BO); no code is copied. Inputs are in the
unit cube and values are standardized. The GP has a zero mean and a squared exponential kernel with a lengthscale for
each variable, fitted by marginal likelihood alone. The initial design is x0 and ten points of a Sobol' sequence. Each
iteration makes d queries within 0.2 of the iterate, one after another. Each of them is the point that most reduces the
total posterior variance of the gradient and the Hessian at the iterate. The iteration then takes a step and queries its
end point. The step is a Newton step if the Hessian of the posterior mean is positive semidefinite, and otherwise goes
along the negative gradient. Armijo's rule on the posterior mean shortens it.

Our only change: the reduction of the variances is computed in closed form, without inverting a matrix per candidate.
"""

from __future__ import annotations

import warnings
from contextlib import suppress

import gpytorch
import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import ModelFittingError
from botorch.exceptions.warnings import BotorchWarning
from botorch.fit import fit_gpytorch_mll
from botorch.optim import optimize_acqf
from botorch.utils.transforms import t_batch_mode_transform
from gpytorch.constraints import Interval
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from optimizers.comparison.queries import Ended, Queries
from optimizers.designs import sobol
from optimizers.seeding import seeded
from surrogates import DerivedGP

FIRST, NEAR = 10, 0.2
LENGTHSCALE, LENGTHSCALES = 0.6931, (0.005, 10.0)
RESTARTS, SAMPLES, ITERATIONS = 5, 20, 300
ARMIJO, SHORTEST = 0.1, 0.05
NEWTON, DESCENT = (1.0, 0.8), (0.5, 0.5)
"""Initial step length, and the factor that shortens a step until Armijo's rule holds."""


def newton_step_targeting(queries: Queries, x0: np.ndarray, seed: int) -> None:
    """Queries the objective, which has a finite box, from x0 until the budget is spent."""
    lower, sides = queries.lower.double().cpu(), (queries.upper - queries.lower).double().cpu()
    x = (torch.from_numpy(x0) - lower) / sides
    X = torch.cat([x[None], sobol(FIRST, len(x), seed)])
    Y = torch.empty(0, 1, dtype=torch.float64)

    def asked() -> Tensor:
        values = [queries((lower + sides * point).numpy()) for point in X[len(Y) :]]
        return torch.cat([Y, torch.tensor(values, dtype=torch.float64)[:, None]])

    try:
        with seeded(seed, []), warnings.catch_warnings():
            warnings.simplefilter("ignore", BotorchWarning)
            warnings.simplefilter("ignore", RuntimeWarning)
            Y = asked()
            while True:
                gp = fitted(X, Y)
                near = torch.stack([(x - NEAR).clamp_min(0.0), (x + NEAR).clamp_max(1.0)])
                for _ in x:
                    X = torch.cat([X, _teaching(NewtonInformation(gp, X, x), near)])
                    Y = asked()
                x = (x + step(fitted(X, Y), x)).clamp(0.0, 1.0)
                X = torch.cat([X, x[None]])
                Y = asked()
    except Ended:
        pass


def fitted(X: Tensor, Y: Tensor) -> DerivedGP:
    """Fits the GP to values, ``n x 1``, at points of the unit cube, ``n x d``."""
    deviation = Y.std(correction=0)
    base = RBFKernel(ard_num_dims=X.shape[-1], lengthscale_constraint=Interval(*LENGTHSCALES))
    base.lengthscale = LENGTHSCALE
    gp = DerivedGP(
        X,
        (Y - Y.mean()) / (deviation if deviation > 0 else 1.0),
        likelihood=GaussianLikelihood(),
        covar_module=ScaleKernel(base),
        mean_module=gpytorch.means.ZeroMean(),
        outcome_transform=None,
    ).double()
    with suppress(ModelFittingError):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    return gp.eval()


class NewtonInformation(AcquisitionFunction):
    """How much a query at z reduces the total variance of the first and second partial derivatives at x.

    The reduction is ‖C(z)‖²/(v(z) + s²), where C(z) has the posterior covariances of f(z) with all d + d² derivatives,
    and v(z) is the posterior variance of f(z).

    Args:
        model: provides the kernel and the noise variance s².
        X: the points already queried, ``n x d``; their values are not needed.
        x: the point, shape ``d``.
    """

    def __init__(self, model: DerivedGP, X: Tensor, x: Tensor) -> None:
        super().__init__(model)
        self.X, self.x = X, x
        kernel = model.covar_module
        self.scale, self.precision = kernel.outputscale.detach(), kernel.base_kernel.lengthscale.detach()[0] ** -2
        self.noise = model.likelihood.noise.detach()
        A = self.kernel(X, X) + self.noise * torch.eye(len(X), dtype=X.dtype)
        self.factor = torch.linalg.cholesky(A)
        self.solved = torch.cholesky_solve(self.derivatives(X), self.factor)

    def kernel(self, a: Tensor, b: Tensor) -> Tensor:
        """Returns k(a, b), ``... x m x n``."""
        return self.scale * torch.exp(-0.5 * ((a[..., :, None, :] - b) ** 2 @ self.precision))

    def derivatives(self, z: Tensor) -> Tensor:
        """Returns all first and second derivatives of k(x, z) in x, ``... x m x (d + d²)``."""
        slope = -self.precision * (self.x - z)
        bend = slope[..., :, None] * slope[..., None, :] - torch.diag(self.precision)
        return self.kernel(z, self.x[None]) * torch.cat([slope, bend.flatten(-2)], dim=-1)

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, z: Tensor) -> Tensor:
        """Returns the reduction, ``batch``, at points ``batch x 1 x d``."""
        across = self.kernel(z, self.X)
        covariances = self.derivatives(z) - across @ self.solved
        left = self.scale - torch.linalg.solve_triangular(self.factor, across.mT, upper=False).square().sum((-2, -1))
        return covariances.square().sum((-2, -1)) / (left.clamp_min(0.0) + self.noise)


def _teaching(information: NewtonInformation, box: Tensor) -> Tensor:
    """Returns the most informative query in a box ``2 x d``, ``1 x d``."""
    found, _ = optimize_acqf(
        information,
        box,
        q=1,
        num_restarts=RESTARTS,
        raw_samples=SAMPLES,
        options={"nonnegative": True, "batch_limit": RESTARTS, "maxiter": ITERATIONS},
    )
    return found.detach()


def step(gp: DerivedGP, x: Tensor) -> Tensor:
    """Returns the Newton or gradient step from x, shape ``d``."""
    g, H = gp.gradient_posterior(x[None]).mean[0].detach(), gp.hessian_posterior(x[None]).mean[0].detach()
    convex = bool((torch.linalg.eigvalsh(H) >= 0).all())
    direction = -torch.linalg.pinv(H) @ g if convex else -torch.nn.functional.normalize(g, dim=0)
    length, factor = NEWTON if convex else DESCENT

    def falls_short() -> bool:
        with torch.no_grad():
            before, after = gp.posterior(torch.stack([x, x + length * direction])).mean.flatten()
        return bool(before - after < -ARMIJO * length * (direction @ g))

    while length > SHORTEST and falls_short():
        length *= factor
    return length * direction
