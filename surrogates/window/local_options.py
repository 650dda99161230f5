"""Options of the local Gaussian process of ZoRD and of FZooS's clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from surrogates.checks import check_choice, check_integer, check_lengthscale, optional, positive
from surrogates.kernels.makers import matern_kernel, rbf_kernel
from surrogates.window.window_surrogate import LEAST_NUGGET, Hyperparameters, KernelMaker, WindowSurrogate

KernelName = Literal["rbf", "matern52"]

KERNELS: dict[str, KernelMaker] = {"rbf": rbf_kernel, "matern52": matern_kernel}
"""Functions that make the isotropic kernels, by name: squared exponential (FZooS), Matérn 5/2 (ZoRD, Appx. C.1)."""

LEAST_DATA = 2
"""The smallest accepted window; a gradient needs two values."""


@dataclass(frozen=True)
class LocalSurrogateOptions:
    """Options of the local Gaussian process of ZoRD and FZooS.

    Attributes:
        window: the number of queries, nearest to the current point, that the process is conditioned on; at least 2
            (ZoRD: 150, Appx. C.1, and 300 for reinforcement learning, Appx. C.5; FZooS's eq. 8 uses all).
        lengthscale: a fixed ℓ in search coordinates, with outputscale 1 and noise ``nugget``; None: all are fitted.
        nugget: the noise variance of a value over the outputscale, at least 1e-8; also the start of a fit.
        noise: the known noise variance of a value of f, in squared units of f; None: ``nugget`` or a fit determines it.
        kernel: the name of the isotropic kernel, ``"matern52"`` or ``"rbf"``.

    Raises:
        TypeError: if an option has the wrong type.
        ValueError: if an option is out of range.
    """

    window: int = 150
    lengthscale: float | None = None
    nugget: float = 1e-6
    noise: float | None = None
    kernel: KernelName = "matern52"

    def __post_init__(self) -> None:
        window, nugget = check_integer("window", self.window, LEAST_DATA), check_nugget("nugget", self.nugget)
        lengthscale = optional(check_lengthscale, "lengthscale", self.lengthscale)
        noise = optional(positive, "noise", self.noise)
        vars(self).update(window=window, nugget=nugget, lengthscale=lengthscale, noise=noise)
        check_choice("kernel", self.kernel, KERNELS)

    def surrogate(self, like: Tensor, lengthscale: float = 1.0) -> WindowSurrogate:
        """Makes the local process, without queries.

        Args:
            like: a point, shape ``d``, with the dtype and device of the queries.
            lengthscale: ℓ until the first fit, if the option ``lengthscale`` is None.
        """
        hyperparameters = Hyperparameters(self.lengthscale or lengthscale, 1.0, self.nugget)
        return WindowSurrogate(like, self.window, hyperparameters, noise=self.noise, kernel=KERNELS[self.kernel])


def check_nugget(name: str, value: float) -> float:
    """Converts a nugget to a float; raises a ``ValueError`` if it is below ``LEAST_NUGGET``."""
    if positive(name, value) < LEAST_NUGGET:
        raise ValueError(f"{name} must be at least {LEAST_NUGGET:g}, got {value}")
    return float(value)
