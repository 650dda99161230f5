"""The rules of the trust-region method and their options. To change a rule, set its options or subclass it.

Options are numbers of at least 0 without units; lengths are relative to a radius or to a side of the box.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from optimizers.methods.trust_region.box import FreeBox
from optimizers.methods.trust_region.portfolio import PortfolioRule
from optimizers.methods.trust_region.radius import RadiusRule
from optimizers.methods.trust_region.residuals import ResidualModel
from optimizers.methods.trust_region.scales import ScaleRule
from optimizers.subproblems.region import NEWTON, HalfSpace, Region, separating_plane
from surrogates.pinned.engine import PinnedData, PinnedModel, ShapeSearch
from surrogates.pinned.prior import Hyperparameters, PinnedPrior

FLAT = 1e-12
"""Curvatures are raised to at least this fraction of the largest."""


@dataclass(frozen=True)
class DesignRule:
    """Chooses the first points of a run, and when the model changes from a subspace to all variables.

    Attributes:
        whole: with at most this many variables, the model covers all variables once the steps span them; with more, it
            always covers only the subspace spanned by the steps.
        directions: the number of random directions in a design. With at most this many variables and no constraints,
            the design has a point along each variable instead.
    """

    whole: int = 60
    directions: int = 8

    def points(self, box: FreeBox, center: Tensor, delta: float, random: np.random.Generator | None) -> Tensor:
        """Returns a center and k points around it, ``1 + k x d_free``, clipped to the box.

        Without ``random``, there is one point along each variable, toward the farther bound, at the distance ``delta``
        or 0.4 of the side if that is less. Otherwise there are at most ``directions`` points at this distance, along
        orthonormal random directions.
        """
        if random is not None:
            normal = torch.from_numpy(random.standard_normal((box.d, min(self.directions, box.d))))
            moves = delta * torch.linalg.qr(normal).Q.mT
        else:
            reach = torch.minimum(torch.full_like(box.sides, delta), 0.4 * box.sides)
            if box.has_integers:
                reach = torch.maximum(reach, box.spacing(center))
            moves = torch.diag(torch.where(box.upper - center < center - box.lower, -reach, reach))
        return box.clamped(torch.cat([center[None], center + moves]))

    def wants_opposite(self, heights: Tensor) -> bool:
        """Whether a design's opposite points are evaluated too, given its k values minus the center's value."""
        return bool((heights > 0.0).all())

    def opposite(self, box: FreeBox, center: Tensor, points: Tensor) -> Tensor:
        """Reflects points at the center, or moves them halfway to the center if the reflection is outside the box."""
        back = 2.0 * center - points
        return torch.where((box.clamped(back) == back).all(dim=1, keepdim=True), back, 0.5 * (center + points))


@dataclass(frozen=True)
class GeometryRule:
    """Chooses geometry-improving queries, which improve the model's gradient at the center.

    Attributes:
        limit: the most consecutive queries that only improve the model: geometry-improving ones, and steps whose
            shortfall is attributed to chance (``ExplorationRule``).
        near: near a kink, only queries within this many radii of the center determine the gradient.
        coverage: near a kink, the sum of squares of the near queries along each direction, in units of the squared
            radius, is at least this number.
    """

    limit: float = 5
    near: float = 2
    coverage: float = 0.03

    def direction(
        self, hessian: Tensor, covariance: Tensor, slope: Tensor, delta: float, free: Tensor | None = None
    ) -> Tensor | None:
        """Finds the unit vector e along which the gradient's uncertainty allows the largest decrease, in O(d³) time.

        Within the radius δ, a gradient g allows a decrease of about ½gᵀB⁻¹g, where B = |H| + ηI and η = ‖slope‖/δ. The
        result e maximizes eᵀCe/eᵀBe and points downhill. It is None if the gradient is known well enough: if the
        maximum is at most slopeᵀB⁻¹slope.

        Args:
            hessian: the Hessian H, ``d x d``.
            covariance: the covariance C of the gradient, ``d x d``.
            slope: the mean of the gradient, or a prox-gradient mapping, shape ``d``.
            delta: the radius δ.
            free: which variables may move, shape ``d``; None: all.
        """
        if free is not None and not bool(free.all()):
            inside = self.direction(hessian[free][:, free], covariance[free][:, free], slope[free], delta)
            return None if inside is None else torch.zeros_like(slope).masked_scatter_(free, inside)
        if len(slope) == 0:
            return None
        W = self.weights(hessian, float(slope.norm()) / delta)
        eigenvalues, V = torch.linalg.eigh(W.mT @ covariance @ W)
        if not float(eigenvalues[-1]) > float((W.mT @ slope).square().sum()):
            return None
        e = W @ V[:, -1]
        return e / (-e.norm() if float(e @ slope) > 0.0 else e.norm())

    def uncovered(self, rows: Tensor, slope: Tensor, region: Region) -> Tensor | None:
        """Finds the unit vector e along which the near queries are the closest to the center, shape ``d``.

        At a kink the gradient differs from what farther queries suggest, so that a model that uses them is too certain
        of it. The result e minimizes Σ(eᵀr)² over the near rows r and points downhill; it is None if all variables are
        covered.

        Args:
            rows: the queries minus the center, ``n x d``.
            slope: the mean of the gradient, shape ``d``.
            region: the trust region.
        """
        near = rows[torch.linalg.vector_norm(rows, dim=1) <= self.near * region.delta] / region.delta
        near = near[:, region.free]
        if near.shape[1] == 0:
            return None
        sums, V = torch.linalg.eigh(near.mT @ near)
        if not float(sums[0]) < self.coverage:
            return None
        e = torch.zeros_like(slope).masked_scatter_(region.free, V[:, 0])
        return region.away(-e if float(e @ slope) > 0.0 else e)

    def weights(self, hessian: Tensor, least: float) -> Tensor:
        """Computes W with WWᵀ = (|H| + ηI)⁻¹, ``d x d``, for |H| = Q|Λ|Qᵀ and η = ``least``."""
        eigenvalues, Q = torch.linalg.eigh(hessian)
        sizes = eigenvalues.abs() + least
        largest = float(sizes.max())
        return Q * (sizes.clamp_min(FLAT * largest).rsqrt() if largest > 0.0 else torch.ones_like(sizes))


@dataclass(frozen=True)
class ExplorationRule:
    """Extends steps in a subspace along a random direction outside it, and excuses shortfalls that this may cause.

    Attributes:
        gain: the distance along the direction, in units of σ/h for a slope N(0, σ²) and a curvature h. The default
            maximizes the expected decrease of the best value.
        deviations: a shortfall is attributed to chance if it is at most this many standard deviations, where the
            standard deviation of the value is due to the unknown slope.
        ratio: the ratio of actual to predicted decrease that is assigned to a step with such a shortfall.
        limit: after this many consecutive queries that only improved the model, a shortfall counts as a failed step.
    """

    gain: float = 1.2
    deviations: float = 2.0
    ratio: float = 0.5
    limit: float = 3


@dataclass(frozen=True)
class NoiseRule:
    """Decides when the model has noise or errors: for noisy values, or for ripples, kinks or steps of exact ones.

    Attributes:
        ripples: 1 if the model smooths over ripples of exact values, 0 if it follows them.
        kinks: the errors of a model that follows exact values grow with the distance from the center, as near a kink,
            where f is not differentiable, if this lowers −2 log likelihood by more than this number per value; inf:
            never.
        few: with at most this many variables the model follows kinks, which it then resolves.
        plateaus: f has steps if the share of repeated exact values exceeds this number. If this share of the queries
            near the center has its value, the search moves to a coarser scale instead of a finer one; 0: never.
        early: for this many queries per variable, the model continues to smooth over ripples even when ρ has reached
            their scale, if the values are much less likely without noise.
        patience: smoothing over ripples ends after this many queries per variable of the model without a lower value,
            but not before ``ModelRule.few`` queries.
        fruitless: a run that follows exact values ends likewise after this many queries per variable of the model
            without a successful step. (Not with constraints, residuals or integers.)
        coarsest: with more variables than ``DesignRule.whole``, ripples raise ρ to at most this multiple of the first.
        descent: with as many variables, the n-th run ends when ρ falls below this number to the power n, in units of
            the first ρ, if it follows ripples; 0: at ``RadiusRule.finest``. (Not with constraints, residuals or
            integers.)
        window: with as many variables, a model with noise has up to d/8 queries, but at most this number (at least
            100), so that noise averages out.
        seen: noise hides the variation of f within ρ if this is at most ``seen`` standard deviations of the noise.
        averaging: a noisy run ends this many queries per variable after noise has first hidden the variation of f.
        needed: noise is needed if removing it raises −2 log likelihood by more than this number per value.
        evident: the same number for a young model (``ModelRule``), which may take unknown curvatures for noise.
    """

    ripples: float = 1
    kinks: float = 0.5
    few: float = 5
    plateaus: float = 0.25
    early: float = 10
    patience: float = 3
    fruitless: float = 1.5
    coarsest: float = 1
    descent: float = 0.01
    window: int = 300
    seen: float = 1.0
    needed: float = 0.2
    evident: float = 1.0
    averaging: float = 20

    def smooths(self, noisy: bool | None) -> bool:
        """Whether the model has noise, given whether values are noisy (None: unknown)."""
        return bool(noisy) or (noisy is not None and self.ripples > 0)

    def sees(self, hessian: Tensor, variance: float, length: float) -> bool:
        """Whether the model's variation over a length exceeds the noise: ½ mean|λ| length² > ``seen`` √variance."""
        curvature = float(torch.linalg.eigvalsh(hessian).abs().mean())
        return 0.5 * curvature * length**2 > self.seen * math.sqrt(variance)

    def needs(self, pinned: PinnedModel | ResidualModel, search: ShapeSearch, young: bool = False) -> bool:
        """Whether the values are much less likely without noise, after the amplitude has been fitted again."""
        data, params, each = pinned.data, pinned.params, self.evident if young else self.needed
        return params.noise > 0.0 and search.excess(data, params) > each * len(data.y)

    def may_be_kinked(self, heights: Tensor, d: int) -> bool:
        """Whether exact values of d variables may have errors at kinks; repeated values are steps instead."""
        repeated = len(heights) - len(heights.unique())
        stepped = self.plateaus > 0 and repeated > self.plateaus * len(heights)
        return d > self.few and self.kinks < math.inf and not stepped

    def kink_weights(self, U: Tensor) -> Tensor:
        """Returns weights for which the error at u has the variance s²‖u‖ and the center none, for U of ``n x d``."""
        return torch.cat([torch.linalg.vector_norm(U, dim=1), U.new_zeros(1)])

    def kinks_fitted(self, data: PinnedData, start: Hyperparameters, search: ShapeSearch) -> Hyperparameters:
        """Fits a and s², where s² = 0 unless the values are much less likely without errors."""
        exact = search.fitted(data, start, False)
        found = search.fitted(data, start if start.noise else None, True)
        return found if data.loss(found) < data.loss(exact) - max(search.evidence, self.kinks * len(data.y)) else exact


