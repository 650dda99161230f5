"""Methods by name; a method's module is imported when its name is first used."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from optimizers.core.optimizer import Optimizer
from optimizers.core.options import nearest_name

METHODS: dict[str, tuple[str, str]] = {
    "zord": ("optimizers.methods.zord.zord", "ZoRD"),
    "trust_region": ("optimizers.methods.trust_region.surrogate_trust_region", "SurrogateTrustRegion"),
    "rgf": ("optimizers.methods.rgf", "RGF"),
    "prgf": ("optimizers.methods.prgf", "PRGF"),
    "es": ("optimizers.methods.evolution_strategies", "ES"),
    "gld": ("optimizers.methods.gld", "GLD"),
    "least_squares_gradient": ("optimizers.methods.zord.least_squares_gradient", "LeastSquaresGradient"),
    "turbo": ("optimizers.methods.bayesian.turbo", "TuRBO"),
    "cobbo": ("optimizers.methods.bayesian.cobbo", "CobBO"),
    "gradient_descent": ("optimizers.methods.gradient_descent", "GradientDescent"),
    "zo_l_katyusha": ("optimizers.methods.katyusha.zo_l_katyusha", "ZOLKatyusha"),
    "zo_svrg": ("optimizers.methods.katyusha.zo_svrg", "ZOSVRG"),
    "projected_zo": ("optimizers.methods.katyusha.projected_zo", "ProjectedZO"),
    "accelerated_zo": ("optimizers.methods.katyusha.accelerated_zo", "AcceleratedZO"),
    "nesterov_spokoiny": ("optimizers.methods.katyusha.nesterov_spokoiny", "NesterovSpokoiny"),
    "hiso": ("optimizers.methods.hiso.hiso", "HiSo"),
    "decomfl": ("optimizers.methods.hiso.hiso", "DeComFL"),
}
"""The module and the class of each method by its name."""

FORMER = {"least_squares": "least_squares_gradient"}
"""Former names of methods, which checkpoints and published records may contain."""


def method_class(method: str | type[Optimizer]) -> type[Optimizer]:
    """Returns the class of the method with this name; an ``Optimizer`` subclass is returned unchanged.

    A former name gives a ``DeprecationWarning``.

    Raises:
        ValueError: for an unknown name; the message has the nearest one.
        TypeError: for anything but a name or an ``Optimizer`` subclass.
    """
    if isinstance(method, str) and method in FORMER:
        warnings.warn(
            f"the method {method!r}, descent along gradients fitted to values, is now called {FORMER[method]!r}; "
            "optimizers.least_squares minimizes a sum of squared residuals",
            DeprecationWarning,
            stacklevel=3,
        )
        method = FORMER[method]
    return named_class("method", method, METHODS, Optimizer)


def named_class(kind: str, given: str | type, known: Mapping[str, tuple[str, str]], base: type) -> type[Any]:
    """Returns the class with this name in ``known``; a subclass of ``base`` is returned unchanged.

    Raises the same errors as ``method_class``; messages call the class a ``kind``.
    """
    if isinstance(given, type) and issubclass(given, base):
        return given
    if not isinstance(given, str):
        raise TypeError(f"{kind} must be a name or a subclass of {base.__name__}, got {given!r}")
    if given not in known:
        raise ValueError(f"unknown {kind} {given!r}{nearest_name(given, known)}")
    module, name = known[given]
    found: type[Any] = getattr(import_module(module), name)
    return found
