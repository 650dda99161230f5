"""Checks of user input, made once at the public boundary."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

Checked = TypeVar("Checked")
_FEW = 32
SHORTEST = 1e-100
"""The smallest accepted lengthscale; the largest is 1/SHORTEST."""


def check_data(
    train_X: Tensor,
    train_Y: Tensor,
    train_Yvar: Tensor | None = None,
    prefix: str = "train_",
    num_outputs: int | None = 1,
    unobserved: bool = False,
) -> None:
    """Checks that a GP can be conditioned on the data.

    Args:
        train_X: The inputs, ``batch x n x d`` with n and d at least 1.
        train_Y: The outcomes, ``batch x n x m``.
        train_Yvar: The noise variances, ``batch x n x m``, non-negative, or None.
        prefix: A prefix of the names X, Y and Yvar in messages.
        num_outputs: m, the number of outcomes, or None for any number.
        unobserved: Whether an outcome may be NaN, which marks it as not observed.

    Raises:
        TypeError: If an argument is not a floating point tensor.
        ValueError: If shapes do not match, there are no data, dtypes or devices differ, a variance is negative, or an
            entry is infinite or a NaN that is not allowed.
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
    m = num_outputs or max(1, train_Y.shape[-1] if train_Y.dim() == train_X.dim() else 1)
    for name in (Y, Yvar):
        if name in named and named[name].shape != (*train_X.shape[:-1], m):
            raise ValueError(
                f"{name} must be of shape {(*train_X.shape[:-1], m)} for {X} of shape {tuple(train_X.shape)}, "
                f"got {tuple(named[name].shape)}."
            )
    for name, tensor in named.items():
        check_same_kind(name, tensor, X, train_X)
        if name == X or not unobserved:
            check_finite(name, tensor)
    if unobserved:
        check_observed(Y, train_Y, Yvar, train_Yvar)
    elif train_Yvar is not None:
        check_nonnegative(Yvar, train_Yvar)


def check_observed(name: str, observed: Tensor, noise_name: str, noise: Tensor | None) -> None:
    """Checks observations, where NaN means not observed, and their noise variances.

    Raises:
        ValueError: If an observation is infinite, or a variance is negative, infinite, or NaN for an observed entry.
    """
    if bad := int(observed.isinf().sum()):
        raise ValueError(f"{name} holds {bad} infinite entries; use NaN for entries that were not observed.")
    if noise is None:
        return
    if bad := int((noise.isinf() | noise.isnan() & ~observed.isnan()).sum()):
        raise ValueError(
            f"{noise_name} holds {bad} entries that are infinite, or NaN although {name} is not; give a finite "
            f"variance for each observed entry of {name}."
        )
    check_nonnegative(noise_name, noise[~noise.isnan()])


def check_every_outcome(Y: Tensor) -> None:
    """Raises a ``ValueError`` if one of the m outcomes Y, ``batch x n x m``, is NaN in every row."""
    if bool((never := Y.isnan().all(-2)).any()):
        raise ValueError(
            f"train_Y is NaN in every row for the outcomes {never.nonzero()[:, -1].unique().tolist()}; give at least "
            "one value of each outcome, or leave the outcome out."
        )


def check_points(X: Tensor, d: int, like: Tensor, name: str = "X") -> None:
    """Checks that a posterior can be evaluated at the points.

    Args:
        X: The points, ``batch x q x d``.
        d: The number of inputs of the model.
        like: A tensor of the model's dtype and device.
        name: The name of X in messages.

    Raises:
        TypeError: If X is not a floating point tensor.
        ValueError: If X has another d, fewer than two dimensions, a NaN or infinite entry, or another dtype or device.
    """
    check_floating(name, X)
    if X.dim() < 2 or X.shape[-1] != d:
        raise ValueError(f"{name} must be of shape batch x q x {d} (one point is 1 x {d}), got {tuple(X.shape)}.")
    check_same_kind(name, X, "the model", like)
    check_finite(name, X)


def check_floating(name: str, tensor: object) -> None:
    """Raises ``TypeError`` unless the value is a floating point tensor."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}.")
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be floating point (float64 is best), got {tensor.dtype}.")


def check_same_kind(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Raises ``ValueError`` unless two tensors have the same dtype and device."""
    if tensor.dtype != other.dtype or tensor.device != other.device:
        raise ValueError(
            f"{name} is {tensor.dtype} on {tensor.device} but {other_name} is {other.dtype} on {other.device}; "
            "give both the same dtype and device."
        )


def check_finite(name: str, tensor: Tensor) -> None:
    """Raises ``ValueError`` if a tensor has NaN or infinite entries."""
    if is_traced(tensor):
        return
    # A finite sum proves that all entries are finite. Python adds a few numbers faster than torch.
    few = tensor.dim() == 2 and tensor.numel() <= _FEW
    if not isfinite(sum(map(sum, tensor.tolist())) if few else tensor.detach().sum().item()):
        bad = int((~torch.isfinite(tensor)).sum())
        if bad:
            raise ValueError(f"{name} holds {bad} entries that are NaN or inf; all must be finite.")


