"""Gradient posteriors of several models: BoTorch's ``ModelListGP``, and models that differ in their data."""

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
    """Returns the posterior of ∇f at X for one model, or a list with the posterior of each model of a ``ModelListGP``.

    The models of a list may differ in data, kernels, noise and transforms, and may have several outcomes each. They are
    independent. ``mean``, ``variance`` and ``rsample`` of BoTorch's ``PosteriorList`` concatenate the gradients of
    models with one outcome in the last dimension, ``batch x q x (m·d)``, outcome by outcome. ``of_each_outcome``
    computes anything else.

    Args:
        model: A ``DerivedGP`` or ``GradientObservationGP``, or a ``ModelListGP`` of them.
        X: The points, ``batch x q x d``.

    Raises:
        TypeError: If a model is of another type, or X is not a floating point tensor.
        ValueError: As the models' ``gradient_posterior``.

    Example:
        >>> models = ModelListGP(DerivedGP(X1, Y1), DerivedGP(X2, Y2))
        >>> slopes = gradient_posterior(models, X)
        >>> of_each_outcome(GradientPosterior.positive_probability, slopes)  # batch x q x 2 x d
    """
    if isinstance(model, ModelList):
        return PosteriorList(*(gradient_posterior(cast(Model, part), X) for part in model.models))
    if not isinstance(model, GradientModel):
        raise TypeError(
            f"{type(model).__name__} has no posterior of its gradient; make the model, or that part of the list, a "
            "DerivedGP."
        )
    return model.gradient_posterior(X)


def of_each_outcome(
    question: Callable[[GradientPosterior], Tensor], posterior: GradientPosterior | PosteriorList
) -> Tensor:
    """Evaluates a function of a gradient's posterior for all outcomes, with a dimension for the outcomes after q.

    Args:
        question: A function of a ``GradientPosterior``, such as ``GradientPosterior.descent_probability``, with values
            of ``batch x q x ...``, or ``batch x q x m x ...`` for m > 1 outcomes.
        posterior: The result of ``gradient_posterior``.

    Returns:
        The values, ``batch x q x m x ...``, where m counts the outcomes of all models.

    Raises:
        TypeError: If a posterior is not a ``GradientPosterior``.
    """
    found, after_q = [], 0
    for part in _leaves(posterior):
        if not isinstance(part, GradientPosterior):
            raise TypeError(
                f"posterior must be a GradientPosterior or a PosteriorList of them, got {type(part).__name__}."
            )
        value, several = question(part), part.batch_range[1] == -3
        after_q = len(part.base_sample_shape) + part.batch_range[1] + 1
        found.append(value if several else value.unsqueeze(after_q))
    return torch.cat(found, dim=after_q)


def _leaves(posterior: Posterior) -> list[Posterior]:
    if not isinstance(posterior, PosteriorList):
        return [posterior]
    return [leaf for part in posterior.posteriors for leaf in _leaves(part)]
