"""Interleaved timing on one thread, and the peak memory of one call."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

import numpy as np

Call = Callable[[], object]
Name = TypeVar("Name")


class Timing(NamedTuple):
    """Processor seconds of one call: the median over the repetitions, the fastest and the slowest, and how many."""

    median: float
    fastest: float
    slowest: float
    repetitions: int

    @staticmethod
    def of(seconds: Sequence[float] | np.ndarray) -> Timing:
        """The timing of some repetitions."""
        return Timing(float(np.median(seconds)), float(min(seconds)), float(max(seconds)), len(seconds))

    def times(self, factor: float) -> Timing:
        """The time of ``factor`` such calls."""
        return Timing(self.median * factor, self.fastest * factor, self.slowest * factor, self.repetitions)

    def __str__(self) -> str:
        return f"{duration(self.median)} [{duration(self.fastest)}-{duration(self.slowest)}]"


def duration(seconds: float) -> str:
    """Seconds to be read, such as ``3.2 ms``."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def interleaved(calls: Mapping[Name, Call], seconds: float = math.inf, most: int = 200) -> dict[Name, Timing]:
    """Time calls in turn, so that what disturbs the machine disturbs all of them.

    Every call runs once unmeasured, then at least once and until its share of ``seconds`` is spent: a slow call is
    repeated less often than a fast one. Where the first run took over ten times ``seconds``, it is the measurement.

    Args:
        calls: by name.
        seconds: measured time for each call, about.
        most: repetitions at most.
    """
    first = {name: clocked(call) for name, call in calls.items()}
    spent = {name: [once] if once > 10 * seconds else [] for name, once in first.items()}
    for _ in range(most):
        for name, call in calls.items():
            times = spent[name]
            if not times or sum(times) + times[-1] < seconds:
                times.append(clocked(call))
        if all(times and sum(times) + times[-1] >= seconds for times in spent.values()):
            break
    return {name: Timing.of(times) for name, times in spent.items()}


def clocked(call: Call) -> float:
    """Processor seconds of one call, which other work on the machine does not add to."""
    start = time.process_time()
    call()
    return time.process_time() - start


def peak_memory(call: Call) -> float:
    """Megabytes by which one call raises the process's peak resident memory; NaN where Linux's /proc is missing.

    The call runs in a fork, after the allocator has given back what it holds, so that neither an earlier peak
    nor memory that the process keeps hides what the call takes.
    """
    if not os.path.exists("/proc/self/clear_refs"):
        return math.nan
    gc.collect()
    receive, send = os.pipe()
    if os.fork() == 0:
        with suppress(BaseException):
            with suppress(OSError):
                ctypes.CDLL(None).malloc_trim(0)
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
            before = _status("VmRSS")
            call()
            os.write(send, str(_status("VmHWM") - before).encode())
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as file:
        answer = file.read()
    os.wait()
    return float(answer) / 1024 if answer else math.nan


def _status(field: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field + ":"))
