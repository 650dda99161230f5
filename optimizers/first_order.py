"""First-order update rules: torch's optimizers applied to one vector."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer as TorchOptimizer

from surrogates.compiled import compiled

_compiled = compiled("optimizers.first_order_numba")

UpdateRule = Callable[[Tensor], TorchOptimizer]
"""A function that makes a torch optimizer of one parameter, such as ``lambda p: torch.optim.Adam([p], lr=0.1)``."""


def adam(p: Tensor, lr: float = 0.1) -> TorchOptimizer:
    """Adam on one vector parameter; the default learning rate is ZoRD's for Ackley and Levy (Appx. C.2)."""
    return torch.optim.Adam([p], lr=lr)


class FirstOrder:
    """A torch optimizer and its state, applied to given points and gradients.

    Args:
        update_rule: makes a torch optimizer of one vector parameter.
        x: a point of shape ``d``, from which the parameter takes dtype and device.

    Raises:
        TypeError: if ``update_rule`` does not return a torch optimizer of the given parameter.
    """

    def __init__(self, update_rule: UpdateRule, x: Tensor) -> None:
        self._factory = update_rule
        self._parameter = torch.nn.Parameter(torch.empty(0, dtype=x.dtype, device=x.device))
        made: Any = update_rule(self._parameter) if callable(update_rule) else update_rule
        held = [id(p) for group in getattr(made, "param_groups", []) for p in group["params"]]
        if not isinstance(made, TorchOptimizer) or held != [id(self._parameter)]:
            raise TypeError(
                "update_rule must be a function that returns a torch optimizer of the given parameter, as in "
                f"lambda p: torch.optim.Adam([p], lr=0.1); got {type(made).__name__}"
            )
        self._rule = made
        self._rates = [group["lr"] for group in self._rule.param_groups]

    @property
    def step_size(self) -> float:
        """The learning rate of the next step."""
        return float(self._rule.param_groups[0]["lr"])

    @property
    def plain_step_size(self) -> float | None:
        """η if the next step is x − η g (``torch.optim.SGD`` without options); otherwise None."""
        group = self._rule.param_groups[0]
        options = ("momentum", "dampening", "weight_decay", "nesterov", "maximize")
        plain = type(self._rule) is torch.optim.SGD and not any(group[name] for name in options)
        return self.step_size if plain else None

    def step(self, x: Tensor, gradient: Tensor) -> tuple[Tensor, float]:
        """Takes a step from x; returns the new point as a new tensor, and the learning rate of the step.

        If numba is installed, steps of plain Adam in float64 on the CPU are compiled and equal torch's up to rounding.
        """
        step_size = self.step_size
        if _compiled is not None and x.is_cpu and x.dtype == torch.float64 and self._is_plain_adam():
            return self._adam_step(x, gradient), step_size
        self._parameter.data = x.clone()
        self._parameter.grad = gradient.to(x)
        self._rule.step()
        moved = self._parameter.detach()
        self._parameter.data, self._parameter.grad = moved.new_empty(0), None
        return moved, step_size

    def _is_plain_adam(self) -> bool:
        """Whether the next step is plain Adam's, without options or hooks, and not the first of the run."""
        rule, group = self._rule, self._rule.param_groups[0]
        options = ("weight_decay", "amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused")
        hooks = rule._optimizer_step_pre_hooks or rule._optimizer_step_post_hooks or "step" in vars(rule)
        plain = type(rule) is torch.optim.Adam and not any(group[name] for name in options) and not hooks
        return plain and self._parameter in rule.state

    def _adam_step(self, x: Tensor, gradient: Tensor) -> Tensor:
        """A compiled Adam step; torch's step of a short vector is mostly Python overhead."""
        group, state = self._rule.param_groups[0], self._rule.state[self._parameter]
        if gradient.requires_grad or gradient.dtype != x.dtype:
            gradient = gradient.detach().to(x)
        x = x.detach() if x.requires_grad else x
        count, moved = state["step"].numpy(), np.empty(x.shape)  # arrays are faster than small tensors
        count += 1
        vectors = (vector.numpy() for vector in (x, gradient, state["exp_avg"], state["exp_avg_sq"]))
        numbers = (float(count), self.step_size, *map(float, group["betas"]), group["eps"])
        _compiled.adam_step(*vectors, *numbers, moved)
        return torch.from_numpy(moved)

    def reset(self, scale: float = 1.0) -> None:
        """Makes a new torch optimizer, with ``scale`` times the factory's learning rates."""
        self._rule = self._factory(self._parameter)
        self.rescale(scale)

    def rescale(self, scale: float) -> None:
        """Sets the learning rates to ``scale`` times the factory's."""
        for group, rate in zip(self._rule.param_groups, self._rates, strict=True):
            group["lr"] = scale * rate

    def state_dict(self) -> dict[str, Any]:
        """The torch optimizer's own ``state_dict``."""
        return self._rule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a copy of a ``state_dict`` of the same rule."""
        rule = self._factory(self._parameter)
        rule.load_state_dict(copy.deepcopy(state))
        self._rule = rule

    def __deepcopy__(self, memo: dict[int, Any]) -> FirstOrder:
        copied = FirstOrder(self._factory, self._parameter.detach())
        copied.load_state_dict(self.state_dict())
        return copied
