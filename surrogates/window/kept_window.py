"""A copy of a window of nearest queries, for use after the window has moved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from surrogates.compiled import compiled
from surrogates.kernels.one_pass import Pass
from surrogates.stationary_conditioning import StationaryConditioning
from surrogates.window.nearest_search import row_squared_distances
from surrogates.window.nearest_window import NearestWindow


@dataclass(frozen=True)
class KeptWindow:
    """A window that ``WindowSurrogate.keep`` has saved.

    Attributes:
        rows: The row of the trajectory that is in each slot.
        conditioning: The conditioning on the window. Later moves overwrite its inputs, but not its matrices.
    """

    rows: np.ndarray
    conditioning: StationaryConditioning

    def information(self, window: NearestWindow, x: Tensor, known: Pass) -> float:
        """G = trace JᵀA⁻¹J, by which the kept queries reduce the trace of the covariance of ∇f(x).

        Args:
            window: The current window, with the same hyper-parameters as the kept window.
            x: The point, ``d``.
            known: The pass over the current window at x, from which distances of common queries are taken.
        """
        loops, point = compiled("surrogates.window.kept_window_numba"), known.of_one_point()
        kernel = self.conditioning.stationary
        if loops is not None and point is not None:
            rows = (self.rows, window.rows, window.trajectory.X.numpy())
            kept = (*self.conditioning.matrices, window.numbers[0], kernel.numbers)
            return float(loops.explained(*rows, x.numpy(), *point, *kept))
        moved = np.flatnonzero(self.rows != window.rows)
        if moved.size:
            _, _, p, v = kernel.numbers
            left = torch.from_numpy(self.rows[moved]).to(x.device)
            r2, q, c = (part.clone() for part in (known.r2, known.q, known.c))
            distances = p * row_squared_distances(window.trajectory.X, x, left)
            r2[..., moved], q[..., moved] = distances, distances * (v * v / p)
            c[..., moved] = kernel.row_scales(distances)
            known = Pass(known.mean, r2, q, c)
        return float(self.conditioning.explained_trace(known))
