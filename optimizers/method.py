"""What a method's hooks use: coordinates, prox, steps, batches, addressed random numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from optimizers.batch import Batch
from optimizers.bounds import Domain
from optimizers.directions.directions import Directions
from optimizers.directions.groups import GroupDiagonal
from optimizers.first_order import FirstOrder
from optimizers.options import ProxLike
from optimizers.record import Record


class MethodTools:
    """The half of ``Optimizer`` that its subclasses call; ``optimizers/optimizer.py`` says how.

    Attributes:
        seed: seed of the run.
        max_queries: query budget.
        prox: proximal operator of ψ, or None.
        domain: the box and its search coordinates, or None.
        iterations: batches told.
    """

    seed: int
    max_queries: int
    prox: ProxLike | None
    domain: Domain | None
    iterations: int
    _x: Tensor
    _record: Record

    @property
    def dimension(self) -> int:
        """Dimension d of the problem."""
        return self._x.numel()

    @property
    def remaining(self) -> int:
        """Queries that the budget still holds, a pending batch's among them."""
        return self.max_queries - self._record.queries

    def _to_user(self, z: Tensor) -> Tensor:
        if self.domain is None:
            return z
        return torch.clamp(self.domain.to_user(z), self.domain.lower, self.domain.upper)

    def _to_search(self, x: Tensor) -> Tensor:
        return x if self.domain is None else self.domain.to_search(x)

    def _prox(self, z: Tensor, step: float | Tensor) -> Tensor:
        """prox_{step·ψ}(z), then the projection onto the box; both where given.

        For a separable ψ the step may have shape ``d``.
        """
        if self.prox is not None:
            z = self.prox(z, step)
        if self.domain is not None:
            z = torch.clamp(z, self.domain.search_lower, self.domain.search_upper)
        return z

    def _descend(self, rule: FirstOrder, gradient: Tensor) -> None:
        """One step of the rule along the gradient, then the prox; none where it would not stay finite."""
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
        """The points base + scaleᵢ · direction(seed, step, rowᵢ); base: the iterate, step: ``iterations``."""
        step = self.iterations if step is None else step
        base = self._x if base is None else base
        return Batch(
            id=self.iterations,
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
        return Batch(self.iterations, self._x, scales, explicit=points, domain=self.domain, info=info or {})

    def _generator(self, stream: int = 0, step: int | None = None) -> np.random.Generator:
        """NumPy generator addressed by (seed, step, stream); step defaults to ``iterations``."""
        step = self.iterations if step is None else step
        philox = np.random.Philox(key=[self.seed, 2 * stream + 1], counter=[0, 0, 0, step])
        return np.random.Generator(philox)

    def retreat(self) -> None:
        """Move the iterate to the best point, where there is one; for an iterate at which f failed."""
        if self._record.best_x is not None:
            self._x = self._to_search(self._record.best_x)

    def _composite(self, batch: Batch, values: Tensor) -> Tensor:
        """The values f + ψ at the points of a batch, shape ``q``; inf outside of the box or of ψ's domain."""
        psi = getattr(self.prox, "value", None)
        outside = self.domain is not None and not self.domain.confine
        if psi is None and not outside:
            return values
        total = values.clone()
        for i, x in batch.each(torch.isfinite(values).nonzero().flatten().tolist()):
            if outside and not bool(cast(Domain, self.domain).contains(x)):
                total[i] = math.inf
            elif psi is not None:
                total[i] += float(psi(x))
        return total
