"""What all tests share: one thread each, as the suite runs one process a core; and interrupts.

A shell has its background jobs ignore SIGINT, which tests of interrupts send.
"""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
