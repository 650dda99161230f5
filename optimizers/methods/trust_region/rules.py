"""The rules of the trust-region method, each a small object with its options; to change one, subclass it.

Options are numbers of at least 0 without units: lengths are relative to a radius or a side of the box, variances to
other variances. The one exception is the cap of 1 on the first radius where a side is infinite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from optimizers.methods.trust_region.box import FreeBox
from optimizers.methods.trust_region.radius import RadiusRule
from optimizers.methods.trust_region.residuals import ResidualModel
from optimizers.methods.trust_region.scales import ScaleRule
from optimizers.subproblems.region import NEWTON, HalfSpace, separating_plane
from surrogates.pinned.engine import PinnedData, PinnedModel, ShapeSearch
from surrogates.pinned.prior import PinnedPrior

FLAT = 1e-12
"""Curvatures are raised to at least this share of the largest."""


@dataclass(frozen=True)
class DesignRule:
    """The first points of a run. Until its steps span all variables, the model is of the subspace that they span.

    Attributes:
        whole: the largest number of variables with which the model is of all variables once the steps span them.
        directions: the number of random directions of a design. With at most this many variables and no constraints,
            the design has a point along each variable instead.
    """

    whole: int = 60
    directions: int = 8

    def points(self, box: FreeBox, center: Tensor, delta: float, random: np.random.Generator | None) -> Tensor:
        """The center and points at δ from it, ``1 + k x d_free``.

        Args:
            box: the box.
            center: shape ``d_free``.
            delta: δ.
            random: random numbers for a design along random directions; None for one along each variable.

        Returns:
            The center, and one point along each variable, toward the farther side of the box, at δ or 0.4 of the side
            if that is less; or at most ``directions`` points along orthonormal random directions, clipped to the box.
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
        """Whether to evaluate a design's opposite points too; ``heights`` are its k values minus the center's."""
        return bool((heights > 0.0).all())

    def opposite(self, box: FreeBox, center: Tensor, points: Tensor) -> Tensor:
        """The points on the other side of the center, or where that is outside the box, at half the distance."""
        back = 2.0 * center - points
        return torch.where((box.clamped(back) == back).all(dim=1, keepdim=True), back, 0.5 * (center + points))


