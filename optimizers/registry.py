"""Methods by name, imported when first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimizers.named_classes import named_class

if TYPE_CHECKING:
    from optimizers.optimizer import Optimizer

METHODS: dict[str, tuple[str, str]] = {
    "zord": ("optimizers.zord", "ZoRD"),
    "rgf": ("optimizers.rgf", "RGF"),
    "prgf": ("optimizers.prgf", "PRGF"),
    "es": ("optimizers.evolution_strategies", "ES"),
    "gld": ("optimizers.gld", "GLD"),
    "least_squares": ("optimizers.least_squares_gradient", "LeastSquaresGradient"),
    "turbo": ("optimizers.turbo", "TuRBO"),
    "cobbo": ("optimizers.cobbo", "CobBO"),
    "gradient_descent": ("optimizers.gradient_descent", "GradientDescent"),
    "zo_l_katyusha": ("optimizers.zo_l_katyusha", "ZOLKatyusha"),
    "zo_svrg": ("optimizers.zo_svrg", "ZOSVRG"),
    "projected_zo": ("optimizers.projected_zo", "ProjectedZO"),
    "accelerated_zo": ("optimizers.accelerated_zo", "AcceleratedZO"),
    "hiso": ("optimizers.hiso", "HiSo"),
    "decomfl": ("optimizers.hiso", "DeComFL"),
}
"""Method name to the module and the class that implement it."""


def method_class(method: str | type[Optimizer]) -> type[Optimizer]:
    """The class of a method name; a subclass of ``Optimizer`` is its own.

    Raises:
        ValueError: for an unknown name, with the nearest one.
        TypeError: for anything but a name or an ``Optimizer`` subclass.
    """
    from optimizers.optimizer import Optimizer

    return named_class("method", method, METHODS, Optimizer)
