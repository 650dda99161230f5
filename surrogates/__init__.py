"""Gaussian processes of a function and of its gradient, fitted to values of the function."""

from importlib import import_module as _import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any
from warnings import warn as _warn

from surrogates.fourier.features import FingerprintError, FourierFeatures
from surrogates.fourier.surrogate import FourierGradientPosterior, FourierSurrogate, NotFittedError
from surrogates.gradient_posterior import GradientPosterior
from surrogates.hessian_posterior import HessianPosterior
from surrogates.kernels.blocks import kernel_blocks, prior_gradient_covariance, prior_gradient_variance
from surrogates.kernels.errors import UnsupportedKernelError
from surrogates.kernels.makers import gaussian_likelihood, matern_kernel, rbf_kernel
from surrogates.kernels.registry import Blocks, KernelFunctions, RadialFunctions, register_kernel
from surrogates.linalg.cholesky import NotPositiveDefiniteError
from surrogates.model_lists import gradient_posterior, map_outcomes
from surrogates.models.derived_gp import DerivedGP
from surrogates.models.fully_bayesian import FullyBayesianDerivedGP, GradientMixturePosterior
from surrogates.models.gradient_observations import GradientObservationGP
from surrogates.models.hyperparameter_samples import sample_hyperparameters
from surrogates.pinned.kernel import PinnedKernel
from surrogates.pinned.prior import PinnedPrior
from surrogates.sensitivity.active_subspace import ActiveSubspace
from surrogates.sensitivity.estimate import Band, Estimate
from surrogates.sensitivity.gradient_sensitivity import GradientSensitivity
from surrogates.sensitivity.partial_dependence import PartialDependence, partial_dependence
from surrogates.sensitivity.plots import (
    plot_gradient_arrows,
    plot_partial_dependence,
    plot_sensitivity,
    plot_sign_map,
)
from surrogates.transformed_gradient_posterior import TransformedGradientPosterior

if _TYPE_CHECKING:
    from surrogates.gradient_information import GradientInformation

__all__ = [
    "ActiveSubspace",
    "Band",
    "Blocks",
    "DerivedGP",
    "Estimate",
    "FingerprintError",
    "FourierFeatures",
    "FourierGradientPosterior",
    "FourierSurrogate",
    "FullyBayesianDerivedGP",
    "GradientInformation",
    "GradientMixturePosterior",
    "GradientObservationGP",
    "GradientPosterior",
    "GradientSensitivity",
    "HessianPosterior",
    "KernelFunctions",
    "NotFittedError",
    "NotPositiveDefiniteError",
    "PartialDependence",
    "PinnedKernel",
    "PinnedPrior",
    "RadialFunctions",
    "TransformedGradientPosterior",
    "UnsupportedKernelError",
    "gaussian_likelihood",
    "gradient_posterior",
    "kernel_blocks",
    "map_outcomes",
    "matern_kernel",
    "partial_dependence",
    "plot_gradient_arrows",
    "plot_partial_dependence",
    "plot_sensitivity",
    "plot_sign_map",
    "prior_gradient_covariance",
    "prior_gradient_variance",
    "rbf_kernel",
    "register_kernel",
    "sample_hyperparameters",
]

__version__ = _version("gradient-surrogates")


def __getattr__(name: str) -> _Any:
    """Imports ``GradientInformation`` at its first use: registering it with BoTorch takes most of a second."""
    if name == "of_each_outcome":
        _warn("of_each_outcome is now called map_outcomes", DeprecationWarning, stacklevel=2)
        return map_outcomes
    if name != "GradientInformation":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _import_module("surrogates.input_constructors").GradientInformation


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
