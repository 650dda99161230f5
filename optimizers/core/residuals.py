"""The cost of a least-squares problem and its derivatives, with SciPy's loss functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from optimizers.core.bounds import Domain
from optimizers.core.constraints import Group
from optimizers.core.options import check_choice, positive

CONSTRAINT_ENTRIES = ("constr_violation", "maxcv", "constr", "multipliers", "active")


def _linear(z: np.ndarray) -> tuple[np.ndarray, ...]:
    return z, np.ones_like(z), np.zeros_like(z)


def _soft_l1(z: np.ndarray) -> tuple[np.ndarray, ...]:
    t = 1.0 + z
    return 2.0 * (t**0.5 - 1.0), t**-0.5, -0.5 * t**-1.5


def _huber(z: np.ndarray) -> tuple[np.ndarray, ...]:
    far, t = z > 1.0, np.maximum(z, 1.0)
    return np.where(far, 2.0 * t**0.5 - 1.0, z), t**-0.5, np.where(far, -0.5 * t**-1.5, 0.0)


def _cauchy(z: np.ndarray) -> tuple[np.ndarray, ...]:
    t = 1.0 + z
    return np.log1p(z), 1.0 / t, -1.0 / t**2


def _arctan(z: np.ndarray) -> tuple[np.ndarray, ...]:
    t = 1.0 + z**2
    return np.arctan(z), 1.0 / t, -2.0 * z / t**2


LOSSES = {"linear": _linear, "soft_l1": _soft_l1, "huber": _huber, "cauchy": _cauchy, "arctan": _arctan}
"""SciPy's loss functions by name; each returns ρ(z), ρ'(z) and ρ''(z) for z of shape ``m``."""


@dataclass(frozen=True)
class Loss:
    """The cost F(r) = ½ C² Σᵢ ρ((rᵢ/C)²) of residuals r, as ``scipy.optimize.least_squares`` defines it.

    Attributes:
        loss: a name in ``LOSSES``, or a function that takes z, shape ``m``, and returns ρ, ρ' and ρ'', ``3 x m``.
        f_scale: C, in the residuals' units; it has no effect with the loss ``"linear"``.

    Raises:
        ValueError: for an unknown loss, or a scale that is not positive.
    """

    loss: str | Callable[[np.ndarray], np.ndarray] = "linear"
    f_scale: float = 1.0

    def __post_init__(self) -> None:
        if not callable(self.loss):
            check_choice("loss", self.loss, tuple(LOSSES))
        positive("f_scale", self.f_scale)

    def _rho(self, r: np.ndarray) -> np.ndarray:
        """ρ, ρ' and ρ'' at z = (r/C)², ``3 x m``."""
        rho = self.loss if callable(self.loss) else LOSSES[self.loss]
        return np.asarray(rho((r / self.f_scale) ** 2), dtype=float)

    @property
    def group(self) -> Group:
        """The residuals as a constraint without bounds, which is evaluated together with F."""
        return Group(self.cost, np.array([-math.inf]), np.array([math.inf]))

    def cost(self, r: np.ndarray) -> float:
        """F(r), for residuals r of shape ``m``."""
        return 0.5 * self.f_scale**2 * float(self._rho(r)[0].sum())

    def derivatives(self, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """∂F/∂rᵢ = ρ' rᵢ and ∂²F/∂rᵢ² = ρ' + 2ρ'' (rᵢ/C)², each of shape ``m``."""
        _, slope, curvature = self._rho(r)
        return slope * r, slope + 2.0 * curvature * (r / self.f_scale) ** 2

    def __str__(self) -> str:
        """A text that identifies the loss in checkpoints."""
        name = getattr(self.loss, "__qualname__", type(self.loss).__name__) if callable(self.loss) else self.loss
        return f"{name}({self.f_scale!r})"


def described_least_squares(
    result: dict[str, Any], loss: Loss, r: Tensor | None, jac: Tensor | None, domain: Domain | None
) -> dict[str, Any]:
    """Converts a result's entries to those of ``scipy.optimize.least_squares``; see ``optimizers.least_squares``.

    Args:
        result: the entries of the run's result, where ``fun`` is the cost.
        loss: the loss.
        r: the residuals at x, shape ``m``; None if no query succeeded.
        jac: the Jacobian of the residuals at x, ``m x d``; None: unknown.
        domain: the run's box, or None.
    """
    result = {name: value for name, value in result.items() if name not in CONSTRAINT_ENTRIES}
    result["history"].pop("maxcv", None)
    x, cost = result["x"], float(result["fun"])
    lower, upper = (torch.full_like(x, -math.inf), torch.full_like(x, math.inf))
    if domain is not None:
        lower, upper = domain.lower, domain.upper
    mask = (x >= upper).int() - (x <= lower).int()
    result |= {"cost": cost, "fun": r, "jac": None, "grad": None, "optimality": math.inf, "active_mask": mask}
    if r is None or jac is None:
        return result
    slopes, curvatures = (torch.from_numpy(part) for part in loss.derivatives(r.numpy()))
    grad, x = jac.mT @ slopes, x.to(jac)
    side = torch.where(grad < 0.0, upper.to(jac) - x, x - lower.to(jac))
    optimality = float((grad * torch.where((grad != 0.0) & torch.isfinite(side), side, 1.0)).abs().max())
    weights = curvatures.clamp_min(torch.finfo(jac.dtype).eps).sqrt()
    return result | {"jac": weights[:, None] * jac, "grad": grad, "optimality": optimality}