@dataclass(frozen=True)
class GeometryRule:
    """Queries that improve the model of the gradient at the center.

    Attributes:
        limit: the most queries in a row that only improve the model, steps excused by chance included.
    """

    limit: float = 5

    def direction(
        self, hessian: Tensor, covariance: Tensor, slope: Tensor, delta: float, free: Tensor | None = None
    ) -> Tensor | None:
        """Finds the unit vector along which the gradient's uncertainty allows the largest decrease.

        A gradient g allows a decrease of about ½gᵀB⁻¹g within δ, where B = |H| + ηI and η = ‖slope‖/δ. Along an
        eigenvector of eigenvalue λ this is near ½g²/|λ|, the decrease at the minimum, if that lies well inside δ, and
        near ½|g|δ if λ is 0. The result e maximizes eᵀCe/eᵀBe and points downhill. It is None if the gradient is known
        well enough: if this maximum is at most slopeᵀB⁻¹slope. O(d³).

        Args:
            hessian: H, ``d x d``.
            covariance: C, the covariance of the gradient, ``d x d``.
            slope: its mean, or a prox-gradient mapping, shape ``d``.
            delta: δ.
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

    def weights(self, hessian: Tensor, least: float) -> Tensor:
        """W with WWᵀ = (|H| + ηI)⁻¹, ``d x d``, where |H| = Q|Λ|Qᵀ and η is ``least``."""
        eigenvalues, Q = torch.linalg.eigh(hessian)
        sizes = eigenvalues.abs() + least
        largest = float(sizes.max())
        return Q * (sizes.clamp_min(FLAT * largest).rsqrt() if largest > 0.0 else torch.ones_like(sizes))


@dataclass(frozen=True)
class ExplorationRule:
    """How steps in a subspace also explore a random direction outside it, and how they are judged.

    Attributes:
        gain: the distance η along that direction in units of σ/h, for a slope N(0, σ²) and a curvature h. 1.2 maximizes
            the expected decrease of the best value.
        deviations: a shortfall within this many standard deviations of the exploration is attributed to chance.
        ratio: the ratio that such a step is given.
        limit: after this many queries in a row that only improved the model, a shortfall counts as a failed step.
    """

    gain: float = 1.2
    deviations: float = 2.0
    ratio: float = 0.5
    limit: float = 3


@dataclass(frozen=True)
class NoiseRule:
    """When the model smooths over noise, or over ripples of an exact function that look like noise.

    Attributes:
        ripples: 1 if the model smooths over ripples of exact values, 0 if it follows them.
        early: during this many queries a variable smoothing goes on after ρ has reached the scale of the ripples, while
            values are much less likely without noise.
        seen: the mean's change over a step must exceed this many noise standard deviations to count as visible.
        averaging: a run ends this many queries a variable after noise has first hidden how f varies within ρ; until
            then the queries average out the noise.
        needed: noise is needed if removing it raises −2 log likelihood by more than this per value.
    """

    ripples: float = 1
    early: float = 10
    seen: float = 1.0
    needed: float = 0.2
    averaging: float = 20

    def smooths(self, noisy: bool | None) -> bool:
        """Whether the model has noise: for noisy values and, with ``ripples``, exact ones; not while it is unknown."""
        return bool(noisy) or (noisy is not None and self.ripples > 0)

    def sees(self, hessian: Tensor, variance: float, length: float) -> bool:
        """Whether the mean changes over a length by more than the noise: ½ mean|λ| length² > seen √variance."""
        curvature = float(torch.linalg.eigvalsh(hessian).abs().mean())
        return 0.5 * curvature * length**2 > self.seen * math.sqrt(variance)

    def needs(self, pinned: PinnedModel | ResidualModel, search: ShapeSearch) -> bool:
        """Whether the values are much less likely without noise, even after the amplitude is fitted again."""
        data, params = pinned.data, pinned.params
        return params.noise > 0.0 and search.excess(data, params) > self.needed * len(data.y)


@dataclass(frozen=True)
class FailureRule:
    """Failed queries are not in the model. A plane that separates them from the successful ones bounds the steps.

    Attributes:
        reach: queries farther from the center than this many radii do not count.
        share: how much of the way to the plane a step may go at most.
        near: a plane within this many radii is near. A border of curvature 1/(10δ) departs from its tangent plane by
            this distance over a step of length δ.
    """

    reach: float = 4.0
    share: float = 0.25
    near: float = 0.05

    def half_space(self, failed: Tensor, rows: Tensor, delta: float) -> HalfSpace | None:
        """The half-space before the farthest plane that separates ``failed``, ``m x d``, from ``rows``, ``n x d``."""
        near = [part[torch.linalg.vector_norm(part, dim=1) <= self.reach * delta] / delta for part in (failed, rows)]
        normal = separating_plane(near[0], near[1])
        return None if normal is None else HalfSpace(normal / delta, self.share)

    def is_near(self, plane: HalfSpace, delta: float) -> bool:
        """Whether a step of length δ along the plane may cross the border of failures if the border curves slightly."""
        return self.near * delta * float(plane.normal.norm()) > 1.0


@dataclass(frozen=True)
class RestartRule:
    """Where a run begins again when the last one has ended.

    Attributes:
        candidates: the random points of which one is chosen.
    """

    candidates: int = 16

    def point(
        self, box: FreeBox, center: Tensor, delta: float, queries: Tensor, failed: Tensor, random: np.random.Generator
    ) -> Tensor:
        """A random point, ``1 x d_free``: the first candidate whose nearest query has not failed, or the first of all.

        Args:
            box: the box. Candidates are uniform along its finite sides, and normal about the center along others.
            center: the center of the last run, shape ``d_free``.
            delta: the first radius.
            queries: the queries that succeeded, ``n x d_free``.
            failed: those that failed, ``m x d_free``.
            random: the random numbers.
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
        """Whether a run begins at the best query instead of the random point, whose value is given.

        With a model of a subspace, it does so unless the random point is better than x0, which is rare in many
        dimensions.
        """
        return spanning and not value < start_value


