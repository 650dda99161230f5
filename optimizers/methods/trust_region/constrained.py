"""Constraints of a trust-region run: their values, their models, the price of a violation and the steps.

Each constraint that is evaluated with f has a pinned Gaussian process over the same queries as f, with the same
hyper-parameters, so that one factor serves all. The run minimizes the merit f + ν max(0, maxᵢ gᵢ), in which each
constraint g ≤ 0 is divided by its slope, so that a violation is a distance and one price ν serves all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from optimizers.core.constraints import ConstraintSet, Sides
from optimizers.methods.trust_region.box import FreeBox
from optimizers.methods.trust_region.region_model import RegionModel
from optimizers.methods.trust_region.rules import ConstraintRule, GeometryRule
from optimizers.methods.trust_region.state import ConstraintData, TrustRegionState
from optimizers.subproblems.elastic import BINDING, Slopes, Values, minimize_elastic, multipliers, violation
from optimizers.subproblems.region import Region
from surrogates.linalg.cholesky import NotPositiveDefiniteError
from surrogates.pinned.columns import ColumnsModel, PinnedColumns
from surrogates.pinned.engine import Conditioned, PinnedModel
from surrogates.pinned.prior import PinnedPrior

SLIGHT = 1e-12
"""A violation of a constraint with ``keep_feasible`` up to this share of the constraint's numbers is rounding."""

HALVINGS = 40
"""The halvings of a segment between a point that keeps such constraints and one that does not."""

GRAINS = 1e-15
"""A predicted decrease under this share of the largest difference of values is a rounding error."""


