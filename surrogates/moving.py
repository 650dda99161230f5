"""Lets ``Module.to`` move tensors that are neither parameters nor buffers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Move = Callable[[Tensor], Tensor]


def move_attributes(holder: object, move: Move) -> None:
    """Moves an object's attributes that are tensors, lists of tensors, or distributions.

    The parameters of distributions keep their dtype, as in GPyTorch; they do not determine the dtype of results.
    """
    attributes = vars(holder)
    for name, value in attributes.items():
        if isinstance(value, Tensor):
            attributes[name] = move(value)
        elif isinstance(value, list) and all(isinstance(item, Tensor) for item in value):
            attributes[name] = [move(item) for item in value]
        elif isinstance(value, torch.distributions.Distribution):
            move_attributes(value, lambda number: number.to(move(number).device))


def move_module_attributes(module: torch.nn.Module, move: Move) -> None:
    """Moves the tensors of a module that ``Module._apply`` does not move, such as data and priors."""
    for part in module.modules():
        move_attributes(part, move)
