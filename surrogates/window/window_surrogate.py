"""The local surrogate of ZoRD and FZooS: a Gaussian process on the queries nearest to the current point."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from botorch import settings as botorch_settings
from botorch.exceptions.warnings import InputDataWarning
from botorch.models.transforms.input import AffineInputTransform
from botorch.models.transforms.outcome import Standardize
from gpytorch.kernels import ScaleKernel
from gpytorch.means import ConstantMean
from torch import Tensor

from surrogates.compiled import compiled
from surrogates.gradient_posterior import GradientPosterior
from surrogates.kernels.blocks import snapshot
from surrogates.kernels.makers import gaussian_likelihood, matern_kernel
from surrogates.kernels.one_pass import Pass
from surrogates.kernels.stationary import radial_profile
from surrogates.models.derived_gp import DerivedGP
from surrogates.stationary_conditioning import StationaryConditioning
from surrogates.window.kept_window import KeptWindow
from surrogates.window.marginal_likelihood import (
    Hyperparameters,
    fit_isotropic,
    generalised_least_squares,
    log_likelihood,
)
from surrogates.window.nearest_window import NearestWindow
from surrogates.window.trajectory import Trajectory

logger = logging.getLogger(__name__)

KernelMaker = Callable[..., ScaleKernel]

LEAST_TO_FIT = 4
"""The smallest number of queries to which hyper-parameters are fitted."""

LEAST_NUGGET = 1e-8
"""The smallest nugget (noise variance over o) that a user may give; smaller ones are lost to rounding."""

LEAST_NOISE = 2 * LEAST_NUGGET
"""The smallest noise variance that a fit may find, in units of the variance of the window's values.

