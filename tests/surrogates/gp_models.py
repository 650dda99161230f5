"""Kernels, data and models that the tests of derived GPs share."""

import torch
from gpytorch.kernels import MaternKernel, RBFKernel, RQKernel, ScaleKernel

from surrogates import DerivedGP, gaussian_likelihood

D = 3


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def points(n: int, d: int = D, seed: int = 0, dtype=torch.float64, batch=()) -> torch.Tensor:
    """Uniform in [-1, 1]^d."""
    return 2 * torch.rand(*batch, n, d, generator=generator(seed), dtype=torch.float64).to(dtype) - 1


def outcomes(X: torch.Tensor) -> torch.Tensor:
    """A smooth function that no kernel here has in its span."""
    return 3 + 2 * (2 * X[..., :1]).sin() + (X * X).sum(-1, keepdim=True) * X[..., -1:].exp()


KERNELS = {
    "rbf": lambda: ScaleKernel(RBFKernel()),
    "rbf without scale": RBFKernel,
    "rbf ard": lambda: ScaleKernel(RBFKernel(ard_num_dims=D)),
    "matern 3/2": lambda: ScaleKernel(MaternKernel(nu=1.5)),
    "matern 3/2 ard": lambda: ScaleKernel(MaternKernel(nu=1.5, ard_num_dims=D)),
    "matern 5/2": lambda: ScaleKernel(MaternKernel(nu=2.5)),
    "matern 5/2 ard": lambda: ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=D)),
    "rq": lambda: ScaleKernel(RQKernel()),
    "rq ard": lambda: ScaleKernel(RQKernel(ard_num_dims=D)),
    "active dims": lambda: ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2, active_dims=[2, 0])),
    "active dims of the scale": lambda: ScaleKernel(RBFKernel(), active_dims=[1, 2]),
    "nested scales": lambda: ScaleKernel(ScaleKernel(MaternKernel(nu=1.5, active_dims=[0, 1]))),
    "sum": lambda: ScaleKernel(RBFKernel(ard_num_dims=D)) + ScaleKernel(MaternKernel(nu=1.5)),
    "sum over inputs": lambda: (
        ScaleKernel(RBFKernel(active_dims=[0])) + ScaleKernel(MaternKernel(nu=2.5, active_dims=[2, 1]))
    ),
    "product": lambda: ScaleKernel(MaternKernel(nu=2.5)) * RQKernel(ard_num_dims=D),
    "product over inputs": lambda: ScaleKernel(RBFKernel(active_dims=[1, 0]) * MaternKernel(nu=1.5, active_dims=[2])),
    "scaled sum on some inputs": lambda: ScaleKernel(RBFKernel() + RQKernel(active_dims=[1]), active_dims=[2, 0]),
    "sum of products": lambda: (
        ScaleKernel(RBFKernel() * MaternKernel(nu=2.5))
        + ScaleKernel(RBFKernel(active_dims=[0]) * RBFKernel()) * RBFKernel()
    ),
}


def kernel_named(name: str, dtype=torch.float64, seed: int = 7):
    """A kernel with hyper-parameters drawn between about 0.5 and 1."""
    return configured(KERNELS[name]().to(dtype), seed)


def configured(module, seed: int = 7):
    """The module with raw parameters drawn from [-0.4, 0.5]."""
    rng = generator(seed)
    for parameter in module.parameters():
        draw = 0.9 * torch.rand(parameter.shape, generator=rng, dtype=torch.float64) - 0.4
        parameter.data = draw.to(parameter.dtype)
    return module


def derived_gp(kernel=None, n: int = 6, d: int = D, noise: float = 1e-3, seed: int = 0, **options) -> DerivedGP:
    """A model of ``outcomes`` at ``points(n, d, seed)``."""
    X = points(n, d, seed)
    kernel = kernel_named("matern 5/2") if kernel is None else kernel
    options = {"likelihood": gaussian_likelihood(noise)} | options
    return DerivedGP(X, outcomes(X), covar_module=kernel, **options)
