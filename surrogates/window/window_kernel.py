"""The stationary kernel of a window's queries, evaluated from their squared distances."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from surrogates.checks import nonnegative, positive
from surrogates.kernels.stationary import RadialProfile
from surrogates.window.trajectory import Trajectory, check_precision

numbers_of: Callable[..., Any] | None = None
with contextlib.suppress(ImportError):  # numba is the optional extra `fast`
    from surrogates.kernels.one_pass_numba import correlations, numbers_of


@dataclass(frozen=True)
class WindowKernel:
    """o h(D), D the squared distances in the metric 1/ℓₗ², and the noise of every query.

    Attributes:
        precision: 1/ℓₗ², one number or ``d``, float64.
        h: The profile as a function of r², or None.
        numbers: What the compiled loops know the profile by; None where they do not know it.
        outputscale: o.
        noise: The variance that is added to the noise of every query.
    """

    precision: Tensor
    h: Callable[[Tensor], Tensor] | None
    numbers: Any
    outputscale: float
    noise: float

    @classmethod
    def of(
        cls,
        trajectory: Trajectory,
        precision: Tensor | float | None,
        profile: RadialProfile | Callable[[Tensor], Tensor] | None,
        outputscale: float,
        noise: float,
    ) -> WindowKernel:
        """The kernel of checked hyper-parameters, on the trajectory's device.

        Raises:
            TypeError: If a hyper-parameter is no number, or the profile no function.
            ValueError: If a hyper-parameter is not finite and in its range.
        """
        precision = check_precision(1.0 if precision is None else precision, trajectory.d, trajectory.device)
        scale, variance = positive("outputscale", outputscale), nonnegative("noise", noise)
        h = getattr(profile, "h", profile)
        if h is not None and not callable(h):
            raise TypeError(f"profile must be a RadialProfile or a function of r², got {type(profile).__name__}.")
        return cls(precision, h, None if numbers_of is None else numbers_of(profile), scale, variance)

    @property
    def ard_precision(self) -> Tensor | None:
        """1/ℓₗ², ``d``, or None where one number serves all inputs: distances are kept unscaled then."""
        return self.precision if self.precision.ndim else None

    @property
    def compiled_arguments(self) -> tuple[Any, ...]:
        """The weights of the distances, the profile's numbers, 1/ℓ² and o, as compiled loops take them."""
        weights, scale = (self.precision.numpy(), 1.0) if self.precision.ndim else (None, float(self.precision))
        return weights, self.numbers, scale, self.outputscale

    def has_metric_of(self, other: WindowKernel) -> bool:
        """Whether distances that are kept under the other kernel hold under this one."""
        isotropic = not self.precision.ndim + other.precision.ndim
        return isotropic or torch.equal(self.precision, other.precision)

    def scaled(self, D: Tensor) -> Tensor:
        """The squared distances in the kernel's metric, of those that are kept."""
        return self.precision * D if self.precision.ndim == 0 else D

    def covariance(self, D: Tensor) -> Tensor:
        """o h(D) of squared distances that are kept, on the CPU with the last bits of ``replace_rows``."""
        assert self.h is not None
        if self.numbers is None or not D.is_cpu:
            return self.h(self.scaled(D)).reshape(D.shape).mul(self.outputscale)
        K = torch.empty(D.shape, dtype=torch.float64)
        scale = 1.0 if self.precision.ndim else float(self.precision)
        correlations(self.numbers, D.numpy(), scale, self.outputscale, K.numpy())
        return K
