"""Test functions with their known minimum, batched over torch tensors.

Formulas are from Surjanovic and Bingham, Virtual Library of Simulation Experiments. Every function maps ``... x d`` to
``...``, keeps dtype and device, and has an exact ``gradient`` (except at Ackley's minimum, where it has a kink).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor


def ackley(X: Tensor) -> Tensor:
    """20 + e − 20 exp(−0.2 √(mean x²)) − exp(mean cos 2πx); minimum 0 at 0."""
    radial = 20.0 * torch.exp(-0.2 * X.square().mean(-1).sqrt())
    return 20.0 + math.e - radial - torch.exp(torch.cos(2 * math.pi * X).mean(-1))


def levy(X: Tensor) -> Tensor:
    """sin²(πw₁) + Σ_{i<d} (wᵢ−1)²(1 + 10 sin²(πwᵢ+1)) + (w_d−1)²(1 + sin²(2πw_d)), w = 1 + (x−1)/4; minimum 0 at 1."""
    w = 1.0 + (X - 1.0) / 4.0
    inner = ((w[..., :-1] - 1).square() * (1 + 10 * torch.sin(math.pi * w[..., :-1] + 1).square())).sum(-1)
    last = (w[..., -1] - 1).square() * (1 + torch.sin(2 * math.pi * w[..., -1]).square())
    return torch.sin(math.pi * w[..., 0]).square() + inner + last


def rosenbrock(X: Tensor) -> Tensor:
    """Σ_{i<d} 100 (x_{i+1} − xᵢ²)² + (1 − xᵢ)²; minimum 0 at 1; needs d ≥ 2."""
    head, tail = X[..., :-1], X[..., 1:]
    return (100 * (tail - head.square()).square() + (1 - head).square()).sum(-1)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A function to minimize on a box, with its known minimum.

    Attributes:
        name: its name in figures.
        function: ``... x d`` to ``...``.
        lower: lower bounds, shape ``d``.
        upper: upper bounds, shape ``d``.
        minimizer: the unconstrained minimizer, shape ``d``.
        minimum: the unconstrained minimum.
    """

    name: str
    function: Callable[[Tensor], Tensor]
    lower: Tensor
    upper: Tensor
    minimizer: Tensor
    minimum: float

    @property
    def dim(self) -> int:
        """The dimension d."""
        return self.lower.shape[-1]

    @property
    def bounds(self) -> Tensor:
        """The box in BoTorch's form, ``2 x d``."""
        return torch.stack([self.lower, self.upper])

    def __call__(self, X: Tensor) -> Tensor:
        """Returns values at ``... x d``."""
        return self.function(X)

    def gradient(self, X: Tensor) -> Tensor:
        """Returns ∇f at ``... x d`` by automatic differentiation, ``... x d``."""
        X = X.detach().requires_grad_(True)
        (gradient,) = torch.autograd.grad(self(X).sum(), X)
        return gradient

    def sample(self, num_points: int, generator: torch.Generator) -> Tensor:
        """Draws points uniformly in the box, ``num_points x d``."""
        unit = torch.rand(num_points, self.dim, generator=generator, dtype=self.lower.dtype)
        return self.lower + (self.upper - self.lower) * unit

    def scaled(self, lower: float = 0.0, upper: float = 1.0) -> Problem:
        """Returns the same function with its box mapped to [lower, upper]^d."""
        width = (self.upper - self.lower) / (upper - lower)
        return dataclasses.replace(
            self,
            function=lambda Z: self.function(self.lower + (Z - lower) * width),
            lower=torch.full_like(self.lower, lower),
            upper=torch.full_like(self.upper, upper),
            minimizer=lower + (self.minimizer - self.lower) / width,
        )


_STANDARD = {
    "ackley": (ackley, (-32.768, 32.768), 0.0, 1),
    "levy": (levy, (-10.0, 10.0), 1.0, 1),
    "rosenbrock": (rosenbrock, (-5.0, 10.0), 1.0, 2),
}


def standard_problem(name: str, dim: int, bounds: tuple[float, float] | None = None) -> Problem:
    """Returns Ackley's, Levy's or Rosenbrock's function in ``dim`` dimensions, with bounds in float64.

    Args:
        name: ``"ackley"``, ``"levy"`` or ``"rosenbrock"``.
        dim: d.
        bounds: sides of the box in the function's own units; by default the customary box.

    Raises:
        ValueError: for an unknown name, too small a dimension, or empty bounds.
    """
    if name not in _STANDARD:
        raise ValueError(f"unknown problem {name!r}; choose from {', '.join(_STANDARD)}")
    function, customary, minimizer, least = _STANDARD[name]
    if dim < least:
        raise ValueError(f"{name} needs at least {least} dimensions, got {dim}")
    sides = bounds or customary
    if not sides[0] < sides[1]:
        raise ValueError(f"bounds must be increasing, got {bounds}")
    lower, upper, at = (torch.full((dim,), value, dtype=torch.float64) for value in (*sides, minimizer))
    return Problem(name.capitalize(), function, lower, upper, at, 0.0)


def quadratic(curvature: Tensor, minimizer: Tensor, bounds: tuple[float, float]) -> Problem:
    """Returns ½ (x − x*)ᵀ A (x − x*) with minimum 0 at x*.

    Args:
        curvature: A, symmetric and positive semi-definite, ``d x d``.
        minimizer: x*, shape ``d``.
        bounds: sides of the box.
    """

    def function(X: Tensor) -> Tensor:
        shift = X - minimizer
        return 0.5 * (shift * (shift @ curvature)).sum(-1)

    lower, upper = (torch.full_like(minimizer, side) for side in bounds)
    return Problem("Quadratic", function, lower, upper, minimizer, 0.0)
