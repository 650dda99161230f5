"""Controls beside HiSo: one number in the place of H, and what H would be if directions meant nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from federated.methods.scalar.hiso import HiSo
from federated.methods.scalar.scalar_only import ScalarOnlyServer
from optimizers import Displacement
from optimizers.methods.hiso.curvature import Step
from optimizers.methods.hiso.displacement import LearnedDiagonal


@dataclass(frozen=True, kw_only=True)
class ScalarDisplacement(Displacement):
    """H = hI, h ← clip((1 − ν)h + ν(‖Δx‖²/d + ε), β_l, β_u): the mean of eq. 12 over coordinates."""

    def step(self, learned: LearnedDiagonal, step: Step) -> LearnedDiagonal:
        """The step along H^(−1/2)u, and h from its Δx."""
        if not step.terms or not step.fits(learned.floor):
            return learned
        displacement = torch.zeros_like(learned.hessian)
        replace(step, x=displacement, momentum=None, rate=-1.0, prox=None).move(learned.hessian)
        step.move(learned.hessian)
        newest = float(displacement.square().mean(dtype=torch.float64)) + self.epsilon
        h = (1.0 - self.weight) * float(learned.hessian[0]) + self.weight * newest
        hessian = torch.full_like(learned.hessian, min(max(h, self.lower), self.upper))
        return LearnedDiagonal(float(hessian[0]), hessian=hessian)


class ScalarHessian(HiSo):
    """HiSo with one number for H: what adapting the rate alone gives."""

    name = "hiso_scalar"

    def __init__(self, x0: Any, *, curvature: ScalarDisplacement = ScalarDisplacement(), **options: Any) -> None:
        super().__init__(x0, curvature=curvature, **options)


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
    model.method.seed = seed
    for entry in server.state.log.between(1, server.round):
        model.follow(entry.round, entry.scalars)
    return model.method.hessian