class ConstraintModels:
    """Keeps the values of a run's constraints, and computes merits, prices and models from them.

    Args:
        known: the constraints.
        box: the free variables.
        rule: the options.
        prior: the constants of the pinned kernel.
    """

    def __init__(self, known: ConstraintSet, box: FreeBox, rule: ConstraintRule, prior: PinnedPrior) -> None:
        self.known, self.rule, self.box, self._prior = known, rule, box, prior

    def sides(self, data: ConstraintData) -> Sides:
        """The rows of all constraints."""
        return self.known.sides(tuple(data.sizes))

    def told(
        self, data: ConstraintData, asked: Tensor, rows: Tensor, sizes: Sequence[int] | None
    ) -> tuple[ConstraintData, Tensor, Tensor]:
        """Takes the values of queries.

        Args:
            data: the values so far.
            asked: the queries, ``q x d_free``.
            rows: (f, c) of each, ``q x 1 + m_evaluated``, NaN where a value is missing.
            sizes: the numbers of components; None where all queries failed so far.

        Returns:
            The values with the new ones; f, shape ``q``, NaN for a failed query; and whether a query failed where
            a constraint is violated, outside of which f is then not defined, shape ``q``.
        """
        rows = rows.double().cpu().reshape(len(asked), -1)
        if sizes is None:
            return data, rows[:, 0], torch.zeros(len(asked), dtype=torch.bool)
        beside = self.known.known_values(self.user(asked))
        whole = torch.cat([rows, torch.from_numpy(beside)], dim=1)
        finite = torch.isfinite(whole)
        succeeded, some = finite.all(dim=1), finite[:, : rows.shape[1]].any(dim=1)
        values = data.values if len(data.sizes) or len(data.values) else whole[:0, 1:]
        data.sizes, data.values = tuple(sizes), torch.cat([values, whole[succeeded, 1:]])
        if len(data.slopes) != data.values.shape[1]:
            data.slopes = torch.ones(data.values.shape[1], dtype=torch.float64)
        partial = ~succeeded & some
        held = data.partial_values if len(data.partial) else whole[:0]
        data.partial = torch.cat([data.partial, asked[partial]])
        data.partial_values = torch.cat([held, whole[partial]])
        violated = torch.from_numpy(self.sides(data).violations(whole[:, 1:].numpy()) > 0.0).any(dim=1)
        explained = ~succeeded & finite[:, 1:].all(dim=1) & violated
        return data, torch.where(succeeded, whole[:, 0], math.nan), explained

    def user(self, points: Tensor) -> np.ndarray:
        """The points in user units, ``q x d``, of their free variables."""
        return self.box.user(points).double().cpu().numpy()

    def merits(self, data: ConstraintData, f: Tensor, numbers: Tensor) -> Tensor:
        """f + ν max(0, max g) of the queries of some numbers, shape ``n``."""
        if not len(numbers):
            return f
        rows = self._rows(data, data.values[numbers].numpy())
        return f + data.price * torch.from_numpy(np.maximum(rows.max(axis=1, initial=0.0), 0.0))

    def _rows(self, data: ConstraintData, c: np.ndarray) -> np.ndarray:
        """The rows g in units of length, of values c, ``... x m``."""
        sides = self.sides(data)
        rows: np.ndarray = sides.rows(c) / data.slopes.numpy()[sides.columns]
        return rows

    def prepare(self, state: TrustRegionState, near: Tensor, center: int) -> None:
        """Sets the slopes of the constraints, and at first the price, by the queries near one of them."""
        data, queries = self._data(state), state.data
        if not len(near):
            data.slopes = torch.ones(data.values.shape[1], dtype=torch.float64)
            return
        lengths = torch.linalg.vector_norm(queries.points[near] - queries.points[center], dim=1)
        changes = (data.values[near] - data.values[center]) / lengths[:, None]
        slopes = changes.square().mean(0).sqrt()
        floor = self.rule.flat * float(slopes.max()) if len(slopes) else 0.0
        data.slopes = slopes.clamp_min(max(floor, 1e-300))
        rate = float(((queries.values[near] - queries.values[center]) / lengths).square().mean().sqrt())
        data.prices = self.rule.least * rate, self.rule.most * max(rate, 1e-300)
        if data.price == 0.0:
            data.price = self.rule.first * rate or 1.0

    def widen(self, state: TrustRegionState, center: int) -> None:
        """Raises Δ where a new price, and not the last query, makes another query the center."""
        run, points, old = state.run, state.data.points, state.run.center_index
        if not run.run_start <= old < len(points) - 1 or center in (old, len(points) - 1):
            return
        distance = float((points[center] - points[old]).norm())
        delta = min(max(run.radius.delta, self.rule.widening * distance), run.radius.largest)
        run.radius = replace(run.radius, delta=delta, rho=max(run.radius.rho, self.rule.finest * delta))

    def _data(self, state: TrustRegionState) -> ConstraintData:
        assert state.constraints is not None
        return state.constraints

    def joint(self, state: TrustRegionState, U: Tensor, heights: Tensor, numbers: Tensor, center: int) -> PinnedColumns:
        """f and the evaluated constraints as the data of one search for hyper-parameters, f half of it."""
        Y = torch.cat([heights[:, None], self._differences(state, numbers, center)], dim=1)
        shares = torch.full((Y.shape[1],), 1.0 / max(1, Y.shape[1] - 1), dtype=torch.float64)
        shares[0] = 1.0
        return PinnedColumns(self._prior, U, Y, shares)

    def _differences(self, state: TrustRegionState, numbers: Tensor, center: int) -> Tensor:
        data = self._data(state)
        evaluated = sum(data.sizes)
        return data.values[numbers, :evaluated] - data.values[center, :evaluated]

    def model(
        self,
        state: TrustRegionState,
        f: RegionModel,
        heights: Tensor,
        numbers: Tensor,
        center: int,
    ) -> ConstrainedModel:
        """The models of f and of all constraints about a query.

        Args:
            state: the state.
            f: the model of f, whose factor the constraints share.
            heights: f at the queries less that at the center, in f's unit.
            numbers: the queries' numbers.
            center: the center's number.
        """
        data, at = self._data(state), state.data.points[center]
        Y = torch.cat([heights[:, None], self._differences(state, numbers, center)], dim=1)
        everything = np.arange(Y.shape[1])
        parts = [(everything, ColumnsModel(f.pinned.given, Y))]
        if bool(self._near(data, at, state.data.points[numbers]).any()):
            parts = self._with_partial(data, f.pinned, f.map, Y, at, data.values[center], state.data.points[numbers])
        return ConstrainedModel(self, f, data, parts, at, data.values[center].numpy())

    def _near(self, data: ConstraintData, at: Tensor, points: Tensor) -> Tensor:
        """Which of the failed queries with some values are as near to a center as a model's queries, shape ``p``."""
        lengths = torch.linalg.vector_norm(data.partial - at, dim=1)
        return (lengths > 0.0) & (lengths <= torch.linalg.vector_norm(points - at, dim=1).max())

    def _with_partial(
        self, data: ConstraintData, pinned: PinnedModel, map: Tensor, Y: Tensor, at: Tensor, c: Tensor, points: Tensor
    ) -> list[tuple[np.ndarray, ColumnsModel]]:
        """The models by columns: those with the same failed queries that gave them share a factor."""
        rows, evaluated = data.partial - at, sum(data.sizes)
        near = self._near(data, at, points)
        known = data.partial_values[near][:, : 1 + evaluated]
        finite = torch.isfinite(known)
        finite[:, 0] = False  # f of a query that failed is not used
        V, parts = rows[near] @ map[:, :-1].mT, []
        for mask in torch.unique(finite, dim=1).mT:
            columns = (finite == mask[:, None]).all(dim=0).nonzero().flatten()
            offset = torch.cat([torch.zeros(1, dtype=torch.float64), c[:evaluated]])[columns]
            more = known[mask][:, columns] - offset
            values = torch.cat([Y[:, columns], more])
            given = pinned.given
            if bool(mask.any()):
                try:
                    given = Conditioned.on(given.prior, torch.cat([given.U, V[mask]]), given.params)
                except NotPositiveDefiniteError:
                    values = Y[:, columns]
            parts.append((columns.numpy(), ColumnsModel(given, values)))
        return parts

    def pulled(self, center: Tensor, points: Tensor, sizes: Sequence[int]) -> Tensor:
        """Points moved toward a center that keeps the constraints with ``keep_feasible``, until they keep them too."""
        if not any(group.keep_feasible for group in self.known.known):
            return points

        def moved(point: Tensor) -> Tensor:
            if not self.breach(point, sizes):
                return point
            low, high = 0.0, 1.0
            for _ in range(HALVINGS):
                middle = 0.5 * (low + high)
                broken = self.breach(center + middle * (point - center), sizes)
                low, high = (low, middle) if broken else (middle, high)
            return center + low * (point - center)

        return torch.stack([moved(point) for point in points])

    def check_start(self, center: Tensor) -> None:
        """Raises ``ValueError`` if the initial point breaks a known constraint with ``keep_feasible``."""
        sizes = self.known.sizes_given or (1,) * len(self.known.evaluated)
        if worst := self.breach(center, sizes):
            raise ValueError(
                f"x0 violates a constraint with keep_feasible=True by {worst:g}: give an x0 that satisfies it, or "
                "keep_feasible=False"
            )

    def breach(self, point: Tensor, sizes: Sequence[int]) -> float:
        """The largest violation of a known constraint with ``keep_feasible``; 0 if all are rounding errors."""
        of = tuple(sizes)
        c = np.concatenate([np.zeros(sum(of)), self.known.known_values(self.user(point[None]))[0]])
        violations = self.known.sides(of).violations(c)
        slight = violations <= SLIGHT * np.maximum(self.known.magnitudes(of), np.abs(c))
        return float(np.where(slight, 0.0, violations)[self.known.kept(of)].max(initial=0.0))


