"""A compiled step of Adam for ``optimizers.first_order``."""

from __future__ import annotations

from math import sqrt

import numba


@numba.njit(cache=True, nogil=True, error_model="numpy")
def adam_step(x, gradient, mean, square, count, rate, beta1, beta2, eps, moved):  # type: ignore[no-untyped-def]
    """Writes Adam's x − rate m̂/(√v̂ + ε) to ``moved``, and updates ``mean`` (m) and ``square`` (v).

    Vectors have shape ``d``; ``count`` is the number of steps, this one included.
    """
    size, root = rate / (1 - beta1**count), sqrt(1 - beta2**count)
    for i in range(x.size):
        mean[i] += (1 - beta1) * (gradient[i] - mean[i])
        square[i] = beta2 * square[i] + (1 - beta2) * gradient[i] * gradient[i]
        moved[i] = x[i] - size * mean[i] / (sqrt(square[i]) / root + eps)
