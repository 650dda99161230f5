"""A compiled loop for ``surrogates.window.kept_window``."""

from __future__ import annotations

import numba
import numpy as np

from surrogates.kernels.one_pass_numba import h1, trace_explained
from surrogates.window.nearest_search import evaluate_rows


@numba.njit(cache=True, nogil=True)
def explained(kept, held, history, x, c, q, inverse, weighted, profile, numbers):  # type: ignore[no-untyped-def]
    """Computes ``trace_explained`` of the kept queries; only distances to queries that have left the window are new.

    Args:
        kept: The row of the trajectory in each slot of the kept window.
        held: The row of the trajectory in each slot of the current window.
        history: All queries, ``n x d``.
        x: The point, ``d``.
        c: The row scales of the pass over the current window at x, ``1 x k``.
        q: The squared distances of this pass in the metric v², ``1 x k``.
        inverse: A⁻¹ of the kept window, ``k x k``.
        weighted: A⁻¹∘E of the kept window, ``k x k``.
        profile: The number of the kernel's profile.
        numbers: The kernel's exponent, o, 1/ℓ² and v.
    """
    exponent, outputscale, p, v = numbers
    c, q, squared = c.copy(), q.copy(), np.empty(1)
    for i in range(kept.size):
        if kept[i] != held[i]:
            evaluate_rows(history, x, kept[i : i + 1], squared)
            r2 = p * squared[0]
            q[0, i] = r2 * (v * v / p)
            c[0, i] = 2 * outputscale * h1(profile, exponent, r2)
    return trace_explained(c, q, inverse, weighted)