class ConstrainedModel:
    """The models of f and of the constraints about a center, in f's units and in units of length.

    Args:
        models: what made it.
        f: the model of f.
        data: the constraints' values, whose price a step changes.
        parts: the columns of f (0) and of the evaluated constraints, each set with its model.
        center: shape ``d_free``.
        c: the constraints' values at the center, shape ``m``.
    """

    def __init__(
        self,
        models: ConstraintModels,
        f: RegionModel,
        data: ConstraintData,
        parts: list[tuple[np.ndarray, ColumnsModel]],
        center: Tensor,
        c: np.ndarray,
    ) -> None:
        self._models, self._f, self._data, self._parts = models, f, data, parts
        self._map, self._unit = f.map[:, :-1].numpy(), f.unit
        self._center, self.sides, self.rule = center, models.sides(data), models.rule
        self._evaluated = sum(data.sizes)
        self._units = data.slopes.numpy()[self.sides.columns]
        self._c, self._deviations = c.copy(), np.zeros(1 + self._evaluated)
        for columns, model in parts:
            inner = columns[columns > 0] - 1
            self._c[inner] += model.pin_offsets[columns > 0]
            self._deviations[columns] = model.deviations
        kept = models.known.kept(tuple(data.sizes))
        self._hard = kept[self.sides.columns]
        self._last: tuple[np.ndarray, float] = (np.zeros(len(center)), 0.0)

    def components(self, s: np.ndarray) -> np.ndarray:
        """The constraints expected at a step, shape ``m``."""
        means = self._means(self._map @ s)
        return np.concatenate([self._c[: self._evaluated] + means[1:], self._known_values(s)])

    def _means(self, v: np.ndarray) -> np.ndarray:
        means = np.empty(1 + self._evaluated)
        for columns, model in self._parts:
            means[columns] = model.means(v)
        return means

    def _known_values(self, s: np.ndarray) -> np.ndarray:
        known = self._models.known
        if not known.known:
            return np.empty(0)
        return known.known_values(self._models.box.user_geometry(self._center + torch.from_numpy(s))[0][None])[0]

    def _known_slopes(self, s: np.ndarray) -> np.ndarray:
        known = self._models.known
        if not known.known:
            return np.empty((0, len(s)))
        x, free, unit, upper = self._models.box.user_geometry(self._center + torch.from_numpy(s))
        slopes: np.ndarray = (known.known_jacobian(x, unit, upper) * unit)[:, free]
        return slopes

    def values(self, s: np.ndarray) -> Values:
        """f in its units less that at the center, and the rows of the constraints in units of length."""
        v = self._map @ s
        means = self._means(v)
        c = np.concatenate([self._c[: self._evaluated] + means[1:], self._known_values(s)])
        rows = self.sides.rows(c) / self._units
        if self.rule.deviations:
            for inside, weights, model in self._uncertain():
                rows[inside] += weights * model.deviation(v)[0]
        return Values(float(self._unit * means[0]), rows)

    def slopes(self, s: np.ndarray) -> Slopes:
        """The gradients of ``values``."""
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
        """Yields, for each model, the rows of its inequalities, their margins in standard deviations, ``r``, and it."""
        columns, unequal = self.sides.columns, self.sides.lower < self.sides.upper
        for part, model in self._parts:
            inside = np.flatnonzero(np.isin(columns + 1, part) & (columns < self._evaluated) & unequal[columns])
            yield inside, self.rule.deviations * self._deviations[1 + columns[inside]] / self._units[inside], model

    def means(self) -> np.ndarray:
        """f in its unit and the evaluated constraints expected at the model's queries, less those at the center."""
        n = min(len(model.means_at_data()) for _, model in self._parts)
        at = np.empty((n, 1 + self._evaluated))
        for columns, model in self._parts:
            at[:, columns] = model.means_at_data()[:n]
        return at

    def merits(self, observed: Tensor) -> Tensor:
        """The merits expected at the model's queries less that at the center, shape ``n``.

        Args:
            observed: the constraints observed there, ``n x m``, of which the known ones are exact.
        """
        at = self.means()
        c = np.concatenate([self._c[: self._evaluated] + at[:, 1:], observed[:, self._evaluated :].numpy()], axis=1)
        rows = self.sides.rows(c) / self._units
        worst = np.maximum(rows.max(axis=1, initial=0.0), 0.0)
        here = violation(self.sides.rows(self._c) / self._units)
        return torch.from_numpy(self._unit * at[:, 0] + self._data.price * (worst - here))

    def hessian(self) -> Tensor:
        """The Hessian of the Lagrangian at the center for the last multipliers, in f's unit, ``d + 1 x d + 1``."""
        weights = np.zeros(len(self.sides.lower))
        if len(self._data.multipliers) == len(self.sides.columns):
            np.add.at(weights, self.sides.columns, self._data.multipliers.numpy() * self.sides.signs / self._units)
        all_weights = np.concatenate([[0.0], weights[: self._evaluated] / self._unit])
        H = sum(model.weighted_hessian(all_weights[columns]) for columns, model in self._parts)
        found = self._f.hessian.clone()
        found[:-1, :-1] += torch.from_numpy(self._map.T @ H @ self._map)
        return found

    def step(self, region: Region, newton: int) -> tuple[Tensor, float]:
        """A step to a low merit in a region, shape ``d``, and the merit expected there less that at the center.

        Changes the price: it must exceed the sum of the multipliers, and falls when they do.
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
            # A step that ends inside of the ball and violates a constraint is what too low a price gives.
            cheap = length < self.rule.inside * delta and violation(there.rows) > BINDING * delta
            self._set_price(max(float(found.sum()), self.rule.dearer * data.price if cheap else 0.0))
        fall = self.values(zero).merit(data.price) - there.merit(data.price)
        largest = max(self._unit * float(np.abs(self.means()[:, 0]).max(initial=0.0)), 1e-300)
        if not fall > GRAINS * largest:
            fall = 0.0
        self._last = s, fall
        return torch.from_numpy(s), -fall

    def multipliers(self, points: Tensor, slack: np.ndarray) -> np.ndarray:
        """The multiplier of each constraint at the center, shape ``m``: ∇f + Σ λⱼ∇cⱼ = 0 where the box is not touched.

        It is at most 0 at a lower bound and at least 0 at an upper one, in units of f over those of the constraint.

        Args:
            points: the model's queries, ``n x d_free``; their distances say how near to 0 a constraint binds.
            slack: a distance of each constraint from its bound at which it binds all the same, shape ``m``.
        """
        zero, box = np.zeros(len(self._center)), self._models.box
        distances = torch.linalg.vector_norm(points - self._center, dim=1).sort().values
        reach = BINDING * float(distances[min(len(zero), len(distances)) - 1])
        region = Region(reach / BINDING, box.lower - self._center, box.upper - self._center)
        near = np.maximum(reach, slack[self.sides.columns] / self._units)
        found = multipliers(self.values(zero).rows, self.slopes(zero), zero, region, near)
        total = np.zeros(len(self.sides.lower))
        np.add.at(total, self.sides.columns, self.sides.signs * found / self._units)
        return total

    def _margin(self, length: float) -> np.ndarray:
        """How far inside of each row a step of some length is to stay."""
        data = self._data
        if len(data.errors) != len(self.sides.lower):
            return np.zeros(len(self.sides.columns))
        share = self.rule.margin * min(1.0, (length / data.error_length) ** 2)
        margin: np.ndarray = share * data.errors.numpy()[self.sides.columns] / self._units
        equal = (self.sides.lower == self.sides.upper)[self.sides.columns]
        return np.where(equal | self._hard, 0.0, margin)

    def _solve(self, region: Region, start: np.ndarray, length: float, hessian: np.ndarray) -> np.ndarray:
        margin = self._margin(length)
        return minimize_elastic(self, self._data.price, region, start, margin, self._hard, hessian)

    def _set_price(self, total: float) -> None:
        data, rule = self._data, self.rule
        if not total > 0.0:
            return
        data.wanted = (*data.wanted[-int(rule.kept) + 1 :], rule.above * total)
        data.price = min(max(*data.wanted, data.prices[0]), 10.0 * data.price, data.prices[1])

    def geometry_direction(self, rule: GeometryRule, region: Region) -> Tensor | None:
        """The rule's unit vector, shape ``d``, away from the plane; None where the merit's slope is known well enough.

        All functions share a covariance but for its scale, so that the merit's is f's times a number. The merit's slope
        is along the step, and as large as its fall over its length.
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
        e = rule.direction(self.hessian()[:d, :d], covariance, slope, region.delta)
        return None if e is None else region.away(e)
