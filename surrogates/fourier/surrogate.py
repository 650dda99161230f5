"""A surrogate of a function and its gradient that is linear in M Fourier features.

References:
    FZooS: Shu et al., Heterogeneous federated zeroth-order optimization using gradient surrogates, 2024,
        Sec. 3.2.1, eqs. 3-4, Appx. D.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Literal

import torch
from botorch.posteriors import GPyTorchPosterior
from torch import Tensor

from surrogates.checks import (
    check_data,
    check_finite,
    check_floating,
    check_not_traced,
    check_number,
    check_points,
    check_positive,
    check_same_kind,
    positive,
)
from surrogates.fourier.features import FourierFeatures
from surrogates.fourier.linear_posterior import BLOCK_ROWS, LinearPosterior
from surrogates.linalg.rounding import remaining, remaining_covariance
from surrogates.normal import UnitFreeNormal


class NotFittedError(ValueError):
    """A Fourier surrogate without data cannot perform the operation."""


class FourierSurrogate:
    """The Gaussian process with kernel φ(x)ᵀφ(x'), represented by its M weights (FZooS eqs. 3-4).

    The model is f(x) = m + φ(x)ᵀw with w ~ N(0, I). Given y with noise s² at the n rows of X, and Φ = φ(X)ᵀ,

        w̄ = Φ(ΦᵀΦ + s²I)⁻¹(y − m),        cov w = I − Φ(ΦᵀΦ + s²I)⁻¹Φᵀ,

    in y's units. Eq. 3 has m = 0. Here m is given, or estimated from all data by generalised least squares:

        m = 1ᵀ(ΦᵀΦ + s²I)⁻¹y / 1ᵀ(ΦᵀΦ + s²I)⁻¹1.

    Uncertainties assume that m is known. Matrices are ``n x n`` for n ≤ M and ``M x M`` otherwise
    (``LinearPosterior``). The mean of several surrogates with the same features has the mean of their ``weights`` (eq.
    4); therefore FZooS's clients send only weights. Features are computed in the dtype of X, the algebra in float64.

    Args:
        features: The features φ.
        noise: s², the variance of an observation in y's squared units, positive.
        mean: m in y's units, or ``"estimated"``.

    Raises:
        TypeError: If ``features`` are not ``FourierFeatures``, or noise or mean is not a number.
        ValueError: If the noise is not finite and positive, or the mean not finite.

    Example:
        >>> surrogate = FourierSurrogate(features, noise=1e-4).fit(X, y)
        >>> surrogate.append(X_new, y_new).gradient(x)
        >>> server = FourierSurrogate.from_weights(features, torch.stack(clients_weights).mean(0))
    """

    def __init__(self, features: FourierFeatures, noise: float, mean: float | Literal["estimated"] = 0.0) -> None:
        if not isinstance(features, FourierFeatures):
            raise TypeError(f"features must be FourierFeatures, got {type(features).__name__}.")
        self.features = features
        self.noise = positive("noise", noise)
        self.estimates_mean = isinstance(mean, str) and mean == "estimated"
        # Targets are residuals from this number: the mean, or near an estimated one, for the digits' sake.
        self._offset = 0.0 if mean == "estimated" else check_number("mean", mean)
        self._given_weights: Tensor | None = None
        self._linear: LinearPosterior | None = None
        # An empty tensor of the data's dtype and device.
        self._like: Tensor | None = None

    @classmethod
    def from_weights(cls, features: FourierFeatures, weights: Tensor, mean: float = 0.0) -> FourierSurrogate:
        """Makes a surrogate without data, which gives values and gradients but no uncertainties.

        Args:
            features: The features that the weights belong to (``FourierFeatures.check_fingerprint``).
            weights: w, ``M``, such as the mean of several surrogates' ``weights``.
            mean: m, the constant that is added to values.

        Raises:
            TypeError: If the weights are not a floating-point tensor.
            ValueError: If the weights do not have the shape ``M``, or hold NaN or inf.
        """
        surrogate = cls(features, noise=1.0, mean=mean)
        check_floating("weights", weights)
        if weights.shape != (features.num_features,):
            raise ValueError(f"weights must be of shape ({features.num_features},), got {tuple(weights.shape)}.")
        check_finite("weights", weights)
        surrogate._given_weights = weights.detach().clone()
        surrogate._like = surrogate._given_weights.new_empty(0)
        return surrogate

    def __repr__(self) -> str:
        """M, n and d, and the noise and the mean in y's units."""
        features, like = self.features, self._like
        kind = "" if like is None else f", {like.dtype}, {like.device}"
        given = "given weights, no data"
        if self._given_weights is None:
            given = f"given n = {self.num_observations} values of noise variance {self.noise:.6g}"
        estimated = " (estimated)" if self.estimates_mean else ""
        return (
            f"FourierSurrogate(M = {features.num_features} features, d = {features.d}{kind}; {given}; "
            f"mean {self.mean:.6g}{estimated}, in y's units)"
        )

    @property
    def num_observations(self) -> int:
        """The number of observations, 0 before ``fit`` and for a surrogate made from weights."""
        return 0 if self._linear is None else self._linear.num_rows

    @property
    def nbytes(self) -> int:
        """The bytes used by the data's features (n·M numbers) and factor (n² numbers, or M² once n has exceeded M)."""
        return 0 if self._linear is None else self._linear.nbytes

    @property
    def mean(self) -> float:
        """The constant m; an estimated m is 0 before ``fit``."""
        return self._offset + self._beyond_offset

    @property
    def _beyond_offset(self) -> float:
        """The estimated mean minus the offset; 0 if rounding has lost it.

        For n > M, 1ᵀ(K + s²I)⁻¹1 is a difference of numbers near n/s², and may be 0 for very small noise. The features
        can then represent a constant as far as the data show.
        """
        if not self.estimates_mean or self._linear is None:
            return 0.0
        quadratic = self._linear.quadratic
        return float(quadratic[0, 1] / quadratic[1, 1]) if float(quadratic[1, 1]) > 0.0 else 0.0

    @property
    def weights(self) -> Tensor:
        """A copy of w̄, ``M``, in y's units, with the data's dtype and device.

        Raises:
            NotFittedError: Before ``fit``.
        """
        if self._given_weights is not None:
            return self._given_weights.clone()
        like = self._reference
        assert self._linear is not None
        solved = self._linear.mean
        if self.estimates_mean:
            return (solved[:, 0] - self._beyond_offset * solved[:, 1]).to(like.dtype)
        return solved[:, 0].to(like.dtype, copy=True)

    def fit(self, X: Tensor, y: Tensor, noise: float | Tensor | None = None) -> FourierSurrogate:
        """Replaces the data and conditions on the new data, in O(n²M + n³/3), or O(nM² + M³/3) for n > M.

        Args:
            X: The inputs, ``n x d``.
            y: The values, ``n`` or ``n x 1``.
            noise: The variances of these observations, one number or ``n``; the surrogate's ``noise`` by default.

        Returns:
            The surrogate itself.

        Raises:
            TypeError: If an argument is not a floating point tensor.
            ValueError: If shapes do not match, there are no data, an entry is NaN or infinite, dtypes or devices
                differ, the noise is not positive, or it is too small for duplicate points. The surrogate is unchanged.
        """
        y, deviation = self._checked(X, y, noise)
        offset = float(y.mean()) if self.estimates_mean else self._offset
        targets = 2 if self.estimates_mean else 1
        linear = LinearPosterior(self.features.num_features, X.dtype, X.device, targets)
        linear.append(self._blocks(X, y - offset, deviation), len(X))
        self._linear, self._given_weights, self._like, self._offset = linear, None, X.new_empty(0), offset
        return self

    def append(self, X: Tensor, y: Tensor, noise: float | Tensor | None = None) -> FourierSurrogate:
        """Adds data, with the same result as ``fit`` on all data, in O(n² + nM) per row, or O(M²) for n > M.

        Args:
            X: The new inputs, ``k x d``.
            y: The new values, ``k`` or ``k x 1``.
            noise: The variances of the new observations, as in ``fit``.

        Returns:
            The surrogate itself.

        Raises:
            TypeError, ValueError: As ``fit``, and if dtype or device differ from the earlier data.
            NotFittedError: If the surrogate was made from weights.
        """
        if self._given_weights is not None:
            raise NotFittedError("A surrogate made from weights has no data to append to; fit a new FourierSurrogate.")
        if self._linear is None:
            return self.fit(X, y, noise)
        y, deviation = self._checked(X, y, noise)
        check_same_kind("X", X, "the data so far", self._reference)
        self._linear.append(self._blocks(X, y - self._offset, deviation), len(X))
        return self

    def value(self, X: Tensor) -> Tensor:
        """m + φ(x)ᵀw̄, the posterior mean of f, ``batch x q``; differentiable in X.

        Raises:
            TypeError, ValueError: If X is not ``batch x q x d``, finite, of the data's dtype and device.
            NotFittedError: Before ``fit``.
        """
        self._check(X)
        return self.mean + self.features.value(X, self.weights)

    def gradient(self, X: Tensor) -> Tensor:
        """∇φ(x)ᵀw̄, the posterior mean of ∇f, ``batch x q x d`` (FZooS eq. 4). Errors are as in ``value``."""
        self._check(X)
        return self.features.gradient(X, self.weights)

    def posterior(self, X: Tensor) -> GPyTorchPosterior:
        """The joint posterior of f at q points, with covariance φ(x)ᵀ cov(w) φ(x'), ``batch x q x q``.

        Raises:
            TypeError, ValueError: As ``value``.
            NotFittedError: Before ``fit``, and if the surrogate was made from weights.
        """
        linear = self._fitted_at(X)
        phi = self.features.features(X.detach().double())
        covariances = [_value_covariance(linear, points.mT) for points in phi.reshape(-1, *phi.shape[-2:])]
        covariance = torch.stack(covariances).reshape(*X.shape[:-1], X.shape[-2]).to(X.dtype)
        return GPyTorchPosterior(UnitFreeNormal(self.value(X).detach(), covariance))

    def gradient_posterior(self, X: Tensor) -> FourierGradientPosterior:
        """The posterior of ∇f at each point X, ``batch x q x d``. Errors are as in ``posterior``."""
        return FourierGradientPosterior(self, self._fitted_at(X), X)

    @property
    def _reference(self) -> Tensor:
        if self._like is None:
            raise NotFittedError("The surrogate has no data yet; fit it first.")
        return self._like

    def _check(self, X: Tensor) -> None:
        check_points(X, self.features.d, self._reference)

    def _fitted_at(self, X: Tensor) -> LinearPosterior:
        """The weights' posterior, for uncertainties at X."""
        self._check(X)
        check_not_traced("X", X)
        if self._linear is None:
            raise NotFittedError("A surrogate made from weights has no uncertainty; fit a new FourierSurrogate.")
        return self._linear

    def _checked(self, X: Tensor, y: Tensor, noise: float | Tensor | None) -> tuple[Tensor, Tensor]:
        """The values and the noise's standard deviations, both ``n``, float64."""
        check_floating("X", X)
        check_floating("y", y)
        if X.ndim != 2 or X.shape[-1] != self.features.d:
            raise ValueError(f"X must be of shape n x {self.features.d}, got {tuple(X.shape)}.")
        if y.ndim not in (1, 2) or y.shape not in ((len(X),), (len(X), 1)):
            raise ValueError(f"y must be of shape ({len(X)},) or ({len(X)}, 1), got {tuple(y.shape)}.")
        y = y.detach().reshape(-1, 1)
        check_data(X, y, prefix="")
        if isinstance(noise, Tensor) and noise.ndim > 0:
            check_floating("noise", noise)
            if noise.shape not in ((len(X),), (len(X), 1)):
                raise ValueError(f"noise must be one number or of shape ({len(X)},), got {tuple(noise.shape)}.")
            check_same_kind("noise", noise, "X", X)
            check_positive("noise", noise)
            variance = noise.detach().reshape(-1).double()
        else:
            number = self.noise if noise is None else positive("noise", noise)
            variance = torch.full((len(X),), number, dtype=torch.float64, device=X.device)
        return y.squeeze(-1).double(), variance.sqrt()

    def _blocks(self, X: Tensor, residual: Tensor, deviation: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields rows and targets over their noise's deviation; with an estimated mean the second target is 1."""
        for start in range(0, len(X), BLOCK_ROWS):
            part = slice(start, start + BLOCK_ROWS)
            scaled = self.features.features(X[part].detach()) / deviation[part, None].to(X.dtype)
            targets = [residual[part], torch.ones_like(residual[part])][: 1 + self.estimates_mean]
            yield scaled, torch.stack(targets, dim=-1) / deviation[part, None]


class FourierGradientPosterior:
    """The posterior N(∇φ(x)ᵀw̄, ∇φ(x)ᵀ cov(w) ∇φ(x)) of ∇f at each of ``batch x q`` points.

    Create it with ``FourierSurrogate.gradient_posterior``. Results are computed in float64 when they are first read;
    uncertainties must be read before the surrogate changes. For n ≤ M a point costs O(nMd + n²d).

    Raises:
        ValueError: If an uncertainty is read after the surrogate has changed.
    """

    def __init__(self, surrogate: FourierSurrogate, linear: LinearPosterior, X: Tensor) -> None:
        self._features = surrogate.features
        self._linear = linear
        self._num_data = linear.num_rows
        self._X = X.detach().clone()
        self._weights = surrogate.weights

    def __repr__(self) -> str:
        """The shape and units of the gradients, and what they are conditioned on."""
        shape = " x ".join(map(str, self._X.shape))
        return (
            f"FourierGradientPosterior({shape}, {self._X.dtype}, {self._X.device}; outcome per unit of input; "
            f"given n = {self._num_data} values by M = {self._features.num_features} features)"
        )

    @cached_property
    def mean(self) -> Tensor:
        """The posterior mean ∇φ(x)ᵀw̄ of ∇f(x), ``batch x q x d``."""
        return self._features.gradient(self._X, self._weights)

    @cached_property
    def variance(self) -> Tensor:
        """The variance of every partial derivative, ``batch x q x d``."""
        prior = self._features.prior_gradient_variance(self._points)
        rows = []
        for x, known in zip(self._points, prior, strict=True):
            Y, Z = self._factors(x)
            before = known if Y is None else Y.square().sum(0)
            rows.append(remaining(before, Z.square().sum(0)))
        return torch.stack(rows).reshape(self._X.shape).to(self._X.dtype)

    @cached_property
    def trace(self) -> Tensor:
        """The trace of the covariance, E‖∇f(x) − mean‖², ``batch x q``."""
        return self.variance.sum(-1)

    @cached_property
    def prior_trace(self) -> Tensor:
        """The trace of the prior covariance, before any observation, ``batch x q``."""
        return self._features.prior_gradient_variance(self._X).sum(-1)

    @cached_property
    def covariance_matrix(self) -> Tensor:
        """The covariance, dense, ``batch x q x d x d``."""
        matrices = []
        for x in self._points:
            Y, Z = self._factors(x)
            prior = self._features.prior_gradient_covariance(x.unsqueeze(0)).squeeze(0)
            matrices.append(remaining_covariance(prior if Y is None else Y.mT @ Y, Z.mT @ Z))
        d = self._X.shape[-1]
        return torch.stack(matrices).reshape(*self._X.shape, d).to(self._X.dtype)

    @cached_property
    def spectral_norm(self) -> Tensor:
        """The largest eigenvalue of the covariance, ``batch x q``."""
        return torch.linalg.eigvalsh(self.covariance_matrix)[..., -1]

    @property
    def _points(self) -> Tensor:
        return self._X.double().reshape(-1, self._X.shape[-1])

    def _factors(self, x: Tensor) -> tuple[Tensor | None, Tensor]:
        """``LinearPosterior.covariance_factors`` of ∇φ at one point x, ``d``."""
        if self._linear.num_rows != self._num_data:
            raise ValueError("The surrogate has changed since this posterior was made; call gradient_posterior again.")
        point = x.unsqueeze(0)
        return self._linear.covariance_factors(
            lambda: self._features.jacobian(point).squeeze(0), lambda rows: self._features.jacobian_product(point, rows)
        )


def _value_covariance(linear: LinearPosterior, phi: Tensor) -> Tensor:
    """φᵀ cov(w) φ, ``q x q``, for φ of ``M x q``."""
    Y, Z = linear.covariance_factors(lambda: phi, lambda rows: rows @ phi)
    root = phi if Y is None else Y
    return root.mT @ root - Z.mT @ Z
