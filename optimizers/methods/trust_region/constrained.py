"""The constraints of a trust-region run: their values, their models, and the price of a violation.

The run minimizes the merit f + ν max(0, maxᵢ gᵢ). Each constraint gᵢ ≤ 0 is divided by its slope, so that a violation
is a distance and one price ν suffices. Each constraint that is evaluated with f has a pinned Gaussian process over the
same queries as f. By default all processes share hyper-parameters and one Cholesky factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from optimizers.core.constraint_set import ConstraintSet, Sides
from optimizers.methods.trust_region.box import FreeBox
from optimizers.methods.trust_region.constrained_model import ConstrainedModel
from optimizers.methods.trust_region.region_model import RegionModel
from optimizers.methods.trust_region.rules import ConstraintRule
from optimizers.methods.trust_region.state import ConstraintData, TrustRegionState
from surrogates.linalg.cholesky import NotPositiveDefiniteError
from surrogates.pinned.columns import ColumnsModel, PinnedColumns
from surrogates.pinned.engine import Conditioned, PinnedData, ShapeSearch
from surrogates.pinned.prior import Hyperparameters, PinnedPrior

SLIGHT = 1e-12
"""A violation of a constraint with ``keep_feasible`` up to this fraction of its values is a rounding error."""

HALVINGS = 40
"""The number of bisections between a feasible center and an infeasible point."""


class ConstraintModels:
    """Computes merits, prices and models of the constraints from their values at the queries.

    Args:
        known: the constraints.
        box: the box of the free variables.
        rule: the options.
        prior: the constants of the pinned kernel.
    """

    def __init__(self, known: ConstraintSet, box: FreeBox, rule: ConstraintRule, prior: PinnedPrior) -> None:
        self.known, self.rule, self.box, self._prior = known, rule, box, prior

    def sides(self, data: ConstraintData) -> Sides:
        """Returns the one-sided constraints g ≤ 0 into which all constraints are split."""
        return self.known.sides(tuple(data.sizes))

    def told(
        self, data: ConstraintData, asked: Tensor, rows: Tensor, sizes: Sequence[int] | None
    ) -> tuple[ConstraintData, Tensor, Tensor]:
        """Adds the constraints' values at new queries.

        Args:
            data: the values at earlier queries.
            asked: the new queries, ``q x d_free``.
            rows: (f, c) at each new query, ``q x 1 + m_evaluated``; NaN where a value is missing.
            sizes: the number of components of each evaluated constraint; None if all queries have failed so far.

        Returns:
            The values at all queries; f at the new ones, shape ``q``, NaN for a failed query; and whether a new query
            failed at a point that violates a constraint, shape ``q``.
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
        """Converts points, ``q x d_free``, to user units, ``q x d``."""
        return self.box.user(points).double().cpu().numpy()

    def merits(self, data: ConstraintData, f: Tensor, numbers: Tensor) -> Tensor:
        """Computes the merits f + ν max(0, max g), shape ``n``, at queries of indices ``numbers`` with values f."""
        if not len(numbers):
            return f
        rows = self._rows(data, data.values[numbers].numpy())
        return f + data.price * torch.from_numpy(np.maximum(rows.max(axis=1, initial=0.0), 0.0))

    def _rows(self, data: ConstraintData, c: np.ndarray) -> np.ndarray:
        """Converts values c, ``... x m``, to rows g in units of length."""
        sides = self.sides(data)
        rows: np.ndarray = sides.rows(c) / data.slopes.numpy()[sides.columns]
        return rows

    def prepare(self, state: TrustRegionState, near: Tensor, center: int) -> None:
        """Computes the slopes of the constraints from the queries near a center, and the first price of a run."""
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
        """Raises Δ if the center moves to an earlier query because the price has changed."""
        run, points, old = state.run, state.data.points, state.run.center_index
        if not run.run_start <= old < len(points) - 1 or center in (old, len(points) - 1):
            return
        distance = float((points[center] - points[old]).norm())
        delta = min(max(run.radius.delta, self.rule.widening * distance), run.radius.largest)
        run.radius = replace(run.radius, delta=delta, rho=max(run.radius.rho, self.rule.finest * delta))

    def _data(self, state: TrustRegionState) -> ConstraintData:
        assert state.constraints is not None
        return state.constraints

    def fitted(
        self,
        state: TrustRegionState,
        f: PinnedData,
        search: ShapeSearch,
        start: Hyperparameters | None,
        noisy: bool | None,
        numbers: Tensor,
        center: int,
    ) -> Hyperparameters:
        """Fits the hyper-parameters of f and the constraints, and returns the hyper-parameters of f.

        Shared hyper-parameters maximize a joint likelihood, in which f has the weight of all constraints together. With
        ``ConstraintRule.own``, each function is fitted separately.

        Args:
            state: the state, in which the constraints' own hyper-parameters are stored.
            f: the values of f at the queries.
            search: the search for the best hyper-parameters.
            start: the initial hyper-parameters, or None.
            noisy: whether values have noise; None: the evidence decides.
            numbers: the indices of the queries.
            center: the index of the center.
        """
        Y, data = self._differences(state, numbers, center), self._data(state)
        m, one = Y.shape[1], torch.ones(1, dtype=torch.float64)
        if not self.rule.own:
            shares = torch.cat([one, one.expand(m) / max(1, m)])
            joint = PinnedColumns(self._prior, f.U, torch.cat([f.y[:, None], Y], dim=1), shares)
            return search.fitted(joint, start, noisy)
        old = [None if start is None else Hyperparameters(*row) for row in data.own.tolist()] or [None] * m
        parts = [PinnedColumns(self._prior, f.U, y, one) for y in Y.mT[..., None]]
        found = [search.fitted(part, params, noisy) for part, params in zip(parts, old, strict=True)]
        data.own = torch.tensor([[p.amplitude, p.noise] for p in found], dtype=torch.float64).reshape(m, 2)
        return search.fitted(f, start, noisy)

    def _differences(self, state: TrustRegionState, numbers: Tensor, center: int) -> Tensor:
        data = self._data(state)
        evaluated = sum(data.sizes)
        return data.values[numbers, :evaluated] - data.values[center, :evaluated]

    def model(self, state: TrustRegionState, f: RegionModel, numbers: Tensor, center: int) -> ConstrainedModel:
        """Builds the joint model of f and all constraints about a center from the queries of indices ``numbers``."""
        data, at, values = self._data(state), state.data.points[center], state.data.values / f.unit
        heights = values[numbers] - values[center]
        Y = torch.cat([heights[:, None], self._differences(state, numbers, center)], dim=1)
        parts = self._parts(data, f, Y, at, data.values[center], state.data.points[numbers])
        return ConstrainedModel(self.known, self.box, self.rule, f, data, parts, at, data.values[center].numpy())

    def _parts(
        self, data: ConstraintData, f: RegionModel, Y: Tensor, at: Tensor, c: Tensor, points: Tensor
    ) -> list[tuple[np.ndarray, ColumnsModel]]:
        """Builds the models; functions with the same hyper-parameters and queries share a factor.

        A failed query that gave some constraints is in their models if it is as near to the center as other queries.
        """
        evaluated, pinned = sum(data.sizes), f.pinned
        lengths = torch.linalg.vector_norm(data.partial - at, dim=1)
        near = (lengths > 0.0) & (lengths <= torch.linalg.vector_norm(points - at, dim=1).max())
        partial, V = data.partial_values[near][:, : 1 + evaluated], (data.partial - at)[near] @ f.map[:, :-1].mT
        finite = torch.isfinite(partial)
        finite[:, 0] = False  # f of a query that failed is not used
        more = partial - torch.cat([torch.zeros(1, dtype=torch.float64), c[:evaluated]])
        own = [Hyperparameters(*row) for row in data.own.tolist()] if self.rule.own else [pinned.params] * evaluated
        groups: dict[tuple[Hyperparameters, tuple[bool, ...]], list[int]] = {}
        for j, params in enumerate([pinned.params, *own]):
            groups.setdefault((params, tuple(finite[:, j].tolist())), []).append(j)
        parts = []
        for (params, known), columns in groups.items():
            given, mask, values = pinned.given, torch.tensor(known, dtype=torch.bool), Y[:, columns]
            try:
                if any(known):
                    given = Conditioned.on(given.prior, torch.cat([given.U, V[mask]]), params)
                    values = torch.cat([values, more[mask][:, columns]])
                elif params != given.params:
                    given = Conditioned.on(given.prior, given.U, params)
            except NotPositiveDefiniteError:
                pass  # the factor of f is used
            parts.append((np.array(columns), ColumnsModel(given, values)))
        return parts

    def pulled(self, center: Tensor, points: Tensor) -> Tensor:
        """Moves points toward a feasible center until all constraints with ``keep_feasible`` hold at them."""
        if not any(group.keep_feasible for group in self.known.known):
            return points

        def moved(point: Tensor) -> Tensor:
            if not self.breach(point):
                return point
            low, high = 0.0, 1.0
            for _ in range(HALVINGS):
                middle = 0.5 * (low + high)
                broken = self.breach(center + middle * (point - center))
                low, high = (low, middle) if broken else (middle, high)
            return center + low * (point - center)

        return torch.stack([moved(point) for point in points])

    def check_start(self, center: Tensor) -> None:
        """Raises ``ValueError`` if the initial point violates a known constraint with ``keep_feasible``."""
        if worst := self.breach(center):
            raise ValueError(
                f"x0 violates a constraint with keep_feasible=True by {worst:g}: pass an x0 that satisfies it, or set "
                "keep_feasible=False"
            )

    def breach(self, point: Tensor) -> float:
        """Computes the largest violation of the known constraints with ``keep_feasible``; 0 for a rounding error."""
        of = tuple(group.size or 1 for group in self.known.evaluated)
        c = np.concatenate([np.zeros(sum(of)), self.known.known_values(self.user(point[None]))[0]])
        violations = self.known.sides(of).violations(c)
        slight = violations <= SLIGHT * np.maximum(self.known.magnitudes(of), np.abs(c))
        return float(np.where(slight, 0.0, violations)[self.known.kept(of)].max(initial=0.0))
