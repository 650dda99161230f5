"""The Gaussian process of TuRBO and CobBO in the unit cube, and the maximization of acquisition functions."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from botorch import settings as botorch_settings
from botorch.acquisition import LogExpectedImprovement, qLogExpectedImprovement
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.exceptions.errors import ModelFittingError, OptimizationGradientError
from botorch.exceptions.warnings import OptimizationWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from gpytorch import settings as gpytorch_settings
from gpytorch.constraints import Interval
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator.utils.errors import NotPSDError
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from optimizers.designs import sobol
from optimizers.seeding import seeded
from surrogates.linalg.cholesky import JITTERS, laddered_factor
from surrogates.threads import small_algebra

logger = logging.getLogger(__name__)

LENGTHSCALES = (0.005, 2.0)
OUTPUTSCALES = (0.05, 20.0)
NOISES = (5e-4, 0.2)
"""TuRBO's ranges of the hyperparameters, for inputs in the unit cube and standardised values."""

SAMPLES = 128
"""The number of base samples of qLogEI."""

RAW_SAMPLES, RESTARTS, ITERATIONS = 128, 4, 50
"""The Sobol' points, starts and L-BFGS-B iterations of ``maximize_acquisition``."""


@dataclass(frozen=True)
class LocalGP:
    """A Gaussian process of values y to be minimized.

    Attributes:
        model: the BoTorch model of (``shift`` − y)/``scale``, negated because BoTorch's acquisition functions maximize.
        shift: the median of the fitted values.
        scale: the standard deviation of the fitted values; 1 if all are equal.
    """

    model: SingleTaskGP
    shift: float
    scale: float

    @property
    def lengthscales(self) -> Tensor:
        """The lengthscales ℓ, shape ``d``."""
        lengthscales: Tensor = self.model.covar_module.base_kernel.lengthscale.detach()[0]
        return lengthscales

    def with_data(self, X: Tensor, y: Tensor) -> LocalGP:
        """Conditions the process on other data, with the same hyperparameters and standardisation."""
        model = _model(X, ((self.shift - y) / self.scale)[:, None])
        model.load_state_dict(self.model.state_dict())
        model.eval()
        return LocalGP(model, self.shift, self.scale)

    def mean(self, X: Tensor) -> Tensor:
        """Computes the posterior mean of y, shape ``n``, at points ``X`` of shape ``n x d``."""
        with torch.no_grad(), exact_solves(max(len(X), _count(self.model))):
            mean: Tensor = self.model.posterior(X).mean[..., 0]
        return self.shift - self.scale * mean

    def std(self, X: Tensor) -> Tensor:
        """Computes the posterior standard deviation of y without noise, shape ``n``, at points ``X``, ``n x d``."""
        with torch.no_grad(), exact_solves(max(len(X), _count(self.model))):
            variance: Tensor = self.model.posterior(X).variance[..., 0]
        return self.scale * variance.sqrt()

    def draw(self, X: Tensor, normals: Tensor) -> Tensor:
        """Draws samples μ + Lz, ``q x n``, from the posterior N(μ, LLᵀ) of y at X, given ``normals`` z, ``q x n``."""
        with torch.no_grad(), exact_solves(max(len(X), _count(self.model))):
            distribution: MultivariateNormal = self.model(X)
            prior = self.model.covar_module.outputscale.double().expand(len(X))
            factor, _ = laddered_factor(distribution.covariance_matrix, prior, nugget=JITTERS[0])
            samples: Tensor = distribution.mean + normals @ factor.mT
        return self.shift - self.scale * samples

    def log_expected_improvement(
        self, best: float, sampler_seed: int = 0, pending: Tensor | None = None
    ) -> AcquisitionFunction:
        """Returns the logarithm of the expected improvement, in units of ``scale``, as an acquisition function.

        This is LogEI or, with pending points, qLogEI of a point and the pending ones jointly (Ament et al., 2023).

        Args:
            best: the value of y to improve on.
            sampler_seed: the seed of qLogEI's ``SAMPLES`` Sobol' base samples.
            pending: points whose values are awaited, ``p x d``, or None.
        """
        level = self.lengthscales.new_tensor((self.shift - best) / self.scale)
        if pending is None:
            return LogExpectedImprovement(self.model, best_f=level)
        uniforms = sobol(SAMPLES, len(pending) + 1, sampler_seed).clamp(1e-12, 1.0 - 1e-12)
        sampler = SobolQMCNormalSampler(torch.Size([SAMPLES]), seed=sampler_seed)
        # BoTorch's own base samples depend on the global default dtype.
        sampler.base_samples = torch.special.ndtri(uniforms).to(pending)[:, None]
        return qLogExpectedImprovement(self.model, best_f=level, sampler=sampler, X_pending=pending)