@dataclass(frozen=True)
class ModelRule:
    """The model's queries, kernel, metric and fit.

    Attributes:
        young: with up to this many queries a variable only a is fitted, and the model has neither a metric nor noise,
            as curvatures are not known yet. It is not for constraints, integers, or more variables than
            ``DesignRule.whole``.
        close: in a subspace without noise, queries nearer to the center than this many ρ are left out.
        prior: the pinned kernel's constants.
        search: the search for its amplitude and noise.
        power: p of the metric A = |Λ|^p Qᵀ, for the mean's Hessian QΛQᵀ: in u = Ax curvatures are ±|λ|^(1−2p). With ½
            all would be alike, but errors of the Hessian would enter in full; with 0 the metric is a rotation.
        least: the least |λ| that counts, in units of the largest.
        newton: the most Newton steps to a low mean after the first one.
    """

    young: float = 2
    close: float = 1e-2
    prior: PinnedPrior = PinnedPrior()
    search: ShapeSearch = ShapeSearch()
    power: float = 0.4
    least: float = 1e-6
    newton: int = NEWTON

    def data(self, U: Tensor, heights: Tensor, variance: float, weights: Tensor | None = None) -> PinnedData:
        """The data of points, ``n x d``, heights, shape ``n``, and a known variance of noise, with its weights."""
        return PinnedData.of(U, heights, variance, self.prior, weights)

    def metric(self, hessian: Tensor) -> Tensor:
        """A, ``d x d``, of largest singular value 1; the identity for a Hessian that is 0 or not finite. O(d³)."""
        if not bool(torch.isfinite(hessian).all()) or not bool(hessian.any()):
            return torch.eye(len(hessian), dtype=hessian.dtype)
        hessian = hessian / hessian.abs().max()
        eigenvalues, Q = torch.linalg.eigh(0.5 * (hessian + hessian.mT))
        sizes = eigenvalues.abs() / eigenvalues.abs().max()
        return sizes.clamp_min(self.least).pow(self.power)[:, None] * Q.mT


@dataclass(frozen=True)
class ConstraintRule:
    """The price of a violation (the penalty parameter ν), and how far inside of the constraints steps stay.

    Attributes:
        above: the price in units of the sum of the multipliers.
        kept: the number of last steps whose largest sum sets the price, so that the price may fall. A price kept from a
            steep start makes steps along a curved boundary too dear, as their violations are of second order.
        first: the first price in units of f's slope.
        least: the least price in units of f's slope.
        most: the largest price in units of f's slope, where constraints cannot be met.
        margin: how far inside of a constraint a step stays, in units of the last step's error of prediction, which is
            taken to fall with the square of the length.
        deviations: posterior standard deviations by which a step stays inside of inequalities; see
            ``feasibility_probability``.
        geometry: the most queries in a row that only improve the model.
        dearer: the price after a step that ends inside of the ball and is infeasible, in units of the price before.
        inside: a step shorter than this share of the radius ends inside of the ball.
        shortest: the shortest step for which margins are told apart, in units of the radius.
        widening: a new price that makes another query the center raises Δ to this share of the distance.
        finest: ρ is then at least this share of Δ.
        flat: the least slope of a constraint that counts, in units of the largest.
        own: whether each constraint has hyper-parameters of its own.
    """

    above: float = 1.2
    kept: float = 8
    first: float = 2.0
    least: float = 1e-3
    most: float = 1e8
    margin: float = 0.3
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
        ValueError: for an option under 0, or not a number.
    """

    design: DesignRule = DesignRule()
    scales: ScaleRule = ScaleRule()
    radius: RadiusRule = RadiusRule()
    geometry: GeometryRule = GeometryRule()
    exploration: ExplorationRule = ExplorationRule()
    noise: NoiseRule = NoiseRule()
    failures: FailureRule = FailureRule()
    restart: RestartRule = RestartRule()
    model: ModelRule = ModelRule()
    constraint: ConstraintRule = ConstraintRule()

    def __post_init__(self) -> None:
        for rule in (getattr(self, field.name) for field in fields(self)):
            for name, value in vars(rule).items():
                if isinstance(value, int | float) and not value >= 0:
                    raise ValueError(f"{type(rule).__name__}({name}=...) takes a number of at least 0, got {value!r}")


RESIDUAL_RULES = TrustRegionRules(
    scales=ScaleRule(chance=1.0),
    radius=RadiusRule(initial=0.1, cap=0.3, expansion=4.0),
    noise=NoiseRule(ripples=0),
    model=ModelRule(search=ShapeSearch(evidence=10.0)),
)
"""The rules for residuals. Shorter steps suffice to determine their slopes, and their models hold over longer steps."""
