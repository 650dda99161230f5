"""The federated algorithms by name; a module is imported when its algorithm is first asked for."""

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
    """The class of an algorithm's name, or the class itself if one is given.

    Raises:
        ValueError: if the name is unknown, with the nearest one.
        TypeError: if it is neither a name nor an ``Algorithm`` subclass.
    """
    return named_class("algorithm", algorithm, ALGORITHMS, Algorithm)