def fit_local_gp(X: Tensor, y: Tensor, steps: int = 50) -> LocalGP:
    """Fits a Gaussian process to float64 values y, shape ``n``, at points X of the unit cube, ``n x d``.

    The process has a constant mean, a Matérn 5/2 kernel with a lengthscale for each coordinate, and Gaussian noise. At
    most ``steps`` L-BFGS-B iterations maximize the marginal likelihood, from lengthscales 0.5, outputscale 1 and noise
    0.005, within ``LENGTHSCALES``, ``OUTPUTSCALES`` and ``NOISES``. If they fail, these initial values are used.
    """
    shift = float(y.median())
    largest = float((y - shift).abs().max())
    scale = largest * float(((y - shift) / largest).std(correction=0)) if largest > 0.0 else 1.0
    model = _model(X, ((shift - y) / scale)[:, None])
    with exact_solves(len(y)), seeded(0, [X.device]), warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizationWarning)
        likelihood = ExactMarginalLogLikelihood(model.likelihood, model)
        try:
            fit_gpytorch_mll(likelihood, optimizer_kwargs={"options": {"maxiter": steps}}, max_attempts=1)
        except ModelFittingError:
            logger.info("the Gaussian process's fit to %d values failed; initial hyperparameters are used", len(y))
            model = _model(X, ((shift - y) / scale)[:, None])
    model.eval()
    return LocalGP(model, shift, scale)


def maximize_acquisition(acquisition: AcquisitionFunction, lower: Tensor, upper: Tensor, seed: int) -> Tensor:
    """Finds the point, shape ``d``, at which an acquisition function is largest in a box.

    BoTorch's ``optimize_acqf`` (L-BFGS-B) starts from the best points of a scrambled Sobol' sequence. If it fails or
    finds no larger value, the best point of the sequence is returned. The seed determines the result.
    """
    raw = lower + (upper - lower) * sobol(RAW_SAMPLES, len(lower), seed).to(lower)
    order = max(RAW_SAMPLES, _count(acquisition.model))
    with exact_solves(order), seeded(seed, [lower.device]), warnings.catch_warnings():
        for category in (OptimizationWarning, NumericalWarning):
            warnings.simplefilter("ignore", category)
        with torch.no_grad():
            values = acquisition(raw[:, None]).nan_to_num(nan=-math.inf)
        starts = values.topk(RESTARTS).indices
        try:
            found, attained = optimize_acqf(
                acquisition,
                torch.stack([lower, upper]),
                q=1,
                num_restarts=RESTARTS,
                batch_initial_conditions=raw[starts, None],
                options={"maxiter": ITERATIONS},
                retry_on_optimization_warning=False,
            )
        except (OptimizationGradientError, NotPSDError):
            return raw[starts[0]]
    improved = bool(torch.isfinite(found).all()) and float(cast(Tensor, attained)) > float(values[starts[0]])
    return found[0].detach() if improved else raw[starts[0]]


@contextmanager
def exact_solves(order: int) -> Iterator[None]:
    """Makes GPyTorch compute with Cholesky factors, never iteratively; on one thread if the ``order`` is small."""
    exact = gpytorch_settings.fast_computations(covar_root_decomposition=False, log_prob=False, solves=False)
    with exact, small_algebra(order**3):
        yield


def _count(model: Any) -> int:
    """The number of the model's data."""
    return int(model.train_targets.shape[-1])


def _interval(bounds: tuple[float, float], X: Tensor) -> Interval:
    """A constraint with bounds in X's dtype; GPyTorch rounds them to the global default dtype."""
    constraint = Interval(*bounds)
    constraint.lower_bound, constraint.upper_bound = X.new_tensor(bounds[0]), X.new_tensor(bounds[1])
    return constraint


def _model(X: Tensor, y: Tensor) -> SingleTaskGP:
    d = X.shape[1]
    kernel = ScaleKernel(
        MaternKernel(nu=2.5, ard_num_dims=d, lengthscale_constraint=_interval(LENGTHSCALES, X)),
        outputscale_constraint=_interval(OUTPUTSCALES, X),
    ).to(X)
    likelihood = GaussianLikelihood(noise_constraint=_interval(NOISES, X)).to(X)
    kernel.base_kernel.lengthscale = X.new_full((d,), 0.5)
    kernel.outputscale, likelihood.noise = X.new_tensor(1.0), X.new_tensor(0.005)
    with botorch_settings.validate_input_scaling(False):
        return SingleTaskGP(
            X, y, likelihood=likelihood, covar_module=kernel, mean_module=ConstantMean().to(X), outcome_transform=None
        )
