"""Peak memory of a program in a process of its own, as Linux's /proc tells it."""

import os
import subprocess
import sys

import pytest

reads_peak = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak is read from Linux's /proc"
)

RETURNED = {"MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_MMAP_THRESHOLD_": "65536"}
"""Without these the C library keeps what was freed, now and then 80 MB of it."""

METER = """
def _status(key):
    with open("/proc/self/status") as lines:
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key + ":"))

def start_meter():
    global _before
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    _before = _status("VmRSS")

def grown():
    return _status("VmHWM") - _before
"""


def printed(program, *arguments):
    """The numbers that a program prints.

    It may call ``start_meter()``, and then ``grown()`` for the bytes by which the peak exceeds what was held there.
    """
    command = [sys.executable, "-c", METER + program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | RETURNED)
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]
