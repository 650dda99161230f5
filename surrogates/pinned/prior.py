"""A Gaussian process that is 0 at one point, the pin, and its covariances.

Points u and v are relative to the pin. With the Matérn 5/2 correlation m(r) = (1 + √5 r/ℓ + 5r²/(3ℓ²)) exp(−√5 r/ℓ),
the kernel is

    k(u, v) = w u·v + ½ q (u·v)² + c w ‖u‖²‖v‖² + a [m(‖u − v‖) − m(‖u‖) − m(‖v‖) + 1].

It is the covariance of the sum of a random linear form, a random quadratic form, a random multiple of ‖u‖² (a curvature
that all directions share) and g − g(0) for a Matérn process g. Every term is 0 at u = 0: the process models f minus the
value at the pin, and needs no mean.

Values have noise of variance s². The noise of f(uᵢ) − f(pin) is eᵢ − e, where e is the noise of the value at the pin,
so the covariance of such differences is K + s²(I + 11ᵀ). All covariances are multiplied by a scale σ².

``surrogates.pinned.kernel.PinnedKernel`` is a GPyTorch kernel with these covariances, and ``surrogates.pinned.engine``
has a fast posterior for one data set.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Hyperparameters:
    """The hyper-parameters that are fitted.

    Attributes:
        amplitude: a, the variance of the Matérn process.
        noise: s², the noise variance of a value, in units of k.
    """

    amplitude: float = 1.0
    noise: float = 0.0

    @property
    def rounded(self) -> tuple[int, int | None]:
        """1000 log₁₀ of a and of s², rounded to integers; None for s² = 0."""
        return round(1e3 * math.log10(self.amplitude)), round(1e3 * math.log10(self.noise)) if self.noise else None


@dataclass(frozen=True)
class PinnedPrior:
    """The kernel's constants, for points with a root mean square length of about 1.

    Attributes:
        linear: w, the prior variance of a partial derivative at the pin, without the Matérn process.
        quadratic: q, the prior variance of a mixed second derivative at the pin, without the Matérn process.
        shared: c; the curvature that all directions share has the variance 4cw, which is w for c = ¼.
        lengthscale: ℓ, which is not fitted. With ℓ = 4 the Matérn process is a smooth correction of the quadratic, of
            variance a. A shorter ℓ is often more likely given few values, but then the process is a bump at each point
            and does not predict values between the points.
    """

    linear: float = 100.0
    quadratic: float = 1.0
    shared: float = 0.25
    lengthscale: float = 4.0

    @property
    def rate(self) -> float:
        """√5/ℓ; m(r) is a function of s = rate · r."""
        return math.sqrt(5.0) / self.lengthscale

    @property
    def curvature(self) -> float:
        """−m''(0) = 5/(3ℓ²), the curvature of the Matérn correlation at 0."""
        return self.rate**2 / 3.0

    def matern(self, distances: Tensor) -> Tensor:
        """Computes m(r) = (1 + s + s²/3) exp(−s) for distances r, as a new tensor."""
        t = distances * -self.rate
        return (t / 3.0).sub_(1.0).mul_(t).add_(1.0).mul_(t.exp_())

    def parts(self, U: Tensor) -> tuple[Tensor, Tensor]:
        """The two parts of k = polynomial + a · bracket among points U, ``n x d``; both parts are ``n x n``."""
        gram = U @ U.mT
        squares = gram.diagonal().clone()
        between = torch.add(squares[:, None], squares).sub_(gram, alpha=2.0).clamp_min_(0.0)
        between.fill_diagonal_(0.0)
        lost = 1.0 - self.matern(squares.sqrt())
        bracket = self.matern(between.sqrt_()).add_(lost[:, None] - 1.0).add_(lost)
        polynomial = gram.mul(0.5 * self.quadratic).add_(self.linear).mul_(gram)
        return polynomial.addr_(squares, squares, alpha=self.shared * self.linear), bracket
