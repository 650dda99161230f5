"""A copy of a window of nearest queries, for use after the window has moved."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surrogates.kernels.one_pass import Pass
from surrogates.stationary_conditioning import StationaryConditioning
from surrogates.window.nearest_search import row_squared_distances
from surrogates.window.nearest_window import NearestWindow

explained: Callable[..., float] | None = None
with contextlib.suppress(ImportError):  # numba is the optional extra `fast`
    from surrogates.kernels.one_pass_numba import numbers_of
    from surrogates.window.kept_window_numba import explained


@dataclass(frozen=True)
class KeptWindow:
    """The part of a window under an isotropic kernel that ``WindowSurrogate.keep`` saves.

    Attributes:
        rows: the trajectory's row in each slot.
        conditioning: its conditioning, without valid inputs in the slots that a later move has filled anew.
    """

    rows: np.ndarray
    conditioning: StationaryConditioning

    def information(self, window: NearestWindow, x: Tensor, known: Pass) -> float:
        """G = trace JᵀA⁻¹J, by which the kept queries reduce the trace of the covariance of ∇f(x).

        Distances of queries that are still in the present window come from the pass over it at x.

        Args:
            window: the present window, with the hyper-parameters of the kept one.
            x: the point, shape ``d``.
            known: the pass over the present window at x.
        """
        point = known.of_one_point()
        if explained is not None and point is not None and (kept := self._compiled) is not None:
            return explained(self.rows, window.rows, window.trajectory.X.numpy(), x.numpy(), *point, *kept)
        kernel = self.conditioning.stationary
        moved = np.flatnonzero(self.rows != window.rows)
        if moved.size:
            _, _, p, v = kernel.numbers
            left = torch.from_numpy(self.rows[moved]).to(x.device)
            r2, q, c = (part.clone() for part in (known.r2, known.q, known.c))
            distances = p * row_squared_distances(window.trajectory.X, x, None, left)
            r2[..., moved], q[..., moved] = distances, distances * (v * v / p)
            c[..., moved] = kernel.row_scales(distances)
            known = Pass(known.mean, r2, q, c)
        return float(self.conditioning.explained_trace(known))

    @cached_property
    def _compiled(self) -> tuple[Any, ...] | None:
        """The arguments of the compiled function for the kept window; None for a profile that is not built in."""
        kernel = self.conditioning.stationary
        numbers = numbers_of(kernel.profile)
        return None if numbers is None else (*self.conditioning.matrices, numbers[0], kernel.numbers)
