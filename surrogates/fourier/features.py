"""Random Fourier features of a kernel, reproducible from a seed.

References:
    FZooS: Shu et al., Heterogeneous federated zeroth-order optimization using gradient surrogates, 2024,
        Sec. 3.2.1, eqs. 3-4, Appx. D.
    A. Rahimi and B. Recht, Random features for large-scale kernel machines, NeurIPS 2007.
    D. J. Sutherland and J. Schneider, On the error of random Fourier features, UAI 2015 (pairs).
    F. X. Yu et al., Orthogonal random features, NeurIPS 2016.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import cached_property
from math import pi, sqrt
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from surrogates.checks import check_floating, check_integer, check_points, check_same_kind, is_traced, positive_integer
from surrogates.compiled import compiled
from surrogates.fourier.frequencies import (
    GENERATOR,
    PHASES,
    independent_frequencies,
    orthogonal_frequencies,
    sobol_frequencies,
    uniforms,
)
from surrogates.fourier.spectral_density import Array, SpectralDensity, spectral_density

_DRAWS: dict[str, Callable[[SpectralDensity, int, int], Array]] = {
    "cosine": independent_frequencies,
    "paired": independent_frequencies,
    "orthogonal": orthogonal_frequencies,
    "sobol": sobol_frequencies,
}
KINDS = tuple(_DRAWS)


class FingerprintError(ValueError):
    """Two clients, or a client and the server, have different Fourier features."""


class FourierFeatures:
    """Features φ(x) in R^M with φ(x)ᵀφ(x') → k(x, x') as M grows (FZooS, Sec. 3.2.1).

    With frequencies v_j = ω_j/ℓ, ω_j from the kernel's spectral density, and the outputscale o:

        ``"cosine"``                          φ_j(x) = √(2o/M) cos(v_jᵀx + b_j), b_j uniform in [0, 2π), M frequencies
        ``"paired"``, ``"orthogonal"``,       φ(x) = √(2o/M) (cos(v_1ᵀx), …, cos(v_hᵀx), sin(v_1ᵀx), …, sin(v_hᵀx)),
        ``"sobol"``                           h = M/2 frequencies; φ(x)ᵀφ(x) = o exactly

    ``"cosine"`` features are the paper's. Frequencies of ``"cosine"`` and ``"paired"`` features are independent.
    ``"orthogonal"`` frequencies are orthogonal in blocks of d, and their lengths are a stratified sample. ``"sobol"``
    frequencies are a scrambled Sobol' net. For every kind, φ(x)ᵀφ(x') is an unbiased estimate of k(x, x'); the
    experiment ``fourier-features`` compares the errors. Appx. D prints the scale as 2/√M, which gives 2k; √(2/M), as in
    the proof of Lemma E.3, gives k. Eq. 3's Φ, ``M x n``, is the transpose of ``features``.

    The hyper-parameters are read once, rounded to 12 digits; later changes of the kernel have no effect. The random
    numbers behind ``frequencies`` are bitwise the same on every machine. The frequencies, in float64, may differ in
    their last digits between builds of scipy and LAPACK; therefore ``fingerprint`` is computed from the arguments.

    Results have the dtype and device of the points.

    Args:
        kernel: ``RBFKernel`` or ``MaternKernel`` (ν = 3/2, 5/2), no subclass, with or without ARD and ``ScaleKernel``.
        d: The dimension of x.
        num_features: M; it must be even unless the kind is ``"cosine"``.
        seed: The seed of the draws, in [0, 2⁶⁴).
        kind: One of ``surrogates.fourier.features.KINDS``.

    Attributes:
        frequencies: v, ``M x d`` for ``"cosine"`` and ``M/2 x d`` for the other kinds, float64, on the CPU.
        phases: b, ``M``, for ``"cosine"``; None for the other kinds.
        scale: √(2o/M).

    Raises:
        TypeError: If the kernel is not supported, or an argument has another type.
        ValueError: If the kind is unknown, M is odd or not positive, d < 1, the seed is out of range, the kernel does
            not fit d, or there are more dimensions than Sobol' sequences have.

    Example:
        >>> kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
        >>> features = FourierFeatures(kernel, d=300, num_features=10_000, seed=7)
        >>> features.features(torch.rand(5, 300, dtype=torch.float64)).shape
        torch.Size([5, 10000])
    """

    def __init__(self, kernel: Kernel, d: int, num_features: int, seed: int, kind: str = "orthogonal") -> None:
        self.d = positive_integer("d", d)
        self.num_features = positive_integer("num_features", num_features)
        self.seed = check_integer("seed", seed, 0, 2**64)
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}.")
        if kind != "cosine" and self.num_features % 2:
            raise ValueError(
                f"{kind} features come in pairs of sine and cosine: num_features must be even, got {num_features}."
            )
        self.kind = kind
        self.density = spectral_density(kernel, self.d)
        self.scale = sqrt(2 * self.density.outputscale / self.num_features)
        self.frequencies = self._draw()
        self.phases = None
        if kind == "cosine":
            self.phases = torch.from_numpy(2 * pi * uniforms(self.seed, PHASES, self.num_features))
        self._casts: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor | None]] = {}

    def __repr__(self) -> str:
        return (
            f"FourierFeatures({self.density.name}, d={self.d}, num_features={self.num_features}, "
            f"seed={self.seed}, kind={self.kind!r}, fingerprint={self.fingerprint[:12]})"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_casts": {}}

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """The arguments that determine the features, as numbers and strings."""
        density = self.density
        isotropic = len(set(density.lengthscale)) == 1
        return {
            "kernel": density.name,
            "lengthscale": list(density.lengthscale[:1] if isotropic else density.lengthscale),
            "outputscale": density.outputscale,
            "active_dims": None if density.active_dims == tuple(range(self.d)) else list(density.active_dims),
            "d": self.d,
            "num_features": self.num_features,
            "seed": self.seed,
            "kind": self.kind,
            "generator": GENERATOR,
        }

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of ``arguments``, in hexadecimal; floating point numbers enter with all bits."""
        exact = {
            name: [float(v).hex() for v in value] if name == "lengthscale" else value
            for name, value in self.arguments.items()
        }
        exact["outputscale"] = float(self.arguments["outputscale"]).hex()
        return hashlib.sha256(json.dumps(exact, sort_keys=True).encode()).hexdigest()

    def check_fingerprint(self, other: str | FourierFeatures) -> None:
        """Checks that a client or server has the same features.

        Args:
            other: The other ``FourierFeatures`` or their fingerprint.

        Raises:
            FingerprintError: If the fingerprints differ.
            TypeError: If ``other`` has another type.
        """
        if not isinstance(other, str | FourierFeatures):
            raise TypeError(f"other must be FourierFeatures or their fingerprint, got {type(other).__name__}.")
        theirs = other if isinstance(other, str) else other.fingerprint
        if theirs != self.fingerprint:
            arguments = ", ".join(f"{name}={str(value)[:60]}" for name, value in self.arguments.items())
            raise FingerprintError(
                f"The other Fourier features have fingerprint {theirs[:16]}…, these have {self.fingerprint[:16]}…. "
                f"Compare ``arguments`` on both sides; here they are {arguments}."
            )

    def features(self, X: Tensor) -> Tensor:
        """φ(x), ``batch x n x M``, of points ``batch x n x d``; differentiable in X.

        Raises:
            TypeError: If X is not a float32 or float64 tensor.
            ValueError: If X is not ``batch x n x d`` with n ≥ 1, or has NaN or inf.
        """
        self._check(X)
        phase = self._phase(X)
        if self.phases is not None:
            return phase.cos().mul(self.scale)
        return torch.cat((phase.cos(), phase.sin()), dim=-1).mul_(self.scale)

    def kernel(self, X: Tensor, X2: Tensor | None = None) -> Tensor:
        """φ(x)ᵀφ(x'), the estimate of k(x, x'), ``batch x n x n'``, X2 = X by default; errors as in ``features``."""
        phi = self.features(X)
        if X2 is None:
            return phi @ phi.mT
        self._check(X2)
        check_same_kind("X2", X2, "X", X)
        return phi @ self.features(X2).mT

    def value(self, X: Tensor, w: Tensor) -> Tensor:
        """The value φ(x)ᵀw, ``batch x q``, for weights w of ``M``.

        Raises:
            TypeError, ValueError: As ``features``, and if w does not have the shape ``M`` and X's dtype and device.
        """
        self._check(X)
        self._check_weights(w, X)
        return self.features(X) @ w

    def gradient(self, X: Tensor, w: Tensor) -> Tensor:
        """∇φ(x)ᵀw, the gradient of ``value``, ``batch x q x d``, for weights w of ``M`` (FZooS eq. 4).

        For paired features with p_j = v_jᵀx it is √(2o/M) Σ_j (w_{h+j} cos p_j − w_j sin p_j) v_j. No ``M x d`` matrix
        is formed; for one point, a compiled loop reads the frequencies only once. Errors are as in ``value``.
        """
        self._check(X)
        self._check_weights(w, X)
        V, phases = self._cast(X)
        differentiable = is_traced(X) or (torch.is_grad_enabled() and (X.requires_grad or w.requires_grad))
        loops = compiled("surrogates.fourier.features_numba")
        if loops is not None and X.shape[:-1].numel() == 1 and X.is_cpu and not differentiable:
            return loops.one_point(V, phases, X.reshape(1, self.d), w, self.scale).reshape(X.shape)
        return self._coefficients(self.slopes(X), w) @ V

    def jacobian(self, X: Tensor) -> Tensor:
        """The Jacobian ∇φ(x) of the features, dense, ``batch x q x M x d``."""
        self._check(X)
        V, _ = self._cast(X)
        return (self.slopes(X).unsqueeze(-1) * V).flatten(-3, -2)

    def jacobian_product(self, x: Tensor, rows: Tensor) -> Tensor:
        """A ∇φ(x), ``k x d``, for one point x, ``1 x d``, and a matrix A, ``k x M``; ∇φ(x) is not formed."""
        self._check(x)
        V, _ = self._cast(x)
        return self._coefficients(self.slopes(x).squeeze(0), rows) @ V

    def slopes(self, X: Tensor) -> Tensor:
        """∂φ/∂p, ``batch x q x parts x h``: −√(2o/M) sin p_j for the cosines, then √(2o/M) cos p_j for any sines."""
        phase = self._phase(X)
        if self.phases is None:
            return torch.stack((phase.sin().neg(), phase.cos()), dim=-2).mul(self.scale)
        return phase.sin().mul(-self.scale).unsqueeze(-2)

    def prior_gradient_variance(self, X: Tensor) -> Tensor:
        """The diagonal of ∇φ(x)ᵀ∇φ(x), the prior variance of each partial derivative, ``batch x q x d``."""
        self._check(X)
        V, _ = self._cast(X)
        return self.slopes(X).square().sum(-2) @ V.square()

    def prior_gradient_covariance(self, X: Tensor) -> Tensor:
        """∇φ(x)ᵀ∇φ(x), the prior covariance of the gradient, ``batch x q x d x d``."""
        self._check(X)
        V, _ = self._cast(X)
        weight = self.slopes(X).square().sum(-2)
        return (V.mT * weight.unsqueeze(-2)) @ V

    def _draw(self) -> Tensor:
        density = self.density
        count = self.num_features if self.kind == "cosine" else self.num_features // 2
        drawn = torch.from_numpy(_DRAWS[self.kind](density, count, self.seed))
        drawn /= torch.tensor(density.lengthscale, dtype=torch.float64)
        if density.active_dims == tuple(range(self.d)):
            return drawn
        frequencies = drawn.new_zeros(count, self.d)
        frequencies[:, list(density.active_dims)] = drawn
        return frequencies

    def _cast(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        key = (like.dtype, like.device)
        if key not in self._casts:
            phases = None if self.phases is None else self.phases.to(*key[::-1])
            self._casts[key] = (self.frequencies.to(*key[::-1]), phases)
        return self._casts[key]

    def _phase(self, X: Tensor) -> Tensor:
        V, phases = self._cast(X)
        phase = X @ V.mT
        return phase if phases is None else phase + phases

    @staticmethod
    def _coefficients(slopes: Tensor, w: Tensor) -> Tensor:
        return (slopes * w.view(*w.shape[:-1], *slopes.shape[-2:])).sum(-2)

    def _check(self, X: Tensor) -> None:
        check_points(X, self.d, X)
        if X.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"X must be float32 or float64, got {X.dtype}.")

    def _check_weights(self, w: Tensor, X: Tensor) -> None:
        check_floating("w", w)
        if w.shape != (self.num_features,):
            raise ValueError(f"w must be of shape ({self.num_features},), got {tuple(w.shape)}.")
        check_same_kind("w", w, "X", X)
