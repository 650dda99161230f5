"""ZoRD and its baselines by their names in the figures, for the attacks, metrics and controllers of Section 5."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from experiments.papers.zord.descent import as_printed
from optimizers import Optimizer
from optimizers.registry import method_class

CLASSES = {"zord_kept": "zord", "turbo1": "turbo", "turbom": "turbo"}
"""The optimizer's name where the figures have another."""


def search(method: str, x0: Tensor, *, rate: float, radius: float | None = None, **options: Any) -> Optimizer:
    """The optimizer of a method at x0; ``zord`` is as its paper has it, ``zord_kept`` as the library does.

    Args:
        method: its name in ``experiments.harness.style``.
        x0: d.
        rate: Adam's, where the method has a first-order rule.
        radius: root mean square distance of a query from the iterate, of the initial design's in ZoRD; None: its own.
        **options: for the optimizer; they override what is said here.
    """
    given: dict[str, Any] = {}
    if method not in ("gld", "turbo1", "turbom"):
        given["update_rule"] = lambda p: torch.optim.Adam([p], lr=rate)
        if radius is not None and method.startswith("zord"):
            given["radius"] = radius
        elif radius is not None:  # ES's directions are normal, the others' unit vectors
            given["smoothing_radius"] = radius / (math.sqrt(len(x0)) if method == "es" else 1.0)
    if method == "zord":
        given |= as_printed(len(x0))
    return method_class(CLASSES.get(method, method))(x0, **given | options)
