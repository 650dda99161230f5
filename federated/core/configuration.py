"""Validation of a federation's options, their description as plain values, and the sampling of clients."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from optimizers.core.values import numeric
from optimizers.directions.groups import Groups
from optimizers.first_order import FirstOrder


def real_number(name: str, value: Any) -> float:
    """Returns a number as a float, NaN and infinity included; ``TypeError`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return float(value)


def count_of(name: str, value: float | int, total: int, rounding: Callable[[float], int]) -> int:
    """Returns the number given by an option: an integer is the number itself, a float a share of ``total``, rounded.

    Raises:
        TypeError: if the value is not a number.
        ValueError: if an integer is not in 1 … ``total``, or a float not in (0, 1].
    """
    real_number(name, value)
    whole = isinstance(value, int | np.integer)
    if not 0 < value <= (total if whole else 1):
        raise ValueError(f"{name} is {value}: it must be an integer from 1 to {total}, or a float share in (0, 1]")
    return int(value) if whole else max(1, rounding(float(value) * total))


def check_weights(weights: Sequence[float] | None, clients: int) -> tuple[float, ...]:
    """Returns the clients' weights as floats; None gives equal weights.

    Raises:
        TypeError: if weights are not real numbers.
        ValueError: if the number of weights is not N, or a weight is not positive and finite.
    """
    if weights is None:
        return (1.0,) * clients
    given = numeric("weights", weights).double()
    if given.shape != (clients,):
        raise ValueError(f"expected {clients} weights, one for each client, got shape {tuple(given.shape)}")
    if not bool((torch.isfinite(given) & (given > 0.0)).all()):
        raise ValueError(f"weights must be positive and finite, got {given.tolist()!r:.200}")
    return tuple(given.tolist())


def sample_clients(seed: int, round_number: int, clients: int, count: int) -> tuple[int, ...]:
    """Returns a round's clients in ascending order: a uniform sample without replacement, set by seed and round."""
    if count == clients:
        return _all(clients)
    key = hashlib.sha256(f"sample of round {round_number} of {seed}".encode()).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))
    return tuple(sorted(int(i) for i in generator.permutation(clients)[:count]))


@lru_cache(maxsize=1)
def _all(clients: int) -> tuple[int, ...]:
    """Returns the numbers of all clients, as the same object in every round."""
    return tuple(range(clients))


def describe_option(name: str, value: Any) -> Any:
    """Describes an option by plain values that are equal for equal options in every process.

    A tensor is described by its digest, a function by its name, and an object, such as a prox, by its type and content.
    """
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, Tensor | np.ndarray):
        return describe_tensor(torch.as_tensor(value))
    if isinstance(value, Mapping):
        return {str(k): describe_option(f"{name}.{k}", v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [describe_option(f"{name}[{i}]", v) for i, v in enumerate(value)]
    if isinstance(value, torch.nn.Module):
        state = {k: describe_tensor(v) for k, v in value.state_dict().items()}
        return {"type": _type_name(value), "state": state}
    if isinstance(value, Groups):
        return value.fingerprint
    if name == "update_rule":
        return describe_rule(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    fields = [f.name for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else vars(value)
    plain = {field: describe_option(f"{name}.{field}", getattr(value, field)) for field in fields}
    return {"type": _type_name(value)} | plain


def describe_tensor(tensor: Tensor) -> dict[str, Any]:
    """Returns dtype, shape and SHA-256 of a tensor."""
    flat = tensor.detach().cpu().reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)
    digest = hashlib.sha256(flat.numpy().data).hexdigest()
    return {"dtype": str(tensor.dtype), "shape": list(tensor.shape), "digest": digest}


def describe_rule(factory: Callable[[Tensor], torch.optim.Optimizer]) -> dict[str, Any]:
    """Returns the class and the parameter groups of the torch optimizer that a factory makes."""
    rule = FirstOrder(factory, torch.zeros(1, dtype=torch.float64))
    made = factory(torch.nn.Parameter(torch.zeros(1)))
    groups = rule.state_dict()["param_groups"]
    plain = [{k: describe_option(k, v) for k, v in group.items() if k != "params"} for group in groups]
    return {"type": _type_name(made), "groups": plain}


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
