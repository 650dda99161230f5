"""An objective that counts its queries, for methods other than this project's."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.optimize import NonlinearConstraint
from torch import Tensor

from optimizers.core.bounds import Domain
from optimizers.core.constraint_set import ConstraintSet, Sides
from optimizers.core.constraints import CheapConstraint, ConstrainedObjective, ConstraintsLike, parse_constraints
from optimizers.core.feasibility import FEASIBILITY_TOL, Feasibility
from optimizers.core.space import handed_out
from optimizers.core.values import InvalidValueError, parse_values

logger = logging.getLogger(__name__)


class Ended(Exception):
    """Raised to end a method: at a query beyond its budget, at its target, or after an error of the objective."""


@dataclass
class Queries:
    """An objective that counts queries and raises ``Ended`` when the budget is spent.

    f is evaluated at the projection of a point onto the box. A failed query (NaN, inf, an exception after the first
    query, a point that is not finite) returns the worst value so far, or inf before the first success.

    With constraints, f and the constraints at a point are one query, even if a method asks for them at different times.

    Attributes:
        fun: takes a point of shape ``d`` (``1 x d`` if ``batched``), a tensor like ``lower`` or an array.
        lower: lower bounds, shape ``d``; −inf for none.
        upper: upper bounds, shape ``d``; inf for none.
        max_queries: the budget; failed queries count.
        numpy: whether ``fun`` gets arrays.
        batched: whether ``fun`` takes and returns several points at once.
        target: the run ends when a feasible value is at most this.
        integrality: which variables are integers, shape ``d``; they are rounded. None: no variable.
        domain: the domain of a ``Space``; methods then work in its search coordinates. Otherwise None.
        constraints: the constraints as ``minimize`` takes them, or None.
        x0: a point, shape ``d``, at which linear and cheap constraints are evaluated to count their components.
        values: f of each query, NaN if it failed or is infeasible.
        least: the least of ``values``; inf before the first success.
        worst: the greatest f, also of infeasible queries; −inf before the first success.
        error: the objective's exception that ended the run.
    """

    fun: Callable[[Any], Any]
    lower: Tensor
    upper: Tensor
    max_queries: int
    numpy: bool = False
    batched: bool = False
    target: float | None = None
    integrality: Tensor | None = None
    domain: Domain | None = None
    constraints: ConstraintsLike | None = None
    x0: Tensor | None = None
    values: list[float] = field(default_factory=list)
    least: float = math.inf
    worst: float = -math.inf
    error: BaseException | None = None

    def __post_init__(self) -> None:
        if self.constraints is None or self.x0 is None:
            return
        groups = parse_constraints(self.constraints)
        self._set = ConstraintSet(groups, self.x0.double().cpu().numpy())
        self._feasibility = Feasibility(self._set.sizes_given)
        self.fun = ConstrainedObjective(self.fun, tuple(self._set.evaluated), self.batched)
        self._known: dict[bytes, tuple[float, np.ndarray]] = {}
        self._last = np.zeros(sum(self._set.sizes_given or ()))

    def projected(self, x: Any) -> Tensor:
        """The nearest point in the box with whole numbers in the integer variables, shape ``d``."""
        point = torch.as_tensor(np.array(x, dtype=np.float64)).to(self.lower).clamp(self.lower, self.upper)
        return point if self.integrality is None else torch.where(self.integrality, point.round(), point)

    def __call__(self, x: np.ndarray) -> float:
        """f at the projection of x, shape ``d``."""
        point = self.projected(x)
        return self._queried(point) if self.constraints is None else self._remembered(point)[0]

    def evaluated(self, x: np.ndarray) -> np.ndarray:
        """The constraints evaluated with f, at the projection of x; after a failed query, their last values."""
        return self._remembered(self.projected(x))[1]

    def rows(self, x: np.ndarray) -> np.ndarray:
        """All constraints as rows g ≤ 0 at the projection of x onto the box, shape ``r``.

        Raises:
            ValueError: if all queries so far failed, so that the number of constraints is not known.
        """
        point, evaluated = self.projected(x)[None].double().cpu().numpy(), self.evaluated(x)
        return self._sides.rows(np.concatenate([evaluated, self._set.known_values(point)[0]]))

    def scipy_constraints(self, name: str, start: np.ndarray) -> list[Any]:
        """Converts the constraints to the form that a method of SciPy takes.

        SLSQP gets dictionaries, so that SciPy uses the same finite-difference steps for f and the constraints.

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
            self(start)
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

    @property
    def _sizes(self) -> tuple[int, ...]:
        if (sizes := self._feasibility.sizes) is None:
            raise InvalidValueError(
                "the query at the start failed, so the number of constraints is not known: choose another start"
            )
        return sizes

    @property
    def _sides(self) -> Sides:
        return self._set.sides(self._sizes)

    def _remembered(self, point: Tensor) -> tuple[float, np.ndarray]:
        """f and the constraints evaluated with it."""
        if (key := point.cpu().numpy().tobytes()) not in self._known:
            self._known[key] = self._queried(point), self._last
        return self._known[key]

    def _queried(self, point: Tensor) -> float:
        reached = self.target is not None and self.least <= self.target
        if reached or len(self.values) >= self.max_queries or self.error is not None:
            raise Ended
        self.values.append(math.nan)
        try:
            value, feasible = self._value(point)
        except BaseException as error:
            self.error = error
            raise
        if math.isnan(value):
            return self.worst if self.worst > -math.inf else math.inf
        self.worst = max(self.worst, value)
        if feasible:
            self.values[-1], self.least = value, min(self.least, value)
        return value

    def _value(self, point: Tensor) -> tuple[float, bool]:
        """f, NaN for a failed query, and whether the point is feasible."""
        if not bool(point.isfinite().all()):
            return math.nan, False
        space = None if self.domain is None else self.domain.space
        point = point if self.domain is None else self.domain.to_user(point)
        given = handed_out(point[None] if self.batched else point, space, arrays=self.numpy)
        try:
            found = self.fun(given)
        except Exception:
            if len(self.values) == 1:
                raise
            logger.warning("query %d failed", len(self.values), exc_info=True)
            return math.nan, False
        if self.constraints is None:
            return float(parse_values(found, 1)), True
        places = [(len(self.values), 0)]
        row, total, self._feasibility = self._feasibility.told(
            self._set, found, point[None], places, 0, FEASIBILITY_TOL
        )
        if not bool(torch.isfinite(row).all()):
            return math.nan, False
        self._last = row[0, 1:].numpy()
        return float(row[0, 0]), bool(torch.isfinite(total[0]))
