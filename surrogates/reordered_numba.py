"""How loops are compiled whose sums may be reordered for the vector units; NaN and inf keep their meaning."""

from __future__ import annotations

import numba

reordered = numba.njit(
    cache=True,
    nogil=True,
    error_model="numpy",
    fastmath={"reassoc", "nsz", "contract"},
    forceinline=True,
)
"""Compiles such a function, always as a part of its callers.

A function of its own is optimized once by itself and once more in the code of a caller that numba's cache keeps. Sums
have another order after the second time, so that the process that compiles would differ from the next one, which reads
the cache, in last bits.
"""

exact = numba.njit(cache=True, nogil=True, error_model="python", fastmath=False)
"""Compiles a function whose operations keep their order, also where the first to call it is ``reordered``.

Where a function's own options do not say otherwise, numba compiles it under those of its first caller, and keeps that.
"""
