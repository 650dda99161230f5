"""Kernels beyond RBF, Matérn and RQ: with closed forms, and without."""

import torch
from gpytorch.kernels import (
    ArcKernel,
    CosineKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PiecewisePolynomialKernel,
    PolynomialKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)

from tests.surrogates.gp_models import D, configured

CLOSED = {
    "linear": LinearKernel,
    "linear ard": lambda: ScaleKernel(LinearKernel(ard_num_dims=D)),
    "polynomial 1": lambda: PolynomialKernel(power=1),
    "polynomial 2": lambda: ScaleKernel(PolynomialKernel(power=2)),
    "polynomial 3 on some inputs": lambda: ScaleKernel(PolynomialKernel(power=3, active_dims=[2, 0])),
    "periodic": PeriodicKernel,
    "periodic ard": lambda: ScaleKernel(PeriodicKernel(ard_num_dims=D)),
    "periodic on one input": lambda: ScaleKernel(PeriodicKernel(active_dims=[1])),
    "cosine": lambda: ScaleKernel(CosineKernel()),
    "cosine on one input": lambda: ScaleKernel(CosineKernel(active_dims=[1])),
    "piecewise polynomial 1": lambda: ScaleKernel(PiecewisePolynomialKernel(q=1)),
    "piecewise polynomial 2": lambda: PiecewisePolynomialKernel(q=2, ard_num_dims=D),
    "piecewise polynomial 3": lambda: ScaleKernel(PiecewisePolynomialKernel(q=3, ard_num_dims=2, active_dims=[0, 1])),
    "spectral mixture": lambda: SpectralMixtureKernel(num_mixtures=2, ard_num_dims=D),
    "sum with rbf": lambda: ScaleKernel(LinearKernel()) + ScaleKernel(RBFKernel(ard_num_dims=D)),
    "product with matern": lambda: ScaleKernel(LinearKernel(active_dims=[0, 2]) * MaternKernel(nu=2.5)),
    "product of two": lambda: PolynomialKernel(power=2) * PeriodicKernel(active_dims=[1]),
    "sum of products": lambda: (
        ScaleKernel(PeriodicKernel(active_dims=[0]) * MaternKernel(nu=1.5))
        + CosineKernel(active_dims=[2]) * LinearKernel()
    ),
    "scaled sum on some inputs": lambda: ScaleKernel(RQKernel() + PolynomialKernel(power=2), active_dims=[2, 1]),
}
"""Kernels with closed forms, their sums and products."""


class Subclass(MaternKernel):
    """A subclass that changes nothing."""


class Warped(RBFKernel):
    """An RBF kernel of warped inputs."""

    def forward(self, x1, x2, **params):
        return super().forward(x1 + 0.3 * x1**3, x2 + 0.3 * x2**3, **params)


class Network(Kernel):
    """The arc-sine kernel of an infinite network, with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.register_parameter("scale", torch.nn.Parameter(torch.tensor(0.3, dtype=torch.float64)))

    def forward(self, x1, x2, diag=False, **params):
        scale = self.scale.exp()

        def inner(a, b):
            return scale * (1 + (a.unsqueeze(-2) * b.unsqueeze(-3)).sum(-1))

        def norm(a):
            return 1 + 2 * scale * (1 + a.square().sum(-1))

        angle = 2 * inner(x1, x2) / (norm(x1).unsqueeze(-1) * norm(x2).unsqueeze(-2)).sqrt()
        matrix = torch.asin(angle)
        return matrix.diagonal(dim1=-2, dim2=-1) if diag else matrix


UNKNOWN = {
    "subclass": lambda: ScaleKernel(Subclass(nu=2.5, ard_num_dims=D)),
    "subclass of matern 3/2": lambda: Subclass(nu=1.5),
    "warped": lambda: ScaleKernel(Warped(ard_num_dims=D)),
    "network": lambda: ScaleKernel(Network()),
    "arc": lambda: ScaleKernel(ArcKernel(MaternKernel(nu=2.5), ard_num_dims=D)),
    "sum with a known one": lambda: ScaleKernel(Network()) + LinearKernel(active_dims=[0]),
    "product with a known one": lambda: Warped() * ScaleKernel(MaternKernel(nu=1.5, active_dims=[0, 2])),
}
"""Kernels that are differentiated automatically."""


def closed(name):
    return configured(CLOSED[name]().double())


def unknown(name):
    return configured(UNKNOWN[name]().double())
