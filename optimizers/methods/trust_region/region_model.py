"""The pinned model in the variables' own units: steps to its least mean, and the direction to learn about."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from optimizers.methods.trust_region.cut import SHARE, minimize_before, share_of
from optimizers.methods.trust_region.pinned_model import PinnedData, PinnedModel
from optimizers.methods.trust_region.step import minimize_in_ball

FLAT = 1e-12
"""The least curvature that counts, in units of the largest."""

SEEN = 1.0
"""How much of the noise's standard deviation the mean has to change by to be seen."""

NEEDED = 0.2
"""Values need noise where without it −2 log likelihood is more by this for each of them."""


class RegionModel:
    """A model of f(x_b + s) − f(x_b) from the values at some s: a ``PinnedModel`` of u = As/R.

    Args:
        model: the model of u.
        map: A/R, ``d x d``.
        unit: what a value of the model is of f.

    Attributes:
        cut: n of a plane nᵀs = 1 that steps do not cross, see ``cut_of``; None for none.
        numbers: which queries the values are of, shape ``n``.
    """

    def __init__(self, model: PinnedModel, map: Tensor, unit: float) -> None:
        self.cut: Tensor | None = None
        self.numbers = torch.arange(0)
        self._model, self._map, self.unit = model, map, unit
        self.gradient, self.hessian = self.derivatives(torch.zeros(len(map), dtype=map.dtype))

    def mean(self, s: Tensor) -> float:
        """The posterior mean at a step, shape ``d``, relative to f(x_b)."""
        return self._model.mean(self._map @ s)

    def means(self) -> Tensor:
        """The posterior means at the rows, shape ``n``, in f's units."""
        return self.unit * self._model.means()

    def sees(self, length: float) -> bool:
        """Whether the mean's curvatures make more of a distance from x_b, ½ mean|λ| length², than a value's noise."""
        curvature = float(torch.linalg.eigvalsh(self.hessian).abs().mean())
        return 0.5 * curvature * length**2 > SEEN * math.sqrt(self._model.noise)

    def needs_noise(self) -> bool:
        """Whether the values are much less likely without noise, whatever a is (``PinnedData.excess``)."""
        data, shape = self._model.data, self._model.shape
        return shape.noise > 0.0 and data.excess(shape) > NEEDED * len(data.y)

    def derivatives(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """The mean's gradient, shape ``d``, and Hessian, ``d x d``, at a step."""
        g, H = self._model.derivatives(self._map @ s)
        return self._map.mT @ g, self._map.mT @ H @ self._map

    def quadratic(self, s: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor], float]:
        """The mean's gradient at a step, shape ``d``, products with its Hessian, and the largest |curvature|."""
        g, H = self.derivatives(s)
        return g, lambda v: H @ v, float(torch.linalg.eigvalsh(H).abs().max())

    def step(self, delta: float, lower: Tensor, upper: Tensor) -> tuple[Tensor, float]:
        """The step to the least mean in the ball of radius δ, the box and before a cut; the mean there in f's units."""
        s, mean = minimize_in_ball(self.mean, self.derivatives, delta, lower, upper, (self.gradient, self.hessian))
        if self.cut is not None and float(self.cut @ s) > share_of(self.cut, delta):
            s, mean = minimize_before(self.mean, self.derivatives, delta, lower, upper, self.cut)
        return s, self.unit * mean

    def lesson(self, delta: float, slope: Tensor | None = None, count: int | None = None) -> Tensor | None:
        """The unit vector along which what is not known of ∇f(x_b) may gain most; None if ∇f is known well enough.

        With W of ``gain_map`` a slope g gains ½‖Wᵀg‖². The vector is along Wv, v the unit vector of most variance of
        vᵀWᵀ∇f(x_b). It points downhill, or from the cut where δ along it is over ``SHARE`` of the way. Known well
        enough: that variance is at most ‖Wᵀg‖² for the mean g of ∇f(x_b), or for ``slope`` in that one's place. With a
        count it is of the first coordinates, so many of them.
        """
        slope = (self.gradient if slope is None else slope)[:count]
        W = gain_map(self.hessian[:count, :count], float(slope.norm()) / delta)
        eigenvalues, V = torch.linalg.eigh(W.mT @ self._gradient_covariance()[:count, :count] @ W)
        if not float(eigenvalues[-1]) > float((W.mT @ slope).square().sum()):
            return None
        e = W @ V[:, -1]
        e = e / (-e.norm() if float(e @ slope) > 0.0 else e.norm())
        return -e if self.cut is not None and delta * float(self.cut @ e) > SHARE else e

    def slope_variance(self, e: Tensor) -> float:
        """The variance of eᵀ∇f(x_b), e of shape ``d``; 0 where rounding makes it less."""
        return max(0.0, float(self._model.slope_covariance((self._map @ e)[:, None])))

    def _gradient_covariance(self) -> Tensor:
        """cov ∇f(x_b), ``d x d``."""
        return self._map.mT @ self._model.gradient_covariance() @ self._map


def gain_map(hessian: Tensor, least: float) -> Tensor:
    """W with WWᵀ = (|H| + ηI)⁻¹, ``d x d``, |H| = Q|Λ|Qᵀ; O(d³).

    With η = ‖g‖/δ, ½‖Wᵀg‖² is about what a function of gradient g and Hessian H falls by within δ. Along an eigenvector
    of eigenvalue λ it is ½g²/(|λ| + |g|/δ): near ½g²/|λ|, the whole fall, where the minimum is well inside, and ½|g|δ,
    half of the fall, along a line without curvature.

    Args:
        hessian: H, ``d x d``.
        least: η.
    """
    eigenvalues, Q = torch.linalg.eigh(hessian)
    sizes = eigenvalues.abs() + least
    largest = float(sizes.max())
    return Q * (sizes.clamp_min(FLAT * largest).rsqrt() if largest > 0.0 else torch.ones_like(sizes))


def scaled_data(rows: Tensor, heights: Tensor, metric: Tensor, variance: float = 0.0) -> tuple[PinnedData, Tensor]:
    """The data in u = As/R, and A/R, R the root mean square length of the As.

    Args:
        rows: s, ``n x d``.
        heights: the values less the one at 0, shape ``n``.
        metric: A, ``d x d``.
        variance: that of a height's noise, where it is known.
    """
    U = rows @ metric.mT
    R = U.square().sum(1).mean().sqrt()
    return PinnedData.of(U / R, heights, variance), metric / R
