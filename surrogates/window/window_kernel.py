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
    """o h(D), with squared distances D in the metric 1/ℓₗ², and the noise of every query.

    Attributes:
        precision: 1/ℓₗ², one number or ``d``, float64.
        h: The profile as a function of r², or None.
        numbers: The profile's numbers for compiled loops; None if it is not built in.
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
        """The kernel from checked hyper-parameters, on the trajectory's device.

        Raises:
            TypeError: If a hyper-parameter is not a number, or the profile not a function.
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
        """1/ℓₗ², ``d``, or None if one number serves all inputs: distances are then kept unscaled."""
        return self.precision if self.precision.ndim else None

    @property
    def compiled_arguments(self) -> tuple[Any, ...]:
        """The weights of the distances, the profile's numbers, 1/ℓ² and o, for compiled loops."""
        weights, scale = (self.precision.numpy(), 1.0) if self.precision.ndim else (None, float(self.precision))
        return weights, self.numbers, scale, self.outputscale

    def has_metric_of(self, other: WindowKernel) -> bool:
        """Whether distances kept under the other kernel are valid under this one."""
        isotropic = not self.precision.ndim + other.precision.ndim
        return isotropic or torch.equal(self.precision, other.precision)

    def scaled(self, D: Tensor) -> Tensor:
        """Converts kept squared distances to the kernel's metric."""
        return self.precision * D if self.precision.ndim == 0 else D

    def covariance(self, D: Tensor) -> Tensor:
        """o h(D) of kept squared distances; on the CPU bitwise equal to ``replace_rows``."""
        assert self.h is not None
        if self.numbers is None or not D.is_cpu:
            return self.h(self.scaled(D)).reshape(D.shape).mul(self.outputscale)
        K = torch.empty(D.shape, dtype=torch.float64)
        scale = 1.0 if self.precision.ndim else float(self.precision)
        correlations(self.numbers, D.numpy(), scale, self.outputscale, K.numpy())
        return K
