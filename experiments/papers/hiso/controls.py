"""Controls beside HiSo: one number in the place of H, and what H would be if directions meant nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

import optimizers
from federated.methods.scalar.hiso import HiSo
from federated.methods.scalar.replayed_model import HiSoModel, ReplayedModel
from federated.methods.scalar.scalar_only import ScalarOnlyServer
from optimizers.directions.hessian_update import HessianRule, Term, update


class ScalarHessianSteps(optimizers.HiSo):
    """HiSo with H = hI, h ← clip((1 − ν)h + ν(‖Δx‖²/d + ε), β_l, β_u): the mean of eq. 12 over coordinates."""

    def _rule(self) -> HessianRule | None:
        return None

    def _advance(self, terms: Sequence[Term], rate: float) -> None:
        displacement = torch.zeros_like(self.hessian)
        if terms:
            update(displacement, self._directions(), terms, -1.0, hessian=self.hessian)
        super()._advance(terms, rate)
        if terms:
            r = self.hessian_rule
            newest = float(displacement.square().mean(dtype=torch.float64)) + r.epsilon
            h = (1.0 - r.weight) * float(self.hessian[0]) + r.weight * newest
            h = min(max(h, r.lower), r.upper)
            self.state = replace(self.state, hessian=torch.full_like(self.hessian, h))
            self.state = replace(self.state, hessian_floor=float(self.hessian[0]))


class ScalarHessianModel(ReplayedModel, ScalarHessianSteps):
    """The same over clients."""


class ScalarHessian(HiSo):
    """HiSo with one number for H: what adapting the rate alone gives."""

    name = "hiso_scalar"

    def model(self) -> ReplayedModel:
        """A new model at x0."""
        return ScalarHessianModel(self.x0, **self.model_options())


def noise_hessian(server: ScalarOnlyServer, seed: int) -> Tensor:
    """H that the run's own scalars give along directions that have nothing to do with them, shape ``d``.

    The server's logged scalars are followed along directions of another seed, so that each Δxⱼ² is a χ² variable
    with the run's own scale and no word of the function. An H that cannot be told from this one is noise.

    Raises:
        ValueError: if the log does not go back to the first round, or the seed is the run's own.
    """
    algorithm = server.algorithm
    if server.state.log.first > 1 or seed == algorithm.seed:
        raise ValueError("the log must hold every round, and the seed must be another one")
    model = algorithm.model()
    model.seed = seed
    for entry in server.state.log.between(1, server.round):
        model.follow(entry.round, entry.scalars)
    assert isinstance(model, HiSoModel)
    return model.hessian
