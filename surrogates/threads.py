"""Small algebra on the one thread that asks for it.

Torch, and the MKL or OpenBLAS that it is linked with, share a factorization of 150 x 150 among all threads of OpenMP.
These spin while they wait for each other, before and after: what is over in a tenth of a millisecond takes several
times as long, and hundreds of times where others want the cores. ``small_algebra`` keeps such work on the calling
thread; what is large enough for threads to pay keeps them.

The limit is the calling Python thread's own. OpenMP's number of threads (nthreads-var, which every thread has for
itself) and MKL's local one are set, and set back at the end, also after an exception. ``torch.set_num_threads`` would
not do: threads that start meanwhile, as an objective's in a pool, would keep its number as long as they live. The BLAS
of NumPy and SciPy has one number of threads for the whole process, which is left alone: no small algebra here uses it.

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
"""The most multiplications of small algebra: those of a product of two matrices of 256 x 256."""


def small_algebra(multiplications: int) -> AbstractContextManager[None]:
    """A block in which torch and its BLAS use one thread, where the algebra is small.

    Within it ``torch.get_num_threads()`` is 1 in this Python thread, and in this one only; after it, it is what it was.
    Blocks may be nested. Nothing happens where the algebra is large, and where torch's threads are not OpenMP's.

    Args:
        multiplications: about how many the largest product, solve or factorization of the block takes.
    """
    return _OneThread() if multiplications <= SMALL else nullcontext()


class _OneThread:
    """One entry of a block; it holds what was set before."""

    __slots__ = ("_local", "_threads")

    def __enter__(self) -> None:
        # This question also has a new thread take over the process's number, which it would else do within the block.
        self._threads = torch.get_num_threads()
        if self._threads > 1:
            _set_openmp(1)
            self._local = _set_mkl(1)

    def __exit__(self, *_: object) -> None:
        if self._threads > 1:
            _set_openmp(self._threads)
            _set_mkl(self._local)


def _loaded(name: str) -> Callable[[int], int]:
    """A function of the libraries that torch has loaded; where none of them has it, one that does nothing."""
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
