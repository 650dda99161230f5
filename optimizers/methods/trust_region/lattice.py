"""Steps to points with whole numbers in the integer variables, which the model treats as continuous."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from optimizers.methods.trust_region.box import FreeBox
from optimizers.methods.trust_region.local_model import LocalModel
from optimizers.subproblems.region import Region

MOVES = 3
"""The largest number of moves of a local search, for each integer variable."""

PAIRS, BEST = 1000, 50
"""The most pairs of moves that ``improvement`` considers, and the number of steps of lowest mean that it returns."""

FLAT = 1e-8
"""There is no Newton step if the least eigenvalue of the Hessian is at most this fraction of the largest."""


@dataclass(frozen=True)
class Lattice:
    """The points with whole numbers in the integer variables near a center, as steps from it.

    Attributes:
        model: the model about the center.
        box: the box.
        center: shape ``d_free``.
        region: the trust region.
    """

    model: LocalModel
    box: FreeBox
    center: Tensor
    region: Region

    @cached_property
    def spacing(self) -> Tensor:
        """The distances of neighbouring integers, shape ``d_free``."""
        return self.box.spacing(self.center)

    def allowed(self, moves: Tensor) -> Tensor:
        """Which moves of integers, ``n x d_free``, are allowed, shape ``n``.

        A move is allowed if the cell of its values (half a unit on both sides) meets the ball, or if it changes only
        one integer, by 1. It may not cross the plane that separates failed queries.
        """
        inside = torch.linalg.vector_norm((moves.abs() - 0.5 * self.spacing).clamp_min(0.0), dim=-1)
        single = ((moves != 0.0).sum(-1) == 1) & (moves.abs() <= 1.5 * self.spacing).all(-1)
        plane = self.region.half_space
        before = True if plane is None else moves @ plane.normal < 1.0
        return ((inside <= self.region.delta) | single) & before | ~moves.any(-1)

    def near(self, moves: Tensor) -> Tensor:
        """The allowed moves that differ from a given one, shape ``d_free``, by 1 in one integer, ``n x d_free``."""
        found = torch.where(self.box.integers, self.box.neighbours(self.center + moves) - self.center, 0.0)
        return found[self.allowed(found)]

    def steps(self, moves: Tensor, step: Tensor) -> Tensor:
        """Steps that change the integers by the given moves, ``n x d_free``.

        The continuous variables begin at their values in ``step`` and are optimized by a Newton step: they change by
        −H_cc⁻¹H_ci times the change of the integers. With constraints, they do not change.
        """
        whole, d = self.box.integers, len(step)
        rest = torch.where(whole, 0.0, step).expand(moves.shape)
        if self.model.composite is None and not bool(whole.all()):
            _, product, _ = self.model.region.quadratic(step)
            H = torch.stack([product(e) for e in torch.eye(d, dtype=step.dtype)[~whole]])
            eigenvalues, Q = torch.linalg.eigh(H[:, ~whole])
            if float(eigenvalues[0]) > FLAT * float(eigenvalues[-1]):
                change = (moves - step)[:, whole] @ H[:, whole].mT @ (Q / eigenvalues) @ Q.mT
                rest = rest.clone()
                rest[:, ~whole] -= change
        return torch.where(whole, moves, torch.clamp(rest, self.region.lower, self.region.upper))

    def step(self, newton: int) -> tuple[Tensor, float]:
        """Finds a step to a low mean, shape ``d_free``, and the mean there in f's units.

        The step to the least mean, with all variables taken as continuous, is rounded. A local search then changes one
        integer at a time by 1, as long as the mean falls. Finally the continuous variables are optimized with the
        integers fixed, once at the values found and once at the center's, and the better step is taken.
        """
        found, whole = self.model.composite or self.model.region, self.box.integers
        step, mean = found.step(self.region, newton)
        if not self.box.has_integers:
            return step, mean
        end = self.box.on_lattice(self.box.clamped(self.center + step)[None])[0]
        moves, zero = torch.where(whole, end - self.center, 0.0), torch.zeros_like(step)
        if not bool(self.allowed(moves)):
            moves = zero
        least = float(self.model.values(self.steps(moves[None], step)))
        for _ in range(MOVES * int(whole.sum())):
            if len(near := self.near(moves)) == 0:
                break
            values = self.model.values(self.steps(near, step))
            if not float(values.min()) < least:
                break
            least, moves = float(values.min()), near[int(values.argmin())]
        results = [self.polished(chosen, newton) for chosen in ([moves, zero] if bool(moves.any()) else [zero])]
        return min(results, key=lambda result: result[1])

    def polished(self, moves: Tensor, newton: int) -> tuple[Tensor, float]:
        """Optimizes the continuous variables with the integers fixed by ``moves``; returns the step and its mean."""
        region, whole = self.region, self.box.integers
        if bool(whole.all()):
            return moves, float(self.model.values(moves[None]))
        fixed = replace(
            region,
            delta=float((moves.square().sum() + region.delta**2).sqrt()),
            lower=torch.where(whole, moves, region.lower),
            upper=torch.where(whole, moves, region.upper),
        )
        return (self.model.composite or self.model.region).step(fixed, newton)

    def improvement(self, step: Tensor) -> tuple[Tensor, Tensor]:
        """Steps with other integers than the center, ``n x d_free``, and the expected improvement of each, shape ``n``.

        Each of them changes one or two integers of the center by 1. With mean μ and standard deviation σ relative
        to the center the expected improvement is σ(zΦ(z) + φ(z)) for z = −μ/σ.
        """
        one = self.near(torch.zeros_like(step))
        i, j = torch.triu_indices(len(one), len(one), offset=1)
        i, j = (index[:: 1 + len(index) // PAIRS] for index in (i, j))
        apart = ~((one[i] != 0.0) & (one[j] != 0.0)).any(1)
        two = one[i[apart]] + one[j[apart]]
        moves = torch.cat([one, two])
        steps = self.steps(moves, step)
        values = self.model.values(steps)
        best = values.argsort()[:BEST]
        steps, values = steps[best], values[best]
        deviations = self.model.deviations(steps).clamp_min(1e-300)
        normal, z = torch.distributions.Normal(0.0, 1.0), -values / deviations
        return steps, deviations * (z * normal.cdf(z) + normal.log_prob(z).exp())


def unique_rows(points: Tensor) -> Tensor:
    """Removes repeated rows from points, ``n x d``, and keeps their order."""
    return points.new_tensor(list(dict.fromkeys(map(tuple, points.tolist()))))
