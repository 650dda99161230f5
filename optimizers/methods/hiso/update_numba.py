"""The compiled CPU kernel of `optimizers.methods.hiso.update`, equal to the torch routine bit for bit.

It is imported if numba is installed, and compiled without fastmath. A group of coordinates is processed while it is in
the fastest cache, so that x, H and m are read and written once.
"""

import numpy as np

from optimizers.directions.directions_numba import GROUP, compile_, draw_group


@compile_
def update(signs, k0, k1, rows, s0, s1, coefficients, start, end, x, hessian, momentum, learns, numbers):  # type: ignore
    """Updates coordinates start … end − 1 of x, H and m; an empty ``hessian`` or ``momentum`` means None."""
    rate, decay, gain, keep, weight, epsilon, lower, upper = numbers
    width = GROUP * 32 if signs else GROUP
    w, z = np.empty(GROUP, np.uint32), np.empty(width, np.float32)
    delta = np.empty(width, coefficients.dtype)
    scaled, carried = hessian.size > 0, momentum.size > 0
    for group in range(start // width, -(-end // width)):
        low, high = max(start, group * width), min(end, group * width + width)
        count, first, last = high - low, low - start, high - start
        d = delta[:count]
        _combine(signs, k0, k1, rows, s0, s1, coefficients, group, width, low, high, w, z, d)
        if scaled:
            h = hessian[first:last]
            for j in range(count):
                d[j] = d[j] / np.sqrt(h[j])
            if learns:
                for j in range(count):
                    value = keep * h[j] + weight * (d[j] * d[j] + epsilon)
                    value = lower if value < lower else value
                    h[j] = upper if value > upper else value
        if carried:
            m = momentum[first:last]
            for j in range(count):
                d[j] = decay * m[j] + gain * d[j]
                m[j] = d[j]
        target = x[first:last]
        for j in range(count):
            target[j] = target[j] - rate * d[j]


@compile_
def _combine(signs, k0, k1, rows, s0, s1, coefficients, group, width, low, high, w, z, d):  # type: ignore
    """d ← Σₜ cₜ uₜ on coordinates low … high − 1 of a group."""
    source = z[low - group * width : high - group * width]
    for t in range(rows.size):
        draw_group(signs, k0, k1, rows[t], s0[t], s1[t], group, high - group * width, w, z)
        c = coefficients[t]
        if t == 0:
            for j in range(d.size):
                d[j] = c * source[j]
        else:
            for j in range(d.size):
                d[j] = d[j] + c * source[j]
