"""Checks of what users give, at the public boundary."""

from __future__ import annotations

import operator
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor


def check_data(train_X: Tensor, train_Y: Tensor, train_Yvar: Tensor | None = None, prefix: str = "train_") -> None:
    """Refuse data that a derived GP cannot be conditioned on.

    Args:
        train_X: ``batch x n x d``, n and d at least 1.
        train_Y: ``batch x n x 1``.
        train_Yvar: ``batch x n x 1``, non-negative.
        prefix: Of X, Y and Yvar in messages.

    Raises:
        TypeError: For something else than tensors, or tensors that are not floating point.
        ValueError: For shapes that do not fit, no data, NaN or inf, mixed dtypes or devices, a negative variance.
    """
    X, Y, Yvar = (f"{prefix}{name}" for name in ("X", "Y", "Yvar"))
    named = {X: train_X, Y: train_Y}
    if train_Yvar is not None:
        named[Yvar] = train_Yvar
    for name, tensor in named.items():
        check_floating(name, tensor)
    if train_X.dim() < 2 or train_X.shape[-1] == 0:
        raise ValueError(f"{X} must be of shape batch x n x d with d >= 1, got {tuple(train_X.shape)}.")
    if train_X.shape[-2] == 0:
        raise ValueError(f"{X} holds no observations (shape {tuple(train_X.shape)}); at least one is needed.")
    if train_Y.dim() == train_X.dim() and train_Y.shape[-1] > 1 and train_Y.shape[:-1] == train_X.shape[:-1]:
        raise ValueError(
            f"{Y} has {train_Y.shape[-1]} outcomes; a derived GP models one. Make one for each and join them in "
            "botorch.models.ModelListGP."
        )
    for name in (Y, Yvar):
        if name in named and named[name].shape != (*train_X.shape[:-1], 1):
            raise ValueError(
                f"{name} must be of shape {(*train_X.shape[:-1], 1)} for {X} of shape {tuple(train_X.shape)}, "
                f"got {tuple(named[name].shape)}."
            )
    for name, tensor in named.items():
        check_same_kind(name, tensor, X, train_X)
        check_finite(name, tensor)
    if train_Yvar is not None and bool((train_Yvar < 0).any()):
        raise ValueError(f"{Yvar} must be non-negative, its smallest entry is {train_Yvar.min().item():g}.")


def check_points(X: Tensor, d: int, like: Tensor, name: str = "X") -> None:
    """Refuse points where a posterior cannot be asked for.

    Args:
        X: ``batch x q x d``.
        d: The number of inputs of the model.
        like: A tensor of the model's dtype and device.
        name: Of X in the message.

    Raises:
        TypeError: For something else than a floating point tensor.
        ValueError: For another d, fewer than two dimensions, no point, NaN or inf, another dtype or device.
    """
    check_floating(name, X)
    if X.dim() < 2 or X.shape[-1] != d or X.shape[-2] == 0:
        raise ValueError(
            f"{name} must be of shape batch x q x {d} with q >= 1 (one point is 1 x {d}), got {tuple(X.shape)}."
        )
    check_same_kind(name, X, "the model", like)
    check_finite(name, X)


def check_floating(name: str, tensor: object) -> None:
    """Refuse what is not a floating point tensor.

    Raises:
        TypeError: With what was given.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}.")
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be floating point (float64 is best), got {tensor.dtype}.")


def check_same_kind(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Refuse a tensor of another dtype or device.

    Raises:
        ValueError: With both.
    """
    if tensor.dtype != other.dtype or tensor.device != other.device:
        raise ValueError(
            f"{name} is {tensor.dtype} on {tensor.device} but {other_name} is {other.dtype} on {other.device}; "
            "they must agree."
        )


def check_finite(name: str, tensor: Tensor) -> None:
    """Refuse NaN and inf.

    Raises:
        ValueError: With the number of such entries.
    """
    # A finite sum proves all finite in one reading; only a doubtful one is counted.
    if not isfinite(tensor.detach().sum().item()):
        bad = int((~torch.isfinite(tensor)).sum())
        if bad:
            raise ValueError(
                f"{name} holds {bad} entries that are NaN or inf; only finite numbers are accepted "
                "(surrogates.Trajectory keeps failed queries apart)."
            )


def check_number(name: str, value: Any) -> float:
    """The value as a float: any real number, also as a tensor of one element.

    Raises:
        TypeError: For what is no number, booleans and strings among it.
        ValueError: For NaN and inf.
    """
    if isinstance(value, bool | np.bool_ | str):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be a number, got {value!r}") from None
    if not isfinite(number):
        raise ValueError(f"{name} must be finite, got {number}")
    return number


def positive(name: str, value: Any) -> float:
    """The value as a float above 0.

    Raises:
        TypeError: For what is no number.
        ValueError: For one that is not positive and finite.
    """
    if (number := nonnegative(name, value, "positive")) == 0.0:
        raise ValueError(f"{name} must be positive and finite, got {number}")
    return number


def nonnegative(name: str, value: Any, accepted: str = "at least 0") -> float:
    """The value as a float of at least 0.

    Raises:
        TypeError: For what is no number.
        ValueError: For one that is negative or not finite.
    """
    try:
        number = check_number(name, value)
    except ValueError:
        number = -1.0
    if number < 0.0:
        raise ValueError(f"{name} must be {accepted} and finite, got {value}")
    return number


def check_integer(name: str, value: Any, least: int, below: int | None = None) -> int:
    """The value as an int of at least ``least`` and, where given, under ``below``.

    Raises:
        TypeError: For what is no integer, booleans among it.
        ValueError: For one out of range.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    if below is not None and number >= below:
        raise ValueError(f"{name} must be under {below}, got {number}")
    return number


def positive_integer(name: str, value: Any) -> int:
    """The value as an int of at least 1.

    Raises:
        TypeError: For what is no integer.
        ValueError: For one under 1.
    """
    return check_integer(name, value, 1)
