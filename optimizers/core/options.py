"""The options that every method takes, and checks of options that methods share."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Required, TypedDict, TypeVar

import numpy as np
from torch import Tensor

from optimizers.core.bounds import BoundsLike
from optimizers.core.history import HistoryLike
from optimizers.core.stopping import MostFailures
from surrogates.checks import (  # noqa: F401  methods import all their checks from here
    check_boolean,
    check_choice,
    check_integer,
    nearest_name,
    nonnegative,
    optional,
    positive,
    positive_integer,
)

Checked = TypeVar("Checked")

ProxLike = Callable[[Tensor, Any], Tensor]
"""A ``Prox``, or any function ``prox(z, step)``. HiSo calls it with a step of shape ``d``."""


class CommonOptions(TypedDict, total=False):
    """The options that every method takes; ``Optimizer`` documents them."""

    bounds: BoundsLike | None
    history: HistoryLike | None
    prox: ProxLike | None
    max_queries: Required[int]
    seed: int
    target: float | None
    stagnation: int | None
    max_failures: MostFailures
    rescale: bool | None
    confine_queries: bool
    track_best: bool
    store_points: bool
    store_values: bool


def option_names(cls: type) -> set[str]:
    """Names of the keyword-only options of a class, its bases, and the dataclasses in its ``option_sets``."""
    names = {name for kind in getattr(cls, "option_sets", ()) for name in option_names(kind)}
    for base in cls.__mro__:
        if "__init__" in vars(base) and base is not object:
            names |= keyword_names(vars(base)["__init__"])
    return names


def take_options(kind: type[Checked], options: dict[str, Any]) -> Checked:
    """Makes a dataclass from the options that are its fields, and removes these from ``options``."""
    return kind(**{name: options.pop(name) for name in option_names(kind) & options.keys()})


def keyword_names(function: Callable[..., Any]) -> set[str]:
    """Names of a function's keyword-only parameters."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def check_takes(name: str, function: Any, *arguments: str) -> None:
    """Raises ``TypeError`` unless a function can be called with these arguments."""
    if not callable(function):
        raise TypeError(f"{name} must be callable, got {type(function).__name__}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some built-in functions have none
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise TypeError(f"{name} is called as {name}({', '.join(arguments)}): {error}, got {name}{signature}") from None


def refuse_unknown(cls: type, unknown: Iterable[str]) -> None:
    """Raises ``TypeError`` for the first unknown option, with the nearest name or a hint of ``option_hints``."""
    hints = getattr(cls, "option_hints", {})
    for name in unknown:
        raise TypeError(f"{cls.__name__} has no option {name!r}{nearest_name(name, option_names(cls), hints)}")


def refuse_misspelt(
    function: Callable[..., Any],
    own: set[str],
    known: set[str],
    options: Iterable[str],
    elsewhere: Mapping[str, str],
) -> None:
    """Raises ``TypeError`` for an unknown option that has a hint, or that resembles one of the function's arguments.

    Args:
        function: the function that was called.
        own: the names of the function's arguments.
        known: the names of options that the function passes on.
        options: the names of the options in the call.
        elsewhere: hints for arguments of similar functions, by name.
    """
    for name in set(options) - known:
        if name in elsewhere:
            raise TypeError(f"{function.__name__} has no argument {name!r}: {elsewhere[name]}")
        close = difflib.get_close_matches(name, sorted(own | known), n=1)
        if close and close[0] not in known:
            raise TypeError(f"{function.__name__} has no argument {name!r}; did you mean {close[0]!r}?")


def check_run(
    max_queries: int,
    seed: int,
    target: float | None,
    stagnation: int | None,
    max_failures: MostFailures,
    **flags: bool,
) -> None:
    """Raises ``TypeError`` or ``ValueError`` for a budget, seed, stopping rule or flag that is not allowed."""
    for name, flag in flags.items():
        check_boolean(name, flag)
    positive_integer("max_queries", max_queries)
    check_integer("seed", seed, 0, 2**64)
    optional(positive_integer, "stagnation", stagnation)
    if max_failures != "auto":
        optional(positive_integer, "max_failures", max_failures)
    if target is not None:
        if isinstance(target, bool) or not isinstance(target, int | float | np.number):
            raise TypeError(f"target must be a number, got {target!r}")
        if math.isnan(target):
            raise ValueError("target must be a number, got NaN")


def check_prox(prox: Any, bounded: bool, rescale: bool | None) -> None:
    """Raises ``TypeError`` for a prox that is not callable, ``ValueError`` if bounds or rescaling exclude this prox."""
    optional(check_boolean, "rescale", rescale)
    if prox is None:
        return
    if not callable(prox):
        raise TypeError(f"prox must be callable as prox(z, step), got {type(prox).__name__}")
    if bounded and not getattr(prox, "separable", False):
        raise ValueError("bounds need a separable prox; otherwise include the box in the prox itself")
    if rescale:
        raise ValueError("rescale=True cannot be combined with a prox, which is in the user's units")


def prox_description(prox: Any) -> str | None:
    """A text that identifies a prox in states: its class and, for a dataclass such as ``L1``, its numbers."""
    if prox is None:
        return None
    fields = dataclasses.fields(prox) if dataclasses.is_dataclass(prox) else ()
    numbers = {f.name: getattr(prox, f.name) for f in fields}
    plain = [f"{name}={value!r}" for name, value in numbers.items() if isinstance(value, int | float)]
    return f"{type(prox).__name__}({', '.join(plain)})"
