"""Points and values as users give them, checked and converted to tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


class InvalidValueError(TypeError, ValueError):
    """A value that no objective should give: a mistake in the program, and not a failed query."""


def parse_point(x0: Any, name: str = "x0") -> Tensor:
    """A point as a new floating tensor of shape ``d``; integers become float64.

    Args:
        x0: the point.
        name: the name of the point in messages.

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


def parse_values(values: Any, count: int) -> Tensor:
    """The values of a batch as a float64 tensor of shape ``q``, with NaN for values that are not finite.

    Args:
        values: numbers of shape ``q`` or ``q x 1``, or a single number if q = 1.
        count: q.

    Raises:
        InvalidValueError: for another shape; for complex, integer, boolean or non-numeric values, and tensors that
            carry a gradient. Integers are more often labels or counts than values, and a gradient keeps a graph that
            grows with the run.
    """
    _refuse_slips(values)
    try:
        y = numeric("values", values).to(torch.float64)
    except (TypeError, ValueError) as error:
        raise InvalidValueError(str(error)) from error
    if tuple(y.shape) not in {(count,), (count, 1)} and not (count == 1 and y.ndim == 0):
        wanted = "one number" if count == 1 else f"of shape ({count},), one for each point"
        raise InvalidValueError(f"values must be {wanted}, got shape {tuple(y.shape)}")
    y = y.reshape(count)
    return torch.where(torch.isfinite(y), y, torch.nan)


def _refuse_slips(values: Any) -> None:
    parts = values if isinstance(values, list | tuple) else [values]
    if any(isinstance(v, Tensor) and v.requires_grad for v in parts):
        raise InvalidValueError("values carry a gradient: detach them first, y.detach() or y.item()")
    for value in parts:
        dtype = getattr(value, "dtype", None)
        if dtype is None:
            whole = isinstance(value, int) and not isinstance(value, bool)
        elif isinstance(dtype, torch.dtype):
            whole = not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
        else:
            whole = dtype.kind in "iu"
        if whole:
            raise InvalidValueError(f"values must be floating point, got the integer {value!r:.60}: use float(y)")


def numeric(name: str, given: Any) -> Tensor:
    """Numbers of any shape as a floating tensor without a gradient; integers become float64.

    Raises:
        TypeError: for complex, boolean or non-numeric entries.
        ValueError: for rows of different lengths.
    """
    if isinstance(given, Tensor):
        tensor = given.detach()
    elif isinstance(given, np.ndarray | np.generic):
        tensor = _of_array(name, np.asarray(given))
    elif isinstance(given, Sequence) and not isinstance(given, str) and any(isinstance(v, Tensor) for v in given):
        if not all(isinstance(v, Tensor) and v.numel() == 1 for v in given):
            raise ValueError(f"{name}: a list of tensors must hold one number in each")
        parts = [numeric(name, v).reshape(()) for v in given]
        tensor = torch.stack([p.to(torch.promote_types(p.dtype, torch.float32)) for p in parts])
    else:
        try:
            array = np.asarray(given)
        except ValueError as error:
            raise ValueError(f"{name} must be numbers in one regular shape, got {given!r}") from error
        tensor = _of_array(name, array)
    if tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise TypeError(f"{name} must be real numbers, got {tensor.dtype}")
    return tensor if tensor.dtype.is_floating_point else tensor.to(torch.float64)


def _of_array(name: str, array: np.ndarray) -> Tensor:
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} must be real numbers, got {array.dtype} {array.tolist()!r:.80}")
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    return torch.from_numpy(np.array(array))
