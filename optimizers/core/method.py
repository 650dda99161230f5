"""What methods call in their hooks: coordinates, prox, steps, batches and addressed random numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from optimizers.core.answers import Answers
from optimizers.core.batch import Batch
from optimizers.core.bounds import Domain
from optimizers.core.options import ProxLike
from optimizers.core.record import Record
from optimizers.directions.directions import Directions
from optimizers.directions.groups import GroupDiagonal
from optimizers.first_order import FirstOrder


class MethodTools:
    """The part of ``Optimizer`` that is for its subclasses; ``optimizers.core.optimizer`` says how to use it.

    Attributes:
        seed: seed of the run.
        max_queries: query budget.
        prox: proximal operator of ψ, or None.
        domain: the box and its search coordinates, or None.
        iterations: the number of batches told.
    """

    seed: int
    max_queries: int
    prox: ProxLike | None
    domain: Domain | None
    iterations: int
    _x: Tensor
    _record: Record
    _out: list[Answers]

    @property
    def dimension(self) -> int:
        """The dimension d of the problem."""
        return self._x.numel()

    @property
    def remaining(self) -> int:
        """The number of queries that the budget still holds, those of pending batches included."""
        return self.max_queries - self._record.queries

    @property
    def number(self) -> int:
        """The number of the batch that is asked next: of all told and pending ones."""
        return self.iterations + len(self._out)

    def _to_user(self, z: Tensor) -> Tensor:
        if self.domain is None:
            return z
        return torch.clamp(self.domain.to_user(z), self.domain.lower, self.domain.upper)

    def _to_search(self, x: Tensor) -> Tensor:
        return x if self.domain is None else self.domain.to_search(x)

    def _prox(self, z: Tensor, step: float | Tensor) -> Tensor:
        """prox_{step·ψ}(z), if there is a ψ, and then the projection onto the box, if there is one.

        The step may have shape ``d`` for a separable ψ.
        """
        if self.prox is not None:
            z = self.prox(z, step)
        if self.domain is not None:
            z = torch.clamp(z, self.domain.search_lower, self.domain.search_upper)
        return z

    def _descend(self, rule: FirstOrder, gradient: Tensor) -> None:
        """Moves the iterate by a step of the rule and the prox; it stays where it is if the step is not finite."""
        if not bool(torch.isfinite(gradient).all()):
            return
        z, step_size = rule.step(self._x, gradient)
        if bool(torch.isfinite(z).all()):
            self._x = self._prox(z, step_size)

    def _directions_batch(
        self,
        rows: Sequence[int],
        scales: Tensor | Sequence[float],
        *,
        distribution: str = "normal",
        step: int | None = None,
        base: Tensor | None = None,
        metric: Tensor | GroupDiagonal | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> Batch:
        """A batch of the points base + scaleᵢ · H^(−1/2) direction(seed, step, rowᵢ).

        The base is the iterate, the step ``number`` and H = 1 unless they are given.
        """
        step = self.number if step is None else step
        base = self._x if base is None else base
        return Batch(
            id=self.number,
            base=base,
            scales=torch.as_tensor(scales, dtype=torch.float64),
            addresses=tuple((step, int(row)) for row in rows),
            directions=Directions(self.seed, self.dimension, distribution),
            metric=metric,
            domain=self.domain,
            info=info or {},
        )

    def _points_batch(self, points: Tensor, *, info: Mapping[str, Any] | None = None) -> Batch:
        """A batch of explicit points in search coordinates, shape ``q x d``."""
        scales = torch.zeros(points.shape[0], dtype=torch.float64)
        return Batch(self.number, self._x, scales, explicit=points, domain=self.domain, info=info or {})

    def _generator(self, stream: int = 0, step: int | None = None) -> np.random.Generator:
        """The NumPy generator of (seed, step, stream); the step is ``number`` unless it is given."""
        step = self.number if step is None else step
        philox = np.random.Philox(key=[self.seed, 2 * stream + 1], counter=[0, 0, 0, step])
        return np.random.Generator(philox)

    def retreat(self) -> None:
        """Moves the iterate to the best point, if there is one; for iterates at which f failed."""
        if self._record.best_x is not None:
            self._x = self._to_search(self._record.best_x)

    def _composite(self, batch: Batch, values: Tensor, which: Sequence[int] | None = None) -> Tensor:
        """f + ψ at all points of a batch, or at those of the given numbers; inf outside of the box and where ψ is."""
        psi = getattr(self.prox, "value", None)
        outside = self.domain is not None and not self.domain.confine
        if psi is None and not outside:
            return values
        total = values.clone()
        finite = torch.isfinite(values).nonzero().flatten().tolist()
        numbers = finite if which is None else [which[k] for k in finite]
        for k, (_, x) in zip(finite, batch.each(numbers), strict=True):
            if outside and not bool(cast(Domain, self.domain).contains(x)):
                total[k] = math.inf
            elif psi is not None:
                total[k] += float(psi(x))
        return total
