"""Computes steps to lattice points, which have whole numbers in the integer variables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from optimizers.methods.trust_region.box import FreeBox
from optimizers.methods.trust_region.local_model import LocalModel
from optimizers.subproblems.region import Region

MOVES = 3
"""The largest number of moves in a local search, per integer variable."""

PAIRS, BEST = 1000, 50
"""The most pairs of moves that ``Lattice.improvement`` considers, and the most steps that it returns."""

FLAT = 1e-8
"""No Newton step is made if the Hessian's least eigenvalue is at most this fraction of its largest."""


@dataclass(frozen=True)
class Lattice:
    """The lattice points near a center, as steps from the center.

    A lattice point has whole numbers in the integer variables. A *move* is a step that changes integer variables only.

    Attributes:
        model: the model about the center, which treats integers as continuous.
        box: the box of the free variables.
        center: the center, shape ``d_free``.
        region: the trust region.
    """

    model: LocalModel
    box: FreeBox
    center: Tensor
    region: Region

    @cached_property
    def spacing(self) -> Tensor:
        """The distance between neighbouring values of each integer variable, shape ``d_free``."""
        return self.box.spacing(self.center)

    def allowed(self, moves: Tensor) -> Tensor:
        """Decides which moves, ``n x d_free``, are allowed, shape ``n``.

        A move must not cross the plane that separates failed queries. It must change a single integer by 1, or the cell
        around its end (half a unit on all sides) must meet the trust region's ball.
        """
        inside = torch.linalg.vector_norm((moves.abs() - 0.5 * self.spacing).clamp_min(0.0), dim=-1)
        single = ((moves != 0.0).sum(-1) == 1) & (moves.abs() <= 1.5 * self.spacing).all(-1)
        plane = self.region.half_space
        before = True if plane is None else moves @ plane.normal < 1.0
        return ((inside <= self.region.delta) | single) & before | ~moves.any(-1)

    def near(self, moves: Tensor) -> Tensor:
        """Returns the allowed moves, ``n x d_free``, that differ from a given move by 1 in one integer."""
        found = torch.where(self.box.integers, self.box.neighbours(self.center + moves) - self.center, 0.0)
        return found[self.allowed(found)]

    def steps(self, moves: Tensor, step: Tensor) -> Tensor:
        """Completes moves, ``n x d_free``, to steps by choosing the continuous variables.

        Continuous variables change from their values in ``step`` by a Newton step, −H_cc⁻¹H_ci times the change of the
        integers. With constraints or a prox, they keep their values in ``step``.
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
        """Finds a step to a low posterior mean, shape ``d_free``, and the mean at its end in f's units.

        First the step to the least mean with all variables continuous is rounded. Then a local search changes one
        integer at a time by 1, as long as the mean falls. Finally the continuous variables are optimized, once with the
        integers found and once with the center's integers, and the better step is returned.
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
        """Returns steps that change one or two integers by 1, ``n x d_free``, and their expected improvements.

        If f minus its value at the center has posterior mean μ and standard deviation σ, the expected improvement is
        σ(zΦ(z) + φ(z)) with z = −μ/σ.
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
