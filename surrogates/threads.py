"""Runs small linear algebra on the calling thread only.

Torch, with MKL or OpenBLAS, divides even a 150 x 150 factorization among all OpenMP threads, which spin while they wait
for each other. A tenth of a millisecond of work then takes several times as long, or hundreds of times if other
processes use the cores.

The number of threads is changed for the calling Python thread only (OpenMP's nthreads-var, and MKL's local number).
``torch.set_num_threads`` is not suitable: threads that start meanwhile, such as those of a pool, would keep the number
1. The number of threads of NumPy's and SciPy's BLAS is not changed.

References:
    OpenMP Application Programming Interface, version 5.2, 2021, Secs. 2.2 and 18.2.1.
    Intel oneAPI Math Kernel Library, Developer Reference for C: mkl_set_num_threads_local.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

SMALL = 1 << 24
"""The largest number of multiplications in small algebra: that of two 256 x 256 matrices."""


def small_algebra(multiplications: int) -> AbstractContextManager[None]:
    """A context in which torch uses one thread if the algebra is small.

    ``torch.get_num_threads()`` is then 1 in this Python thread, and restored at the end. Contexts may be nested.
    Nothing is changed if the algebra is large, or if torch's threads are not OpenMP threads.

    Args:
        multiplications: the approximate number of multiplications in the largest product, solve or factorization.
    """
    return _OneThread() if multiplications <= SMALL else nullcontext()


class _OneThread:
    """One entry of a block, with the previous settings."""

    __slots__ = ("_local", "_threads")

    def __enter__(self) -> None:
        # This call also initializes a new thread's number, which would otherwise happen within the block.
        self._threads = torch.get_num_threads()
        if self._threads > 1:
            _set_openmp(1)
            self._local = _set_mkl(1)

    def __exit__(self, *_: object) -> None:
        if self._threads > 1:
            _set_openmp(self._threads)
            _set_mkl(self._local)


def _loaded(name: str) -> Callable[[int], int]:
    """A function of the libraries that torch has loaded, or one that does nothing if none has it."""
    # A handle of torch's own module finds what the libraries under it export, except on Windows. The calls take
    # nanoseconds: the interpreter's lock is kept.
    for library in (torch._C.__file__, "libiomp5md.dll"):
        try:
            function = ctypes.PyDLL(library)[name]
        except (OSError, AttributeError):
            continue
        function.argtypes, function.restype = (ctypes.c_int,), ctypes.c_int
        return function
    return lambda number: 0


_set_openmp, _set_mkl = _loaded("omp_set_num_threads"), _loaded("MKL_Set_Num_Threads_Local")
