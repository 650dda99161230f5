"""Decorators that compile loops, with and without reordering of sums; NaN and inf keep their meaning."""

from __future__ import annotations

import numba

reordered = numba.njit(
    cache=True,
    nogil=True,
    error_model="numpy",
    fastmath={"reassoc", "nsz", "contract"},
    forceinline=True,
)
"""Compiles a function whose sums may be reordered; it is always inlined into its callers.

Without inlining, a function would be optimized on its own and again within a cached caller, with another order of sums.
Results of the process that compiles would then differ in the last bits from those of a process that reads the cache.
"""

exact = numba.njit(cache=True, nogil=True, error_model="python", fastmath=False)
"""Compiles a function without reordering its operations, even if a ``reordered`` function is the first to call it.

Without explicit options, numba would compile it with the options of its first caller.
"""
