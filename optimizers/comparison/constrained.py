"""A constrained objective as methods from outside call it: f and the constraints at one point are one query."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.optimize import NonlinearConstraint
from torch import Tensor

from optimizers.comparison.outside import Ended, Queries
from optimizers.core.constraint_set import ConstraintSet, Sides
from optimizers.core.constraints import (
    CheapConstraint,
    ConstrainedObjective,
    ConstraintsLike,
    parse_constraints,
)
from optimizers.core.feasibility import FEASIBILITY_TOL, Feasibility
from optimizers.core.values import InvalidValueError


@dataclass
class ConstrainedQueries:
    """Remembers the values at each point, as SciPy's methods ask for f and for c at different moments.

    Attributes:
        queries: counts the queries; its objective is replaced by one that also evaluates the constraints.
        constraints: as ``minimize`` takes them.
        x0: the initial point, shape ``d``.
        target: the run ends once a feasible value is at most this.
        totals: f of each query, NaN for one that failed or is infeasible.
    """

    queries: Queries
    constraints: ConstraintsLike
    x0: Tensor
    target: float | None = None
    totals: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        groups = parse_constraints(self.constraints)
        self._set = ConstraintSet(groups, self.x0.double().cpu().numpy())
        self._feasibility = Feasibility(self._set.sizes_given)
        evaluated, queries = tuple(group for group in groups if not group.known), self.queries
        self._objective = ConstrainedObjective(queries.fun, evaluated, queries.batched)
        queries.fun, queries.batched = self._evaluate, False
        self._batched = self._objective.batched
        self._known: dict[bytes, tuple[float, np.ndarray]] = {}
        self._last = np.zeros(sum(self._set.sizes_given or ()))

    def _evaluate(self, point: Any) -> float:
        """f at a point, NaN where the query failed; keeps the constraints."""
        value = self._objective(point[None] if self._batched else point)[0]
        x = torch.as_tensor(np.asarray(point)) if not isinstance(point, Tensor) else point
        places = [(len(self.totals), 0)]
        told, totals, self._feasibility = self._feasibility.told(
            self._set, [value], x[None], places, 0, FEASIBILITY_TOL
        )
        self.totals.append(float(totals[0]) if math.isfinite(float(totals[0])) else math.nan)
        if bool(torch.isfinite(told).all()):
            self._last = told[0, 1:].numpy()
            return float(told[0, 0])
        return math.nan

    def value(self, x: np.ndarray) -> float:
        """f at the projection of x onto the box, shape ``d``; the worst value so far for a failed query."""
        return self._at(x)[0]

    def evaluated(self, x: np.ndarray) -> np.ndarray:
        """The evaluated constraints there, shape ``m``; those of the last success for a failed query."""
        return self._at(x)[1]

    def _projected(self, x: np.ndarray) -> np.ndarray:
        lower, upper = (side.cpu().numpy() for side in (self.queries.lower, self.queries.upper))
        return np.clip(np.asarray(x, dtype=np.float64), lower, upper)

    def _at(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        if (key := self._projected(x).tobytes()) not in self._known:
            if self.target is not None and any(total <= self.target for total in self.totals):
                raise Ended
            before, value = len(self.totals), self.queries(x)
            if len(self.totals) == before:  # the objective raised
                self.totals.append(math.nan)
            self._known[key] = value, self._last
        return self._known[key]

    def rows(self, x: np.ndarray) -> np.ndarray:
        """All constraints as rows g ≤ 0 at the projection of x onto the box, shape ``r``.

        Raises:
            ValueError: if all queries so far failed, so that the number of constraints is not known.
        """
        evaluated, point = self.evaluated(x), self._projected(x)
        return self._sides.rows(np.concatenate([evaluated, self._set.known_values(point[None])[0]]))

    @property
    def _sizes(self) -> tuple[int, ...]:
        if (sizes := self._feasibility.sizes) is None:
            raise InvalidValueError("the query at the start failed: methods from outside need its constraints")
        return sizes

    @property
    def _sides(self) -> Sides:
        return self._set.sides(self._sizes)

    def scipy(self, name: str, start: np.ndarray) -> list[Any]:
        """The constraints as SciPy's methods take them.

        SLSQP gets dictionaries: SciPy makes these of a NonlinearConstraint, for which it evaluates differences at the
        start with another step than that of f's differences.

        Raises:
            ValueError: if the query at the start fails, so that the number of constraints is not known.
        """
        several = self.constraints if isinstance(self.constraints, list | tuple) else [self.constraints]
        given = [
            c.constraint if isinstance(c, CheapConstraint) else c for c in several if parse_constraints(c)[0].known
        ]
        if not self._set.evaluated:
            return given
        if self._feasibility.sizes is None:
            self.value(start)
        count = sum(self._sizes)
        lower, upper = (side[:count] for side in (self._sides.lower, self._sides.upper))
        if name != "slsqp":
            return [NonlinearConstraint(self.evaluated, lower, upper), *given]
        equal = lower == upper
        rest = Sides(lower[~equal], upper[~equal])
        kinds: list[tuple[str, Any, bool]] = [
            ("eq", lambda x: self.evaluated(x)[equal] - lower[equal], equal.any()),
            ("ineq", lambda x: -rest.rows(self.evaluated(x)[~equal]), not equal.all()),
        ]
        return [*({"type": kind, "fun": fun} for kind, fun, some in kinds if some), *given]
