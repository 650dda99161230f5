"""Interleaved timing in blocks of calls, and the peak memory of one call."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

import numpy as np
import torch
from threadpoolctl import threadpool_limits

Call = Callable[[], object]
Clock = Callable[[], float]
Name = TypeVar("Name")

BLOCK = 0.05
"""Seconds for which a call is repeated, at least, before the next call's turn.

A single call between larger ones would find cold caches, unlike calls in a loop.
"""
_WARM_UPS = 5

DEFAULT_THREADS = torch.get_num_threads()
"""Torch's number of threads before a benchmark changes it."""


class Timing(NamedTuple):
    """Seconds per call: the median, the fastest and the slowest block of calls, and the number of blocks."""

    median: float
    fastest: float
    slowest: float
    repetitions: int

    @staticmethod
    def of(seconds: Sequence[float] | np.ndarray) -> Timing:
        """Returns the timing of some blocks, given the seconds per call in each."""
        return Timing(float(np.median(seconds)), float(min(seconds)), float(max(seconds)), len(seconds))

    def times(self, factor: float) -> Timing:
        """Returns the time of ``factor`` calls."""
        return Timing(self.median * factor, self.fastest * factor, self.slowest * factor, self.repetitions)

    def __str__(self) -> str:
        return f"{duration(self.median)} [{duration(self.fastest)}-{duration(self.slowest)}]"


def duration(seconds: float) -> str:
    """Formats seconds, such as ``3.2 ms``."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def interleaved(
    calls: Mapping[Name, Call],
    seconds: float = math.inf,
    most: int = 200,
    block: float = BLOCK,
    clock: Clock = time.process_time,
) -> dict[Name, Timing]:
    """Times calls in turn, block by block (A B C A B C ...), so that disturbances affect all of them.

    Every call is warmed up: it runs unmeasured, at least twice, until a run is no longer twice as fast as the previous
    one, so that no compilation is counted. In its turn a call is repeated for at least ``block`` seconds. Its turns end
    when its share of ``seconds`` is spent. If a single warm call takes over ten times ``seconds``, that call is the
    measurement.

    Args:
        calls: the calls by name.
        seconds: approximate measured time for each call; at least one block.
        most: largest number of blocks.
        block: smallest number of seconds of a block.
        clock: returns seconds: processor time (which excludes other work on the machine and adds up over threads) or
            wall time.
    """
    once = {name: _warmed(call, clock) for name, call in calls.items()}
    found: dict[Name, list[float]] = {name: [first] if first > 10 * seconds else [] for name, first in once.items()}
    spent = {name: sum(times) for name, times in found.items()}
    for _ in range(most):
        for name, call in calls.items():
            if not found[name] or spent[name] + max(block, once[name]) < seconds:
                took, count = _block(call, block, once[name], clock)
                found[name].append(took / count)
                spent[name] += took
        if all(spent[name] + max(block, first) >= seconds for name, first in once.items()):
            break
    return {name: Timing.of(times) for name, times in found.items()}


def _warmed(call: Call, clock: Clock) -> float:
    before = clocked(call, clock)
    for _ in range(_WARM_UPS):
        now = clocked(call, clock)
        if now > before / 2:
            break
        before = now
    return now


def _block(call: Call, block: float, once: float, clock: Clock) -> tuple[float, int]:
    # The clock is read after several calls, so that reading it costs nothing against them.
    several = max(1, math.ceil(block / once / 8)) if once > 0 else 1
    start, count, took = clock(), 0, 0.0
    while count == 0 or took < block:
        for _ in range(several):
            call()
        count += several
        took = clock() - start
    return took, count


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Sets the threads of torch and of NumPy's and SciPy's BLAS, and restores them at the end."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        with threadpool_limits(number, "blas"):
            yield
    finally:
        torch.set_num_threads(before)


def clocked(call: Call, clock: Clock = time.process_time) -> float:
    """Returns the seconds of one call, by default processor seconds."""
    start = clock()
    call()
    return clock() - start


@contextmanager
def timed_parts(parts: Mapping[str, Sequence[tuple[object, str]]]) -> Iterator[dict[str, float]]:
    """Adds up the processor seconds spent in functions or properties, including what they call, while the block runs.

    ``parts`` maps the name of a part to owners and names of its members. The yielded seconds grow during the block.
    """
    spent = dict.fromkeys(parts, 0.0)

    def timed(part: str, call: Callable[..., object]) -> Callable[..., object]:
        def timing(*arguments: object, **named: object) -> object:
            start = time.process_time()
            try:
                return call(*arguments, **named)
            finally:
                spent[part] += time.process_time() - start

        return timing

    with ExitStack() as patches:
        for part, members in parts.items():
            for owner, name in members:
                found: Any = getattr(owner, name)
                is_property = isinstance(found, property)
                replaced = property(timed(part, found.__get__)) if is_property else timed(part, found)
                patches.enter_context(patch.object(owner, name, replaced))
        yield spent


def peak_memory(call: Call) -> float:
    """Returns the megabytes by which a call raises the process's peak resident memory; NaN without Linux's /proc.

    The call runs in a fork after the allocator has returned its free memory, so that earlier memory does not hide its
    own.
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
