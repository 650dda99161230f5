"""What a derived GP keeps between calls, how it knows that it still holds, and how GPyTorch comes to share it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import gpytorch
import torch
from gpytorch.models import ExactGP
from gpytorch.models.exact_prediction_strategies import DefaultPredictionStrategy
from linear_operator.utils.errors import CachingError
from linear_operator.utils.memoize import add_to_cache, get_from_cache

from surrogates.conditioning import Conditioning
from surrogates.models.growing_data import GrowingData

if TYPE_CHECKING:
    from surrogates.models.conditioned_gp import ConditionedGP


class Parameters:
    """The modules and hyper-parameters that a model's caches were computed with.

    Args:
        model: The model as it is now: an ``ExactGP`` with a mean and a covariance module.
    """

    def __init__(self, model: ExactGP) -> None:
        self._modules = self._of(model)
        self._values = [(parameter, parameter.detach().clone()) for parameter in model.parameters()]

    def hold(self, model: ExactGP) -> bool:
        """Whether the model has the same modules with the same hyper-parameters."""
        same = all(a is b for a, b in zip(self._modules, self._of(model), strict=True))
        return same and all(torch.equal(parameter, value) for parameter, value in self._values)

    @staticmethod
    def _of(model: ExactGP) -> tuple[object, ...]:
        return model.covar_module, model.mean_module, model.likelihood


class Conditioned:
    """A conditioning with the data that it was computed from, by identity: it serves that data set and no other.

    Args:
        model: Whose training data they are.
        conditioning: The conditioning.
        growing: The data's growing storage, where observations have been added.
    """

    def __init__(self, model: ConditionedGP, conditioning: Conditioning, growing: GrowingData | None = None) -> None:
        self.inputs, self.targets = model.train_inputs[0], model.train_targets
        self.conditioning = conditioning
        self.growing = growing

    def holds(self, model: ConditionedGP) -> bool:
        """Whether these are the model's data."""
        return self.inputs is model.train_inputs[0] and self.targets is model.train_targets


def prediction_strategy(model: ConditionedGP, conditioning: Conditioning) -> DefaultPredictionStrategy:
    """GPyTorch's caches filled from our factor and α: nothing is factorised twice.

    Args:
        model: In evaluation mode.
        conditioning: Of the model's data.
    """
    inputs, dtype = list(model.train_inputs), model.train_targets.dtype
    eye = torch.eye(conditioning.factor.shape[-1], dtype=torch.float64, device=conditioning.factor.device)
    inverse_root = torch.linalg.solve_triangular(conditioning.factor, eye, upper=False).mT
    strategy = DefaultPredictionStrategy(
        inputs,
        model.forward(*inputs),
        model.train_targets,
        model.likelihood,
        root=conditioning.factor.to(dtype),
        inv_root=inverse_root.to(dtype).contiguous(),
    )
    _store_mean_cache(strategy, conditioning.alpha.to(dtype))
    return strategy


def keep_updated_mean_cache(strategy: DefaultPredictionStrategy | None) -> None:
    """Store the α of a fantasy strategy where GPyTorch looks for it: it stores it elsewhere and solves anew."""
    with suppress(CachingError):
        _store_mean_cache(strategy, get_from_cache(strategy, "mean_cache").detach())


def _store_mean_cache(strategy: DefaultPredictionStrategy | None, alpha: torch.Tensor) -> None:
    add_to_cache(strategy, "mean_cache", alpha, gpytorch.settings.observation_nan_policy.value())
