"""A model about a run's center: of f, of f + ψ, or of f and its constraints."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from optimizers.methods.trust_region.constrained_model import ConstrainedModel
from optimizers.methods.trust_region.region_model import RegionModel
from optimizers.methods.trust_region.rules import GeometryRule
from optimizers.subproblems.composite import minimize_composite, prox_gradient
from optimizers.subproblems.region import Region
from optimizers.subproblems.span import coordinates


class CompositeModel:
    """A model of f + ψ, given a model of f.

    Args:
        model: of f.
        psi: ψ(x_b + s) of a step s, shape ``d``, in f's units.
        prox: the prox of ψ(x_b + ·) in f's units: a step and a step size to a step.
    """

    def __init__(
        self, model: RegionModel, psi: Callable[[Tensor], float], prox: Callable[[Tensor, float], Tensor]
    ) -> None:
        self.model, self._zero = model, torch.zeros(model.basis.shape[1], dtype=model.basis.dtype)
        at_center = psi(self._zero)
        self.rise = lambda s: psi(s) - at_center if math.isfinite(at_center) else psi(s)
        # The step size 1/L in f's units stays within what a prox takes: for a small and flat f it would be infinite.
        self._prox = lambda s, L: prox(s, 1.0 / min(max(L * model.unit, 1e-300), 1e300))

    def step(self, region: Region, newton: int) -> tuple[Tensor, float]:
        """A step to a low mean of f + ψ in a region, shape ``d``, and the mean there in f's units."""
        model = self.model
        value = lambda s: model.mean(s) + self.rise(s) / model.unit  # noqa: E731
        s, mean = minimize_composite(value, model.quadratic, self._prox, region)
        return s, model.unit * mean

    def geometry_direction(self, rule: GeometryRule, region: Region) -> Tensor | None:
        """The direction of f's model, with the prox-gradient mapping at the center instead of the gradient."""
        slope = prox_gradient(self.model.quadratic(self._zero), self._prox, region.delta)
        return self.model.geometry_direction(rule, region, slope)


@dataclass(frozen=True)
class LocalModel:
    """A model about a center.

    Attributes:
        numbers: the indices of its queries, shape ``n``.
        means: the posterior means of f + ψ at them relative to the center, or of the merit, shape ``n``, in f's units.
        region: the model of f.
        composite: the model of f + ψ, or of f and its constraints; None: f alone.
    """

    numbers: Tensor
    means: Tensor
    region: RegionModel
    composite: CompositeModel | ConstrainedModel | None

    def values(self, steps: Tensor) -> Tensor:
        """The posterior mean of f, or of the merit, at steps, ``n x d_free``, minus its value at 0, in f's units."""
        if isinstance(self.composite, ConstrainedModel):
            return torch.tensor([self.composite.rise(s.numpy()) for s in steps], dtype=torch.float64)
        places = coordinates(self.region.basis, steps) @ self.region.map.mT
        return self.region.unit * self.region.pinned.means_at(places)

    def deviations(self, steps: Tensor) -> Tensor:
        """The posterior standard deviations of f at steps, ``n x d_free``, relative to the center, in f's units."""
        places = coordinates(self.region.basis, steps) @ self.region.map.mT
        return self.region.unit * self.region.pinned.deviations_at(places)

    @property
    def noisy(self) -> bool:
        """Whether the model has noise in f or in a constraint."""
        found = self.region.pinned.params.noise > 0.0
        return found or (isinstance(self.composite, ConstrainedModel) and self.composite.noisy)
