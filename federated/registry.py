"""Federated algorithms by name, imported when first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimizers.named_classes import named_class

if TYPE_CHECKING:
    from federated.algorithm import Algorithm

ALGORITHMS: dict[str, tuple[str, str]] = {
    "fzoos": ("federated.fzoos", "FZooS"),
    "fedzo": ("federated.fedzo", "FedZO"),
    "fedprox": ("federated.fedzo", "FedProx"),
    "scaffold1": ("federated.scaffold", "SCAFFOLD1"),
    "scaffold2": ("federated.scaffold", "SCAFFOLD2"),
    "decomfl": ("federated.hiso", "DeComFL"),
    "hiso": ("federated.hiso", "HiSo"),
    "fedavg": ("federated.fedopt", "FedAvg"),
    "fedadam": ("federated.fedopt", "FedAdam"),
    "fedyogi": ("federated.fedopt", "FedYogi"),
    "fedadagrad": ("federated.fedopt", "FedAdagrad"),
}
"""Algorithm name to the module and the class that implement it."""


def algorithm_class(algorithm: str | type[Algorithm]) -> type[Algorithm]:
    """The class of an algorithm's name; a subclass of ``Algorithm`` is its own.

    Raises:
        ValueError: for an unknown name, with the nearest one.
        TypeError: for anything but a name or an ``Algorithm`` subclass.
    """
    from federated.algorithm import Algorithm

    return named_class("algorithm", algorithm, ALGORITHMS, Algorithm)