@dataclass(frozen=True)
class FailureRule:
    """Bounds steps by a plane that separates failed queries from the successful ones.

    Attributes:
        reach: queries farther from the center than this many radii are ignored.
        share: a step may go at most this fraction of the way to the plane.
        near: a plane within this many radii of the center is near, so that a step along it may fail.
    """

    reach: float = 4.0
    share: float = 0.25
    near: float = 0.05

    def half_space(self, failed: Tensor, rows: Tensor, delta: float) -> HalfSpace | None:
        """Returns the half-space before the farthest plane that separates ``failed`` from successful queries ``rows``.

        Both are steps from the center, ``m x d`` and ``n x d``. The result is None if no plane separates them.
        """
        near = [part[torch.linalg.vector_norm(part, dim=1) <= self.reach * delta] / delta for part in (failed, rows)]
        normal = separating_plane(near[0], near[1])
        return None if normal is None else HalfSpace(normal / delta, self.share)

    def is_near(self, plane: HalfSpace, delta: float) -> bool:
        """Whether the plane is so near that a step of length δ along it may fail if the infeasible region is curved."""
        return self.near * delta * float(plane.normal.norm()) > 1.0


@dataclass(frozen=True)
class RestartRule:
    """Chooses the point at which a new run begins after a run has ended.

    Attributes:
        candidates: the number of random points from which one is chosen.
    """

    candidates: int = 16

    def point(
        self, box: FreeBox, center: Tensor, delta: float, queries: Tensor, failed: Tensor, random: np.random.Generator
    ) -> Tensor:
        """Returns the first random candidate, ``1 x d_free``, whose nearest query succeeded, or else the first.

        Args:
            box: the box; candidates are uniform along its finite sides, and normal about the center along others.
            center: the best query, shape ``d_free``.
            delta: the first radius.
            queries: the queries that succeeded, ``n x d_free``.
            failed: the queries that failed, ``m x d_free``.
            random: the random generator.
        """
        u = torch.from_numpy(random.random((self.candidates, box.d)))
        near = center + delta * 2.0 * torch.from_numpy(random.standard_normal((self.candidates, box.d)))
        points = box.clamped(torch.where(torch.isfinite(box.sides), box.lower + u * box.sides, near))
        chosen = 0
        if len(failed) and len(queries):
            nearest = [torch.cdist(points, asked).min(dim=1).values for asked in (queries, failed)]
            chosen = int((nearest[0] < nearest[1]).int().argmax())
        return points[chosen][None]

    def begins_at_best(self, value: float, start_value: float, spanning: bool) -> bool:
        """Whether a run begins at the best query instead of the random point.

        It does so with a model of a subspace (``spanning``) if ``value`` at the random point is not below
        ``start_value`` at x0.
        """
        return spanning and not value < start_value


