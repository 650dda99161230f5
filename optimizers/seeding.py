"""Temporary seeding of torch's global generators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int, devices: Iterable[torch.device]) -> Iterator[None]:
    """Seeds torch's global generators in a block and restores their states at its end.

    Args:
        seed: seed of every generator.
        devices: the devices that the code draws on; the CPU's generator is always seeded.
    """
    cuda = sorted({device.index or 0 for device in devices if device.type == "cuda"})
    with torch.random.fork_rng(devices=cuda):
        torch.default_generator.manual_seed(seed)
        for index in cuda:
            torch.cuda.default_generators[index].manual_seed(seed)
        yield
