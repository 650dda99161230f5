"""What a Cholesky GP keeps between calls, how it knows that it still holds, and how GPyTorch comes to share it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import gpytorch
import torch
from gpytorch.models import ExactGP
from gpytorch.models.exact_prediction_strategies import DefaultPredictionStrategy
from linear_operator.utils.errors import CachingError
from linear_operator.utils.memoize import add_to_cache, get_from_cache
from torch import Tensor

from surrogates.conditioning import Conditioning
from surrogates.linalg.growing import GrowingCholesky, GrowingRows


class ParameterSnapshot:
    """The modules and hyper-parameters of a model at one moment, to tell whether its caches still hold.

    Args:
        model: A model with a mean and a covariance module.
    """

    def __init__(self, model: ExactGP) -> None:
        self._modules = self._of(model)
        self._values = [(parameter, parameter.detach().clone()) for parameter in model.parameters()]

    def matches(self, model: ExactGP) -> bool:
        """Whether the model has the same modules with the same hyper-parameters."""
        same = all(a is b for a, b in zip(self._modules, self._of(model), strict=True))
        return same and all(torch.equal(parameter, value) for parameter, value in self._values)

    @staticmethod
    def _of(model: ExactGP) -> tuple[object, ...]:
        return model.covar_module, model.mean_module, model.likelihood


class GrowingData:
    """The inputs, targets, noise and factor of one data set, in storage that grows: an observation costs O(n²).

    Args:
        inputs: The transformed inputs, ``n x d``.
        original_inputs: The inputs in the user's units, ``n x d``, or None where they are the same.
        targets: The transformed targets, ``n``.
        noise: The fixed noise variances, ``n``, or None.
        factor: L, ``n x n``.
    """

    def __init__(
        self, inputs: Tensor, original_inputs: Tensor | None, targets: Tensor, noise: Tensor | None, factor: Tensor
    ) -> None:
        capacity = max(2 * len(targets), 64)
        self.inputs, self.targets = GrowingRows(inputs, capacity), GrowingRows(targets, capacity)
        self.original_inputs = None if original_inputs is None else GrowingRows(original_inputs, capacity)
        self.noise = None if noise is None else GrowingRows(noise, capacity)
        self.factor = GrowingCholesky.from_factor(factor)


@dataclass(frozen=True, eq=False)
class CachedConditioning:
    """A conditioning with the data that it was computed from, by identity: it serves that data set and no other.

    Attributes:
        conditioning: The conditioning.
        inputs: The model's transformed training inputs.
        targets: The model's training targets.
        growing: The data's growing storage where observations have been added, else None.
    """

    conditioning: Conditioning
    inputs: Tensor
    targets: Tensor
    growing: GrowingData | None = None

    def matches(self, model: ExactGP) -> bool:
        """Whether these are the model's data."""
        return self.inputs is model.train_inputs[0] and self.targets is model.train_targets


def make_prediction_strategy(model: ExactGP, conditioning: Conditioning) -> DefaultPredictionStrategy:
    """GPyTorch's caches filled from L and α, so that nothing is factorised twice.

    Args:
        model: A model in evaluation mode.
        conditioning: The conditioning of the model's data.
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
    """Stores the α of a fantasy strategy where GPyTorch looks for it: it stores it elsewhere and solves anew."""
    with suppress(CachingError):
        _store_mean_cache(strategy, get_from_cache(strategy, "mean_cache").detach())


def _store_mean_cache(strategy: DefaultPredictionStrategy | None, alpha: Tensor) -> None:
    add_to_cache(strategy, "mean_cache", alpha, gpytorch.settings.observation_nan_policy.value())
