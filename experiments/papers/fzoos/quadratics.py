"""The heterogeneous quadratics of FZooS, Appx. G.1, on [0, 1]^d."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Cell = tuple[int, float, float]
"""d, the heterogeneity C, and the standard deviation of the noise."""

HALF_WIDTH = 10.0
"""Half the side of the functions' own box [−10, 10]^d."""


@dataclass(frozen=True)
class Quadratic:
    """f(x) = (1/10d) (Σ_j a_j z_j² + b_j z_j + 1) with z = 20x − 10, for x in [0, 1]^d.

    Attributes:
        a: curvatures, shape ``d``; some are negative at high heterogeneity.
        b: slopes, shape ``d``.
        noise: standard deviation of normal noise on the values, drawn from ``seed`` and the point's bits.
        seed: seed of the noise.
    """

    a: Tensor
    b: Tensor
    noise: float = 0.0
    seed: int = 0

    @property
    def dimension(self) -> int:
        """The dimension d."""
        return len(self.a)

    def exact(self, X: Tensor) -> Tensor:
        """Returns noise-free values at ``... x d``."""
        z = 2 * HALF_WIDTH * X - HALF_WIDTH
        return ((self.a * z * z + self.b * z).sum(-1) + 1.0) / (10.0 * self.dimension)

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the noisy value at one point, shape ``d``."""
        value = self.exact(x)
        if self.noise == 0.0:
            return value
        words = np.frombuffer(x.detach().contiguous().numpy().tobytes(), dtype=np.uint32)
        generator = np.random.default_rng([self.seed, *words.tolist()])
        return value + self.noise * float(generator.standard_normal())

    def gradient(self, x: Tensor) -> Tensor:
        """Returns ∇f at one point, shape ``d``."""
        z = 2 * HALF_WIDTH * x - HALF_WIDTH
        return 2 * HALF_WIDTH * (2 * self.a * z + self.b) / (10.0 * self.dimension)


@dataclass(frozen=True)
class Federated:
    """N quadratics f_i, a start in the box, and the noise-free mean F, whose a_j and b_j are all 1."""

    clients: list[Quadratic]
    mean: Quadratic
    x0: Tensor

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """The box [0, 1]^d."""
        return [(0.0, 1.0)] * self.mean.dimension

    def gap(self, x: Tensor) -> float:
        """Computes F(x) − min F from the distance to the minimizer z = −1/2, without cancellation."""
        z = 2 * HALF_WIDTH * x - HALF_WIDTH
        return float((z + 0.5).square().sum()) / (10.0 * self.mean.dimension)


def conditions(cell: Cell) -> dict[str, float]:
    """Returns a cell as columns of the records."""
    return dict(zip(("dim", "heterogeneity", "noise"), cell, strict=True))


def quadratics(dim: int, clients: int, heterogeneity: float, seed: int, noise: float = 0.0) -> Federated:
    """Returns the quadratics of Appx. G.1 in d = ``dim`` dimensions for N clients and heterogeneity C.

    a_j^(i) = 1 + C (p_j^(i) − 1/N) with p_j ~ Dirichlet(1/N, …, 1/N) over the clients. b_j^(i) has the same form with
    separate draws. The means over clients are 1 for every C. The seed draws the weights and the start. ``noise`` is the
    standard deviation of normal noise on the clients' values.
    """
    generator = np.random.default_rng(seed)
    weights = generator.dirichlet(np.full(clients, 1.0 / clients), size=(2, dim))
    a, b = (torch.from_numpy(1.0 + heterogeneity * (p - 1.0 / clients)).T.contiguous() for p in weights)
    one = torch.ones(dim, dtype=torch.float64)
    functions = [Quadratic(a[i], b[i], noise, seed * clients + i) for i in range(clients)]
    x0 = torch.from_numpy(generator.random(dim))
    return Federated(functions, Quadratic(one, one), x0)
