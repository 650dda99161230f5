"""Decorators that compile loops with or without reordering of sums; NaN and inf keep their meaning."""

from __future__ import annotations

import numba

reordered = numba.njit(
    cache=True,
    nogil=True,
    error_model="numpy",
    fastmath={"reassoc", "nsz", "contract"},
    forceinline=True,
)
"""Compiles a function whose sums may be reordered, and inlines it into its callers.

Without inlining, numba would optimize the function both alone and inside a cached caller, with different orders of
sums. The process that compiles and processes that read the cache would then differ in the last bits of results.
"""

exact = numba.njit(cache=True, nogil=True, error_model="python", fastmath=False)
"""Compiles a function without reordering its operations.

Without explicit options, numba would compile it with the options of its first caller, which may reorder.
"""
