"""Gradient posteriors of one model, or of all models in a ``ModelListGP``."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from botorch.models.model import Model, ModelList
from botorch.posteriors.posterior import Posterior
from botorch.posteriors.posterior_list import PosteriorList
from torch import Tensor

from surrogates.gradient_posterior import GradientPosterior
from surrogates.models.gradient_model import GradientModel


def gradient_posterior(model: Model, X: Tensor) -> GradientPosterior | PosteriorList:
    """Returns the posterior of ∇f at X: a ``GradientPosterior``, or a ``PosteriorList`` for a ``ModelListGP``.

    The models of a list are independent, may differ in data, kernels, noise and transforms, and may have several
    outcomes each. ``mean``, ``variance`` and ``rsample`` of a ``PosteriorList`` concatenate the gradients of models
    with one outcome, ``batch x q x (m·d)``. To evaluate another method for every outcome, use ``map_outcomes``.

    Args:
        model: A ``DerivedGP`` or ``GradientObservationGP``, or a ``ModelListGP`` of them.
        X: The points, ``batch x q x d``.

    Raises:
        TypeError: If a model has another type, or X is not a floating point tensor.
        ValueError: As ``DerivedGP.gradient_posterior``.

    Example:
        >>> models = ModelListGP(DerivedGP(X1, Y1), DerivedGP(X2, Y2))
        >>> slopes = gradient_posterior(models, X)
        >>> map_outcomes(GradientPosterior.positive_probability, slopes)  # batch x q x 2 x d
    """
    if isinstance(model, ModelList):
        return PosteriorList(*(gradient_posterior(cast(Model, part), X) for part in model.models))
    if not isinstance(model, GradientModel):
        raise TypeError(
            f"{type(model).__name__} has no posterior of its gradient; make the model, or each model of the list, a "
            "DerivedGP."
        )
    return model.gradient_posterior(X)


def map_outcomes(
    function: Callable[[GradientPosterior], Tensor], posterior: GradientPosterior | PosteriorList
) -> Tensor:
    """Evaluates a function of a ``GradientPosterior`` for every outcome.

    Args:
        function: A function of a ``GradientPosterior``, such as ``GradientPosterior.descent_probability``, that returns
            ``batch x q x ...``, or ``batch x q x m x ...`` for m > 1 outcomes.
        posterior: The result of ``gradient_posterior``.

    Returns:
        The values, ``batch x q x m x ...``, where m is the number of outcomes of all models together.

    Raises:
        TypeError: If a posterior is not a ``GradientPosterior``.
    """
    found, after_q = [], 0
    for part in _leaves(posterior):
        if not isinstance(part, GradientPosterior):
            raise TypeError(
                f"posterior must be a GradientPosterior or a PosteriorList of them, got {type(part).__name__}."
            )
        value, several = function(part), part.batch_range[1] == -3
        after_q = len(part.base_sample_shape) + part.batch_range[1] + 1
        found.append(value if several else value.unsqueeze(after_q))
    return torch.cat(found, dim=after_q)


def _leaves(posterior: Posterior) -> list[Posterior]:
    if not isinstance(posterior, PosteriorList):
        return [posterior]
    return [leaf for part in posterior.posteriors for leaf in _leaves(part)]
