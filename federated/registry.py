"""The federated algorithms by name; an algorithm's module is imported when it is first used."""

from __future__ import annotations

from federated.core.algorithm import Algorithm
from optimizers.registry import named_class

ALGORITHMS: dict[str, tuple[str, str]] = {
    "fzoos": ("federated.methods.fzoos.fzoos", "FZooS"),
    "fedzo": ("federated.methods.fedzo", "FedZO"),
    "fedprox": ("federated.methods.fedzo", "FedProx"),
    "scaffold1": ("federated.methods.scaffold", "SCAFFOLD1"),
    "scaffold2": ("federated.methods.scaffold", "SCAFFOLD2"),
    "decomfl": ("federated.methods.scalar.hiso", "DeComFL"),
    "hiso": ("federated.methods.scalar.hiso", "HiSo"),
    "fedavg": ("federated.methods.fedopt", "FedAvg"),
    "fedadam": ("federated.methods.fedopt", "FedAdam"),
    "fedyogi": ("federated.methods.fedopt", "FedYogi"),
    "fedadagrad": ("federated.methods.fedopt", "FedAdagrad"),
}
"""Module and class of each algorithm, by name."""


def algorithm_class(algorithm: str | type[Algorithm]) -> type[Algorithm]:
    """Returns the class of an algorithm's name; an ``Algorithm`` subclass is returned unchanged.

    Raises:
        ValueError: for an unknown name.
        TypeError: for anything but a name or an ``Algorithm`` subclass.
    """
    return named_class("algorithm", algorithm, ALGORITHMS, Algorithm)
