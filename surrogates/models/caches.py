"""The cached factor of a ``CholeskyGP``: checks that it is valid, extends it, and shares it with GPyTorch's caches."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import getitem, is_
from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.means import ConstantMean, Mean, ZeroMean
from gpytorch.models import ExactGP
from gpytorch.models.exact_prediction_strategies import DefaultPredictionStrategy
from gpytorch.priors import Prior
from linear_operator.utils.errors import CachingError
from linear_operator.utils.memoize import add_to_cache, get_from_cache
from torch import Tensor

from surrogates.conditioning import Conditioning
from surrogates.kernels.registry import copied
from surrogates.linalg.growing import GrowingCholesky, GrowingRows
from surrogates.models.unobserved import silenced

SMALL = 4096
"""Tensors with at most this many elements are compared by value, larger ones by their version counter."""

_BOOKKEEPING = frozenset(vars(gpytorch.Module())) - {"training"}


class ModelSnapshot:
    """A snapshot of a model's modules, hyper-parameters and data, to detect changes at little cost.

    Modules (priors excepted) and their attributes, such as a constraint, a base kernel or a kernel's ``nu``, are
    compared by identity. Parameters and buffers are compared by value, because GPyTorch writes to them without changing
    autograd's version counter. Data and tensors with more than ``SMALL`` elements are compared by identity and version;
    changes made through ``.data`` or NumPy are not detected.

    Args:
        model: A GP in evaluation mode.
    """

    def __init__(self, model: ExactGP) -> None:
        modules = _without_priors(model)
        children = [m._modules for m in (model, *modules)]
        attributes = [vars(m) for m in modules]
        numbers = [d for m in (model, *modules) for d in (m._parameters, m._buffers)]
        self._dicts = [*children, *attributes, *numbers]
        self._sizes = [len(d) for d in self._dicts]
        named = [(d, name) for d in numbers for name in d]
        tensors = [(d, name) for d, name in named if d[name] is not None]
        self._parts = _Entries(
            [(d, name) for d in children for name in d]
            + [(d, name) for d in attributes for name in d if name not in _BOOKKEEPING]
            + [(d, name) for d, name in named if d[name] is None]
        )
        self._single = _Entries([(d, name) for d, name in tensors if d[name].numel() == 1])
        self._values, self._dtypes = [t.item() for t in self._single.values], [t.dtype for t in self._single.values]
        self._several = _Entries([(d, name) for d, name in tensors if d[name].numel() != 1])
        self._copies = [t.detach().clone() if t.numel() <= SMALL else t for t in self._several.values]
        plain = [value for value in self._parts.values if isinstance(value, torch.Tensor)]
        self._large = [*_data(model), *plain, *(t for t in self._several.values if t.numel() > SMALL)]
        self._versions = _versions(self._large)

    def matches(self, model: ExactGP) -> bool:
        """Whether the model is unchanged since the snapshot was taken."""
        try:
            single, several = list(self._single.now()), list(self._several.now())
            return (
                list(map(len, self._dicts)) == self._sizes
                and all(map(is_, self._parts.now(), self._parts.values))
                and all(map(is_, _data(model), self._large))
                and _versions(self._large) == self._versions
                and list(map(torch.Tensor.item, single)) == self._values
                and (all(map(is_, single, self._single.values)) or [t.dtype for t in single] == self._dtypes)
                and (
                    not several or all(a is b or torch.equal(a, b) for a, b in zip(several, self._copies, strict=True))
                )
            )
        except (KeyError, RuntimeError, TypeError):  # an entry was removed, set to None, or has another size or dtype
            return False


class _Entries:
    """Dictionary entries with the values that they had when this was made."""

    def __init__(self, places: list[tuple[dict[str, Any], str]]) -> None:
        self._dicts, self._names = [d for d, _ in places], [name for _, name in places]
        self.values = [d[name] for d, name in places]

    def now(self) -> Iterator[Any]:
        """The present values; raises a KeyError if an entry was removed."""
        return map(getitem, self._dicts, self._names)


def _without_priors(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules in a model that its predictions depend on."""
    found: list[torch.nn.Module] = []
    for child in model.children():
        if not isinstance(child, Prior):
            found += [child, *_without_priors(child)]
    return found


def _data(model: ExactGP) -> list[torch.Tensor]:
    return [*model.train_inputs, model.train_targets]


def _versions(tensors: list[torch.Tensor]) -> list[int]:
    """The version counter of each tensor, 0 for tensors made in inference mode, which have none."""
    return [0 if t.is_inference() else t._version for t in tensors]


def prior_mean(mean_module: Mean, detach: bool = True) -> Mean | None:
    """Copies a mean, detached from autograd if ``detach``; returns None if the gradient of the mean is 0."""
    if type(mean_module) in (ConstantMean, ZeroMean):
        return None
    tensors = [*mean_module.parameters(), *mean_module.buffers()]
    return copy.deepcopy(mean_module, {id(t): copied(t, detach) for t in tensors})


class GrowingData:
    """One data set and its Cholesky factor, to which an observation is added in O(n²).

    Its original inputs are None if there is no input transform, and its noise is None if the noise is not fixed.
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
    """A conditioning, with the storage to which new observations are appended.

    Attributes:
        conditioning: The model conditioned on its data.
        outcome_scale: dy/dy' of the outcome transform, ``batch x 1``, or None if it is 1.
        growing: The storage of the data, or None before observations are added.
    """

    conditioning: Conditioning
    outcome_scale: Tensor | None
    growing: GrowingData | None = None


def make_prediction_strategy(
    model: ExactGP, conditioning: Conditioning | None, missing: Tensor | None
) -> DefaultPredictionStrategy:
    """Makes GPyTorch's prediction strategy, with caches filled from L and α to avoid a second factorisation.

    Args:
        model: A model in evaluation mode.
        conditioning: The conditioning of the model's data, or None to let GPyTorch factorise the covariance.
        missing: A mask of the targets that were not observed, ``batch x n``, or None if all were.
    """
    inputs, dtype = list(model.train_inputs), model.train_targets.dtype
    prior = model.forward(*inputs)
    if missing is not None:
        prior = MultivariateNormal(prior.mean, silenced(prior.lazy_covariance_matrix.to_dense(), missing))
    if conditioning is None:
        return DefaultPredictionStrategy(inputs, prior, model.train_targets, model.likelihood)
    eye = torch.eye(conditioning.factor.shape[-1], dtype=torch.float64, device=conditioning.factor.device)
    inverse_root = torch.linalg.solve_triangular(conditioning.factor, eye, upper=False).mT
    strategy = DefaultPredictionStrategy(
        inputs,
        prior,
        model.train_targets,
        model.likelihood,
        root=conditioning.factor.to(dtype),
        inv_root=inverse_root.to(dtype).contiguous(),
    )
    _store_mean_cache(strategy, conditioning.alpha.to(dtype))
    return strategy


def keep_updated_mean_cache(strategy: DefaultPredictionStrategy | None) -> None:
    """Stores a fantasy strategy's α where GPyTorch looks for it, to avoid a second solve."""
    with suppress(CachingError):
        _store_mean_cache(strategy, get_from_cache(strategy, "mean_cache").detach())


def _store_mean_cache(strategy: DefaultPredictionStrategy | None, alpha: Tensor) -> None:
    add_to_cache(strategy, "mean_cache", alpha, gpytorch.settings.observation_nan_policy.value())