def is_traced(tensor: Tensor) -> bool:
    """Whether the tensor is inside a transform of ``torch.func``, where its values cannot be read."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def check_not_traced(name: str, tensor: Tensor) -> None:
    """Raises ``TypeError`` if the tensor is inside a transform of ``torch.func``."""
    if is_traced(tensor):
        raise TypeError(
            f"{name} is inside a transform of torch.func, which this posterior does not support. Instead of vmap, pass "
            "all points at once (batch x q x d). Instead of jacrev or jacfwd, use torch.autograd or "
            "DerivedGP.hessian_posterior."
        )


def expanded(name: str, given: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Checks directions or vectors, broadcasts them to a shape and converts them to a dtype.

    Raises:
        TypeError: If ``given`` is not a floating point tensor.
        ValueError: If ``given`` does not broadcast, or holds NaN or inf.
    """
    check_floating(name, given)
    check_finite(name, given)
    try:
        return given.to(dtype).expand(shape)
    except RuntimeError as error:
        raise ValueError(f"{name} of shape {tuple(given.shape)} does not broadcast to {tuple(shape)}.") from error


def check_nonnegative(name: str, tensor: Tensor) -> None:
    """Raises ``ValueError`` if the tensor has a negative entry."""
    if bool((tensor < 0).any()):
        raise ValueError(f"{name} must be non-negative; its smallest entry is {tensor.min().item():g}.")


def check_positive(name: str, tensor: Tensor) -> None:
    """Raises ``ValueError`` unless all entries of the tensor are finite and positive."""
    wrong = tensor.detach()[~(tensor.isfinite() & (tensor > 0))]
    if wrong.numel():
        raise ValueError(f"{name} must be finite and positive, got {wrong[:3].tolist()}.")


def check_number(name: str, value: Any) -> float:
    """Converts a real number, or a tensor with one element, to a float.

    Raises:
        TypeError: If the value is not a number, or is a boolean or a string.
        ValueError: If the value is NaN or infinite.
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
    """Converts a number as ``check_number`` does; raises ``ValueError`` unless it is positive."""
    if (number := nonnegative(name, value, "positive")) == 0.0:
        raise ValueError(f"{name} must be positive and finite, got {number}")
    return number


def check_lengthscale(name: str, value: Any) -> float:
    """Converts a number as ``positive`` does; raises ``ValueError`` if 1/ℓ² would overflow or underflow."""
    if not SHORTEST <= (number := positive(name, value)) <= 1.0 / SHORTEST:
        raise ValueError(f"{name} must be from {SHORTEST:g} to {1.0 / SHORTEST:g}, got {number:g}")
    return number


def nonnegative(name: str, value: Any, accepted: str = "at least 0") -> float:
    """Converts a number as ``check_number`` does; raises ``ValueError`` if it is negative."""
    try:
        number = check_number(name, value)
    except ValueError:
        number = -1.0
    if number < 0.0:
        raise ValueError(f"{name} must be {accepted} and finite, got {value}")
    return number


def check_integer(name: str, value: Any, least: int, below: int | None = None) -> int:
    """Returns the value as an int that is at least ``least`` and, if given, less than ``below``.

    Raises:
        TypeError: If the value is not an integer, or is a boolean.
        ValueError: If the value is out of range.
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


def check_boolean(name: str, value: Any) -> bool:
    """Returns the value as a bool; raises ``TypeError`` for any other type, such as the string "no"."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def positive_integer(name: str, value: Any) -> int:
    """Returns the value as an int of at least 1; raises the errors of ``check_integer``."""
    return check_integer(name, value, 1)


def nearest_name(name: str, accepted: Iterable[str], shown: Mapping[str, str] | None = None) -> str:
    """Returns the end of an error message about an unknown name: the most similar name, and all accepted names.

    Case, underscores and hyphens are ignored. A name that is similar to one word of an accepted name is also found.
    ``shown`` maps names that are known elsewhere to the text that is suggested for them.
    """
    accepted, shown = sorted(accepted), shown or {}
    plain = {_plain(candidate): shown.get(candidate, candidate) for candidate in [*shown, *accepted]}
    given = _plain(name)
    close = difflib.get_close_matches(given, plain, n=1) or [
        _plain(near)
        for near in [*shown, *accepted]
        if difflib.get_close_matches(given, near.casefold().split("_"), cutoff=0.8)
    ]
    hint = f"; did you mean {plain[close[0]]!r}?" if close else ""
    return f"{hint} (accepted: {', '.join(accepted)})"


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()


def check_choice(name: str, value: Any, accepted: Iterable[str]) -> str:
    """Returns the value if it is an accepted name.

    Raises:
        ValueError: For any other value; the message suggests the most similar name.
    """
    if not isinstance(value, str) or value not in accepted:
        raise ValueError(f"{name} must be one of the accepted names, got {value!r}{nearest_name(str(value), accepted)}")
    return value


def optional(check: Callable[..., Checked], name: str, value: Any, *limits: Any) -> Checked | None:
    """Applies ``check`` unless the value is None, as in ``optional(check_integer, "window", window, 2)``."""
    return None if value is None else check(name, value, *limits)