@dataclass(frozen=True)
class ModelRule:
    """Defines the kernel, the metric and the fit of the model.

    Attributes:
        young: with at most this many queries per variable, only the kernel's amplitude a is fitted, without metric and
            noise. This does not apply to constraints, integers, or more variables than ``DesignRule.whole``.
        few: with more queries than this, metric and noise are fitted all the same if noise is ``evident``
            (``NoiseRule``), except with residuals: a long run without noise would follow ripples to their scale.
        close: in a subspace without noise, queries nearer to the center than this many ρ are left out.
        prior: the constants of the pinned kernel.
        search: the search for the kernel's amplitude and noise.
        power: p of the metric A = |Λ|^p Qᵀ, where QΛQᵀ is the Hessian of the mean. In u = Ax the curvatures are
            ±|λ|^(1−2p): with p = ½ all would be equal, but errors of the Hessian would have their full effect.
        least: the least |λ| in the metric, relative to the largest.
        newton: the most Newton steps to a low mean after the first one.
    """

    young: float = 2
    few: float = 20
    close: float = 1e-2
    prior: PinnedPrior = PinnedPrior()
    search: ShapeSearch = ShapeSearch()
    power: float = 0.4
    least: float = 1e-6
    newton: int = NEWTON

    def data(self, U: Tensor, heights: Tensor, variance: float, weights: Tensor | None = None) -> PinnedData:
        """Combines points, ``n x d``, values minus the center's value, shape ``n``, and the variance of the noise."""
        return PinnedData.of(U, heights, variance, self.prior, weights)

    def metric(self, hessian: Tensor) -> Tensor:
        """Computes the metric A, ``d x d``, of largest singular value 1; the identity if the Hessian is 0 or NaN."""
        if not bool(torch.isfinite(hessian).all()) or not bool(hessian.any()):
            return torch.eye(len(hessian), dtype=hessian.dtype)
        hessian = hessian / hessian.abs().max()
        eigenvalues, Q = torch.linalg.eigh(0.5 * (hessian + hessian.mT))
        sizes = eigenvalues.abs() / eigenvalues.abs().max()
        return sizes.clamp_min(self.least).pow(self.power)[:, None] * Q.mT


