"""Checks and conversions of users' points and values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_HINTS: dict[type, str] = {
    type(None): "; write NaN for a value that is missing or failed",
    dict: "; Space.point makes a point of a dictionary",
    nn.Module: "; ModuleObjective.x0() makes one vector of a module's parameters",
}


class InvalidValueError(TypeError, ValueError):
    """Raised for a value that is an error in the program, not a failed query."""


def parse_point(x0: Any, name: str = "x0") -> Tensor:
    """Converts a point to a new floating tensor of shape ``d``; integers become float64.

    Args:
        x0: the point.
        name: the point's name in messages.

    Raises:
        TypeError: for complex or non-numeric entries.
        ValueError: for a shape other than ``d`` ≥ 1, NaN or inf.
    """
    x = numeric(name, x0).clone()
    if x.ndim != 1 or x.numel() == 0:
        raise ValueError(f"{name} must have shape (d,) with d at least 1, got {tuple(x.shape)}")
    if not bool(torch.isfinite(x).all()):
        raise ValueError(f"{name} must be finite, coordinate {int((~torch.isfinite(x)).nonzero()[0])} is not")
    return x


def parse_points(name: str, given: Any, d: int) -> Tensor:
    """Converts n points to a floating tensor, ``n x d``; integers become float64.

    Raises:
        ValueError: if the shape is not ``n x d``, or a point is not finite.
        TypeError: if the points are not real numbers.
    """
    X = numeric(name, given)
    if X.ndim != 2 or X.shape[1] != d:
        raise ValueError(f"{name} must have shape (n, {d}), one row for each point, got {tuple(X.shape)}")
    if not bool(torch.isfinite(X).all()):
        raise ValueError(f"{name} must be finite, but row {int((~torch.isfinite(X)).any(1).nonzero()[0])} is not")
    return X


def parse_values(values: Any, count: int) -> Tensor:
    """Converts the values of a batch to a float64 tensor of shape ``q``, with NaN for values that are not finite.

    Args:
        values: real numbers of shape ``q`` or ``q x 1``, or, if q = 1, one number in any shape. Integers and booleans
            are allowed, and a list may hold one-element arrays and tensors.
        count: q.

    Raises:
        InvalidValueError: for another shape, complex or non-numeric values, and tensors that require a gradient.
    """
    plain = _plain(values, count)
    if plain is not None:
        return torch.tensor(plain, dtype=torch.float64, device="cpu")
    parts = values if isinstance(values, list | tuple) else [values]
    if any(isinstance(v, Tensor) and v.requires_grad for v in parts):
        raise InvalidValueError("values carry a gradient; detach them first, by y.detach() or y.item()")
    if isinstance(values, list | tuple):
        values = [_unwrapped(v) for v in values]
    try:
        y = numeric("values", values, booleans=True).to(torch.float64)
    except (TypeError, ValueError) as error:
        raise InvalidValueError(str(error)) from error
    if tuple(y.shape) not in {(count,), (count, 1)} and not (count == y.numel() == 1):
        wanted = "one number" if count == 1 else f"of shape ({count},), one for each point"
        raise InvalidValueError(f"values must be {wanted}, got shape {tuple(y.shape)}")
    y = y.reshape(count)
    return torch.where(torch.isfinite(y), y, torch.nan)


def parse_numbers(values: Any, count: int) -> list[float]:
    """The values of ``parse_values`` as a list."""
    plain = _plain(values, count)
    return parse_values(values, count).tolist() if plain is None else plain


def _plain(values: Any, count: int) -> list[float] | None:
    """A fast path for Python floats; None for anything else."""
    given = [values] if type(values) is float else values
    if type(given) is not list or len(given) != count or any(type(v) is not float for v in given):
        return None
    return [v if math.isfinite(v) else math.nan for v in given]


def _unwrapped(value: Any) -> Any:
    """The number in a one-element tensor or array; anything else unchanged."""
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else value
    return value.item() if isinstance(value, np.ndarray) and value.size == 1 else value


def numeric(name: str, given: Any, *, booleans: bool = False) -> Tensor:
    """Converts numbers of any shape to a floating tensor without a gradient; integers become float64.

    Args:
        name: the name of the numbers in messages.
        given: the numbers.
        booleans: whether booleans count as 0 and 1; otherwise they raise an error.

    Raises:
        TypeError: for complex, non-numeric or, unless ``booleans``, boolean entries.
        ValueError: for rows of different lengths.
    """
    if isinstance(given, Tensor):
        tensor = given.detach()
    elif isinstance(given, np.ndarray | np.generic):
        tensor = _of_array(name, np.asarray(given), booleans)
    elif isinstance(given, Sequence) and not isinstance(given, str) and any(isinstance(v, Tensor) for v in given):
        if not all(isinstance(v, Tensor) and v.numel() == 1 for v in given):
            parameters = any(isinstance(v, nn.Parameter) for v in given)
            hint = _HINTS[nn.Module] if parameters else ""
            raise ValueError(f"{name}: in a list of tensors, each must hold one number{hint}")
        parts = [numeric(name, v).reshape(()) for v in given]
        tensor = torch.stack([p.to(torch.promote_types(p.dtype, torch.float32)) for p in parts])
    else:
        try:
            array = np.asarray(given)
        except ValueError as error:
            raise ValueError(f"{name} must be numbers in one regular shape, got {given!r}") from error
        tensor = _of_array(name, array, booleans)
    if tensor.dtype.is_complex or (tensor.dtype == torch.bool and not booleans):
        raise TypeError(f"{name} must be real numbers, got {tensor.dtype}")
    return tensor if tensor.dtype.is_floating_point else tensor.to(torch.float64)


def _of_array(name: str, array: np.ndarray, booleans: bool) -> Tensor:
    if array.dtype.kind not in ("bfiu" if booleans else "fiu"):
        hint = next((text for kind, text in _HINTS.items() if any(isinstance(v, kind) for v in array.flat)), "")
        raise TypeError(f"{name} must be real numbers, got {array.dtype} {array.tolist()!r:.80}{hint}")
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    return torch.from_numpy(np.array(array))
