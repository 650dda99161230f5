"""The input constructor that makes ``GradientInformation`` from the arguments that BoTorch and Ax pass.

This module is separate because importing BoTorch's registry takes most of a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from botorch.acquisition.input_constructors import acqf_input_constructor
from botorch.acquisition.objective import MCAcquisitionObjective, PosteriorTransform
from botorch.models.model import Model
from botorch.posteriors.torch import TorchPosterior
from botorch.sampling.base import MCSampler
from torch import Tensor

from surrogates.gradient_information import Constraint, GradientInformation


@acqf_input_constructor(GradientInformation)
def gradient_information_inputs(
    model: Model,
    training_data: Any = None,
    X_baseline: Tensor | None = None,
    X_target: Tensor | None = None,
    X_pending: Tensor | None = None,
    noise: float | None = None,
    objective_index: int | None = None,
    objective: MCAcquisitionObjective | None = None,
    posterior_transform: PosteriorTransform | None = None,
    constraints: Sequence[Constraint] | None = None,
    sampler: MCSampler | None = None,
) -> dict[str, Any]:
    """Constructs the arguments of ``GradientInformation`` from the standard arguments of BoTorch's input constructors.

    Args:
        model: As for ``GradientInformation``.
        training_data: The ``SupervisedDataset`` of the model, or a dictionary of them.
        X_baseline: The points among which x* is chosen, ``n x d``. None stands for the inputs of ``training_data``.
        X_target: The point x*. None stands for the point of ``X_baseline`` with the largest posterior mean of the
            objective; points whose posterior mean violates a constraint are chosen only if all do.
        X_pending: As for ``GradientInformation``.
        noise: As for ``GradientInformation``.
        objective_index: As for ``GradientInformation``.
        objective: The objective that the default of ``X_target`` maximizes.
        posterior_transform: The same objective as a posterior transform.
        constraints: As for ``GradientInformation``.
        sampler: As for ``GradientInformation``.

    Returns:
        The keyword arguments of ``GradientInformation``.

    Raises:
        ValueError: If ``X_target``, ``X_baseline`` and ``training_data`` are all None.
    """
    if X_target is None:
        if X_baseline is None and training_data is None:
            raise ValueError("X_target has no default without X_baseline or training_data: pass one of the three.")
        if X_baseline is None:
            dataset = next(iter(training_data.values())) if isinstance(training_data, dict) else training_data
            X_baseline = dataset.X
        with torch.no_grad():
            mean = cast(TorchPosterior, model.posterior(X_baseline)).mean
            if posterior_transform is not None:
                value = posterior_transform.evaluate(mean)
            else:
                value = mean[..., objective_index or 0] if objective is None else objective(mean, X_baseline)
        X_target = X_baseline[_best_feasible(value, mean, constraints or ())]
    return {
        "model": model,
        "X_target": X_target,
        "X_pending": X_pending,
        "noise": noise,
        "objective_index": objective_index,
        "constraints": constraints,
        "sampler": sampler,
    }


def _best_feasible(value: Tensor, mean: Tensor, constraints: Sequence[Constraint]) -> int:
    """The index of the largest value among the feasible rows, or among all rows if none is feasible."""
    infeasible = torch.zeros_like(value, dtype=torch.bool)
    for constraint in constraints:
        infeasible |= constraint(mean) > 0
    return int(value.masked_fill(infeasible & ~infeasible.all(), -torch.inf).argmax())