It is not in units of o, because o may be 10⁵ times this variance if the window is much narrower than ℓ.
"""

LEAST_NOISE_RATIO, MOST_NOISE_RATIO = 1e-10, 1e6
"""The bounds of the noise variance over o; smaller ratios are lost to rounding."""

MOST_CONTRACTION = 1e-9
"""The smallest factor by which the lower bound of the lengthscale is multiplied for a narrow window."""


LEAST_FACTORED = 4 * torch.finfo(torch.float64).eps
"""The smallest noise variance over o, divided by ``size``; with less, pivots of the factor are lost to rounding."""

SHORTER = (0.003, 0.01, 0.03, 0.1, 0.3)
"""Shorter lengthscales, in units of ℓ, that ``fit_noise`` compares with noise as explanations of the values."""

DECADES, EVIDENCE = 16, 3.0
"""The largest number of noise variances in ``fit_noise``, and the gain in log likelihood that shows noise."""


class WindowSurrogate:
    """A derived GP with an isotropic kernel, conditioned on the queries nearest to a moving point.

    Values are standardised as (y − m)/s. The scale s is the standard deviation of the window's values at the start of
    an iteration. The mean m is recomputed at every move by generalised least squares. ``gradient_posterior`` is in
    standardised units, so that thresholds do not depend on the scale of f; its mean times ``scale`` is in units of f.

    A move updates the distances and the factor (``NearestWindow``). The weights α then take one solve, and the first
    trace of a gradient covariance one inverse.

    Args:
        like: a point, shape ``d``, with the dtype and device of the queries.
        size: the largest number of queries in the window (ZoRD, Appx. C.1: 150).
        hyperparameters: the hyper-parameters until the first fit.
        noise: the noise variance of a value in squared units of f, or None for that of ``hyperparameters``.
        kernel: ``matern_kernel`` (5/2), ``rbf_kernel``, or another function of lengthscale and outputscale.
    """

    def __init__(
        self,
        like: Tensor,
        size: int,
        hyperparameters: Hyperparameters,
        *,
        noise: float | None = None,
        kernel: KernelMaker = matern_kernel,
    ) -> None:
        self.kernel = kernel
        self.trajectory = Trajectory(like.numel(), dtype=like.dtype, device=like.device)
        self.size, self.noise = size, noise
        self.scale = 1.0
        self.fitted = 0
        self._conditioning: StationaryConditioning | None = None
        self._take(hyperparameters)
        self.window = self._empty_window(size)
        self._at: tuple[int, Tensor] | None = None

    def __len__(self) -> int:
        """The number of queries that succeeded."""
        return len(self.trajectory)

    def __repr__(self) -> str:
        """The window, the hyper-parameters and the units of gradients."""
        trajectory, h = self.trajectory, self.hyperparameters
        return (
            f"WindowSurrogate(given {len(self.window)} (at most {self.size}) of n = {len(self)} queries, "
            f"d = {trajectory.d}, {trajectory.dtype}, {trajectory.device};\n"
            f"  {self._profile.name}, lengthscale {h.lengthscale:.6g} in search units; "
            f"gradients in standardised units, times {self.scale:.6g} in f's)"
        )

    def append(self, points: Tensor, values: Tensor) -> None:
        """Appends queries with points ``m x d`` and values ``m``; NaN and infinite values are failed queries."""
        self.trajectory.append(points, values)

    def begin(self, x: Tensor) -> None:
        """Starts an iteration at x: moves the window to x, and sets the scale to the values' standard deviation."""
        self._move_to(x)
        self._conditioning = None
        self.scale = spread(self.window.y)
        if self.noise is not None:
            variance = self.scale**2 * self.hyperparameters.outputscale
            ratio = self.noise / variance if variance > 0 else 0.0
            ratio = min(max(ratio, LEAST_NOISE_RATIO), MOST_NOISE_RATIO)
            self._change(replace(self.hyperparameters, noise_ratio=ratio))

    def gradient_posterior(self, x: Tensor) -> GradientPosterior:
        """The posterior of ∇f at x, ``d``, given the queries nearest to x, in standardised units; event ``1 x d``."""
        return self.posterior(x, self.pass_at(x))

    def pass_at(self, x: Tensor, *, reselect: bool = True) -> Pass:
        """The pass over the window at x, for ``posterior`` and ``KeptWindow``; ``reselect`` moves the window first."""
        distances = None
        if reselect:
            self._move_to(x)
            if len(self.window) < len(self.trajectory):
                distances = self.window.distances
        return self.conditioning.pass_over_data(x[None], distances)

    def mean_gradient(self, known: Pass) -> Tensor:
        """The posterior mean of ∇f at the point of a pass, shape ``d``, in units of f."""
        return known.mean[0] * (math.sqrt(self.hyperparameters.outputscale) * self.scale)

    def posterior(self, x: Tensor, known: Pass) -> GradientPosterior:
        """The posterior of ∇f at x in standardised units, from the pass over the current window at x."""
        o = self.hyperparameters.outputscale
        scale = None if o == 1.0 else torch.full((1,), math.sqrt(o), dtype=torch.float64, device=x.device)
        return GradientPosterior(self.conditioning, x[None], scale, known)

    def conditioning_at(self, x: Tensor) -> StationaryConditioning:
        """Moves the window to x and returns the conditioning on it, valid until the next move."""
        self._move_to(x)
        return self.conditioning

    @property
    def conditioning(self) -> StationaryConditioning:
        """The conditioning on the current window, with values in units of √o; valid until the next move."""
        if self._conditioning is None:
            window, scale = self.window, self.scale * math.sqrt(self.hyperparameters.outputscale)
            loops = compiled("surrogates.window.weights_numba")
            if loops is not None and window.X.is_cpu:
                U, y = np.ascontiguousarray(window.L.mT.numpy()), self.trajectory.y.numpy()
                alpha = torch.from_numpy(loops.weights(U, y, window.rows, scale))
            else:
                mean, solved = generalised_least_squares(standardised(window.y, scale), window.L)
                alpha = solved[:, 0] - mean * solved[:, 1]
            self._conditioning = self._template.over(window.X, window.L, alpha, window.gradient_squared_distances)
        return self._conditioning

    def keep(self) -> KeptWindow:
        """Saves the current window for use after a move."""
        conditioning = self.conditioning
        _ = conditioning.inverse_times_distances  # computed before the window moves
        return KeptWindow(self.window.rows, conditioning)

    def fit_is_due(self, every: int) -> bool:
        """Whether there was no fit yet, or at least ``every`` queries, including failed ones, since the last fit."""
        return self.fitted == 0 or len(self) + self.trajectory.failures - self.fitted >= every

    def fit(self, x: Tensor, lengthscales: tuple[float, float], reach: float | None = None) -> None:
        """Fits the hyper-parameters to the queries nearest to x by marginal likelihood, starting at the current ones.

        The hyper-parameters do not change if the values are constant, or fewer than ``LEAST_TO_FIT``.

        Args:
            x: the point in search coordinates.
            lengthscales: the bounds of ℓ.
            reach: if all queries of the window are closer to x than this distance, the lower bound of ℓ is reduced in
                proportion, because rounding hides a quadratic function within a thousandth of ℓ.
        """
        self.begin(x)
        window, h = self.window, self.hyperparameters
        y = standardised(window.y, self.scale)
        if len(window) < LEAST_TO_FIT or not bool(y.isfinite().all()) or float(y.std()) == 0.0:
            return
        least, largest = lengthscales
        if reach is not None:
            farthest = float((window.X - x).norm(dim=1).max())
            least *= min(1.0, max(farthest / reach, MOST_CONTRACTION))
        fit = fit_isotropic(
            window.squared_distances * h.lengthscale**2,
            y,
            self._profile,
            lengthscales=(least, largest),
            noise_ratios=(LEAST_NOISE_RATIO, 1.0),
            start=(h.lengthscale, h.noise_ratio),
            noise=None if self.noise is None else max(self.noise / self.scale**2, LEAST_NOISE),
        )
        self._change(replace(fit, noise_ratio=max(fit.noise_ratio, LEAST_NOISE / fit.outputscale)))
        self.fitted = len(self) + self.trajectory.failures
        logger.debug("fitted to %d queries: %s", len(window), self.hyperparameters)

    def widen(self, size: int) -> None:
        """Sets a larger size of the window, from the next move on."""
        self.size, self._at = size, None
        self.window = self._empty_window(size)
        self._conditioning = None

    def fit_noise(self, nugget: float) -> bool:
        """Fits the noise variance to the window with a fixed kernel; returns whether the values have noise.

        The smallest noise variance over o is ``nugget`` times the median of r² in the window, but at most ``nugget``;
        in a narrow window, more would hide the curvature of f. The values have noise if a larger variance makes them e³
        times as likely as the smallest variance does, whether with ℓ or with shorter lengthscales. The most likely
        variance is then used, otherwise the smallest one. The option ``noise`` must be None.
        """
        D, y = self.window.squared_distances, standardised(self.window.y, self.scale)
        if len(y) < LEAST_TO_FIT or not bool(y.isfinite().all()) or float(y.std()) == 0.0:
            return False
        least = max(LEAST_FACTORED * self.size, nugget * min(1.0, float(D.median())))
        ratios = [least, *(least * 10.0**k for k in range(1, DECADES) if least * 10.0**k < 1.0)]

        def likelihoods(K: Tensor, ratios: Sequence[float]) -> list[float]:
            return [log_likelihood(K, y, ratio) for ratio in ratios]

        expected = likelihoods(self._profile.h(D), ratios)
        found, still = max(zip(expected, ratios, strict=True)), expected[0]
        noisy = found[0] > still + EVIDENCE
        if noisy:
            kernels = [self._profile.h(D / shorter**2) for shorter in SHORTER]
            still = max(still, *(log_likelihood(K, y, least) for K in kernels))
            noisy = found[0] > still + EVIDENCE or any(
                max(likelihoods(K, ratios[::2])) > still + EVIDENCE for K in kernels
            )
        self._change(replace(self.hyperparameters, noise_ratio=found[1] if noisy else least))
        return noisy

    def model(self, x: Tensor, units: tuple[Tensor, Tensor] | None = None) -> DerivedGP:
        """Makes a ``DerivedGP`` of the queries nearest to x with the same hyper-parameters, in the user's units.

        Args:
            x: a point in search coordinates.
            units: origin and unit of the user's coordinates, origin + unit·x, shape ``d`` each; None: the user's
                coordinates are the search coordinates.
        """
        rows = self.trajectory.nearest(x, self.size)
        X, y = self.trajectory.X[rows], self.trajectory.y[rows]
        transform = None
        if units is not None:
            origin, unit = units
            transform = AffineInputTransform(len(x), coefficient=unit, offset=origin)
            X = origin + unit * X
        h = self.hyperparameters
        noise = max(h.noise_ratio * h.outputscale, LEAST_NOISE)
        with botorch_settings.validate_input_scaling(False), warnings.catch_warnings():
            warnings.simplefilter("ignore", InputDataWarning)
            model = DerivedGP(
                X,
                y[:, None].to(X),
                likelihood=gaussian_likelihood(noise, dtype=X.dtype).to(X.device),
                covar_module=self.kernel(h.lengthscale, h.outputscale, dtype=X.dtype).to(X.device),
                mean_module=ConstantMean().to(X),
                outcome_transform=Standardize(m=1, min_stdv=torch.finfo(X.dtype).tiny),
                input_transform=transform,
            )
        mean, _ = generalised_least_squares(model.train_targets.double(), model.conditioning.factor)
        model.mean_module.constant.data.fill_(float(mean))
        return model

    def mark(self) -> tuple[Any, ...]:
        """The current state for ``roll_back``; nothing that grows with d is copied."""
        window = self.size, self.window, self.window.mark()
        return self.trajectory.mark(), window, self.hyperparameters, self.scale, self.fitted

    def roll_back(self, mark: tuple[Any, ...]) -> None:
        """Restores the state of the mark bitwise, which removes later queries."""
        trajectory, (self.size, self.window, window), hyperparameters, self.scale, self.fitted = mark
        self.trajectory.roll_back(trajectory)
        self._take(hyperparameters)
        self.window.roll_back(window)
        self._at = None

    def state_dict(self) -> dict[str, Any]:
        """The queries, the window, the hyper-parameters, the scale and the number of queries at the last fit."""
        return {
            "trajectory": self.trajectory.state_dict(),
            "window": self.window.state_dict(),
            "hyperparameters": vars(self.hyperparameters).copy(),
            "scale": self.scale,
            "fitted": self.fitted,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the result of ``state_dict``."""
        self.trajectory.load_state_dict(state["trajectory"])
        self._take(Hyperparameters(**state["hyperparameters"]))
        self.window = self._empty_window(self.size)
        self.window.load_state_dict(state["window"])
        self.scale, self.fitted, self._at = state["scale"], state["fitted"], None

    def _move_to(self, x: Tensor) -> None:
        """Moves the window, unless it is there or has all queries."""
        if len(self.window) == len(self.trajectory):
            return
        if self._at is not None and self._at[0] == len(self.trajectory) and torch.equal(self._at[1], x):
            return
        if self.window.move_to(x).numel():
            self._conditioning = None
        self._at = (len(self.trajectory), x)

    def _change(self, hyperparameters: Hyperparameters) -> None:
        if hyperparameters != self.hyperparameters:
            self._take(hyperparameters)
            self.window.set_kernel(**self._kernel_arguments())

    def _take(self, hyperparameters: Hyperparameters) -> None:
        self.hyperparameters = hyperparameters
        kernel = self.kernel(hyperparameters.lengthscale).to(self.trajectory.device)
        self._profile = radial_profile(kernel.base_kernel)
        one = torch.ones(1, 1, dtype=torch.float64, device=self.trajectory.device)
        self._template = StationaryConditioning(
            snapshot(kernel), None, one.to(self.trajectory.dtype).expand(1, self.trajectory.d), one, one[0]
        )
        self._conditioning = None

    def _empty_window(self, size: int) -> NearestWindow:
        return NearestWindow(self.trajectory, size, profile=self._profile, **self._kernel_arguments())

    def _kernel_arguments(self) -> dict[str, float]:
        return {"precision": self.hyperparameters.lengthscale**-2, "noise": self.hyperparameters.noise_ratio}


def spread(y: Tensor) -> float:
    """The standard deviation of values (with n − 1), or 1 if it is 0 or infinite, or there is one value."""
    if len(y) < 2:
        return 1.0
    unit = float(y.abs().max())
    deviation = unit * float((y / unit).std()) if unit > 0 else 0.0
    return deviation if 0.0 < deviation < math.inf else 1.0


def standardised(y: Tensor, scale: float) -> Tensor:
    """(y − m)/scale with the mean m of y, computed without overflow; 0 if all values are equal."""
    unit = float(y.abs().max()) or 1.0
    ratios = y / unit
    return (ratios - ratios.mean()) * (unit / scale)