@dataclass(frozen=True)
class ConstraintRule:
    """Sets the price of a violation (the penalty parameter ν), and the margins that steps keep from constraints.

    Attributes:
        above: the price relative to the largest recent sum of the constraints' multipliers.
        kept: the number of recent steps over which the sum of the multipliers is maximized.
        first: the first price, in units of f's slope.
        least: the least price, in units of f's slope.
        most: the largest price, in units of f's slope.
        margin: the margin that a step keeps from a constraint, in units of the last step's error of prediction, which
            is assumed to fall with the square of the step's length.
        rounding: the least margin from an evaluated inequality with ``keep_feasible``, where a violation by a rounding
            error costs a query; a length in units of the variables' scales.
        deviations: the margin from an inequality in posterior standard deviations; see ``feasibility_probability``.
        geometry: the most consecutive queries that only improve the model.
        dearer: if a step predicts a violation inside the ball, the price is multiplied by at least this factor.
        inside: a step shorter than this fraction of the radius ends inside the ball.
        shortest: the least length of a step that is used for margins, relative to the radius.
        widening: if a new price moves the center, Δ is raised to this fraction of the distance.
        finest: if a new price moves the center, ρ is raised to this fraction of Δ.
        flat: the least slope of a constraint, relative to the largest.
        own: whether each constraint has its own hyper-parameters.
    """

    above: float = 1.2
    kept: float = 8
    first: float = 2.0
    least: float = 1e-3
    most: float = 1e8
    margin: float = 0.3
    rounding: float = 1e-10
    deviations: float = 0.0
    geometry: float = 2
    dearer: float = 4.0
    inside: float = 0.9
    shortest: float = 1e-3
    widening: float = 0.5
    finest: float = 0.2
    flat: float = 1e-12
    own: bool = False


