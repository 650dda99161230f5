"""The feasibility of a constrained run's queries, and the entries about constraints in the run's result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from optimizers.core.constraint_set import ConstraintSet
from optimizers.core.record import Record

FEASIBILITY_TOL = 1e-6
"""The default tolerance, which is the largest relative violation of a feasible query."""


@dataclass(frozen=True)
class Feasibility:
    """The feasibility of a constrained run's queries; immutable.

    The relative violation of a component is its violation divided by its scale, which is the component's first nonzero
    distance from a bound. Relative violations do not depend on the units of the constraint. A query is feasible if no
    relative violation exceeds the tolerance.

    Attributes:
        sizes: the numbers of components of the evaluated constraints; None before the first query that gave them.
        scales: the scale of each component, shape ``m``; 0 before it is known.
        violations: the largest violation of each query, in order of arrival, NaN for a failed one.
        best: f at the best feasible query, the number of its batch and its index there.
        best_c: c at the best feasible query, shape ``m``.
        least: the least, over successful queries, of a query's largest relative violation.
        x: the query whose violation is ``least``, shape ``d``.
        y: f at x.
        c: c at x, shape ``m``.
    """

    sizes: tuple[int, ...] | None = None
    scales: Tensor | None = None
    violations: tuple[float, ...] = ()
    best: tuple[float, int, int] = (math.inf, 0, 0)
    best_c: Tensor | None = None
    least: float = math.inf
    x: Tensor | None = None
    y: float = math.inf
    c: Tensor | None = None

    def told(
        self,
        known: ConstraintSet,
        values: Any,
        points: Tensor,
        places: Sequence[tuple[int, int]],
        retries: int,
        tolerance: float,
    ) -> tuple[Tensor, Tensor, Feasibility]:
        """Returns the values and the feasibility after queries are added.

        Args:
            known: the constraints.
            values: f and c of each query, see ``ConstraintSet.parse``.
            points: the queries in user units, ``q x d``.
            places: each query's batch number and index there; among equal values the first place in order is the best.
            retries: the number of failed evaluations that were retried.
            tolerance: the largest relative violation of a feasible query.

        Returns:
            (f, c) of each query, ``q x 1 + m``; f, shape ``q``, inf if infeasible, NaN if failed; the new feasibility.
        """
        rows, sizes = known.parse(values, len(places), self.sizes)
        totals, none = rows[:, 0].clone(), (math.nan,) * retries
        if sizes is None or not places:
            none += (math.nan,) * len(places)
            return rows, totals * math.nan, replace(self, sizes=sizes, violations=self.violations + none)
        new, sides = replace(self, sizes=sizes), known.sides(sizes)
        C = np.concatenate([rows[:, 1:].numpy(), known.known_values(points.double().cpu().numpy())], axis=1)
        distances, violations = sides.sizes(C), sides.violations(C)
        scales = np.zeros(C.shape[1]) if self.scales is None else self.scales.numpy()
        worst = np.where(np.isnan(rows[:, 0].numpy()), math.nan, violations.max(axis=1, initial=0.0))
        for i, total in enumerate(totals.tolist()):
            scales = np.where((scales == 0.0) & np.isfinite(distances[i]), distances[i], scales)
            share = float((violations[i] / np.where(scales > 0.0, scales, 1.0)).max(initial=0.0))
            c, place = torch.from_numpy(C[i]), (total, *places[i])
            if math.isnan(worst[i]):
                totals[i] = math.nan
            elif share > tolerance:
                totals[i] = math.inf
            elif place < new.best:
                new = replace(new, best=place, best_c=c)
            if worst[i] >= 0.0 and share < new.least:
                new = replace(new, least=share, x=points[i].clone(), y=total, c=c)
        new = replace(new, scales=torch.from_numpy(scales), violations=(*self.violations, *worst.tolist(), *none))
        return rows, totals, new

    def relative(self, known: ConstraintSet, c: np.ndarray) -> np.ndarray:
        """The largest relative violation of values c, ``... x m``, shape ``...``."""
        assert self.sizes is not None and self.scales is not None
        scales = np.where(self.scales.numpy() > 0.0, self.scales.numpy(), 1.0)
        worst: np.ndarray = (known.sides(self.sizes).violations(c) / scales).max(axis=-1, initial=0.0)
        return worst

    def described(
        self,
        result: dict[str, Any],
        known: ConstraintSet,
        record: Record,
        multipliers: np.ndarray | None,
        tolerance: float,
        expected: np.ndarray | None,
    ) -> dict[str, Any]:
        """Adds the entries about constraints to a result; see ``Result``.

        ``multipliers`` have shape ``m``, or are None if unknown. ``expected`` are the constraints' posterior means at
        the result's x, shape ``m``; None: the observed values are used.
        """
        if len(self.violations) == len(record.places):
            order = sorted(range(len(record.places)), key=record.places.__getitem__)
            result["history"].maxcv = torch.tensor(self.violations, dtype=torch.float64)[order]
        told = self.c if self.best_c is None else self.best_c
        if self.sizes is None or told is None or self.scales is None:
            return result | {"constr_violation": math.inf, "maxcv": math.inf}
        c = told.numpy() if expected is None else expected
        least = self.least if expected is None else float(self.relative(known, c))
        if self.best_c is None if expected is None else least > tolerance:
            result["success"] = False
            result["message"] += (
                f" No query is feasible to feasibility_tol={tolerance:g}: x is the one of the least violation, "
                f"{least:.2g} of a constraint's first distance from its bound."
            )
        sides, columns = known.sides(self.sizes), known.order(self.sizes)
        away = np.minimum(*(np.abs(c - side) for side in (sides.lower, sides.upper)))
        found = np.full(len(c), math.nan) if multipliers is None else multipliers
        violations = sides.violations(c)
        active = (away <= tolerance * self.scales.numpy()) | (violations > 0.0) | (np.nan_to_num(found) != 0.0)
        worst = float(violations.max(initial=0.0))
        return result | {
            "constr_violation": worst,
            "maxcv": worst,
            "constr": torch.from_numpy(c)[columns],
            "multipliers": torch.from_numpy(found)[columns],
            "active": torch.from_numpy(active)[columns],
        }
