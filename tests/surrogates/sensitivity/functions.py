"""Functions whose sensitivities are known in closed form, and models of them."""

from math import pi

import torch
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.kernels import MaternKernel, PolynomialKernel, RBFKernel, ScaleKernel

from surrogates import DerivedGP, gaussian_likelihood

A, B = 7.0, 0.1
G = torch.tensor([1.0, 4.5, 9.0], dtype=torch.float64)


class Ishigami:
    """sin x₁ + A sin² x₂ + B x₃⁴ sin x₁ on [−π, π]³ (Ishigami and Homma 1990)."""

    bounds = torch.tensor([[-pi] * 3, [pi] * 3], dtype=torch.float64)
    kernel = (RBFKernel, (2.5, 2.0, 4.0), {})
    noise = 1e-8
    measure = torch.tensor([0.5 * (1 + 2 * B * pi**4 / 5 + B**2 * pi**8 / 9), A**2 / 2, 8 * B**2 * pi**6 / 7])
    variance = A**2 / 8 + B * pi**4 / 5 + B**2 * pi**8 / 18 + 0.5

    @staticmethod
    def f(x):
        return x[..., :1].sin() * (1 + B * x[..., 2:] ** 4) + A * x[..., 1:2].sin() ** 2


class SobolG:
    """∏ (|4xᵢ − 2| + aᵢ)/(1 + aᵢ) on [0, 1]³ (Saltelli and Sobol' 1995); its slope jumps at ½."""

    bounds = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64)
    kernel = (MaternKernel, (0.5, 1.0, 2.0), {"nu": 1.5})
    noise = 1e-6
    parts = 1 / (3 * (1 + G) ** 2)
    measure = 16 / (1 + G) ** 2 * (1 + parts).prod() / (1 + parts)
    variance = (1 + parts).prod() - 1

    @staticmethod
    def f(x):
        return (((4 * x - 2).abs() + G) / (1 + G)).prod(-1, keepdim=True)


def fitted(case, n):
    """A model of n values at Sobol' points, with hyper-parameters as the case has them."""
    make, lengthscale, options = case.kernel
    kernel = ScaleKernel(make(ard_num_dims=3, **options)).double()
    kernel.base_kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    kernel.outputscale = torch.tensor(1.0, dtype=torch.float64)
    X = draw_sobol_samples(case.bounds, n, 1, seed=3).squeeze(1)
    return DerivedGP(X, case.f(X), covar_module=kernel, likelihood=gaussian_likelihood(case.noise))


def polynomial(X, Y):
    """A model whose prior holds all polynomials of degree 2, and which is certain after enough of their values."""
    kernel = PolynomialKernel(power=2).double()
    kernel.offset = torch.tensor([1.0], dtype=torch.float64)
    return DerivedGP(X, Y, covar_module=kernel, likelihood=gaussian_likelihood(1e-8))
