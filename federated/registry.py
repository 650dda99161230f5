"""Federated algorithms by name, imported when first asked for."""

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
"""Algorithm name to the module and the class that implement it."""


def algorithm_class(algorithm: str | type[Algorithm]) -> type[Algorithm]:
    """The class of an algorithm's name; a subclass of ``Algorithm`` is its own.

    Raises:
        ValueError: for an unknown name, with the nearest one.
        TypeError: for anything but a name or an ``Algorithm`` subclass.
    """
    return named_class("algorithm", algorithm, ALGORITHMS, Algorithm)
