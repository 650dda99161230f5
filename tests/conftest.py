"""What all tests share: one thread each, as the suite runs one process a core; and interrupts.

A shell has its background jobs ignore SIGINT, which tests of interrupts send.

A test that is marked with a slip (``tests/slips.py``) fails where the passage of the mark has changed.
"""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import pytest
import torch

from tests.slips import MUTATED, Slip

torch.set_num_threads(1)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item):
    for mark in item.iter_markers("slip") if MUTATED not in os.environ else ():
        try:
            Slip(*mark.args, **mark.kwargs).text()
        except ValueError as error:
            pytest.fail(str(error), pytrace=False)
