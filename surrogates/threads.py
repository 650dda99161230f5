"""Small linear algebra on the calling thread only.

Torch, and its MKL or OpenBLAS, share even a 150 x 150 factorization among all OpenMP threads, which spin while they
wait for each other. A tenth of a millisecond of work then takes several times as long, or hundreds of times if others
use the cores. ``small_algebra`` keeps such work on the calling thread; larger work keeps its threads.

The limit applies to the calling Python thread only. OpenMP's number of threads (nthreads-var, one for each thread) and
MKL's local one are set, and restored at the end, also after an exception. ``torch.set_num_threads`` is not suitable:
threads that start meanwhile, such as an objective's in a pool, would keep its number until they end. The BLAS of NumPy
and SciPy has one number of threads for the whole process, which is not changed; no small algebra here uses it.

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
"""The largest number of multiplications of small algebra: a product of two 256 x 256 matrices."""


def small_algebra(multiplications: int) -> AbstractContextManager[None]:
    """A block in which torch and its BLAS use one thread if the algebra is small.

    Within it ``torch.get_num_threads()`` is 1 in this Python thread only; it is restored at the end. Blocks may be
    nested. Nothing happens if the algebra is large, or torch's threads are not OpenMP's.

    Args:
        multiplications: the approximate number of the largest product, solve or factorization in the block.
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
