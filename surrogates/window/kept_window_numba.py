"""The compiled information of kept queries about a gradient, for ``surrogates.window.kept_window``."""

from __future__ import annotations

import numba
import numpy as np

from surrogates.kernels.one_pass_numba import h1, trace_explained
from surrogates.window.nearest_search import evaluate_rows


@numba.njit(cache=True, nogil=True)
def explained(kept, held, history, x, c, q, inverse, weighted, profile, numbers):  # type: ignore[no-untyped-def]
    """``trace_explained`` of the kept queries; only distances to those that left the window are computed anew.

    Args:
        kept: The history's row in each slot of the kept window.
        held: The same for the present window.
        history: All queries, ``n x d``.
        x: The point, ``d``.
        c: The row scales of the pass over the present window at x, ``1 x k``.
        q: The squared distances of that pass in the metric v².
        inverse: A⁻¹ of the kept window, ``k x k``.
        weighted: A⁻¹∘E of the kept window.
        profile: The number of the kernel's profile.
        numbers: Its exponent, o, 1/ℓ² and v.
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
