"""BoTorch's pathwise samples for models with missing outcomes."""

from __future__ import annotations

from typing import Any

import torch
from botorch.sampling.pathwise.update_strategies import GaussianUpdate
from gpytorch.likelihoods import _GaussianLikelihoodBase
from gpytorch.models import ExactGP
from linear_operator import to_linear_operator

from surrogates.kernels.blocks import kernel_values
from surrogates.models.cholesky_gp import CholeskyGP
from surrogates.models.unobserved import silenced


@GaussianUpdate.register(CholeskyGP, _GaussianLikelihoodBase)
def _update_paths(model: CholeskyGP, likelihood: _GaussianLikelihoodBase, **options: Any) -> Any:
    """BoTorch's pathwise update of prior samples, in which missing outcomes have no influence."""
    if model._missing is not None:
        (X,) = model.train_inputs
        noise = torch.diag_embed(model._noise(X, model.train_targets.shape))
        prior = torch.diagonal(kernel_values(model.covar_module, X, X), dim1=-2, dim2=-1)
        loud = silenced(torch.diag_embed(prior), model._missing) - torch.diag_embed(prior)
        options["noise_covariance"] = to_linear_operator((noise + loud).to(X))
    return GaussianUpdate.dispatch(ExactGP, _GaussianLikelihoodBase)(model, likelihood, **options)
