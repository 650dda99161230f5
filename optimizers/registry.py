"""Methods by name, imported when first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimizers.named_classes import named_class

if TYPE_CHECKING:
    from optimizers.optimizer import Optimizer

METHODS: dict[str, tuple[str, str]] = {
    "zord": ("optimizers.methods.zord.zord", "ZoRD"),
    "rgf": ("optimizers.methods.rgf", "RGF"),
    "prgf": ("optimizers.methods.prgf", "PRGF"),
    "es": ("optimizers.methods.evolution_strategies", "ES"),
    "gld": ("optimizers.methods.gld", "GLD"),
    "least_squares": ("optimizers.methods.zord.least_squares_gradient", "LeastSquaresGradient"),
    "turbo": ("optimizers.methods.bayesian.turbo", "TuRBO"),
    "cobbo": ("optimizers.methods.bayesian.cobbo", "CobBO"),
    "gradient_descent": ("optimizers.methods.gradient_descent", "GradientDescent"),
    "zo_l_katyusha": ("optimizers.methods.katyusha.zo_l_katyusha", "ZOLKatyusha"),
    "zo_svrg": ("optimizers.methods.katyusha.zo_svrg", "ZOSVRG"),
    "projected_zo": ("optimizers.methods.katyusha.projected_zo", "ProjectedZO"),
    "accelerated_zo": ("optimizers.methods.katyusha.accelerated_zo", "AcceleratedZO"),
    "hiso": ("optimizers.methods.hiso.hiso", "HiSo"),
    "decomfl": ("optimizers.methods.hiso.hiso", "DeComFL"),
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
