"""A region's model in the span of its rows: steps and lessons in the variables, whose box has a side for each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from optimizers.methods.trust_region.cut import SHARE, confined, share_of
from optimizers.methods.trust_region.region_model import RegionModel
from optimizers.methods.trust_region.span import coordinates
from optimizers.methods.trust_region.step import minimize_in_ball

ROUNDS = 4
"""The most steps of which one is taken, each with other variables held at sides of the box."""

LOST = 1e-9
"""What is added to the squares of a basis that has lost what is held, so that they have a Cholesky factor."""

GAINFUL = 1.2
"""The η for which a slope N(0, σ²) and a curvature h let f fall most on average at distance η, in units of σ/h."""


class SpanModel:
    """A ``RegionModel`` in the coordinates of ``span.coordinates``, for steps in the variables.

    Args:
        model: the model in k + 1 coordinates.
        basis: B, ``k x d``.
        outside: a unit vector orthogonal to the span, shape ``d``; None where the span is of all variables.

    Attributes:
        cut: n of a plane nᵀs = 1 that steps do not cross, shape ``d``; None for none.
        numbers: which queries the values are of, shape ``n``.
    """

    def __init__(self, model: RegionModel, basis: Tensor, outside: Tensor | None) -> None:
        self.cut: Tensor | None = None
        self.numbers = torch.arange(0)
        self._model, self._basis, self._outside = model, basis, outside
        self.unit = model.unit

    def mean(self, s: Tensor) -> float:
        """The posterior mean at a step, shape ``d``, relative to f(x_b)."""
        return self._model.mean(coordinates(self._basis, s))

    def means(self) -> Tensor:
        """The posterior means at the rows, shape ``n``, in f's units."""
        return self._model.means()

    def sees(self, length: float) -> bool:
        """Whether the mean changes by more than a value's noise within a distance, as ``RegionModel.sees`` has it."""
        return self._model.sees(length)

    def needs_noise(self) -> bool:
        """Whether f's values are much less likely without noise, as ``RegionModel.needs_noise`` has it."""
        return self._model.needs_noise()

    def quadratic(self, s: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor], float]:
        """The mean's gradient at a step, shape ``d``, products with its Hessian, and the largest |curvature|.

        A step that leaves the span is taken for the nearest one in it: outside it the curvatures are all alike.
        """
        at = coordinates(self._basis, s)
        at[-1] = 0.0
        g, H = self._model.derivatives(at)
        H, outside = H[:-1, :-1], float(H[-1, -1])

        def product(v: Tensor) -> Tensor:
            inside = self._basis @ v
            return (H @ inside - outside * inside) @ self._basis + outside * v

        return g[:-1] @ self._basis, product, max(float(torch.linalg.eigvalsh(H).abs().max()), abs(outside))

    def step(self, delta: float, lower: Tensor, upper: Tensor) -> tuple[Tensor, float]:
        """A step to a low mean in the ball of radius δ and the box, shape ``d``, and the mean there in f's units.

        Variables at a side of the box which the mean's gradient leaves are held there. The others, P of them, take
        the step of least mean μ(PBᵀt + h) in the ball, h what is held. Those
        that leave the box are held at its side too; where none does, those are let go whose gradient at the step does
        not leave it. Of at most four such steps, cut to box and ball, the one of least mean is taken.
        """
        best, least = torch.zeros_like(lower), 0.0
        held = self._leaving(best, lower, upper)
        fixed = best
        for _ in range(ROUNDS):
            left = delta**2 - float(fixed.square().sum())
            if left <= 0.0:
                break
            moved = self._moved(held, fixed, left**0.5)
            s = confined(moved, delta, lower, upper, self.cut)
            mean = self.mean(s)
            if mean < least:
                best, least = s, mean
            out = ~held & ((moved < lower) | (moved > upper))
            before, held = held, held | out if bool(out.any()) else self._leaving(s, lower, upper)
            if torch.equal(before, held):
                break
            fixed = torch.where(held, s.clamp(lower, upper), 0.0)
        return best, self.unit * least

    def _leaving(self, s: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Which variables are at a side of the box that they leave against the mean's gradient at s, shape ``d``."""
        at = coordinates(self._basis, s)
        g, _ = self._model.derivatives(at)
        slopes = g[:-1] @ self._basis
        if float(at[-1]) > 0.0:
            slopes = slopes + (s - at[:-1] @ self._basis) * (g[-1] / at[-1])
        return ((s <= lower) & (slopes > 0.0)) | ((s >= upper) & (slopes < 0.0))

    def _moved(self, held: Tensor, fixed: Tensor, radius: float) -> Tensor:
        """PBᵀt + h of a low mean, PBᵀt at most the radius long, shape ``d``.

        With BPBᵀ = CCᵀ and t = C⁻ᵀτ its coordinates are Cτ + Bh, its squared length ‖τ‖² + ‖h‖², and the squared
        distance from the span what is left of that: nothing in the search depends on d.
        """
        B = self._basis
        C = torch.eye(len(B), dtype=B.dtype)
        if some := bool(held.any()):
            C = torch.linalg.cholesky((1.0 + LOST) * C - B[:, held] @ B[:, held].mT)
        base, square = B @ fixed, float(fixed.square().sum())

        def place(t: Tensor) -> Tensor:
            inside = C @ t + base if some else t
            return torch.cat([inside, (t @ t + square - inside @ inside).clamp_min(0.0).sqrt()[None]])

        start = self._model.mean(place(torch.zeros_like(C[0])))

        def value(t: Tensor) -> float:
            return self._model.mean(place(t)) - start

        def derivatives(t: Tensor) -> tuple[Tensor, Tensor]:
            at = place(t)
            g, H = self._model.derivatives(at)
            slope = float(g[-1]) / float(at[-1]) if float(at[-1]) > 0.0 else 0.0
            if not some:
                return g[:-1], H[:-1, :-1]
            bent = C.mT @ (H[:-1, :-1] - slope * torch.eye(len(t), dtype=B.dtype)) @ C
            bent.diagonal().add_(slope)
            return C.mT @ (g[:-1] - slope * at[:-1]) + slope * t, bent

        free = torch.full_like(C[0], torch.inf)
        t, _ = minimize_in_ball(value, derivatives, radius, -free, free)
        t = torch.linalg.solve_triangular(C.mT, t[:, None], upper=True)[:, 0] if some else t
        return torch.where(held, fixed, t @ B)

    def exploring(self, s: Tensor, delta: float, lower: Tensor, upper: Tensor) -> tuple[Tensor, float]:
        """A step and beside it ηe, e the direction outside of the span: the query teaches f's slope along that.

        η = ``GAINFUL`` σ/h for σ the slope's standard deviation and h the mean's curvature along e, at most δ and the
        step's length. Of ±e the one of the lower mean is taken. Where the span is of all variables the step stays.

        Returns:
            The step, shape ``d``, and ση in f's units: the standard deviation that e's slope adds to f there.
        """
        if self._outside is None:
            return s, 0.0
        e = torch.zeros_like(self._model.gradient)
        e[-1] = 1.0
        curvature, variance, v = float(self._model.hessian[-1, -1]), self._model.slope_variance(e), self._outside
        most = min(delta, float(s.norm()))
        eta = min(most, GAINFUL * variance**0.5 / curvature) if curvature > 0.0 else most
        trials = [torch.minimum(torch.maximum(s + sign * eta * v, lower), upper) for sign in (1.0, -1.0)]
        if self.cut is not None:
            share = max(share_of(self.cut, delta), float(self.cut @ s))
            trials = [trial for trial in trials if float(self.cut @ trial) <= share] or [s]
        explored = min(trials, key=self.mean)
        return explored, self.unit * variance**0.5 * float(((explored - s) @ v).abs())

    def lesson(self, delta: float, slope: Tensor | None = None) -> Tensor | None:
        """The unit vector along which what is not known of ∇f(x_b) may gain most, as ``RegionModel.lesson`` has it."""
        inside = None if slope is None else coordinates(self._basis, slope)
        if (e := self._model.lesson(delta, inside, len(self._basis) if self._outside is None else None)) is None:
            return None
        v = self._whole(e)
        return -v if self.cut is not None and delta * float(self.cut @ v) > SHARE else v

    def _whole(self, e: Tensor) -> Tensor:
        """A direction in the variables, shape ``d``; the one outside the span stands for all of them."""
        inside = e[: len(self._basis)] @ self._basis
        return inside if self._outside is None else inside + e[-1] * self._outside