@dataclass(frozen=True)
class TrustRegionRules:
    """All rules of a run. Each may be replaced by another object with the same methods.

    Raises:
        ValueError: for an option that is negative or NaN.
    """

    design: DesignRule = DesignRule()
    scales: ScaleRule = ScaleRule()
    radius: RadiusRule = RadiusRule()
    geometry: GeometryRule = GeometryRule()
    exploration: ExplorationRule = ExplorationRule()
    noise: NoiseRule = NoiseRule()
    portfolio: PortfolioRule = PortfolioRule()
    failures: FailureRule = FailureRule()
    restart: RestartRule = RestartRule()
    model: ModelRule = ModelRule()
    constraint: ConstraintRule = ConstraintRule()

    def __post_init__(self) -> None:
        for rule in (getattr(self, field.name) for field in fields(self)):
            for name, value in vars(rule).items():
                if isinstance(value, int | float) and not value >= 0:
                    raise ValueError(f"{type(rule).__name__}({name}=...) must be a number of at least 0, got {value!r}")


RESIDUAL_RULES = TrustRegionRules(
    scales=ScaleRule(chance=1.0),
    radius=RadiusRule(initial=0.1, cap=0.3, expansion=4.0),
    noise=NoiseRule(ripples=0),
    model=ModelRule(search=ShapeSearch(evidence=10.0)),
)
"""The rules for least-squares problems, with shorter first steps and faster growth of Δ."""
