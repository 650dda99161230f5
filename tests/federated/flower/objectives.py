"""Objectives that deployed nodes import."""

import os
import time
from pathlib import Path

import torch

from federated.testing import Quadratic
from optimizers import ModuleObjective


class Held(Quadratic):
    """A quadratic that says so and waits, in the folder's file ``held``, while there is a file ``hold``."""

    def __init__(self, number, dimension, folder):
        super().__init__(number, dimension)
        self.folder = Path(folder)

    def __call__(self, x):
        value = super().__call__(x)
        if (self.folder / "hold").exists():
            (self.folder / "held").write_text(str(os.getpid()))
            while (self.folder / "hold").exists():
                time.sleep(0.05)
        return value


def mean_of_two(x):
    """F of two clients, for histories."""
    return (Quadratic(0, x.numel()).value(x) + Quadratic(1, x.numel()).value(x)) / 2.0


def classifier():
    """A small network, the same in every process."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3)).double()


def classifier_start():
    """Its parameters, the server's x0."""
    return torch.nn.utils.parameters_to_vector(classifier().parameters()).detach()


def classifier_loss(number):
    """A client's cross entropy on its own 40 rows."""
    draws = torch.Generator().manual_seed(100 + number)
    inputs = torch.randn(40, 4, generator=draws, dtype=torch.float64)
    labels = inputs[:, :3].argmax(dim=1)
    return ModuleObjective(classifier(), cross_entropy, data=(inputs, labels))


def cross_entropy(module, rows):
    return torch.nn.functional.cross_entropy(module(rows[0]), rows[1])
