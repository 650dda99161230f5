"""Controls for HiSo: a scalar instead of H, and an H learned along unrelated directions."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from federated.methods.scalar.hiso import HiSo
from federated.methods.scalar.model import follow
from federated.methods.scalar.scalar_only import ScalarOnlyServer
from optimizers import Displacement
from optimizers.methods.hiso.curvature import Step
from optimizers.methods.hiso.displacement import LearnedDiagonal

SCALAR = "a scalar H"


@dataclass(frozen=True, kw_only=True)
class ScalarDisplacement(Displacement):
    """H = hI with h ← clip((1 − ν)h + ν(‖Δx‖²/d + ε), β_l, β_u): the mean of eq. 12 over the coordinates.

    ``update`` and ``reset`` mean the same as in ``Displacement``: which displacements of a round update h, with which
    root of h they are computed, and after how many rounds h returns to h₀. ``initial`` is a single number.
    """

    def step(self, learned: LearnedDiagonal, step: Step) -> LearnedDiagonal:
        """Moves along H^(−1/2)u and updates h from this step and the earlier steps of the round."""
        together = [*itertools.chain(*learned.round)] if self.update == "per_round" else []
        if not step.fits(learned.floor, together):
            step = replace(step, terms=[])
        displacements, held = self._displacements([*learned.round, step.terms], bool(step.ends))
        h = float(learned.hessian[0])
        for terms in filter(None, displacements):
            displacement = torch.zeros_like(learned.hessian)
            alone = replace(step, x=displacement, terms=terms, momentum=None, rate=-1.0, prox=None)
            alone.move(learned.hessian)
            newest = float(displacement.square().mean(dtype=torch.float64)) + self.epsilon
            h = min(max((1.0 - self.weight) * h + self.weight * newest, self.lower), self.upper)
        step.move(learned.hessian)
        hessian = torch.full_like(learned.hessian, h)
        if self.reset and step.ends and step.ends % self.reset == 0:
            return self._started(hessian)
        return LearnedDiagonal(float(hessian[0]), held, hessian=hessian)


class ScalarHessian(HiSo):
    """HiSo with a scalar H, which only adapts the step size."""

    name = "hiso_scalar"

    def __init__(self, x0: Any, *, curvature: ScalarDisplacement = ScalarDisplacement(), **options: Any) -> None:
        super().__init__(x0, curvature=curvature, **options)


def noise_hessian(server: ScalarOnlyServer, seed: int) -> Tensor:
    """Computes the H that a run's scalars would give along unrelated directions, shape ``d``.

    The server's logged scalars are replayed along directions of another seed, so that each Δxⱼ² is a χ² variable with
    the scale of the run and no information about the function. If a run's H does not differ from this H, it is noise.
    The log must contain every round from the first on.
    """
    model = server.algorithm.model()
    model.seed = seed
    for entry in server.state.log.between(1, server.round):
        follow(model, entry.round, entry.scalars, server.algorithm.server_rate)
    return model.hessian
