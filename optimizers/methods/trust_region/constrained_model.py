"""The joint model of f and the constraints about a center, and the steps and multipliers computed from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from optimizers.core.constraint_set import ConstraintSet
from optimizers.methods.trust_region.box import FreeBox
from optimizers.methods.trust_region.region_model import RegionModel
from optimizers.methods.trust_region.rules import ConstraintRule, GeometryRule
from optimizers.methods.trust_region.state import ConstraintData
from optimizers.subproblems.elastic import BINDING, Slopes, Values, minimize_elastic, multipliers, violation
from optimizers.subproblems.region import Region
from surrogates.pinned.columns import ColumnsModel

GRAINS = 1e-15
"""A predicted decrease below this fraction of the largest difference of values is a rounding error."""


class ConstrainedModel:
    """The joint model of f, in f's units, and of the constraints, as distances, about a center.

    Args:
        known: the constraints.
        box: the box of the free variables.
        rule: the options.
        f: the model of f.
        data: the constraints' values and the price; ``step`` updates the price.
        parts: the models, each with the indices of its functions: 0 for f, 1, 2, … for the evaluated constraints.
        center: the center, shape ``d_free``.
        c: the constraints' values at the center, shape ``m``.
    """

    def __init__(
        self,
        known: ConstraintSet,
        box: FreeBox,
        rule: ConstraintRule,
        f: RegionModel,
        data: ConstraintData,
        parts: list[tuple[np.ndarray, ColumnsModel]],
        center: Tensor,
        c: np.ndarray,
    ) -> None:
        self._known, self._box, self.rule = known, box, rule
        self._f, self._data, self._parts = f, data, parts
        self._map, self._unit = f.map[:, :-1].numpy(), f.unit
        self._center, self.sides = center, known.sides(tuple(data.sizes))
        self._evaluated = sum(data.sizes)
        self._units = data.slopes.numpy()[self.sides.columns]
        self._c, self._deviations = c.copy(), np.zeros(1 + self._evaluated)
        for columns, model in parts:
            inner = columns[columns > 0] - 1
            self._c[inner] += model.pin_offsets[columns > 0]
            self._deviations[columns] = model.deviations
        self._hard = known.kept(tuple(data.sizes))[self.sides.columns]
        self._avoided = known.kept(tuple(data.sizes), known=False)[self.sides.columns]
        self._last: tuple[np.ndarray, float] = (np.zeros(len(center)), 0.0)

    def expected_at(self, s: np.ndarray) -> tuple[float, np.ndarray]:
        """Predicts f at a step minus f at the center, in the model's unit, and the constraints, shape ``m``."""
        means, v = np.empty(1 + self._evaluated), self._map @ s
        for columns, model in self._parts:
            means[columns] = model.means(v)
        return float(means[0]), np.concatenate([self._c[: self._evaluated] + means[1:], self._known_values(s)])

    def _known_values(self, s: np.ndarray) -> np.ndarray:
        if not self._known.known:
            return np.empty(0)
        return self._known.known_values(self._box.user_geometry(self._center + torch.from_numpy(s))[0][None])[0]

    def _known_slopes(self, s: np.ndarray) -> np.ndarray:
        if not self._known.known:
            return np.empty((0, len(s)))
        x, free, unit, upper = self._box.user_geometry(self._center + torch.from_numpy(s))
        slopes: np.ndarray = (self._known.known_jacobian(x, unit, upper) * unit)[:, free]
        return slopes

    def values(self, s: np.ndarray) -> Values:
        """Predicts f at a step minus f at the center, in f's units, and the one-sided constraints as distances."""
        f, c = self.expected_at(s)
        rows = self.sides.rows(c) / self._units
        if self.rule.deviations:
            for inside, weights, model in self._uncertain():
                rows[inside] += weights * model.deviation(self._map @ s)[0]
        return Values(self._unit * f, rows)

    def slopes(self, s: np.ndarray) -> Slopes:
        """Computes the gradients of ``values`` at a step."""
        v = self._map @ s
        gradients = np.empty((1 + self._evaluated, len(v)))
        for columns, model in self._parts:
            gradients[columns] = model.gradients(v)
        found = gradients @ self._map
        slopes = np.concatenate([found[1:], self._known_slopes(s)])[self.sides.columns]
        slopes *= (self.sides.signs / self._units)[:, None]
        if self.rule.deviations:
            for inside, weights, model in self._uncertain():
                slopes[inside] += weights[:, None] * (model.deviation(v)[1] @ self._map)
        return self._unit * found[0], slopes

    def _uncertain(self) -> Iterator[tuple[np.ndarray, np.ndarray, ColumnsModel]]:
        """Yields each model's rows of inequalities, the size of one unit of ``deviation`` in each, and the model."""
        columns, unequal = self.sides.columns, self.sides.lower < self.sides.upper
        for part, model in self._parts:
            inside = np.flatnonzero(np.isin(columns + 1, part) & (columns < self._evaluated) & unequal[columns])
            yield inside, self.rule.deviations * self._deviations[1 + columns[inside]] / self._units[inside], model

    def means(self) -> np.ndarray:
        """Computes the posterior means of f and the evaluated constraints at the queries, minus those at the center."""
        n = min(len(model.means_at_data()) for _, model in self._parts)
        at = np.empty((n, 1 + self._evaluated))
        for columns, model in self._parts:
            at[:, columns] = model.means_at_data()[:n]
        return at

    def merits(self, observed: Tensor) -> Tensor:
        """Computes the expected merits at the model's queries minus the expected merit at the center, shape ``n``.

        Known constraints have their values in ``observed``, ``n x m``.
        """
        rows = self.sides.rows(self.expected(observed)) / self._units
        worst = rows.max(axis=1, initial=0.0)
        return torch.from_numpy(self._unit * self.means()[:, 0] + self._data.price * (worst[:-1] - worst[-1]))

    def expected(self, observed: Tensor) -> np.ndarray:
        """Predicts the constraints at the model's queries and, last, at the center, ``n + 1 x m``; see ``merits``."""
        evaluated = self._c[: self._evaluated] + self.means()[:, 1:]
        at_queries = np.concatenate([evaluated, observed[:, self._evaluated :].numpy()], axis=1)
        return np.vstack([at_queries, self._c])

    @property
    def noisy(self) -> bool:
        """Whether the model of f or of a constraint has noise."""
        return any(model.noise > 0.0 for _, model in self._parts)

    def rise(self, s: np.ndarray) -> float:
        """Predicts the merit at a step minus the merit at the center."""
        price = self._data.price
        return self.values(s).merit(price) - self.values(np.zeros(len(s))).merit(price)

    def hessian(self) -> Tensor:
        """Computes the Hessian of the Lagrangian at the center for the last step's multipliers, ``d + 1 x d + 1``."""
        weights = np.zeros(len(self.sides.lower))
        if len(self._data.multipliers) == len(self.sides.columns):
            np.add.at(weights, self.sides.columns, self._data.multipliers.numpy() * self.sides.signs / self._units)
        all_weights = np.concatenate([[0.0], weights[: self._evaluated] / self._unit])
        H = sum(model.weighted_hessian(all_weights[columns]) for columns, model in self._parts)
        found = self._f.hessian.clone()
        found[:-1, :-1] += torch.from_numpy(self._map.T @ H @ self._map)
        return found

    def step(self, region: Region, newton: int) -> tuple[Tensor, float]:
        """Finds a step to a low merit in a region, shape ``d``, and predicts the change of the merit.

        The step's multipliers update the price, which must exceed their sum.
        """
        data, delta = self._data, region.delta
        zero, hessian = np.zeros(len(self._center)), self.hessian()[:-1, :-1].numpy() * self._unit
        s = self._solve(region, zero, delta, hessian)
        length = float(np.linalg.norm(s))
        if length < 0.5 * delta and region.half_space is None:
            # Margins fall with the square of the length, and a smaller ball makes the solution more precise.
            shorter = max(length, self.rule.shortest * delta)
            s = self._solve(replace(region, delta=2.0 * shorter), s, shorter, hessian)
            length = float(np.linalg.norm(s))
        there, reach = self.values(s), BINDING * max(length, self.rule.shortest * delta)
        found = multipliers(there.rows, self.slopes(s), s, region, reach)
        if not np.isnan(found).any():
            data.multipliers = torch.from_numpy(found)
            # A step that ends inside the ball and violates a constraint shows that the price is too low.
            cheap = length < self.rule.inside * delta and violation(there.rows) > BINDING * delta
            self._set_price(max(float(found.sum()), self.rule.dearer * data.price if cheap else 0.0))
        fall = self.values(zero).merit(data.price) - there.merit(data.price)
        largest = max(self._unit * float(np.abs(self.means()[:, 0]).max(initial=0.0)), 1e-300)
        if not fall > GRAINS * largest:
            fall = 0.0
        self._last = s, fall
        return torch.from_numpy(s), -fall

    def multipliers(self, points: Tensor, slack: np.ndarray) -> np.ndarray:
        """Computes the multiplier λⱼ of each constraint at the center, shape ``m``, in units of f over units of cⱼ.

        They solve ∇f + Σ λⱼ∇cⱼ = 0 if no bound of a variable is active, with λⱼ ≤ 0 at a constraint's lower bound and
        λⱼ ≥ 0 at its upper bound.

        Args:
            points: the model's queries, ``n x d_free``; their distances determine how near to its bound a constraint is
                active.
            slack: the distance from its bound within which each constraint is active in any case, shape ``m``.
        """
        zero, box = np.zeros(len(self._center)), self._box
        distances = torch.linalg.vector_norm(points - self._center, dim=1).sort().values
        reach = BINDING * float(distances[min(len(zero), len(distances)) - 1])
        region = Region(reach / BINDING, box.lower - self._center, box.upper - self._center)
        near = np.maximum(reach, slack[self.sides.columns] / self._units)
        found = multipliers(self.values(zero).rows, self.slopes(zero), zero, region, near)
        total = np.zeros(len(self.sides.lower))
        np.add.at(total, self.sides.columns, self.sides.signs * found / self._units)
        return total

    def _margin(self, length: float) -> np.ndarray:
        """How far inside each constraint a step of a given length must stay, shape ``r``."""
        data, margin = self._data, np.zeros(len(self.sides.columns))
        if len(data.errors) == len(self.sides.lower):
            share = self.rule.margin * min(1.0, (length / data.error_length) ** 2)
            margin = share * data.errors.numpy()[self.sides.columns] / self._units
        equal = (self.sides.lower == self.sides.upper)[self.sides.columns]
        return np.where(equal | self._hard, 0.0, np.maximum(margin, self.rule.rounding * self._avoided))

    def _solve(self, region: Region, start: np.ndarray, length: float, hessian: np.ndarray) -> np.ndarray:
        margin, price = self._margin(length), self._data.price
        return minimize_elastic(self.values, self.slopes, price, region, start, margin, self._hard, hessian)

    def _set_price(self, total: float) -> None:
        data, rule = self._data, self.rule
        if not total > 0.0:
            return
        data.wanted = (*data.wanted[-int(rule.kept) + 1 :], rule.above * total)
        data.price = min(max(*data.wanted, data.prices[0]), 10.0 * data.price, data.prices[1])

    def geometry_direction(self, rule: GeometryRule, region: Region) -> Tensor | None:
        """Returns the direction of a geometry-improving query, shape ``d``; None if the merit's slope is well known.

        The covariance of the merit's slope is approximated by a multiple of the covariance of ∇f. The slope itself is
        assumed to lie along the step, with the size of the predicted decrease divided by the step's length.
        """
        s, fall = self._last
        square, d, f = float(s @ s), len(s), self._f
        slope = torch.from_numpy(s * (-fall / self._unit / square if square > 0.0 else 0.0))
        near = np.flatnonzero(self.sides.rows(self._c) / self._units > -0.5 * region.delta)
        near, share = near[self.sides.columns[near] < self._evaluated], 1.0
        if len(near):
            deviations = self._deviations[1 + self.sides.columns[near]] * self._data.price / self._units[near]
            share += float((deviations**2).sum()) / (self._unit * max(self._deviations[0], 1e-150)) ** 2 / len(near)
        covariance = share * f.gradient_covariance()[:d, :d]
        e = rule.direction(self.hessian()[:d, :d], covariance, slope, region.delta, region.free)
        return None if e is None else region.away(e)
