"""Options: the common ones, their names, and the checks that methods share."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any, Required, TypedDict

import numpy as np
from torch import Tensor

from optimizers.bounds import BoundsLike
from surrogates.checks import check_integer, nonnegative, positive, positive_integer

__all__ = [
    "CommonOptions",
    "ProxLike",
    "check_integer",
    "check_prox",
    "check_run",
    "keyword_names",
    "nearest_name",
    "nonnegative",
    "option_names",
    "positive",
    "positive_integer",
    "prox_description",
    "refuse_unknown",
]

ProxLike = Callable[[Tensor, Any], Tensor]
"""``prox(z, step)``: a ``Prox``, or any function of that signature; for HiSo step has shape ``d``."""


class CommonOptions(TypedDict, total=False):
    """Options that every method takes, documented in ``Optimizer``."""

    bounds: BoundsLike | None
    prox: ProxLike | None
    max_queries: Required[int]
    seed: int
    target: float | None
    stagnation: int | None
    max_failures: int | None
    rescale: bool | None
    confine_queries: bool
    track_best: bool
    store_points: bool


def nearest_name(name: str, accepted: Iterable[str]) -> str:
    """A hint for an unknown name: the nearest accepted one, and all of them."""
    accepted = sorted(accepted)
    plain = {_plain(candidate): candidate for candidate in accepted}
    close = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=0.5)
    hint = f"; did you mean {plain[close[0]]!r}?" if close else ""
    return f"{hint} (accepted: {', '.join(accepted)})"


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()


def option_names(cls: type) -> set[str]:
    """Names of the keyword-only options that a class and its bases accept."""
    names: set[str] = set()
    for base in cls.__mro__:
        if "__init__" in vars(base) and base is not object:
            names |= keyword_names(vars(base)["__init__"])
    return names


def keyword_names(function: Callable[..., Any]) -> set[str]:
    """Names of a function's keyword-only parameters."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def refuse_unknown(cls: type, unknown: Iterable[str]) -> None:
    """Raises ``TypeError`` for the first option that a class does not have, with the nearest name."""
    for name in unknown:
        raise TypeError(f"{cls.__name__} has no option {name!r}{nearest_name(name, option_names(cls))}")


def check_run(
    max_queries: int, seed: int, target: float | None, stagnation: int | None, max_failures: int | None
) -> None:
    """Raises ``TypeError`` or ``ValueError`` for budget, seed or stop rules out of range."""
    check_integer("max_queries", max_queries, 1)
    check_integer("seed", seed, 0, 2**64)
    for name, value in (("stagnation", stagnation), ("max_failures", max_failures)):
        if value is not None:
            check_integer(name, value, 1)
    if target is not None:
        if isinstance(target, bool) or not isinstance(target, int | float | np.number):
            raise TypeError(f"target must be a number, got {target!r}")
        if math.isnan(target):
            raise ValueError("target must be a number, got NaN")


def check_prox(prox: Any, bounded: bool, rescale: bool | None) -> None:
    """Raises for a prox that is not callable, or that bounds or rescaling do not go with."""
    if prox is None:
        return
    if not callable(prox):
        raise TypeError(f"prox must be callable as prox(z, step), got {type(prox).__name__}")
    if bounded and not getattr(prox, "separable", False):
        raise ValueError("bounds go with a separable prox only: intersect the two in the prox itself")
    if rescale:
        raise ValueError("rescale=True does not go with a prox, which is in the user's units")


def prox_description(prox: Any) -> str | None:
    """A prox's kind and, of a dataclass such as ``L1``, its plain numbers: what a state knows a prox by."""
    if prox is None:
        return None
    fields = dataclasses.fields(prox) if dataclasses.is_dataclass(prox) else ()
    numbers = {f.name: getattr(prox, f.name) for f in fields}
    plain = [f"{name}={value!r}" for name, value in numbers.items() if isinstance(value, int | float)]
    return f"{type(prox).__name__}({', '.join(plain)})"
