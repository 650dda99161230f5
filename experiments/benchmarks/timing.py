"""Measures the time and the peak memory of a call."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress

import torch
from torch.utils.benchmark import Measurement, Timer
from torch.utils.benchmark import timer as synchronized

Call = Callable[[], object]


def timed(call: Call, seconds: float, threads: int = 1, device: str = "cpu", **names: str) -> Measurement:
    """Times a call with ``torch.utils.benchmark``, which does not count the first runs.

    Args:
        call: the call.
        seconds: approximate measured time; at least one run.
        threads: torch's number of threads. With one the time is processor time, which excludes other work on the
            machine; with several it is wall-clock time.
        device: the device of the call; on an accelerator the time is wall-clock time until the device is done.
        **names: ``label``, ``sub_label`` and ``description`` of the measurement.
    """
    clock = time.process_time if threads == 1 else time.perf_counter
    if device != "cpu":
        clock = synchronized
    timer = Timer("call()", globals={"call": call}, timer=clock, num_threads=threads, **names)
    return timer.blocked_autorange(min_run_time=seconds)


def peak_memory(call: Call, device: str = "cpu") -> float:
    """Returns the megabytes by which a call raises the peak of the device's memory; NaN without Linux's /proc.

    On the CPU it is the process's resident memory. The call runs in a forked process that first returns its free
    memory, so that earlier peaks do not hide the call's. On CUDA it is what torch has allocated.
    """
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
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
            before = status("VmRSS")
            call()
            os.write(send, str(status("VmHWM") - before).encode())
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as file:
        answer = file.read()
    os.wait()
    return float(answer) / 1024 if answer else math.nan


def status(field: str) -> int:
    """Returns a number of Linux's /proc/self/status, such as the peak of the resident memory, ``VmHWM``, in KiB."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field + ":"))
