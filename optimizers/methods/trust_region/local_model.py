"""The model about a run's center: of f, of f + ψ, or of f and its constraints."""

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
    """A model of f + ψ about a center x_b, given a model of f.

    Args:
        model: the model of f.
        psi: computes ψ(x_b + s) for a step s, shape ``d``, in f's units.
        prox: computes the prox of ψ(x_b + ·) for a step and a step size in f's units.
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
        """Finds a step to a low mean of f + ψ in a region, shape ``d``, and the mean at its end in f's units."""
        model = self.model
        value = lambda s: model.mean(s) + self.rise(s) / model.unit  # noqa: E731
        s, mean = minimize_composite(value, model.quadratic, self._prox, region)
        return s, model.unit * mean

    def geometry_direction(self, rule: GeometryRule, region: Region) -> Tensor | None:
        """Computes the direction of a geometry-improving query with the prox-gradient mapping instead of ∇f."""
        slope = prox_gradient(self.model.quadratic(self._zero), self._prox, region.delta)
        return self.model.geometry_direction(rule, region, slope)


@dataclass(frozen=True)
class LocalModel:
    """The model about a run's center.

    Attributes:
        numbers: the indices of the queries in the model, shape ``n``.
        means: the posterior means of f + ψ (or of the merit) at the queries minus the mean at the center, shape ``n``,
            in f's units.
        region: the model of f.
        composite: the model of f + ψ, or of f and its constraints; None if there is f alone.
    """

    numbers: Tensor
    means: Tensor
    region: RegionModel
    composite: CompositeModel | ConstrainedModel | None

    def values(self, steps: Tensor) -> Tensor:
        """Predicts f, or the merit, at steps, ``n x d_free``, minus its value at the center, in f's units."""
        if isinstance(self.composite, ConstrainedModel):
            return torch.tensor([self.composite.rise(s.numpy()) for s in steps], dtype=torch.float64)
        places = coordinates(self.region.basis, steps) @ self.region.map.mT
        return self.region.unit * self.region.pinned.means_at(places)

    def deviations(self, steps: Tensor) -> Tensor:
        """Computes the posterior standard deviations of f at steps minus f at the center, in f's units, shape ``n``."""
        places = coordinates(self.region.basis, steps) @ self.region.map.mT
        return self.region.unit * self.region.pinned.deviations_at(places)

    @property
    def noisy(self) -> bool:
        """Whether the model has noise in f or in a constraint."""
        found = self.region.pinned.params.noise > 0.0
        return found or (isinstance(self.composite, ConstrainedModel) and self.composite.noisy)
